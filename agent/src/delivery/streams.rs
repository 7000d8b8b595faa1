//! The record streams as pillars and the uplink share them: the queue in memory, the spool behind it if there is one, and
//! the list of streams in the data folder.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    thread::JoinHandle,
};

use chainscope_proto::v1::{Batch, HighWaterMark, Record};
use parking_lot::Mutex;

use super::{
    buffers::Buffers,
    queue::MemoryQueue,
    spool::Spool,
    spool_writer,
    stream::{AckError, StreamBuffer as _, StreamStatus},
};
use crate::{
    Error,
    clock::realtime_ns,
    folder::{Epoch, Folder},
    thread::Heartbeat,
};

/// The record streams of this agent. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct RecordStreams(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    buffers: Arc<Buffers>,
    folder: Folder,
    epoch: Epoch,
    /// Nodes whose streams the aggregator refuses in this session.
    suspended: Mutex<BTreeSet<String>>,
    spool_writer: Mutex<Option<JoinHandle<()>>>,
    /// Held while a stream is opened, which waits for the disk: records of other streams do not.
    opening: Mutex<()>,
    /// Of the spool writer, if there is one.
    heartbeat: Option<Heartbeat>,
}

impl RecordStreams {
    /// Opens the existing streams of this epoch and those of `nodes`; with a spool of at most `spool_bytes`, or in memory
    /// only.
    pub(crate) fn open<'a>(
        folder: &Folder,
        limit_bytes: usize,
        spool_bytes: Option<u64>,
        nodes: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, Error> {
        let epoch = folder.epoch()?;
        let mut queue = MemoryQueue::new(limit_bytes);
        let mut spool = match spool_bytes {
            Some(limit) => Some(Spool::open(folder.path(), &epoch, limit, realtime_ns())?),
            None => {
                if Spool::is_in(folder.path()) {
                    tracing::warn!(
                        "this agent runs without a spool: the spooled records of an earlier run are not sent"
                    );
                }
                None
            }
        };
        for node in folder.streams()? {
            match &mut spool {
                Some(spool) => {
                    spool.open_stream(&node, true)?;
                    queue.open(&node, Some(0));
                }
                None => queue.open(&node, None),
            }
        }
        let buffers = Arc::new(Buffers::new(queue, spool));
        let heartbeat = buffers.spool.is_some().then(|| Heartbeat::new("spool writer"));
        let writer = heartbeat.clone().map(|heartbeat| spool_writer::start(&buffers, heartbeat)).transpose()?;
        let streams = Self(Arc::new(Shared {
            buffers,
            folder: folder.clone(),
            epoch,
            suspended: Mutex::default(),
            spool_writer: Mutex::new(writer),
            opening: Mutex::default(),
            heartbeat,
        }));
        for node in nodes {
            streams.open_stream(node)?;
        }
        Ok(streams)
    }

    /// Opens the stream of a node unless it is open. The name is on disk before the stream is used: a stream whose name
    /// is there after a restart continues at the aggregator's high-water mark.
    pub(crate) fn open_stream(&self, node: &str) -> Result<(), Error> {
        let _opening = self.0.opening.lock();
        if self.0.buffers.queue.lock().has(node) {
            return Ok(());
        }
        self.0.folder.add_stream(node)?;
        if let Some(spool) = &self.0.buffers.spool {
            spool.lock().open_stream(node, false)?;
        }
        self.0.buffers.queue.lock().open(node, Some(0));
        Ok(())
    }

    /// Of the spool writer, if there is a spool.
    pub(crate) fn heartbeat(&self) -> Option<Heartbeat> {
        self.0.heartbeat.clone()
    }

    pub(crate) fn epoch(&self) -> &Epoch {
        &self.0.epoch
    }

    /// Sets the nodes whose records are expected: the capacity is shared among them and the streams that are not empty.
    pub(crate) fn expect(&self, nodes: &BTreeSet<String>) {
        self.0.buffers.queue.lock().expect(nodes);
        if let Some(spool) = &self.0.buffers.spool {
            spool.lock().expect(nodes);
        }
    }

    /// Nodes with a stream.
    pub(crate) fn names(&self) -> Vec<String> {
        self.0.buffers.queue.lock().names()
    }

    /// Adds a fact. Returns false if the stream is full.
    pub(crate) fn push(&self, node: &str, record: Record) -> bool {
        let is_accepted = self.0.buffers.queue.lock().push(node, record);
        self.0.buffers.notify_queued();
        is_accepted
    }

    /// Adds a fact that can be offered again, if less than half of the node's share of memory and spool is in use. Returns how
    /// many records the stream was given until now, or the record.
    pub(crate) fn offer(&self, node: &str, record: Record) -> Result<u64, Box<Record>> {
        if self.0.buffers.spool.as_ref().is_some_and(|spool| !spool.lock().has_room(node)) {
            return Err(Box::new(record));
        }
        let accepted = self.0.buffers.queue.lock().offer(node, record)?;
        self.0.buffers.notify_queued();
        Ok(accepted)
    }

    /// How many of the records that a stream was given no kill of this process would lose.
    pub(crate) fn durable(&self, node: &str) -> u64 {
        self.0.buffers.queue.lock().durable(node)
    }

    /// Adds a state record, which replaces an unsent one of the same target.
    pub(crate) fn merge(&self, node: &str, record: Record) {
        self.0.buffers.queue.lock().merge(node, record);
        self.0.buffers.notify_queued();
    }

    /// The next batch to send in this session.
    pub(crate) fn next_batch(&self) -> Option<Batch> {
        let suspended = self.0.suspended.lock();
        self.0.buffers.outgoing().next_batch(&suspended)
    }

    pub(crate) fn acknowledge(&self, node: &str, next: u64) -> Result<(), AckError> {
        let result = self.0.buffers.outgoing().acknowledge(node, next);
        // The freed capacity may allow a loss to be reported or more to be sent.
        self.0.buffers.sendable.notify_one();
        result
    }

    /// Starts a session: see [`super::stream::StreamBuffer::begin_session`].
    pub(crate) fn begin_session(&self, marks: &[HighWaterMark], requested: &[String]) -> Vec<String> {
        self.0.suspended.lock().clear();
        self.0.buffers.outgoing().begin_session(marks, requested)
    }

    /// Stops sending the node's stream, which the aggregator refuses. Returns false if it is suspended already.
    pub(crate) fn suspend(&self, node: &str) -> bool {
        self.0.suspended.lock().insert(node.to_owned())
    }

    #[cfg(test)]
    pub(crate) fn is_suspended(&self, node: &str) -> bool {
        self.0.suspended.lock().contains(node)
    }

    /// Sends the suspended streams again, from their first unacknowledged record: refused batches were discarded.
    pub(crate) fn resume_suspended(&self) {
        let suspended = std::mem::take(&mut *self.0.suspended.lock());
        for node in &suspended {
            self.0.buffers.outgoing().rewind(node);
        }
        if !suspended.is_empty() {
            self.0.buffers.sendable.notify_one();
        }
    }

    /// Whether everything is acknowledged.
    pub(crate) fn is_empty(&self) -> bool {
        let is_queue_empty = self.0.buffers.queue.lock().is_empty();
        is_queue_empty && self.0.buffers.spool.as_ref().is_none_or(|spool| spool.lock().is_empty())
    }

    /// Time of the oldest record that a kill of this process would lose.
    pub(crate) fn oldest_volatile_ns(&self) -> Option<i64> {
        let queued = self.0.buffers.queue.lock().oldest_ns();
        let loss = self.0.buffers.spool.as_ref().and_then(|spool| spool.lock().pending_loss_ns());
        queued.into_iter().chain(loss).min()
    }

    /// Time of the oldest record that is not acknowledged; a lower bound.
    pub(crate) fn oldest_pending_ns(&self) -> Option<i64> {
        let spooled = self.0.buffers.spool.as_ref().and_then(|spool| spool.lock().oldest_ns());
        self.oldest_volatile_ns().into_iter().chain(spooled).min()
    }

    /// Records that the spool dropped, by node. Records that the queue dropped were reported to the caller of
    /// [`Self::push`].
    pub(crate) fn spool_dropped(&self) -> BTreeMap<String, u64> {
        self.0.buffers.spool.as_ref().map_or_else(BTreeMap::new, |spool| spool.lock().dropped())
    }

    /// The streams, by node: the sum of queue and spool.
    pub(crate) fn status(&self) -> Vec<StreamStatus> {
        let queued = self.0.buffers.queue.lock().status();
        let Some(spool) = &self.0.buffers.spool else { return queued };
        let mut streams = spool.lock().status();
        let queued: BTreeMap<&str, &StreamStatus> =
            queued.iter().map(|queued| (queued.node.as_str(), queued)).collect();
        for stream in &mut streams {
            if let Some(queued) = queued.get(stream.node.as_str()) {
                stream.pending_records += queued.pending_records;
                stream.pending_bytes += queued.pending_bytes;
                stream.dropped.records += queued.dropped.records;
                stream.dropped.bytes += queued.dropped.bytes;
            }
        }
        streams
    }

    /// Waits until another [`Self::next_batch`] may return a batch.
    pub(crate) async fn wait_sendable(&self) {
        self.0.buffers.sendable.notified().await;
    }

    /// No records will be pushed any more. With a spool: returns once everything is on disk.
    pub(crate) fn close(&self) {
        self.0.buffers.close();
        let writer = self.0.spool_writer.lock().take();
        if let Some(writer) = writer
            && let Err(panic) = writer.join()
        {
            std::panic::resume_unwind(panic);
        }
        self.0.buffers.sendable.notify_one();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.0.buffers.is_closing()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Streams that were never closed, as after a failed start.
        self.buffers.close();
        if let Some(writer) = self.spool_writer.get_mut().take() {
            // The panic hook has printed a panic of the thread.
            let _ = writer.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _, thread, time::Duration};

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn opening_a_stream_does_not_delay_records_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        let streams = RecordStreams::open(&folder, 1 << 20, None, ["a"]).unwrap();
        // A disk that does not answer: the list of streams is a pipe.
        let path = folder.path().join("streams");
        let list = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let opened = streams.clone();
        let opener = thread::spawn(move || opened.open_stream("b"));
        // Returns once the thread reads.
        let mut pipe = fs::OpenOptions::new().write(true).open(&path).unwrap();
        let (sender, pushed) = crossbeam_channel::bounded(1);
        let pushing = streams.clone();
        thread::spawn(move || sender.send(pushing.push("a", Record::default())));
        assert_eq!(pushed.recv_timeout(Duration::from_secs(30)), Ok(true));
        pipe.write_all(&list).unwrap();
        drop(pipe);
        opener.join().unwrap().unwrap();
        assert_eq!(streams.names(), ["a", "b"]);
    }
}
