//! The storage engine: an ordered map from bytes to bytes with atomic batches, range deletes and snapshots.
//!
//! ```text
//!  Engine ── snapshot() ──▶ Snapshot ── cursor(range) ──▶ Cursor (forward only)
//!     │                        └─ get, get_many, last(range)
//!     └─ disk() ──▶ LocalDisk: directory, compaction, checkpoint   only an engine with files has it
//! ```
//!
//! [`rocks`] stores in RocksDB, [`memory`] in a persistent ordered map; `conformance.rs` holds the rules that both
//! follow. Nothing here knows column families, and no cursor moves backward, so that an engine on object storage can be
//! added. Calls block; asynchronous callers run them on a thread pool of their own.

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use crate::Error;

mod batch;
#[cfg(test)]
mod conformance;
pub(crate) mod memory;
#[cfg(feature = "rocksdb")]
pub(crate) mod rocks;

pub(crate) use batch::{Batch, Write};

/// A key and its value.
pub(crate) type Entry = (Vec<u8>, Vec<u8>);

/// An ordered map from bytes to bytes.
pub(crate) trait Engine: Send + Sync {
    /// The map as it is now, unchanged by later writes.
    fn snapshot(&self) -> Box<dyn Snapshot + '_>;

    /// Writes all of a batch or nothing. As durable as the engine can be when it returns, and so is every batch before it.
    /// [`Error::DiskFull`] can be tried again; after [`Error::Failed`] nothing can be written until the engine is opened again.
    fn write(&self, batch: &Batch) -> Result<(), Error>;

    /// As [`Self::write`], but the batch is durable only after the next [`Self::sync`]. After a crash it is there with all batches
    /// before it or not at all.
    fn write_unsynced(&self, batch: &Batch) -> Result<(), Error> {
        self.write(batch)
    }

    /// Makes every batch durable that was written before the call. Other threads can write meanwhile.
    fn sync(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Bytes that can still be written.
    fn free_bytes(&self) -> Result<u64, Error>;

    /// Memory that the engine holds.
    fn memory(&self) -> Memory;

    /// What only an engine with files on a local disk has.
    fn disk(&self) -> Option<&dyn LocalDisk> {
        None
    }
}

/// The capability of an engine whose data are files in a local directory.
pub(crate) trait LocalDisk {
    /// The directory.
    fn dir(&self) -> &Path;

    /// Reclaims the disk space of ranges that a batch has deleted, regardless of snapshots: the caller knows that
    /// none of them is still read.
    fn reclaim(&self, ranges: &[Range<Vec<u8>>]) -> Result<(), Error>;

    /// Writes a consistent copy into a directory that does not exist yet.
    fn checkpoint(&self, dir: &Path) -> Result<(), Error>;

    /// Approximate bytes of a range on disk; what is only in memory counts as 0.
    fn approximate_bytes(&self, range: Range<&[u8]>) -> u64;

    /// Files that compaction has not sorted in yet: each read looks into all of them.
    fn level0_files(&self) -> u64;

    /// Approximate bytes of these files. Compaction needs as much free space, for all of them at once.
    fn pending_compaction_bytes(&self) -> u64;

    /// Whether a compaction runs.
    fn is_compacting(&self) -> bool;

    /// Whether a write buffer is being written to a file.
    fn is_flushing(&self) -> bool;

    /// The files of the write-ahead log, and their lengths.
    fn log_files(&self) -> Result<Vec<(PathBuf, u64)>, Error>;
}

/// Memory of an engine, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Blocks of files that were read, at most `StoreOptions::block_cache_bytes`.
    pub block_cache_bytes: u64,
    /// What was written and is not in a file: at most `StoreOptions::write_buffer_bytes`, or everything in an engine
    /// without files.
    pub write_buffer_bytes: u64,
    /// Indexes and filters of the open files that are not in the block cache.
    pub open_files_bytes: u64,
}

/// A consistent view.
pub(crate) trait Snapshot {
    /// The value of one key.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error>;

    /// The values of keys in ascending order, each as [`Self::get`] returns it.
    fn get_many(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        keys.iter().map(|key| self.get(key)).collect()
    }

    /// The last key of a range, and its value.
    fn last(&self, range: Range<&[u8]>) -> Result<Option<Entry>, Error>;

    /// A cursor over the keys of a range. It has no position until it is moved.
    fn cursor(&self, range: Range<&[u8]>) -> Box<dyn Cursor + '_>;
}

/// A position in the order of the keys, moving forward.
pub(crate) trait Cursor {
    /// Moves to the first key of the range at or after `key`.
    fn seek(&mut self, key: &[u8]) -> Result<(), Error>;
    /// Moves to the first key of the range.
    fn first(&mut self) -> Result<(), Error>;
    /// Moves to the next key. The cursor must have a position.
    fn next(&mut self) -> Result<(), Error>;
    /// The key and value at the position; none past the end of the range.
    fn entry(&self) -> Option<(&[u8], &[u8])>;
}
