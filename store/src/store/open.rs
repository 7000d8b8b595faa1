//! Opening a database: the engine, its schema version, and what the writer has to know.

use std::{path::Path, sync::Arc};

use parking_lot::Mutex;

use super::{Inner, Store};
use crate::{
    Error, StoreOptions,
    engine::{Batch, Engine as _, rocks::Rocks},
    keys,
    meta::SCHEMA_VERSION,
    reserve::Reserve,
    view::Views,
    writer::{Writer, load},
};

impl Store {
    /// Opens the database in `dir`, or makes one.
    ///
    /// # Errors
    /// The database is in use, damaged, of a newer schema, or not one of ours; the disk is full or refuses.
    pub fn open(dir: impl AsRef<Path>, options: StoreOptions) -> Result<Self, Error> {
        let dir = dir.as_ref();
        std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
        let engine = match open_engine(dir, &options) {
            // Opening writes, too.
            Err(Error::DiskFull { .. }) => {
                Reserve::new(dir, options.reserve_bytes).release()?;
                open_engine(dir, &options)?
            }
            opened => opened?,
        };
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
        let writer = Writer::new(dir.to_owned(), options, nodes, next_node)?;
        Ok(Self(Arc::new(Inner {
            dir: dir.to_owned(),
            engine: Box::new(engine),
            writer: Mutex::new(writer),
            views,
            watch: Arc::default(),
            expired: Mutex::default(),
        })))
    }
}

/// Opens the engine and sees to the schema version.
pub(crate) fn open_engine(dir: &Path, options: &StoreOptions) -> Result<Rocks, Error> {
    let engine = Rocks::open(dir, options)?;
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
            engine.write(&batch)?;
        }
        None | Some(Err(_)) => return Err(Error::NotAStore { path: dir.to_owned() }),
        Some(Ok(version)) => {
            let found = u32::from_be_bytes(version);
            if found > SCHEMA_VERSION {
                return Err(Error::NewerSchema { path: dir.to_owned(), found, known: SCHEMA_VERSION });
            }
            // Version 1 is the first. A later build reads the one before its own here.
        }
    }
    Ok(engine)
}
