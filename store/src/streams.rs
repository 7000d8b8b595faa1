//! The record streams of a node. A stream is (agent, epoch, node): a dense sequence of records.

use std::collections::HashMap;

use crate::engine::Batch;

/// Which stream of which node.
#[derive(Clone, Copy)]
pub(crate) struct StreamName<'a> {
    pub(crate) node: &'a str,
    pub(crate) agent: &'a str,
    pub(crate) epoch: &'a [u8],
}

/// High-water marks of a stream: the sequence of the next record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HighWaterMark {
    /// Of what was taken.
    pub(crate) next: u64,
    /// Of what is synced.
    pub(crate) durable: u64,
}

struct Stream {
    key: Vec<u8>,
    mark: HighWaterMark,
    changed: bool,
}

/// The streams of a node, each at a fixed position.
#[derive(Default)]
pub(crate) struct Streams {
    all: Vec<Stream>,
    by_key: HashMap<Vec<u8>, usize>,
    /// Positions of those that moved since the last commit.
    changed: Vec<usize>,
}

impl Streams {
    /// The position of a stream, by its key.
    pub(crate) fn find(&self, key: &[u8]) -> Option<usize> {
        self.by_key.get(key).copied()
    }

    /// The position of a stream, by its key. A new one begins at 0.
    pub(crate) fn find_or_add(&mut self, key: Vec<u8>) -> usize {
        self.find(&key).unwrap_or_else(|| self.add(key, 0))
    }

    /// Adds a stream that is durable up to its next sequence.
    pub(crate) fn add(&mut self, key: Vec<u8>, next: u64) -> usize {
        self.by_key.insert(key.clone(), self.all.len());
        self.all.push(Stream { key, mark: HighWaterMark { next, durable: next }, changed: false });
        self.all.len() - 1
    }

    /// The marks of the stream at a position.
    pub(crate) fn mark(&self, at: usize) -> HighWaterMark {
        self.all.get(at).map_or_else(HighWaterMark::default, |stream| stream.mark)
    }

    /// Moves the stream at a position.
    pub(crate) fn set_next(&mut self, at: usize, next: u64) {
        if let Some(stream) = self.all.get_mut(at) {
            stream.mark.next = next;
            if !std::mem::replace(&mut stream.changed, true) {
                self.changed.push(at);
            }
        }
    }

    /// Puts the marks that moved into a batch.
    pub(crate) fn stage(&self, batch: &mut Batch) {
        for stream in self.changed.iter().filter_map(|&at| self.all.get(at)) {
            batch.put(&stream.key, &stream.mark.next.to_be_bytes());
        }
    }

    /// The batch was written.
    pub(crate) fn mark_durable(&mut self) {
        for at in self.changed.drain(..) {
            if let Some(stream) = self.all.get_mut(at) {
                stream.mark.durable = stream.mark.next;
                stream.changed = false;
            }
        }
    }
}
