//! Record streams in memory.
//!
//! ```text
//!   push ──▶ │ acknowledged? ▏ sent ▏ not yet sent │ ◀── newest state of each target, appended when a batch is built
//!            base                                  base + len
//! ```
//!
//! The sequence of a record is its position: `base` is the sequence of the first record of the queue. Records leave the
//! queue only by an acknowledgement, so that a resend after a reconnection has the same bytes and sequence numbers.
//!
//! Records that do not fit are dropped before they have a sequence number. They are counted and reported by one `Loss`
//! record: before the next record that is accepted, or as soon as half of the stream's share is free. Chunks and messages
//! may fill seven eighths of a share; the rest is for connection events, target events and losses.

mod overflow;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use chainscope_proto::v1::{Batch, HighWaterMark, Record};
use stream::QueuedStream;

use super::{
    batch::max_record_bytes,
    stream::{AckError, BufferedStream, StreamBuffer, StreamStatus, StreamTable, continue_at},
};

/// The record streams of one agent, in memory.
#[derive(Debug)]
pub(crate) struct MemoryQueue {
    streams: StreamTable<QueuedStream>,
    /// Memory for all streams together.
    limit_bytes: usize,
}

impl BufferedStream for QueuedStream {
    fn is_in_use(&self) -> bool {
        !self.is_empty()
    }
}

impl MemoryQueue {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self { streams: StreamTable::new(), limit_bytes }
    }

    /// Adds a stream. `base`: 0 if the epoch never had it, none if only the aggregator knows its high-water mark.
    pub(crate) fn open(&mut self, node: &str, base: Option<u64>) {
        self.streams.insert(node, || QueuedStream::new(base));
    }

    pub(crate) fn has(&self, node: &str) -> bool {
        self.streams.contains(node)
    }

    /// Memory that one stream may use.
    fn quota(&self) -> usize {
        self.limit_bytes / self.streams.shares()
    }

    /// Adds a fact. Returns false if the stream is full, or the node has none.
    pub(crate) fn push(&mut self, node: &str, record: Record) -> bool {
        self.streams.expect_also(node);
        let quota = self.quota();
        self.streams.get_mut(node).is_some_and(|stream| stream.push(record, quota))
    }

    /// Adds a fact that can be offered again. Returns how many records the stream was given until now, or the record.
    pub(crate) fn offer(&mut self, node: &str, record: Record) -> Result<u64, Box<Record>> {
        self.streams.expect_also(node);
        let quota = self.quota();
        match self.streams.get_mut(node) {
            Some(stream) => stream.offer(record, quota),
            None => Err(Box::new(record)),
        }
    }

    /// How many of the records that a stream was given are durable: acknowledged, or in the spool.
    pub(crate) fn durable(&self, node: &str) -> u64 {
        self.streams.by_node.get(node).map_or(0, QueuedStream::durable)
    }

    /// Adds a state record. It replaces the one of the same target that is not in a batch yet.
    pub(crate) fn merge(&mut self, node: &str, record: Record) {
        if let Some(stream) = self.streams.get_mut(node) {
            stream.merge(record);
        }
    }

    /// Memory in use.
    pub(crate) fn bytes(&self) -> usize {
        self.streams.values().map(QueuedStream::bytes).sum()
    }

    /// Nodes with a stream.
    pub(crate) fn names(&self) -> Vec<String> {
        self.streams.by_node.keys().cloned().collect()
    }
}

impl StreamBuffer for MemoryQueue {
    fn next_batch(&mut self, suspended: &BTreeSet<String>) -> Option<Batch> {
        let quota = self.quota();
        self.streams.next_batch(suspended, |node, stream| stream.take(quota, max_record_bytes(node)))
    }

    fn acknowledge(&mut self, node: &str, next: u64) -> Result<(), AckError> {
        let quota = self.quota();
        let Some(stream) = self.streams.get_mut(node) else { return Ok(()) };
        stream.acknowledge(next, quota).map_err(|sent| AckError { node: node.to_owned(), next, sent })
    }

    fn begin_session(&mut self, marks: &[HighWaterMark], requested: &[String]) -> Vec<String> {
        let mut renumbered = Vec::new();
        for (node, stream) in &mut self.streams.by_node {
            if stream.restart(continue_at(node, marks, requested, stream.base())) {
                renumbered.push(node.clone());
            }
        }
        renumbered
    }

    fn rewind(&mut self, node: &str) {
        if let Some(stream) = self.streams.get_mut(node) {
            stream.rewind();
        }
    }

    fn expect(&mut self, nodes: &BTreeSet<String>) {
        self.streams.expect(nodes);
    }

    fn is_empty(&self) -> bool {
        self.streams.values().all(QueuedStream::is_empty)
    }

    fn oldest_ns(&self) -> Option<i64> {
        self.streams.values().filter_map(QueuedStream::oldest_ns).min()
    }

    fn status(&self) -> Vec<StreamStatus> {
        self.streams.by_node.iter().map(|(node, stream)| stream.status(node)).collect()
    }
}
