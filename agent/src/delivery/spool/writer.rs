//! The thread between the lanes in memory and the spool.

use std::time::{Duration, Instant};

use chainscope_hygiene::warn_limited;

use crate::delivery::lanes::shared::Inner;

/// How long records may gather before they are written …
const GATHER: Duration = Duration::from_millis(100);
/// … and how many bytes.
const GATHER_BYTES: usize = 1 << 20;

/// How often losses that could not be written are tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Moves records until the lanes are closed and everything is on disk.
pub(crate) fn run(shared: &Inner) {
    while wait(shared) {
        while round(shared) {}
    }
    round(shared);
}

/// Waits until there is enough to write; false if there will be nothing any more.
fn wait(shared: &Inner) -> bool {
    let mut lanes = shared.lanes.lock();
    while lanes.is_empty() {
        if shared.is_closing() {
            return false;
        }
        if shared.staged.wait_for(&mut lanes, RETRY).timed_out() {
            return true;
        }
    }
    let end = Instant::now() + GATHER;
    while lanes.bytes() < GATHER_BYTES && !shared.is_closing() {
        if shared.staged.wait_until(&mut lanes, end).timed_out() {
            break;
        }
    }
    true
}

/// Writes and syncs about so much as gathers; false if there was nothing.
fn round(shared: &Inner) -> bool {
    let Some(spool) = &shared.spool else { return false };
    spool.lock().tell_owed();
    let mut taken = Vec::new();
    let mut bytes = 0;
    while bytes < GATHER_BYTES {
        let Some(batch) = shared.lanes.lock().next_batch(&Default::default()) else { break };
        bytes += batch.records.iter().map(prost::Message::encoded_len).sum::<usize>();
        spool.lock().append(&batch.node, &batch.records);
        taken.push((batch.node, batch.first_sequence + batch.records.len() as u64));
    }
    // A sync takes as long as the disk needs: nobody waits for the lock meanwhile.
    let unsynced = spool.lock().unsynced();
    for (node, sync) in unsynced {
        let result = sync.run();
        if let Err(error) = &result {
            warn_limited!(node, %error, "records are dropped: the spool cannot be synced");
        }
        spool.lock().synced(&node, result.is_ok());
    }
    for (node, next) in &taken {
        if let Err(error) = shared.lanes.lock().acknowledge(node, *next) {
            warn_limited!(%error, "the lanes lost count");
        }
    }
    shared.bell.notify_one();
    !taken.is_empty()
}
