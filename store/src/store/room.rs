//! Room on the disk: how much of a node is kept, what is dropped, and whether there is space.

use super::Store;
use crate::{
    Error, Evicted, Retention, SnapshotLimits,
    engine::{Engine, LocalDisk},
    evict, keys, memory,
    view::Views,
    writer::Writer,
};

/// The disk that the store is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The last write was refused for want of space.
    pub full: bool,
    /// Bytes that may still be written.
    pub free_bytes: u64,
    /// Bytes of the ballast file, which is deleted when the disk is full so that eviction can write.
    pub ballast_bytes: u64,
}

impl Store {
    /// Says how much of a node is kept, from now on and in this process. A node that is not known yet is made.
    ///
    /// # Errors
    /// The name is too long.
    pub fn set_retention(&self, node: &str, retention: Retention) -> Result<(), Error> {
        self.0.writer.lock().set_retention(node, retention)
    }

    /// Drops what retention no longer allows; `now_ns` is nanoseconds since 1970. To be called every few seconds.
    ///
    /// # Errors
    /// The engine's. On a full disk the space kept aside is used; [`Error::DiskFull`] if all is within the limits, so
    /// that only [`Self::make_room`] helps.
    pub fn evict(&self, now_ns: i64) -> Result<Evicted, Error> {
        self.evict_by(|writer, engine, views, expired| evict::by_retention(writer, engine, views, expired, now_ns))
    }

    /// Drops the oldest segment of the node that takes the most bytes, retention or not: for a disk that is full.
    ///
    /// # Errors
    /// The engine's.
    pub fn make_room(&self) -> Result<Evicted, Error> {
        self.evict_by(evict::to_make_room)
    }

    /// Whether [`Self::make_room`], however often, can free as much as is missing: where somebody else fills the disk, all
    /// that is stored may be less. Roughly; what was dropped and is still on the disk counts, too.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn can_make_room(&self) -> Result<bool, Error> {
        let missing = {
            let writer = self.0.writer.lock();
            let there = self.0.engine.free_bytes()?.saturating_add(writer.ballast.held_bytes());
            writer.options.min_free_bytes.saturating_sub(there)
        };
        let stored = match self.0.engine.disk() {
            Some(disk) => disk.approximate_bytes(&[keys::MESSAGE]..&[keys::BY_TARGET + 1]),
            None => self.nodes().iter().map(|node| node.bytes).sum(),
        };
        Ok(stored >= missing)
    }

    fn evict_by(
        &self,
        evict: impl FnOnce(&mut Writer, &dyn Engine, &Views, &mut Vec<evict::Expired>) -> Result<Evicted, Error>,
    ) -> Result<Evicted, Error> {
        let inner = &*self.0;
        let mut writer = inner.writer.lock();
        let result = evict(&mut writer, &*inner.engine, &inner.views, &mut inner.expired.lock());
        drop(writer);
        inner.watch.moved();
        result
    }

    /// Drops snapshots of a node's memory that the limits no longer allow, and gives how many; `now_ns` is nanoseconds
    /// since 1970.
    ///
    /// # Errors
    /// The engine's.
    pub fn evict_memory(&self, node: &str, limits: &SnapshotLimits, now_ns: i64) -> Result<u64, Error> {
        let inner = &*self.0;
        // Held, so that nothing is put meanwhile.
        let _writer = inner.writer.lock();
        self.reader(node).map_or(Ok(0), |reader| memory::evict(&reader, &*inner.engine, limits, now_ns))
    }

    /// The disk and the space kept aside on it.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn disk(&self) -> Result<Disk, Error> {
        let writer = self.0.writer.lock();
        Ok(Disk {
            full: writer.full,
            free_bytes: self.0.engine.free_bytes()?,
            ballast_bytes: writer.ballast.held_bytes(),
        })
    }

    /// Whether the engine has more left to sort in than it could on a full disk, where it would never come to it, and the
    /// disk is not far from being full: to wait is better than to write, as long as there is space.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn is_behind(&self) -> Result<bool, Error> {
        let writer = self.0.writer.lock();
        let spare = writer.options.min_free_bytes;
        let unsorted = self.0.engine.disk().map_or(0, LocalDisk::pending_compaction_bytes);
        if unsorted <= spare / 2 {
            // Asked for each batch: the file system only when there is something to wait for.
            return Ok(false);
        }
        // Sorting in takes as much again, and more may be written meanwhile.
        let far = spare.saturating_add(unsorted.saturating_mul(3));
        Ok((spare..far).contains(&self.0.engine.free_bytes()?))
    }
}
