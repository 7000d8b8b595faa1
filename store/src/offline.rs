//! Maintenance of a database that no server has open: nothing is recorded, indexed, evicted or set aside meanwhile.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    Error, Report, StoreOptions,
    ballast::BALLAST,
    disk::free_bytes,
    engine::{Engine as _, LocalDisk as _, rocks::Rocks},
    load::load,
    node::Node,
    schema::KINDS,
    store::open_engine_on_full_disk,
    verify,
    view::Views,
};

/// Bytes that maintenance leaves free.
const SPARE_BYTES: u64 = 64 << 20;

/// A database on disk, opened for maintenance. While it is open no server can open it.
pub struct Offline {
    engine: Rocks,
    dir: PathBuf,
}

impl Offline {
    /// Opens the database in `dir`, which must exist.
    ///
    /// # Errors
    /// [`Error::NoDatabase`]; [`Error::Locked`] if a server has it open; it is damaged, of another schema version, or not one of
    /// this store; the disk is full or fails.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, Error> {
        let dir = dir.as_ref();
        require_database(dir)?;
        let options = StoreOptions { ballast_bytes: 0, min_free_bytes: 0, ..StoreOptions::default() };
        Ok(Self { engine: open_engine_on_full_disk(dir, &options)?, dir: dir.to_owned() })
    }

    /// Bytes of the database's files, the ballast and the full-text index aside.
    ///
    /// # Errors
    /// The file system's.
    pub fn bytes(&self) -> Result<u64, Error> {
        database_bytes(&self.dir)
    }

    /// Reads the whole database and checks that it agrees with itself, node by node. `progress` gets the state now and then.
    /// What cannot be read is a problem of the report, and the rest of its node is not checked.
    ///
    /// # Errors
    /// The names of its nodes cannot be read.
    pub fn check(&self, progress: &mut dyn FnMut(&Report)) -> Result<Report, Error> {
        let (nodes, _) = load(&*self.engine.snapshot(), KINDS)?;
        let views = Views::new();
        views.publish(nodes.iter().map(Node::view));
        let mut report = Report::default();
        for view in views.all() {
            let Some(reader) = views.reader(&self.engine, &view.name) else { continue };
            if let Err(error) = verify::node(&reader, KINDS, &mut report, progress) {
                report.problem(format!("{}: {error}", view.name));
            }
        }
        Ok(report)
    }

    /// Writes a consistent copy into a directory that does not exist yet. The files are linked where it is on the same file system,
    /// else copied.
    ///
    /// # Errors
    /// [`Error::NotEmpty`] if the directory exists, [`Error::NoSpace`], or the file system's.
    pub fn backup(&self, dir: impl AsRef<Path>) -> Result<(), Error> {
        let dir = dir.as_ref();
        if dir.exists() {
            return Err(Error::NotEmpty { path: dir.to_owned() });
        }
        let parent = match dir.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        fs::create_dir_all(parent).map_err(Error::io(parent))?;
        if !is_same_disk(&self.dir, parent)? {
            require_space(parent, self.bytes()?)?;
        }
        self.engine.checkpoint(dir)
    }

    /// Sorts all files into the last level, and leaves out what was evicted. Needs as much free space as the database has.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: nothing was done. The engine's.
    pub fn compact(&self) -> Result<(), Error> {
        require_space(&self.dir, self.bytes()?)?;
        self.engine.compact()
    }
}

/// An error if there is no database in `dir`.
pub(crate) fn require_database(dir: &Path) -> Result<(), Error> {
    if dir.join("CURRENT").is_file() { Ok(()) } else { Err(Error::NoDatabase { path: dir.to_owned() }) }
}

/// An error unless `bytes` can be written to the file system of `dir`.
pub(crate) fn require_space(dir: &Path, bytes: u64) -> Result<(), Error> {
    let (free_bytes, needed_bytes) = (free_bytes(dir)?, bytes.saturating_add(SPARE_BYTES));
    match free_bytes >= needed_bytes {
        true => Ok(()),
        false => Err(Error::NoSpace { path: dir.to_owned(), needed_bytes, free_bytes }),
    }
}

/// Bytes of the files of RocksDB in a directory.
pub(crate) fn database_bytes(dir: &Path) -> Result<u64, Error> {
    let mut bytes = 0_u64;
    for entry in fs::read_dir(dir).map_err(Error::io(dir))? {
        let entry = entry.map_err(Error::io(dir))?;
        let metadata = entry.metadata().map_err(Error::io(entry.path()))?;
        if metadata.is_file() && entry.file_name() != BALLAST {
            bytes = bytes.saturating_add(metadata.len());
        }
    }
    Ok(bytes)
}

fn is_same_disk(one: &Path, other: &Path) -> Result<bool, Error> {
    use std::os::unix::fs::MetadataExt as _;
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev()).map_err(Error::io(path));
    Ok(device(one)? == device(other)?)
}
