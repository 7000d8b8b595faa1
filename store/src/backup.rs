//! A database from a checkpoint.

use std::{
    fs::{self, File},
    path::Path,
};

use crate::{Error, StoreOptions, store::open_engine};

/// Copies a checkpoint into an empty or absent directory, and opens it once to see that it is sound.
///
/// Copies, not links: the checkpoint is a backup and must not share files with what is written from now on.
pub(crate) fn restore(checkpoint: &Path, dir: &Path) -> Result<(), Error> {
    if !checkpoint.join("CURRENT").is_file() {
        return Err(Error::NotAStore { path: checkpoint.to_owned() });
    }
    fs::create_dir_all(dir).map_err(Error::io(dir))?;
    if fs::read_dir(dir).map_err(Error::io(dir))?.next().is_some() {
        return Err(Error::NotEmpty { path: dir.to_owned() });
    }
    for entry in fs::read_dir(checkpoint).map_err(Error::io(checkpoint))? {
        let from = entry.map_err(Error::io(checkpoint))?.path();
        let Some(name) = from.file_name().filter(|_| from.is_file()) else { continue };
        let to = dir.join(name);
        fs::copy(&from, &to).map_err(Error::io(&from))?;
        File::open(&to).and_then(|file| file.sync_all()).map_err(Error::io(&to))?;
    }
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(Error::io(dir))?;
    open_engine(dir, &StoreOptions::default()).map(drop)
}
