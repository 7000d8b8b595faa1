//! A database from a checkpoint.

use std::{
    fs::{self, File},
    path::Path,
};

use crate::{
    Error, StoreOptions,
    ballast::BALLAST,
    offline::{database_bytes, require_database, require_space},
    store::open_engine,
};

/// Copies a checkpoint into an empty or absent directory, and opens it once to see that it is sound. If that fails the directory is
/// empty or absent again.
///
/// Copies, not links: the checkpoint is a backup and must not share files with what is written from now on. The directory of a
/// database is as good as a checkpoint if all its files are of one moment, as in a snapshot of a file system.
pub(crate) fn restore(checkpoint: &Path, dir: &Path) -> Result<(), Error> {
    require_database(checkpoint)?;
    let existed = dir.exists();
    fs::create_dir_all(dir).map_err(Error::io(dir))?;
    if fs::read_dir(dir).map_err(Error::io(dir))?.next().is_some() {
        return Err(Error::NotEmpty { path: dir.to_owned() });
    }
    let restored = copy(checkpoint, dir);
    if restored.is_err() {
        clear(dir, existed);
    }
    restored
}

fn copy(checkpoint: &Path, dir: &Path) -> Result<(), Error> {
    require_space(dir, database_bytes(checkpoint)?)?;
    for entry in fs::read_dir(checkpoint).map_err(Error::io(checkpoint))? {
        let from = entry.map_err(Error::io(checkpoint))?.path();
        let Some(name) = from.file_name().filter(|name| from.is_file() && *name != BALLAST) else { continue };
        let to = dir.join(name);
        fs::copy(&from, &to).map_err(Error::io(&from))?;
        File::open(&to).and_then(|file| file.sync_all()).map_err(Error::io(&to))?;
    }
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(Error::io(dir))?;
    open_engine(dir, &StoreOptions::default()).map(drop)
}

/// Removes what was copied: files alone. What cannot be removed is found by the next attempt, which refuses a directory that is
/// not empty.
fn clear(dir: &Path, keep: bool) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let _ = fs::remove_file(entry.path());
    }
    if !keep {
        let _ = fs::remove_dir(dir);
    }
}
