//! Space: how much of a node is kept, what is evicted, and whether the disk is full.

use super::Store;
use crate::{Error, Evicted, Retention, SnapshotLimits, engine::LocalDisk, keys, kind::RetentionClass, writer::Writer};

/// The disk that the store is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The last write was refused for lack of space.
    pub full: bool,
    /// Bytes that can still be written.
    pub free_bytes: u64,
    /// Bytes of the ballast file, which is deleted when the disk is full so that eviction can write.
    pub ballast_bytes: u64,
}

impl Store {
    /// Sets how much of a node is kept, from now on and in this process. A node that is not known yet is created.
    ///
    /// # Errors
    /// The name is too long.
    pub fn set_retention(&self, node: &str, retention: Retention) -> Result<(), Error> {
        self.0.writer.lock().set_retention(node, retention)
    }

    /// Evicts what retention no longer allows; `now_ns` is nanoseconds since 1970. To be called every few seconds.
    ///
    /// # Errors
    /// The engine's. On a full disk the ballast file is deleted; [`Error::DiskFull`] if all is within the limits, so
    /// that only [`Self::evict_for_space`] helps.
    pub fn evict(&self, now_ns: i64) -> Result<Evicted, Error> {
        self.write(|writer| writer.evict(now_ns))
    }

    /// Evicts the oldest segment of the node that takes the most bytes, within its retention or not: for a full disk.
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
            None => bytes(RetentionClass::Records),
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
        })
    }

    /// Whether compaction lags so far behind that it could not finish on a full disk, and the disk is close to full. It is
    /// then better to wait than to write.
    ///
    /// # Errors
    /// The file system fails.
    pub fn has_compaction_lag(&self) -> Result<bool, Error> {
        let spare = self.0.writer.lock().options.min_free_bytes;
        let pending = self.0.engine.disk().map_or(0, LocalDisk::pending_compaction_bytes);
        if pending <= spare / 2 {
            // Called for each batch: the file system is asked only when there is something to wait for.
            return Ok(false);
        }
        // Compaction takes as much again, and more may be written meanwhile.
        let enough = spare.saturating_add(pending.saturating_mul(3));
        Ok((spare..enough).contains(&self.0.engine.free_bytes()?))
    }
}
