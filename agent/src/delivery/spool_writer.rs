//! The thread that moves records from the queue in memory to the spool.

use std::{
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use chainscope_hygiene::warn_limited;

use super::{buffers::Buffers, stream::StreamBuffer as _};
use crate::{
    Error,
    thread::{Heartbeat, spawn},
};

#[cfg(test)]
mod tests;

/// Maximum time that records wait in memory for more records to be written with them.
const LINGER: Duration = Duration::from_millis(100);
/// Encoded bytes that are written and synced together, about.
const WRITE_BYTES: usize = 1 << 20;

/// Interval between attempts to write losses that could not be written.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Starts the thread. It ends once the buffers are closed and everything is on disk.
pub(super) fn start(buffers: &Arc<Buffers>, heartbeat: Heartbeat) -> Result<JoinHandle<()>, Error> {
    let buffers = Arc::clone(buffers);
    spawn("chainscope-spool", move || run(&buffers, &heartbeat))
}

fn run(buffers: &Buffers, heartbeat: &Heartbeat) {
    heartbeat.rest();
    while wait(buffers) {
        heartbeat.beat();
        while write_once(buffers) {
            heartbeat.beat();
        }
        heartbeat.rest();
    }
    heartbeat.beat();
    write_once(buffers);
    heartbeat.rest();
}

/// Waits until there is enough to write. Returns false once the buffers are closed and the queue is empty.
fn wait(buffers: &Buffers) -> bool {
    let mut queue = buffers.queue.lock();
    while queue.is_empty() {
        if buffers.is_closing() {
            return false;
        }
        if buffers.queued.wait_for(&mut queue, RETRY_INTERVAL).timed_out() {
            return true;
        }
    }
    let end = Instant::now() + LINGER;
    while queue.bytes() < WRITE_BYTES && !buffers.is_closing() {
        if buffers.queued.wait_until(&mut queue, end).timed_out() {
            break;
        }
    }
    true
}

/// Writes and syncs about [`WRITE_BYTES`]. Returns false if the queue had no records.
fn write_once(buffers: &Buffers) -> bool {
    let Some(spool) = &buffers.spool else { return false };
    spool.lock().write_pending_losses();
    let mut written = Vec::new();
    let mut bytes = 0;
    while bytes < WRITE_BYTES {
        let Some(batch) = buffers.queue.lock().next_batch(&Default::default()) else { break };
        bytes += batch.records.iter().map(prost::Message::encoded_len).sum::<usize>();
        spool.lock().append(&batch.node, &batch.records);
        written.push((batch.node, batch.first_sequence + batch.records.len() as u64));
    }
    // The lock is not held during a sync, which takes as long as the disk needs.
    let unsynced = spool.lock().unsynced();
    for (node, sync) in unsynced {
        let result = sync.run();
        if let Err(error) = &result {
            warn_limited!(node, %error, "records are dropped: the spool cannot be synced");
        }
        spool.lock().finish_sync(&node, result.is_ok());
    }
    for (node, next) in &written {
        if let Err(error) = buffers.queue.lock().acknowledge(node, *next) {
            warn_limited!(%error, "the sequence of the queue is inconsistent");
        }
    }
    buffers.sendable.notify_one();
    !written.is_empty()
}
