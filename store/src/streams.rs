//! The record streams of a node. A stream is (agent, epoch, node): a dense sequence of records.
//!
//! A stream does not say that it has ended. One without records for [`MAX_IDLE_NS`] is forgotten, and so are the longest idle of
//! more than [`MAX_STREAMS`]. An agent that continues a forgotten stream starts again at sequence 0: records that were stored
//! and whose acknowledgement it did not receive are then stored twice.

use std::{collections::HashMap, ops::Range};

use crate::{engine::Batch, keys};

/// Nanoseconds after its last record until a stream is forgotten: 30 days.
pub(crate) const MAX_IDLE_NS: i64 = 30 * 24 * 60 * 60 * 1_000_000_000;

/// Streams that are kept of a node.
pub(crate) const MAX_STREAMS: usize = 1024;

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
    /// When it was last committed, by the store's clock; none if that is unknown.
    committed_ns: Option<i64>,
    /// The sequences up to which the last append came, if it failed: the caller gives them again.
    failed: Range<u64>,
}

impl Stream {
    /// A stream that is durable up to its next sequence.
    fn new(key: Vec<u8>, next: u64, committed_ns: Option<i64>) -> Self {
        Self { key, mark: HighWaterMark { next, durable: next }, changed: false, committed_ns, failed: 0..0 }
    }

    fn take_written(&mut self) -> u64 {
        self.changed = false;
        self.mark.next
    }
}

/// The streams of a node, each at a fixed position until [`Streams::forget`].
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
        self.find(&key).unwrap_or_else(|| self.add(Stream::new(key, 0, None)))
    }

    /// Adds a stream from its row. One that was written by an older build has no time.
    pub(crate) fn load(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        let (time, next) = value.split_last_chunk()?;
        let next = u64::from_be_bytes(*next);
        let committed_ns = time.try_into().map(i64::from_be_bytes).ok();
        self.add(Stream::new(key.to_vec(), next, committed_ns));
        Some(())
    }

    fn add(&mut self, stream: Stream) -> usize {
        self.by_key.insert(stream.key.clone(), self.all.len());
        self.all.push(stream);
        self.all.len() - 1
    }

    /// The marks of the stream at a position.
    pub(crate) fn mark(&self, at: usize) -> HighWaterMark {
        self.all.get(at).map_or_else(HighWaterMark::default, |stream| stream.mark)
    }

    /// The agents of all streams.
    pub(crate) fn agents(&self) -> impl Iterator<Item = &[u8]> {
        self.all.iter().filter_map(|stream| Some(keys::stream_of(&stream.key)?.0))
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

    /// An append to the stream at a position has failed after it came through these sequences.
    pub(crate) fn set_failed(&mut self, at: usize, sequences: Range<u64>) {
        if let Some(stream) = self.all.get_mut(at) {
            stream.failed = sequences;
        }
    }

    /// The sequences that the last append to the stream at a position came through, if it failed. It is then forgotten.
    pub(crate) fn take_failed(&mut self, at: usize) -> Range<u64> {
        self.all.get_mut(at).map_or(0..0, |stream| std::mem::take(&mut stream.failed))
    }

    /// Puts the marks that moved into a batch.
    pub(crate) fn stage(&mut self, now_ns: i64, batch: &mut Batch) {
        for &at in &self.changed {
            if let Some(stream) = self.all.get_mut(at) {
                stream.committed_ns = Some(now_ns);
                batch.put(&stream.key, &[now_ns.to_be_bytes(), stream.mark.next.to_be_bytes()].concat());
            }
        }
    }

    /// The batch was written: gives the marks in it, by position.
    pub(crate) fn take_written(&mut self) -> Vec<(usize, u64)> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|at| (at, self.all[at].take_written())).collect()
    }

    /// The batch was synced in which the stream at a position had this mark.
    pub(crate) fn set_durable(&mut self, at: usize, next: u64) {
        if let Some(stream) = self.all.get_mut(at) {
            stream.mark.durable = next;
        }
    }

    /// Forgets the streams that are beyond the limits; gives their keys. Positions are other ones afterwards.
    pub(crate) fn forget(&mut self, now_ns: i64) -> Vec<Vec<u8>> {
        let oldest = now_ns.saturating_sub(MAX_IDLE_NS);
        let times = self.all.iter_mut().map(|stream| *stream.committed_ns.get_or_insert(now_ns));
        let idle = times.filter(|time| *time < oldest).count();
        let excess = idle.max(self.all.len().saturating_sub(MAX_STREAMS));
        if excess == 0 || !self.changed.is_empty() {
            return Vec::new();
        }
        let Self { mut all, .. } = std::mem::take(self);
        all.sort_by_key(|stream| stream.committed_ns);
        let kept = all.split_off(excess);
        for stream in kept {
            self.add(stream);
        }
        all.into_iter().map(|stream| stream.key).collect()
    }
}
