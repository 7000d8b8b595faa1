//! Disk space set aside: a preallocated file that is deleted when the disk is full, so that eviction, which writes
//! before it frees, can run.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use rustix::fs::{FallocateFlags, fallocate};

use crate::Error;

/// Name of the file.
pub(crate) const BALLAST: &str = "ballast";

/// The file, held or released. An engine without a disk has none.
pub(crate) struct Ballast {
    path: Option<PathBuf>,
    bytes: u64,
    held: bool,
}

impl Ballast {
    /// Not held yet; a file that an earlier process left counts as released until [`Self::restore`].
    pub(crate) fn new(dir: Option<&Path>, bytes: u64) -> Self {
        Self { path: dir.map(|dir| dir.join(BALLAST)), bytes, held: false }
    }

    /// Bytes held.
    pub(crate) fn held_bytes(&self) -> u64 {
        if self.held { self.bytes } else { 0 }
    }

    /// Allocates the file again if more than `spare` of the `free` bytes remain besides.
    pub(crate) fn restore(&mut self, free: u64, spare: u64) -> Result<(), Error> {
        let Some(path) = self.path.as_deref().filter(|_| !self.held && self.bytes > 0) else { return Ok(()) };
        let already = fs::metadata(path).map_or(0, |file| file.len());
        if already < self.bytes && free < self.bytes.saturating_add(spare) {
            return Ok(());
        }
        let file =
            fs::OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(Error::io(path))?;
        match fallocate(&file, FallocateFlags::empty(), 0, self.bytes) {
            Ok(()) => self.held = true,
            // No space after all, or a file system that cannot preallocate: go on without.
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "no disk space is set aside");
                self.release()?;
            }
        }
        Ok(())
    }

    /// Deletes the file.
    pub(crate) fn release(&mut self) -> Result<(), Error> {
        self.held = false;
        let Some(path) = &self.path else { return Ok(()) };
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(path)(error)),
            _ => Ok(()),
        }
    }
}
