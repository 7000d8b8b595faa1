//! Opening a database: the engine, its schema version, and the state of the writer.

use std::{path::Path, sync::Arc};

use parking_lot::Mutex;

use super::{Inner, Store};
use crate::{
    Error, StoreOptions,
    engine::{Batch, Engine, LocalDisk, memory::MemoryEngine},
    keys,
    load::load,
    schema::{KINDS, Schema, VERSION},
    text::{Indexer, TextIndexes},
    view::Views,
    writer::Writer,
};

impl Store {
    /// Opens the database in `dir`, or creates one.
    ///
    /// # Errors
    /// The database is in use, damaged, of another schema version, or not one of this store; the disk is full or fails.
    #[cfg(feature = "rocksdb")]
    pub fn open(dir: impl AsRef<Path>, options: StoreOptions) -> Result<Self, Error> {
        let dir = dir.as_ref();
        std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
        let engine = open_engine_on_full_disk(dir, &options)?;
        Self::with_engine(Arc::new(engine), options, KINDS)
    }

    /// Fails: this build has no engine on disk.
    ///
    /// # Errors
    /// [`Error::NoRocksDb`].
    #[cfg(not(feature = "rocksdb"))]
    pub fn open(dir: impl AsRef<Path>, _: StoreOptions) -> Result<Self, Error> {
        Err(Error::NoRocksDb { path: dir.as_ref().to_owned() })
    }

    /// An empty database in memory, gone when the last clone of the store is dropped. It is full at
    /// `StoreOptions::memory_limit_bytes`; the options about disks have no effect.
    ///
    /// # Errors
    /// None at present.
    pub fn in_memory(options: StoreOptions) -> Result<Self, Error> {
        let engine = MemoryEngine::new(options.memory_limit_bytes);
        check_schema(&engine, Path::new("memory"))?;
        Self::with_engine(Arc::new(engine), StoreOptions { min_free_bytes: 0, ballast_bytes: 0, ..options }, KINDS)
    }

    /// A store of these kinds of fact on an engine whose schema version was checked.
    pub(crate) fn with_engine(engine: Arc<dyn Engine>, options: StoreOptions, schema: Schema) -> Result<Self, Error> {
        let nodes = load(&*engine.snapshot(), schema)?;
        let (views, watch) = (Arc::new(Views::new()), Arc::default());
        let min_free_bytes = options.min_free_bytes;
        let writer = Writer::new(Arc::clone(&engine), Arc::clone(&views), options, schema, nodes)?;
        let texts = Arc::new(TextIndexes::new(engine.disk().map(LocalDisk::dir)));
        let indexed = (Arc::clone(&engine), Arc::clone(&views), Arc::clone(&texts));
        let indexer = Indexer::start(indexed, &watch, schema, min_free_bytes)?;
        Ok(Self(Arc::new(Inner { _indexer: indexer, texts, engine, writer: Mutex::new(writer), views, schema, watch })))
    }
}

/// Opens the engine on disk and checks the schema version.
#[cfg(feature = "rocksdb")]
pub(crate) fn open_engine(dir: &Path, options: &StoreOptions) -> Result<crate::engine::rocks::Rocks, Error> {
    let engine = crate::engine::rocks::Rocks::open(dir, options)?;
    check_schema(&engine, dir)?;
    Ok(engine)
}

/// As [`open_engine`]. Opening writes, too: on a full disk the ballast file makes room for it.
#[cfg(feature = "rocksdb")]
pub(crate) fn open_engine_on_full_disk(
    dir: &Path,
    options: &StoreOptions,
) -> Result<crate::engine::rocks::Rocks, Error> {
    match open_engine(dir, options) {
        Err(Error::DiskFull { .. }) => {
            crate::ballast::Ballast::new(Some(dir), options.ballast_bytes).release()?;
            open_engine(dir, options)
        }
        opened => opened,
    }
}

/// Refuses a database of another schema version, and one that is not of this store. Marks an empty one.
fn check_schema(engine: &dyn Engine, dir: &Path) -> Result<(), Error> {
    let path = || dir.to_owned();
    let snapshot = engine.snapshot();
    if let Some(found) = snapshot.get(keys::SCHEMA)? {
        return match <[u8; 4]>::try_from(found).map(u32::from_be_bytes) {
            Ok(VERSION) => Ok(()),
            Ok(found) if found > VERSION => Err(Error::NewerSchema { path: path(), found, known: VERSION }),
            Ok(found) => Err(Error::OlderSchema { path: path(), found, known: VERSION }),
            Err(_) => Err(Error::NotAStore { path: path() }),
        };
    }
    if snapshot.get(keys::SCHEMA_OF_VERSION_1)?.is_some() {
        return Err(Error::OlderSchema { path: path(), found: 1, known: VERSION });
    }
    let mut cursor = snapshot.cursor(&[]..&[u8::MAX]);
    cursor.first()?;
    if cursor.entry().is_some() {
        return Err(Error::NotAStore { path: path() });
    }
    let mut batch = Batch::default();
    batch.put(keys::SCHEMA, &VERSION.to_be_bytes());
    engine.write(&batch)
}
