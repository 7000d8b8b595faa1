//! Copies of the whole database, and whether it agrees with itself.

use std::path::{Path, PathBuf};

use super::Store;
use crate::{Error, Report, verify};

impl Store {
    /// Writes a consistent copy of everything appended so far into a directory that does not exist yet. Quick and
    /// small where it is on the same file system: the files are linked.
    ///
    /// # Errors
    /// [`Error::NotEmpty`] if the directory exists; else as [`Self::sync`].
    pub fn checkpoint(&self, dir: impl AsRef<Path>) -> Result<(), Error> {
        let dir = dir.as_ref();
        if dir.exists() {
            return Err(Error::NotEmpty { path: dir.to_owned() });
        }
        self.sync()?;
        self.0.engine.checkpoint(dir)
    }

    /// Makes a database in `dir`, which is empty or absent, from a checkpoint, which stays as it is.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NotAStore`], or the file system's.
    pub fn restore(checkpoint: impl AsRef<Path>, dir: impl AsRef<Path>) -> Result<(), Error> {
        crate::backup::restore(checkpoint.as_ref(), dir.as_ref())
    }

    /// Reads the whole database and checks that it agrees with itself. Slow; for tests and for people in doubt.
    ///
    /// # Errors
    /// It cannot be read. What does not agree is in the report.
    pub fn verify(&self) -> Result<Report, Error> {
        let mut report = Report::default();
        for view in self.0.views.all() {
            if let Some(reader) = self.reader(&view.name) {
                verify::node(&reader, &mut report)?;
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
        let _quiet = self.0.writer.lock();
        let dir = &self.0.dir;
        let mut files = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(Error::io(dir))? {
            let path = entry.map_err(Error::io(dir))?.path();
            if path.extension().is_some_and(|extension| extension == "log") {
                let length = std::fs::metadata(&path).map_err(Error::io(&path))?.len();
                files.push((path, length));
            }
        }
        files.sort();
        Ok(files)
    }
}
