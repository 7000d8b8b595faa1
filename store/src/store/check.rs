//! Copies of the whole database, and whether it agrees with itself.

use std::path::{Path, PathBuf};

use super::Store;
#[cfg(feature = "rocksdb")]
use crate::backup::restore;
use crate::{Error, Report, verify};

impl Store {
    /// Writes a consistent copy of everything appended so far into a directory that does not exist yet. Quick and
    /// small where it is on the same file system: the files are linked.
    ///
    /// # Errors
    /// [`Error::NotEmpty`] if the directory exists, [`Error::NoFiles`] of a store in memory; else as [`Self::sync`].
    pub fn checkpoint(&self, dir: impl AsRef<Path>) -> Result<(), Error> {
        let dir = dir.as_ref();
        if dir.exists() {
            return Err(Error::NotEmpty { path: dir.to_owned() });
        }
        let disk = self.0.engine.disk().ok_or(Error::NoFiles)?;
        self.sync()?;
        disk.checkpoint(dir)
    }

    /// Makes a database in `dir`, which is empty or absent, from a checkpoint, which stays as it is.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NoDatabase`], [`Error::NoSpace`], or the file system's: `dir` is as before then.
    pub fn restore(checkpoint: impl AsRef<Path>, dir: impl AsRef<Path>) -> Result<(), Error> {
        restore(checkpoint.as_ref(), dir.as_ref())
    }

    /// Reads the whole database and checks that it agrees with itself. Slow; for tests and for people in doubt.
    ///
    /// # Errors
    /// It cannot be read. What does not agree is in the report.
    pub fn verify(&self) -> Result<Report, Error> {
        let mut report = Report::default();
        for view in self.0.views.all() {
            if let Some(reader) = self.reader(&view.name) {
                verify::node(&reader, self.0.schema, &mut report, &mut |_| ())?;
            }
        }
        Ok(report)
    }

    /// The files of the write-ahead log and their lengths, nothing being written meanwhile: every batch is synced, so
    /// this is the log at its last sync. For crash tests.
    ///
    /// # Errors
    /// The file system's.
    pub fn log_files(&self) -> Result<Vec<(PathBuf, u64)>, Error> {
        // Held, so that nothing is written.
        let _writer = self.0.writer.lock();
        self.0.engine.disk().ok_or(Error::NoFiles)?.log_files()
    }
}

#[cfg(not(feature = "rocksdb"))]
fn restore(_: &Path, dir: &Path) -> Result<(), Error> {
    Err(Error::NoRocksDb { path: dir.to_owned() })
}
