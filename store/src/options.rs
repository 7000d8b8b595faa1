//! How a store is set up, and how long it keeps what it has.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Memory, disk and segment sizes of a store. The defaults suit one aggregator.
#[derive(Clone)]
pub struct StoreOptions {
    /// Bytes of the block cache, index and filter blocks included.
    pub block_cache_bytes: usize,
    /// Bytes of all write buffers together.
    pub write_buffer_bytes: usize,
    /// Bytes of records that may wait for [`crate::Store::sync`]; beyond it `append` commits by itself.
    pub stage_bytes: usize,
    /// Size of the preallocated file that is deleted when the disk is full, so that eviction can run. 0: none.
    /// At least four times `stage_bytes` plus `write_buffer_bytes` is advised.
    pub ballast_bytes: u64,
    /// Nothing but eviction writes while the disk has fewer free bytes than this. The engine needs them to sort what
    /// it has: about eight times `write_buffer_bytes`. With less, compaction can stall until space is freed.
    pub min_free_bytes: u64,
    /// Size at which a store in memory is full (see [`crate::Store::in_memory`]).
    pub memory_limit_bytes: u64,
    /// A segment closes at this many messages, or earlier (see [`Retention`]).
    pub segment_rows: u64,
    /// A segment closes at this many bytes, or earlier.
    pub segment_bytes: u64,
    /// Nanoseconds since 1970, now: the age of a segment is measured with it.
    pub clock: Arc<dyn Fn() -> i64 + Send + Sync>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            block_cache_bytes: 64 << 20,
            write_buffer_bytes: 24 << 20,
            stage_bytes: 4 << 20,
            ballast_bytes: 64 << 20,
            min_free_bytes: 256 << 20,
            memory_limit_bytes: 512 << 20,
            segment_rows: 1_000_000,
            segment_bytes: 8 << 30,
            clock: Arc::new(wall_clock),
        }
    }
}

impl fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreOptions")
            .field("block_cache_bytes", &self.block_cache_bytes)
            .field("write_buffer_bytes", &self.write_buffer_bytes)
            .field("stage_bytes", &self.stage_bytes)
            .field("ballast_bytes", &self.ballast_bytes)
            .field("min_free_bytes", &self.min_free_bytes)
            .field("memory_limit_bytes", &self.memory_limit_bytes)
            .field("segment_rows", &self.segment_rows)
            .field("segment_bytes", &self.segment_bytes)
            .finish_non_exhaustive()
    }
}

#[expect(clippy::disallowed_methods, reason = "the default of `StoreOptions::clock`")]
fn wall_clock() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

/// How much of a node is kept. Whole segments go, oldest first, so that a limit is overrun by up to one segment:
/// a sixteenth of the limit.
///
/// Messages are what `rows` counts. Chunks that belong to no message (a connection that cannot be decrypted) are
/// bounded by `bytes` and `age` alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Most messages.
    pub rows: Option<u64>,
    /// Most bytes of rows, chunks and index entries, before compression.
    pub bytes: Option<u64>,
    /// Greatest age of a segment's newest record.
    pub age: Option<Duration>,
}

impl Retention {
    /// The part of each limit that one segment may hold.
    pub(crate) const PARTS: u64 = 16;

    /// A limit of a few bytes must not make a segment of every record.
    const LEAST_SEGMENT_BYTES: u64 = 4096;

    /// Whether a segment of this size is to be closed before the next record goes in.
    pub(crate) fn closes(&self, options: &StoreOptions, rows: u64, bytes: u64, open_for_ns: i64) -> bool {
        let part = |limit: Option<u64>, most: u64, least: u64| {
            limit.map_or(most, |limit| (limit / Self::PARTS).min(most)).max(least)
        };
        rows >= part(self.rows, options.segment_rows, 1)
            || bytes >= part(self.bytes, options.segment_bytes, Self::LEAST_SEGMENT_BYTES)
            || self.age_ns().is_some_and(|age| open_for_ns > age / Self::PARTS as i64)
    }

    /// The age limit in nanoseconds.
    pub(crate) fn age_ns(&self) -> Option<i64> {
        self.age.map(|age| i64::try_from(age.as_nanos()).unwrap_or(i64::MAX))
    }
}
