//! The engine on RocksDB.

use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use rocksdb::{
    BlockBasedIndexType, BlockBasedOptions, BottommostLevelCompaction, CStrLike, Cache, ColumnFamilyDescriptor,
    CompactOptions, DB, DBCompressionType, DBPinnableSlice, DBRawIterator, DEFAULT_COLUMN_FAMILY_NAME, ErrorKind,
    Options, ReadOptions, SnapshotWithThreadMode, WriteBatch, WriteOptions, checkpoint::Checkpoint, properties,
};

use super::{Batch, Cursor, Engine, Entry, LocalDisk, Memory, Snapshot, Write};
use crate::{Error, StoreOptions, disk::free_bytes};

/// One RocksDB database with a single column family.
pub(crate) struct Rocks {
    dir: PathBuf,
    db: DB,
    synced: WriteOptions,
    /// Whether batches may be in the log that are not synced.
    has_unsynced: AtomicBool,
    /// Bytes of a full memtable.
    memtable_bytes: u64,
    /// Bytes of a level 0 file: one or two of the three write buffers.
    level0_file_bytes: u64,
}

impl Rocks {
    /// Opens or creates the database.
    pub(crate) fn open(dir: &Path, options: &StoreOptions) -> Result<Self, Error> {
        let options_of_db = database_options(options);
        // Named, because a batched read wants the handle of its column family.
        let family = ColumnFamilyDescriptor::new(DEFAULT_COLUMN_FAMILY_NAME, options_of_db.clone());
        let db = DB::open_cf_descriptors(&options_of_db, dir, [family]).map_err(|error| open_error(dir, error))?;
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        let memtable_bytes = memtable_bytes(options) as u64;
        let level0_file_bytes = options.write_buffer_bytes as u64 / 2;
        Ok(Self {
            dir: dir.to_owned(),
            db,
            synced,
            has_unsynced: AtomicBool::new(false),
            memtable_bytes,
            level0_file_bytes,
        })
    }

    /// Switches compactions off and on.
    #[cfg(test)]
    pub(crate) fn set_auto_compaction(&self, is_on: bool) {
        let is_off = if is_on { "false" } else { "true" };
        self.db.set_options(&[("disable_auto_compactions", is_off)]).expect("a known option");
    }

    /// Number of files of the level into which level 0 is compacted.
    #[cfg(test)]
    pub(crate) fn base_level_files(&self) -> u64 {
        let level = usize::try_from(self.property(properties::BASE_LEVEL)).expect("a level");
        self.property(properties::num_files_at_level(level))
    }

    /// An integer property; 0 if this RocksDB does not have it.
    fn property(&self, name: impl CStrLike) -> u64 {
        self.db.property_int_value(name).ok().flatten().unwrap_or(0)
    }
}

/// Bytes of one of the three write buffers.
fn memtable_bytes(options: &StoreOptions) -> usize {
    (options.write_buffer_bytes / 3).max(64 << 10)
}

fn database_options(options: &StoreOptions) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(options.block_cache_bytes));
    // Rows of one peer or of a rare type lie one to a block: a page of them reads a hundred blocks. With 4 KiB such a page takes
    // 8 % less time, a write of rows and chunks 5 % more, and a row 5 % more space.
    table.set_block_size(8 << 10);
    // Small blocks have a large index, of which a page needs a little.
    table.set_index_type(BlockBasedIndexType::TwoLevelIndexSearch);
    table.set_partition_filters(true);
    // Pages of many rows to a block take 3 % less time than with 4 KiB.
    table.set_metadata_block_size(8 << 10);
    table.set_pin_top_level_index_and_filter(true);
    table.set_bloom_filter(10.0, false);
    // Index and filter blocks count against the cache, so that memory is bounded whatever the database holds.
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_format_version(5);

    let mut db = Options::default();
    db.create_if_missing(true);
    db.set_block_based_table_factory(&table);
    // Nearly every key that is looked up exists, so that a filter of the last level, which has most keys, would only take space
    // in the cache.
    db.set_optimize_filters_for_hits(true);
    db.set_compression_type(DBCompressionType::Lz4);
    db.set_write_buffer_size(memtable_bytes(options));
    db.set_max_write_buffer_number(3);
    db.set_db_write_buffer_size(options.write_buffer_bytes);
    // The size that the buffer of a file begins with. One of 1 MiB, the default, is no faster, and several are freed with each flush and
    // compaction: 3 MiB of resident memory.
    db.set_writable_file_max_buffer_size(64 << 10);
    // The log is kept for what is not flushed yet; a memtable that is written rarely must not hold it back.
    db.set_max_total_wal_size(4 * options.write_buffer_bytes as u64);
    // Small files can be deleted whole when their segment is evicted. A compaction needs as much free disk as it
    // reads: `StoreOptions::min_free_bytes` is more than this makes of it.
    let file = (options.write_buffer_bytes as u64 / 2).clamp(64 << 10, 32 << 20);
    db.set_target_file_size_base(file);
    // A file of level 0 has state and the open segments of all nodes. All of level 1 lies between these keys, and is read by each
    // compaction of level 0: it is about as large as what is read from level 0. With dynamic level sizes, level 0 is compacted before all
    // other levels: while the writer is faster, level 1 grows without a bound, and with it the compactions.
    db.set_level_compaction_dynamic_level_bytes(false);
    db.set_max_bytes_for_level_base(2 * file);
    db.set_max_compaction_bytes(8 * file);
    // A write that waits here holds the lock that eviction needs, and on a full disk compactions wait for eviction. So
    // writers wait before they take the lock (`Store::wait_for_compaction`), never here.
    db.set_level_zero_slowdown_writes_trigger(10_000);
    db.set_level_zero_stop_writes_trigger(10_000);
    db.set_soft_pending_compaction_bytes_limit(0);
    db.set_hard_pending_compaction_bytes_limit(0);
    db.set_max_open_files(512);
    db.set_max_background_jobs(2);
    db.set_bytes_per_sync(1 << 20);
    db.set_keep_log_file_num(2);
    db.set_max_log_file_size(4 << 20);
    db.set_stats_dump_period_sec(0);
    db
}

fn open_error(dir: &Path, error: rocksdb::Error) -> Error {
    // The engine names a held lock only in its text: "While lock file: …/LOCK: Resource temporarily unavailable", or
    // "lock hold by current process".
    let text = error.to_string();
    if text.contains("lock file") || text.contains("lock hold by") {
        return Error::Locked { path: dir.to_owned() };
    }
    engine_error(error)
}

fn engine_error(error: rocksdb::Error) -> Error {
    let text = error.to_string();
    if text.contains("No space left on device") {
        return Error::DiskFull { free_bytes: 0 };
    }
    match error.kind() {
        ErrorKind::Corruption => Error::Corrupt(text),
        _ => Error::Engine(text),
    }
}

impl Rocks {
    /// Sorts all files into the last level. Needs as much free space as they take: without it this may wait for ever.
    pub(crate) fn compact(&self) -> Result<(), Error> {
        let mut options = CompactOptions::default();
        options.set_bottommost_level_compaction(BottommostLevelCompaction::ForceOptimized);
        self.db.compact_range_opt(None::<&[u8]>, None::<&[u8]>, &options);
        // The call itself tells nothing of what failed.
        match self.property(properties::BACKGROUND_ERRORS) {
            0 => Ok(()),
            errors => Err(Error::Failed(format!("{errors} errors of compaction, see LOG in {}", self.dir.display()))),
        }
    }

    fn write_once(&self, batch: &Batch, options: &WriteOptions) -> Result<(), Error> {
        let mut writes = WriteBatch::with_capacity_bytes(batch.len() + batch.len() / 4);
        for write in batch.iter() {
            match write {
                Write::Put(key, value) => writes.put(key, value),
                Write::Delete(key) => writes.delete(key),
                Write::DeleteRange(from, to) => writes.delete_range(from, to),
            }
        }
        self.db.write_opt(writes, options).map_err(engine_error)
    }

    fn write_with(&self, batch: &Batch, options: &WriteOptions) -> Result<(), Error> {
        // When its memtable is full, from 92 % on, RocksDB begins a new log before a write. A crash could keep this batch there, and lose
        // those at the end of the old log: they are synced first.
        let is_nearly_full = || self.property(properties::CUR_SIZE_ACTIVE_MEM_TABLE) > self.memtable_bytes / 8 * 7;
        if self.has_unsynced.load(Ordering::Acquire) && is_nearly_full() {
            self.sync()?;
        }
        match self.write_once(batch, options) {
            // After an I/O error of a write or a compaction RocksDB refuses all writes until it is opened again.
            Err(Error::Engine(_) | Error::Corrupt(_)) => self.write_once(batch, options).map_err(failed),
            result => result,
        }
    }
}

/// The engine has to be opened again.
fn failed(error: Error) -> Error {
    match error {
        Error::Engine(text) | Error::Corrupt(text) => Error::Failed(text),
        other => other,
    }
}

impl Engine for Rocks {
    fn snapshot(&self) -> Box<dyn Snapshot + '_> {
        Box::new(RocksSnapshot { db: &self.db, snapshot: self.db.snapshot() })
    }

    fn write(&self, batch: &Batch) -> Result<(), Error> {
        self.write_with(batch, &self.synced)
    }

    fn write_unsynced(&self, batch: &Batch) -> Result<(), Error> {
        self.write_with(batch, &WriteOptions::default())?;
        self.has_unsynced.store(true, Ordering::Release);
        Ok(())
    }

    fn sync(&self) -> Result<(), Error> {
        self.has_unsynced.store(false, Ordering::Release);
        // What was not written back may be lost even if the next call succeeds (fsync(2)): only the log tells what there is.
        self.db.flush_wal(true).map_err(|error| Error::Failed(error.to_string()))
    }

    fn free_bytes(&self) -> Result<u64, Error> {
        free_bytes(&self.dir)
    }

    fn memory(&self) -> Memory {
        Memory {
            block_cache_bytes: self.property(properties::BLOCK_CACHE_USAGE),
            write_buffer_bytes: self.property(properties::SIZE_ALL_MEM_TABLES),
            open_files_bytes: self.property(properties::ESTIMATE_TABLE_READERS_MEM),
        }
    }

    fn disk(&self) -> Option<&dyn LocalDisk> {
        Some(self)
    }
}

impl LocalDisk for Rocks {
    fn dir(&self) -> &Path {
        &self.dir
    }

    fn reclaim(&self, ranges: &[Range<Vec<u8>>]) -> Result<(), Error> {
        // A file inside a range may hold the tombstone that hides older keys in a file that reaches beyond the range. The
        // same tombstone is written anew, into a file that is not dropped (level 0 never is).
        let mut batch = Batch::default();
        for range in ranges {
            batch.delete_range(&range.start..&range.end);
        }
        self.write(&batch)?;
        ranges.iter().try_for_each(|range| self.db.delete_file_in_range(&range.start, &range.end).map_err(engine_error))
    }

    fn checkpoint(&self, dir: &Path) -> Result<(), Error> {
        Checkpoint::new(&self.db).and_then(|checkpoint| checkpoint.create_checkpoint(dir)).map_err(engine_error)
    }

    fn approximate_bytes(&self, range: Range<&[u8]>) -> u64 {
        self.db.get_approximate_sizes(&[rocksdb::Range::new(range.start, range.end)]).iter().sum()
    }

    fn level0_files(&self) -> u64 {
        self.property(properties::num_files_at_level(0))
    }

    fn pending_compaction_bytes(&self) -> u64 {
        self.level0_files().saturating_mul(self.level0_file_bytes)
    }

    fn is_compacting(&self) -> bool {
        self.property(properties::NUM_RUNNING_COMPACTIONS) > 0
    }

    fn is_flushing(&self) -> bool {
        self.property(properties::NUM_RUNNING_FLUSHES) > 0
    }

    fn log_files(&self) -> Result<Vec<(PathBuf, u64)>, Error> {
        let dir = &self.dir;
        let mut files = Vec::new();
        for entry in fs::read_dir(dir).map_err(Error::io(dir))? {
            let path = entry.map_err(Error::io(dir))?.path();
            if path.extension().is_some_and(|extension| extension == "log") {
                let length = fs::metadata(&path).map_err(Error::io(&path))?.len();
                files.push((path, length));
            }
        }
        files.sort();
        Ok(files)
    }
}

struct RocksSnapshot<'a> {
    db: &'a DB,
    snapshot: SnapshotWithThreadMode<'a, DB>,
}

impl RocksSnapshot<'_> {
    fn iterate(&self, range: Range<&[u8]>) -> DBRawIterator<'_> {
        let mut read = ReadOptions::default();
        read.set_iterate_lower_bound(range.start);
        read.set_iterate_upper_bound(range.end);
        self.snapshot.raw_iterator_opt(read)
    }
}

impl Snapshot for RocksSnapshot<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.snapshot.get(key).map_err(engine_error)
    }

    fn get_many(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let Some(family) = self.db.cf_handle(DEFAULT_COLUMN_FAMILY_NAME) else {
            return Err(Error::Engine("the database has no default column family".to_owned()));
        };
        let mut read = ReadOptions::default();
        read.set_snapshot(&self.snapshot);
        let to_vec = |value: Option<DBPinnableSlice<'_>>| value.map(|value| value.to_vec());
        let values = self.db.batched_multi_get_cf_opt(family, keys, true, &read);
        values.into_iter().map(|value| value.map(to_vec).map_err(engine_error)).collect()
    }

    fn last(&self, range: Range<&[u8]>) -> Result<Option<Entry>, Error> {
        let mut raw = self.iterate(range);
        raw.seek_to_last();
        check(&raw)?;
        Ok(raw.item().map(|(key, value)| (key.to_vec(), value.to_vec())))
    }

    fn cursor(&self, range: Range<&[u8]>) -> Box<dyn Cursor + '_> {
        Box::new(RocksCursor { raw: self.iterate(range) })
    }
}

/// An iterator without a position is past the end or failed.
fn check(raw: &DBRawIterator<'_>) -> Result<(), Error> {
    if raw.valid() { Ok(()) } else { raw.status().map_err(engine_error) }
}

struct RocksCursor<'a> {
    raw: DBRawIterator<'a>,
}

impl Cursor for RocksCursor<'_> {
    fn seek(&mut self, key: &[u8]) -> Result<(), Error> {
        self.raw.seek(key);
        check(&self.raw)
    }

    fn first(&mut self) -> Result<(), Error> {
        self.raw.seek_to_first();
        check(&self.raw)
    }

    fn next(&mut self) -> Result<(), Error> {
        self.raw.next();
        check(&self.raw)
    }

    fn entry(&self) -> Option<(&[u8], &[u8])> {
        self.raw.item()
    }
}
