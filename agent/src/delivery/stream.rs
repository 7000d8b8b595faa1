//! What every buffer of record streams shares: the trait, the table of streams with their order and shares, and the types
//! that describe a stream.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use chainscope_proto::v1::{Batch, HighWaterMark, Record, record::Kind};

/// Records of the streams of one agent that the aggregator has not acknowledged.
///
/// The sequence of a record is its position in its stream. Once a batch was returned by [`StreamBuffer::next_batch`], its
/// records keep their sequence numbers and their bytes until they are acknowledged, so that a resend is identical.
pub(crate) trait StreamBuffer {
    /// The next batch to send in this session, of the next stream in turn that is not in `suspended`.
    fn next_batch(&mut self, suspended: &BTreeSet<String>) -> Option<Batch>;

    /// Removes the records of the node before sequence `next`, which are durable.
    fn acknowledge(&mut self, node: &str, next: u64) -> Result<(), AckError>;

    /// Starts a session: everything unacknowledged is sent again, each stream from its high-water mark. `requested` are
    /// the nodes that the hello named.
    ///
    /// Returns the nodes whose mark is outside of what this buffer holds: the aggregator lost its database, or a copy of
    /// this agent's data folder is in use elsewhere. These streams continue at the aggregator's mark.
    fn begin_session(&mut self, marks: &[HighWaterMark], requested: &[String]) -> Vec<String>;

    /// Sends the unacknowledged records of the node again.
    fn rewind(&mut self, node: &str);

    /// Sets the nodes that have a share of the capacity even if their streams are empty. Until the first call these are
    /// all nodes with a stream.
    fn expect(&mut self, nodes: &BTreeSet<String>);

    /// Whether everything is acknowledged.
    fn is_empty(&self) -> bool;

    /// Time of the oldest record that is not acknowledged, nanoseconds since 1970; a lower bound.
    fn oldest_ns(&self) -> Option<i64>;

    /// The streams, by node.
    fn status(&self) -> Vec<StreamStatus>;
}

/// When a record came to this agent, nanoseconds since 1970. The time of a log message is its sender's.
pub(super) fn arrival_ns(record: &Record) -> i64 {
    match &record.kind {
        Some(Kind::LogMessage(message)) => message.received_ns,
        _ => record.time_ns,
    }
}

/// Records that were dropped since the process started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Records.
    pub records: u64,
    /// Their encoded bytes.
    pub bytes: u64,
}

/// State of one stream, for metrics and status reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamStatus {
    /// The node.
    pub node: String,
    /// Sequence of the next record; none before the aggregator sent the stream's high-water mark.
    pub next_sequence: Option<u64>,
    /// Records that are not acknowledged.
    pub pending_records: usize,
    /// Bytes that they take in memory and on disk.
    pub pending_bytes: usize,
    /// Records that were dropped because the buffer was full.
    pub dropped: Dropped,
}

/// An aggregator acknowledged records that were never sent.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("stream of node {node:?}: sequence {next} was acknowledged, {sent} is the next one to be sent")]
pub(crate) struct AckError {
    pub(crate) node: String,
    pub(crate) next: u64,
    pub(crate) sent: u64,
}

/// One stream in a [`StreamTable`].
pub(super) trait BufferedStream {
    /// Whether the stream takes capacity, so that it counts for the shares although no records of it are expected.
    fn is_in_use(&self) -> bool;
}

/// The streams of a buffer, by node, with the order in which they are served and their shares of the capacity.
#[derive(Debug)]
pub(super) struct StreamTable<S> {
    pub(super) by_node: BTreeMap<String, S>,
    /// Nodes with a stream whose records are not expected: their streams have no share while they are empty. Few.
    unexpected: BTreeSet<String>,
    /// Node of the last batch: the next one begins after it, so that one busy node does not delay the others.
    last_served: String,
}

impl<S: BufferedStream> StreamTable<S> {
    pub(super) fn new() -> Self {
        Self { by_node: BTreeMap::new(), unexpected: BTreeSet::new(), last_served: String::new() }
    }

    pub(super) fn contains(&self, node: &str) -> bool {
        self.by_node.contains_key(node)
    }

    pub(super) fn get_mut(&mut self, node: &str) -> Option<&mut S> {
        self.by_node.get_mut(node)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &S> {
        self.by_node.values()
    }

    /// Adds a stream unless there is one; its node is expected.
    pub(super) fn insert(&mut self, node: &str, stream: impl FnOnce() -> S) {
        self.unexpected.remove(node);
        self.by_node.entry(node.to_owned()).or_insert_with(stream);
    }

    /// Replaces the nodes whose records are expected.
    pub(super) fn expect(&mut self, nodes: &BTreeSet<String>) {
        self.unexpected = self.by_node.keys().filter(|node| !nodes.contains(*node)).cloned().collect();
    }

    /// Expects records of this node from now on: one arrived.
    pub(super) fn expect_also(&mut self, node: &str) {
        self.unexpected.remove(node);
    }

    /// How many streams share the capacity, at least one.
    pub(super) fn shares(&self) -> usize {
        let unused = |node: &&String| self.by_node.get(*node).is_some_and(|stream| !stream.is_in_use());
        (self.by_node.len() - self.unexpected.iter().filter(unused).count()).max(1)
    }

    /// The batch of the first stream, in turn after the one served last, for which `take` returns records with the
    /// sequence of the first.
    pub(super) fn next_batch(
        &mut self,
        suspended: &BTreeSet<String>,
        mut take: impl FnMut(&str, &mut S) -> Option<(u64, Vec<chainscope_proto::v1::Record>)>,
    ) -> Option<Batch> {
        let last = self.last_served.clone();
        let after = (Bound::Excluded(last.as_str()), Bound::Unbounded);
        let up_to = (Bound::Unbounded, Bound::Included(last.as_str()));
        for range in [after, up_to] {
            for (node, stream) in self.by_node.range_mut::<str, _>(range) {
                if suspended.contains(node) {
                    continue;
                }
                if let Some((first_sequence, records)) = take(node, stream) {
                    self.last_served.clone_from(node);
                    return Some(Batch { node: node.clone(), first_sequence, records });
                }
            }
        }
        None
    }
}

/// Sequence at which a stream continues in a new session; `base` is that of its first unacknowledged record, if known.
///
/// The aggregator sends no mark for a stream that it does not have. A stream that was opened after the hello was sent is
/// unknown to the aggregator and continues where it is.
pub(super) fn continue_at(node: &str, marks: &[HighWaterMark], requested: &[String], base: Option<u64>) -> u64 {
    match marks.iter().find(|mark| mark.node == node) {
        Some(mark) => mark.next_sequence,
        None if requested.iter().any(|requested| requested == node) => 0,
        None => base.unwrap_or(0),
    }
}
