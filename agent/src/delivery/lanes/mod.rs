//! Lanes: for each node the queue of records that the aggregator has not yet made durable.
//!
//! ```text
//!   push ──▶ │ acknowledged? ▏ sent ▏ not yet sent │ ◀── state (newest per target), appended when a batch is built
//!            base                                  base + len
//! ```
//!
//! A record gets its sequence by its place: `base` is the sequence of the first one that is kept, and nothing in the
//! queue is ever changed or removed except by an acknowledgement, so that a resend after a reconnection is the same
//! bytes under the same numbers. What does not fit is dropped before it has a number, counted, and told by one `Loss`
//! record: before the next record that is taken, or as soon as half of the lane is free. Chunks and messages may fill
//! seven eighths of a lane; what is told of connections and targets is small, and is what losses add up by. This module decides only; [`shared`] locks, wakes and keeps the list of names.

mod lane;
pub(crate) mod shared;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use chainscope_proto::v1::{Batch, LaneMark, Record};
use lane::Lane;

/// Most encoded bytes of a batch, unless one record alone is larger.
pub(crate) const BATCH_BYTES: usize = 1 << 20;

/// What was dropped in a lane since the process began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Records.
    pub records: u64,
    /// Their encoded bytes.
    pub bytes: u64,
}

/// One lane, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneStatus {
    /// The node.
    pub node: String,
    /// Sequence of the next record; none before the aggregator said where the lane stands.
    pub next_sequence: Option<u64>,
    /// Records that are not acknowledged.
    pub pending_records: usize,
    /// Memory that they take.
    pub pending_bytes: usize,
    /// What did not fit.
    pub dropped: Dropped,
}

/// An aggregator acknowledged what was never sent.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("lane of node {node:?}: sequence {next} was acknowledged, {sent} is the next one to be sent")]
pub(crate) struct AckError {
    pub(crate) node: String,
    pub(crate) next: u64,
    pub(crate) sent: u64,
}

/// The names of a table in turn, beginning after one of them.
pub(crate) fn after<T>(table: &BTreeMap<String, T>, last: &str) -> Vec<String> {
    let behind = table.range::<str, _>((Bound::Excluded(last), Bound::Unbounded));
    let up_to = table.range::<str, _>((Bound::Unbounded, Bound::Included(last)));
    behind.chain(up_to).map(|(node, _)| node.clone()).collect()
}

/// The lanes of one agent.
#[derive(Debug)]
pub(crate) struct Lanes {
    lanes: BTreeMap<String, Lane>,
    /// Nodes that records are expected of: their lanes have a share, whatever they hold.
    expected: BTreeSet<String>,
    /// Memory for all lanes together.
    limit_bytes: usize,
    /// The lane that was served last: the next batch begins after it, so that a loud node does not hold up the others.
    served: String,
}

impl Lanes {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self { lanes: BTreeMap::new(), expected: BTreeSet::new(), limit_bytes, served: String::new() }
    }

    /// Adds a lane. `base`: 0 if the epoch never had it, none if only the aggregator knows where it stands.
    pub(crate) fn open(&mut self, node: &str, base: Option<u64>) {
        self.expected.insert(node.to_owned());
        self.lanes.entry(node.to_owned()).or_insert_with(|| Lane::new(base));
    }

    pub(crate) fn has(&self, node: &str) -> bool {
        self.lanes.contains_key(node)
    }

    /// Says which nodes records are expected of, from now on; until then it is every node with a lane.
    pub(crate) fn expect(&mut self, nodes: &BTreeSet<String>) {
        self.expected.clone_from(nodes);
    }

    /// Each node's share of the memory.
    fn quota(&self) -> usize {
        let has_share = |(node, lane): &(&String, &Lane)| self.expected.contains(*node) || !lane.is_empty();
        self.limit_bytes / self.lanes.iter().filter(has_share).count().max(1)
    }

    /// Takes a fact; false if there was no room, or no such lane.
    pub(crate) fn push(&mut self, node: &str, record: Record) -> bool {
        if self.has(node) && !self.expected.contains(node) {
            // It comes all the same: it has a share at least until it is empty again.
            self.expected.insert(node.to_owned());
        }
        let quota = self.quota();
        self.lanes.get_mut(node).is_some_and(|lane| lane.push(record, quota))
    }

    /// Takes a state record: it replaces the last one of the same target that is not on its way yet.
    pub(crate) fn merge(&mut self, node: &str, record: Record) {
        if let Some(lane) = self.lanes.get_mut(node) {
            lane.merge(record);
        }
    }

    /// The next batch to send in this session, of the next lane in turn that is not set aside.
    pub(crate) fn next_batch(&mut self, aside: &BTreeSet<String>) -> Option<Batch> {
        let quota = self.quota();
        for node in after(&self.lanes, &self.served) {
            let Some(lane) = self.lanes.get_mut(&node).filter(|_| !aside.contains(&node)) else { continue };
            if let Some((first_sequence, records)) = lane.take(quota, BATCH_BYTES - node.len() - 64) {
                self.served.clone_from(&node);
                return Some(Batch { node, first_sequence, records });
            }
        }
        None
    }

    /// Forgets what is durable.
    pub(crate) fn acknowledge(&mut self, node: &str, next: u64) -> Result<(), AckError> {
        let quota = self.quota();
        let Some(lane) = self.lanes.get_mut(node) else { return Ok(()) };
        lane.acknowledge(next, quota).map_err(|sent| AckError { node: node.to_owned(), next, sent })
    }

    /// A new session begins: everything unacknowledged is sent again, from where the aggregator says it stands.
    ///
    /// Returns the lanes whose numbering had to follow the aggregator's, for the log: it lost its database, or a copy of
    /// this agent's data folder is in use elsewhere.
    pub(crate) fn welcome(&mut self, marks: &[LaneMark], asked: &[String]) -> Vec<String> {
        let mut renumbered = Vec::new();
        for (node, lane) in &mut self.lanes {
            // A lane that was opened after the hello was sent is new: it stands where it stood.
            let mark = match marks.iter().find(|mark| mark.node == *node) {
                Some(mark) => mark.next_sequence,
                None if asked.contains(node) => 0,
                None => lane.base().unwrap_or(0),
            };
            if lane.restart(mark) {
                renumbered.push(node.clone());
            }
        }
        renumbered
    }

    /// Sends what is not acknowledged of a lane again.
    pub(crate) fn rewind(&mut self, node: &str) {
        if let Some(lane) = self.lanes.get_mut(node) {
            lane.rewind();
        }
    }

    /// Memory that is in use.
    pub(crate) fn bytes(&self) -> usize {
        self.lanes.values().map(Lane::bytes).sum()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.lanes.keys().cloned().collect()
    }

    /// Nothing waits for an acknowledgement.
    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.values().all(Lane::is_empty)
    }

    /// Time of the oldest record that is not acknowledged.
    pub(crate) fn oldest_ns(&self) -> Option<i64> {
        self.lanes.values().filter_map(Lane::oldest_ns).min()
    }

    pub(crate) fn status(&self) -> Vec<LaneStatus> {
        self.lanes.iter().map(|(node, lane)| lane.status(node)).collect()
    }
}
