//! What the store needs of a storage engine: ordered reads, atomic batches, range deletes, snapshots.
//!
//! Nothing here knows column families or RocksDB, so that another engine (object storage) can come behind it. Calls
//! block; whoever is asynchronous runs them on a pool of its own.

use std::{ops::Range, path::Path};

use crate::Error;

pub(crate) mod rocks;

/// An ordered map from bytes to bytes on disk.
pub(crate) trait Engine: Send + Sync {
    /// The map as it is now, unchanged by later writes.
    fn snapshot(&self) -> Box<dyn Snapshot + '_>;

    /// Writes all of a batch or nothing; durable when it returns.
    fn write(&self, batch: &Batch) -> Result<(), Error>;

    /// Gives back the disk space of a range that a batch has deleted, without regard to snapshots: the caller knows
    /// that none of them is still read.
    fn reclaim(&self, range: Range<&[u8]>) -> Result<(), Error>;

    /// Writes a consistent copy into a directory that does not exist yet.
    fn checkpoint(&self, dir: &Path) -> Result<(), Error>;

    /// Bytes that a range takes on disk, roughly; what is only in memory counts as 0.
    fn approximate_bytes(&self, range: Range<&[u8]>) -> u64;

    /// Bytes that are in files and not sorted in yet, roughly. That takes as much free space, for all of them at once.
    fn unsorted_bytes(&self) -> u64;

    /// Memory that the engine holds.
    fn memory(&self) -> Memory;
}

/// Memory of an engine, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Blocks of files that were read, kept up to `StoreOptions::block_cache_bytes`.
    pub block_cache_bytes: u64,
    /// What was written and is not in a file yet, kept up to `StoreOptions::write_buffer_bytes`.
    pub write_buffer_bytes: u64,
    /// Tables of contents of the open files, as far as they are not in the cache.
    pub open_files_bytes: u64,
}

/// A consistent view.
pub(crate) trait Snapshot {
    /// The value of one key.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error>;

    /// A cursor that sees the keys of a range only. It stands nowhere until it is moved.
    fn cursor(&self, range: Range<&[u8]>) -> Box<dyn Cursor + '_>;
}

/// A place in the order of the keys.
pub(crate) trait Cursor {
    /// Moves to the first key at or after `key`.
    fn seek(&mut self, key: &[u8]) -> Result<(), Error>;
    /// Moves to the last key at or before `key`.
    fn seek_back(&mut self, key: &[u8]) -> Result<(), Error>;
    /// Moves to the first key of the range.
    fn first(&mut self) -> Result<(), Error>;
    /// Moves to the last key of the range.
    fn last(&mut self) -> Result<(), Error>;
    /// Moves one key on; must stand on a key.
    fn next(&mut self) -> Result<(), Error>;
    /// Moves one key back; must stand on a key.
    fn prev(&mut self) -> Result<(), Error>;
    /// The key and value it stands on.
    fn entry(&self) -> Option<(&[u8], &[u8])>;
}

/// Writes that belong together, in order.
///
/// The bytes lie in one buffer; a batch is kept and tried again when the disk was full.
#[derive(Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    writes: Vec<(WriteKind, u32, u32)>,
}

#[derive(Clone, Copy)]
enum WriteKind {
    Put,
    Delete,
    DeleteRange,
}

/// One write of a [`Batch`].
pub(crate) enum Write<'a> {
    Put(&'a [u8], &'a [u8]),
    Delete(&'a [u8]),
    /// From the first (included) to the second (excluded).
    DeleteRange(&'a [u8], &'a [u8]),
}

impl Batch {
    /// Bytes of keys and values.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Forgets the writes, keeps the buffer unless it grew beyond `keep` bytes.
    pub(crate) fn clear(&mut self, keep: usize) {
        self.bytes.clear();
        self.writes.clear();
        if self.bytes.capacity() > keep {
            self.bytes.shrink_to(keep);
        }
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) {
        self.add(WriteKind::Put, key, |bytes| bytes.extend_from_slice(value));
    }

    /// Puts a value that is encoded right into the batch.
    pub(crate) fn put_with(&mut self, key: &[u8], value: impl FnOnce(&mut Vec<u8>)) {
        self.add(WriteKind::Put, key, value);
    }

    pub(crate) fn delete(&mut self, key: &[u8]) {
        self.add(WriteKind::Delete, key, |_| ());
    }

    pub(crate) fn delete_range(&mut self, range: Range<&[u8]>) {
        self.add(WriteKind::DeleteRange, range.start, |bytes| bytes.extend_from_slice(range.end));
    }

    fn add(&mut self, kind: WriteKind, key: &[u8], value: impl FnOnce(&mut Vec<u8>)) {
        self.bytes.extend_from_slice(key);
        let before = self.bytes.len();
        value(&mut self.bytes);
        // A record is at most a gRPC frame and a key a few hundred bytes: neither comes near 4 GiB.
        self.writes.push((kind, key.len() as u32, (self.bytes.len() - before) as u32));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Write<'_>> {
        let mut rest = self.bytes.as_slice();
        self.writes.iter().map(move |&(kind, key, value)| {
            let (key, after) = rest.split_at(key as usize);
            let (value, after) = after.split_at(value as usize);
            rest = after;
            match kind {
                WriteKind::Put => Write::Put(key, value),
                WriteKind::Delete => Write::Delete(key),
                WriteKind::DeleteRange => Write::DeleteRange(key, value),
            }
        })
    }
}
