//! Opening a database: the engine, its schema version, and the state of the writer.

use std::{path::Path, sync::Arc};

use parking_lot::Mutex;

use super::{Inner, Store};
use crate::{
    Error, StoreOptions,
    engine::{Batch, Engine, memory::MemoryEngine},
    keys,
    meta::SCHEMA_VERSION,
    view::Views,
    writer::{Writer, load},
};

impl Store {
    /// Opens the database in `dir`, or creates one.
    ///
    /// # Errors
    /// The database is in use, damaged, of another schema version, or not one of this store; the disk is full or fails.
    #[cfg(feature = "rocksdb")]
    pub fn open(dir: impl AsRef<Path>, options: StoreOptions) -> Result<Self, Error> {
        use crate::ballast::Ballast;

        let dir = dir.as_ref();
        std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
        let engine = match open_engine(dir, &options) {
            // Opening writes, too.
            Err(Error::DiskFull { .. }) => {
                Ballast::new(Some(dir), options.ballast_bytes).release()?;
                open_engine(dir, &options)?
            }
            opened => opened?,
        };
        Self::with_engine(Box::new(engine), options)
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
        Self::with_engine(Box::new(engine), StoreOptions { min_free_bytes: 0, ballast_bytes: 0, ..options })
    }

    fn with_engine(engine: Box<dyn Engine>, options: StoreOptions) -> Result<Self, Error> {
        let snapshot = engine.snapshot();
        let nodes = load(&*snapshot)?;
        let next_node = match snapshot.get(keys::NEXT_NODE)? {
            None => 0,
            Some(value) => value
                .try_into()
                .map(u32::from_be_bytes)
                .map_err(|_| Error::Corrupt("the next node number cannot be read".to_owned()))?,
        };
        drop(snapshot);
        let views = Views::new();
        views.publish(nodes.iter().map(crate::node::Node::view).collect());
        let writer = Writer::new(&*engine, options, nodes, next_node)?;
        Ok(Self(Arc::new(Inner {
            engine,
            writer: Mutex::new(writer),
            views,
            watch: Arc::default(),
            expired: Mutex::default(),
        })))
    }
}

/// Opens the engine on disk and checks the schema version.
#[cfg(feature = "rocksdb")]
pub(crate) fn open_engine(dir: &Path, options: &StoreOptions) -> Result<crate::engine::rocks::Rocks, Error> {
    let engine = crate::engine::rocks::Rocks::open(dir, options)?;
    check_schema(&engine, dir)?;
    Ok(engine)
}

/// Refuses a database of another schema version, and one that is not of this store. Marks an empty one.
fn check_schema(engine: &dyn Engine, dir: &Path) -> Result<(), Error> {
    let snapshot = engine.snapshot();
    let found = snapshot.get(keys::SCHEMA)?;
    let empty = {
        let mut cursor = snapshot.cursor(&[0]..&[u8::MAX]);
        cursor.first()?;
        cursor.entry().is_none()
    };
    drop(snapshot);
    match found.map(<[u8; 4]>::try_from) {
        None if empty => {
            let mut batch = Batch::default();
            batch.put(keys::SCHEMA, &SCHEMA_VERSION.to_be_bytes());
            engine.write(&batch)
        }
        None | Some(Err(_)) => Err(Error::NotAStore { path: dir.to_owned() }),
        Some(Ok(version)) => {
            let found = u32::from_be_bytes(version);
            if found > SCHEMA_VERSION {
                return Err(Error::NewerSchema { path: dir.to_owned(), found, known: SCHEMA_VERSION });
            }
            Ok(())
        }
    }
}
