//! Space: how much of a node is kept, what is evicted, and whether the disk is full.

use std::time::Duration;

use super::Store;
use crate::{Error, Evicted, Retention, SnapshotLimits, engine::LocalDisk, keys, kind::RetentionClass, writer::Writer};

/// Files that compaction has not sorted in at which writers wait, as RocksDB's `level0_slowdown_writes_trigger` by default.
pub(crate) const MAX_LEVEL0_FILES: u64 = 20;

/// Interval between two checks of the compaction lag, and the number of them without a compaction that ends the wait.
const COMPACTION_POLL_INTERVAL: Duration = Duration::from_millis(20);
const MAX_IDLE_POLLS: u32 = 150;

/// The disk that the store is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The last write was refused for lack of space.
    pub full: bool,
    /// Bytes that can still be written.
    pub free_bytes: u64,
    /// Bytes of the ballast file, which is deleted when the disk is full so that eviction can write.
    pub ballast_bytes: u64,
    /// Files that compaction has not sorted in yet. Each read looks into all of them.
    pub level0_files: u64,
    /// A compaction or a flush runs, which takes space and frees it.
    pub compacting: bool,
}

impl Store {
    /// Sets how much of a node is kept, log messages and events of tracepoints aside, from now on and in this process. A node that is not known yet is
    /// created.
    ///
    /// # Errors
    /// The name is too long.
    pub fn set_retention(&self, node: &str, retention: Retention) -> Result<(), Error> {
        self.0.writer.lock().set_retention(node, RetentionClass::Records, retention)
    }

    /// As [`Self::set_retention`], of the log messages; they are what its `rows` counts.
    ///
    /// # Errors
    /// As [`Self::set_retention`].
    pub fn set_log_retention(&self, node: &str, retention: Retention) -> Result<(), Error> {
        self.0.writer.lock().set_retention(node, RetentionClass::Logs, retention)
    }

    /// As [`Self::set_retention`], of the events of tracepoints; they are what its `rows` counts.
    ///
    /// # Errors
    /// As [`Self::set_retention`].
    pub fn set_trace_retention(&self, node: &str, retention: Retention) -> Result<(), Error> {
        self.0.writer.lock().set_retention(node, RetentionClass::Traces, retention)
    }

    /// Evicts what retention no longer allows; `now_ns` is nanoseconds since 1970. To be called every few seconds.
    ///
    /// # Errors
    /// The engine's. On a full disk the ballast file is deleted; [`Error::DiskFull`] if all is within the limits, so
    /// that only [`Self::evict_for_space`] helps.
    pub fn evict(&self, now_ns: i64) -> Result<Evicted, Error> {
        self.write(|writer| writer.evict(now_ns))
    }

    /// Evicts the oldest segment of what takes the most bytes (the records, the log messages or the events of tracepoints of a
    /// node), within its retention or not: for a full disk.
    ///
    /// # Errors
    /// The engine's.
    pub fn evict_for_space(&self) -> Result<Evicted, Error> {
        self.write(Writer::evict_for_space)
    }

    /// Whether [`Self::evict_for_space`], repeated, can free as much as is missing: where others fill the disk, all that
    /// is stored can be less. Approximate; what was evicted and is still on the disk counts, too.
    ///
    /// # Errors
    /// The file system fails.
    pub fn can_evict_for_space(&self) -> Result<bool, Error> {
        let engine = &self.0.engine;
        let missing = {
            let writer = self.0.writer.lock();
            let there = engine.free_bytes()?.saturating_add(writer.ballast.held_bytes());
            writer.options.min_free_bytes.saturating_sub(there)
        };
        let views = self.0.views.all();
        let bytes = |class| {
            let segments = views.iter().flat_map(|view| view.segments(class));
            segments.map(|segment| segment.bytes).sum::<u64>()
        };
        let stored = match engine.disk() {
            // Memory snapshots are not evicted for space.
            Some(disk) => disk
                .approximate_bytes(&keys::segment(keys::DATABASE + 1, 0)..&[u8::MAX; 8])
                .saturating_sub(bytes(RetentionClass::Snapshots)),
            None => RetentionClass::STREAMED.into_iter().map(bytes).sum(),
        };
        Ok(stored >= missing)
    }

    /// Evicts snapshots of a node's memory that the limits no longer allow, and gives their number; `now_ns` is
    /// nanoseconds since 1970.
    ///
    /// # Errors
    /// As [`Self::evict`].
    pub fn evict_memory(&self, node: &str, limits: &SnapshotLimits, now_ns: i64) -> Result<u64, Error> {
        self.write(|writer| writer.evict_snapshots(node, (*limits).into(), now_ns)).map(|evicted| evicted.segments)
    }

    /// The disk and the ballast file on it.
    ///
    /// # Errors
    /// The file system fails.
    pub fn disk(&self) -> Result<Disk, Error> {
        let writer = self.0.writer.lock();
        Ok(Disk {
            full: writer.full,
            free_bytes: self.0.engine.free_bytes()?,
            ballast_bytes: writer.ballast.held_bytes(),
            level0_files: self.0.engine.disk().map_or(0, LocalDisk::level0_files),
            compacting: self.0.engine.disk().is_some_and(|disk| disk.is_compacting() || disk.is_flushing()),
        })
    }

    /// Waits while compaction lags behind the writes: until it has caught up, or does not run for a few seconds. To be called
    /// before [`Self::append`]. `pause` waits for the given time and returns true to end the wait.
    ///
    /// # Errors
    /// The file system fails.
    pub fn wait_for_compaction(&self, mut pause: impl FnMut(Duration) -> bool) -> Result<(), Error> {
        let mut idle = 0;
        while idle < MAX_IDLE_POLLS && self.has_compaction_lag()? && !pause(COMPACTION_POLL_INTERVAL) {
            if !self.0.engine.disk().is_some_and(LocalDisk::is_compacting) {
                idle += 1;
            }
        }
        Ok(())
    }

    /// Whether reads become slow, or the disk is close to full and compaction could not finish on a full one. On a full disk
    /// only eviction helps, not waiting.
    fn has_compaction_lag(&self) -> Result<bool, Error> {
        let Some(disk) = self.0.engine.disk() else { return Ok(false) };
        let spare = self.0.writer.lock().options.min_free_bytes;
        let (is_slow, pending) = (disk.level0_files() >= MAX_LEVEL0_FILES, disk.pending_compaction_bytes());
        if !is_slow && pending <= spare / 2 {
            // Called for each batch: the file system is asked only when there is something to wait for.
            return Ok(false);
        }
        let free = self.0.engine.free_bytes()?;
        // Compaction takes as much again, and more may be written meanwhile.
        let is_scarce = free < spare.saturating_add(pending.saturating_mul(3));
        Ok(free >= spare && (is_slow || is_scarce))
    }
}
