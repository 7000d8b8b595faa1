//! The writer's memory of where the chunks of live connections are, so that it searches the engine for those only that can lie
//! in an older segment.

use std::collections::{BTreeMap, HashMap};

use super::{Chunk, ChunkRange};
use crate::Error;

/// Runs of chunks of a node that are remembered, and connections whose older segments were searched. Beyond it all of
/// them are forgotten, and searched again.
pub(crate) const MAX_REMEMBERED: usize = 65_536;

/// Where the chunks of live connections are, for the writer.
#[derive(Default)]
pub(crate) struct ChunkRuns {
    /// Runs of counters, both ends included, whose chunks are in the open segment or nowhere: a chunk that comes later goes
    /// there, too. By connection, agent, direction (incoming) and first counter, the last one. They do not touch each other.
    runs: BTreeMap<(u64, u32, bool, u64), u64>,
    /// By connection, the greatest counter of a chunk in an older segment, once it was searched.
    older: HashMap<u64, Option<u64>>,
    /// Whether chunks of the open segment are staged.
    are_staged: bool,
    /// Whether chunks of older segments are staged: the segment closed before they were committed.
    are_staged_in_older: bool,
}

impl ChunkRuns {
    /// A new segment is open, with no chunk in it.
    pub(crate) fn clear(&mut self) {
        self.runs.clear();
        self.older.clear();
        self.are_staged_in_older |= std::mem::take(&mut self.are_staged);
    }

    /// A chunk was staged for the open segment.
    pub(crate) fn add(&mut self, chunk: Chunk) {
        self.are_staged = true;
        self.add_known(ChunkRange::of_chunk(chunk));
    }

    /// What was staged is written.
    pub(crate) fn mark_written(&mut self) {
        (self.are_staged, self.are_staged_in_older) = (false, false);
    }

    /// A connection has ended.
    pub(crate) fn end(&mut self, connection: u64, agent: u32) {
        let of_connection = (connection, agent, false, 0)..=(connection, agent, true, u64::MAX);
        let ended: Vec<_> = self.runs.range(of_connection).map(|(key, _)| *key).collect();
        for key in ended {
            self.runs.remove(&key);
        }
        self.older.remove(&connection);
    }

    /// The range without what is known at its ends to be in the open segment or nowhere; none if all of it is.
    pub(crate) fn unknown_of(&self, range: ChunkRange) -> Option<ChunkRange> {
        let key = |counter| (range.connection, range.agent, range.incoming, counter);
        let run_of = |counter| {
            let (&(.., first), &last) = self.runs.range(key(0)..=key(counter)).next_back()?;
            (counter <= last).then_some((first, last))
        };
        let first = match run_of(range.first) {
            Some((_, end)) if range.last <= end => return None,
            Some((_, end)) => end + 1,
            None => range.first,
        };
        let last = run_of(range.last).map_or(range.last, |(start, _)| start - 1);
        Some(ChunkRange { first, last, ..range })
    }

    /// The chunks are in the open segment or nowhere: they were added, or searched and copied.
    pub(crate) fn add_known(&mut self, range: ChunkRange) {
        let ChunkRange { connection, incoming, agent, mut first, mut last } = range;
        let key = |counter| (connection, agent, incoming, counter);
        // Those that it overlaps or touches become part of it.
        while let Some((&known, &end)) = self.runs.range(key(0)..=key(last.saturating_add(1))).next_back() {
            if end.saturating_add(1) < first {
                break;
            }
            self.runs.remove(&known);
            (first, last) = (first.min(known.3), last.max(end));
        }
        if self.runs.len() >= MAX_REMEMBERED {
            self.runs.clear();
        }
        self.runs.insert(key(first), last);
    }

    /// Runs and searched connections that are remembered.
    #[cfg(test)]
    pub(crate) fn remembered(&self) -> usize {
        self.runs.len() + self.older.len()
    }

    /// Whether chunks of older segments are staged, where no search of the engine finds them.
    pub(crate) fn are_staged_in_older(&self) -> bool {
        self.are_staged_in_older
    }

    /// Whether a chunk of the range can lie in an older segment; `greatest` searches the engine for the greatest counter of its
    /// connection that does.
    pub(crate) fn may_be_older(
        &mut self,
        range: ChunkRange,
        greatest: impl FnOnce() -> Result<Option<u64>, Error>,
    ) -> Result<bool, Error> {
        let older = match self.older.get(&range.connection) {
            Some(older) => *older,
            None => {
                let older = greatest()?;
                if self.older.len() >= MAX_REMEMBERED {
                    self.older.clear();
                }
                self.older.insert(range.connection, older);
                older
            }
        };
        Ok(older.is_some_and(|older| range.first <= older))
    }
}
