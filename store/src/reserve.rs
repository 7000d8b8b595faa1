//! Disk space kept aside: a file with blocks of its own that is given up when the disk is full, so that eviction, which
//! writes before it frees, can run.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use rustix::fs::{FallocateFlags, fallocate, statvfs};

use crate::Error;

/// The file, held or given up.
pub(crate) struct Reserve {
    path: PathBuf,
    bytes: u64,
    held: bool,
}

impl Reserve {
    /// Not held yet; a file that an earlier process left counts as given up until [`Self::restore`].
    pub(crate) fn new(dir: &Path, bytes: u64) -> Self {
        Self { path: dir.join("reserve"), bytes, held: false }
    }

    /// Bytes held.
    pub(crate) fn held_bytes(&self) -> u64 {
        if self.held { self.bytes } else { 0 }
    }

    /// Takes the space again if more than `spare` bytes stay free besides.
    pub(crate) fn restore(&mut self, free: u64, spare: u64) -> Result<(), Error> {
        if self.held || self.bytes == 0 {
            return Ok(());
        }
        let already = fs::metadata(&self.path).map_or(0, |file| file.len());
        if already < self.bytes && free < self.bytes.saturating_add(spare) {
            return Ok(());
        }
        let file = fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&self.path)
            .map_err(Error::io(&self.path))?;
        match fallocate(&file, FallocateFlags::empty(), 0, self.bytes) {
            Ok(()) => self.held = true,
            // No space after all, or a file system that cannot set space aside: go on without.
            Err(error) => {
                tracing::debug!(path = %self.path.display(), %error, "no disk space set aside");
                self.release()?;
            }
        }
        Ok(())
    }

    /// Gives the space up.
    pub(crate) fn release(&mut self) -> Result<(), Error> {
        self.held = false;
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(&self.path)(error)),
            _ => Ok(()),
        }
    }
}

/// Bytes that an unprivileged process may still write where `dir` is.
pub(crate) fn free_bytes(dir: &Path) -> Result<u64, Error> {
    let stat = statvfs(dir).map_err(|error| Error::io(dir)(error.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
