//! The program whose functions are timed: its file, its debug file, and the process that runs it.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use chainscope_functions::{Functions, Hazard, ReadCache};

use super::{
    RecordError,
    mappings::{hazard_of, open_mapped},
};
use crate::{symbols, targets::proc::Proc, trace::open};

/// A program that can be observed.
#[derive(Debug)]
pub struct Program {
    /// Process, if only one is observed.
    pub(super) pid: Option<u32>,
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) debug: Option<File>,
    pub(super) functions: Functions,
    pub(super) build_id: Option<String>,
    pub(super) hazard: Option<Hazard>,
}

impl Program {
    /// Opens the executable of a process, or another file whose code it has mapped, or a file for all processes that run it.
    ///
    /// # Errors
    /// [`RecordError`]: there is no such process, it has not mapped the file, or the file cannot be read.
    pub fn open(pid: Option<u32>, path: Option<&Path>) -> Result<Self, RecordError> {
        let proc = Proc::default();
        if let Some(pid) = pid
            && proc.start_of(pid).is_none()
        {
            return Err(RecordError::NoProcess(pid));
        }
        let (path, opened) = match (path, pid) {
            (Some(path), Some(pid)) => {
                let (path, file) = open_mapped(&proc, pid, path)?;
                (path, Ok(file))
            }
            (Some(path), None) => (path.to_owned(), open(path)),
            (None, Some(pid)) => {
                let link = proc.path(pid, "exe");
                let path = fs::read_link(&link).unwrap_or_else(|_| link.clone());
                (path, File::open(link))
            }
            (None, None) => return Err(RecordError::NoProgram),
        };
        let fail = |cause: io::Error| RecordError::File { path: path.clone(), cause };
        let file = opened.map_err(fail)?;
        let found = symbols::debug_file(&proc, &path, pid.unwrap_or_else(std::process::id), &file);
        let data = ReadCache::new(file.try_clone().map_err(fail)?);
        let debug_data = match &found.debug {
            Some(debug) => Some(ReadCache::new(debug.try_clone().map_err(fail)?)),
            None => None,
        };
        let functions = Functions::read(&data, debug_data.as_ref())
            .map_err(|cause| RecordError::Symbols { path: path.clone(), cause })?;
        let of_process = match pid {
            Some(pid) => hazard_of(&proc, pid),
            // Any process may load it, with any other file.
            None => functions.is_dynamic().then_some(Hazard::Unexamined),
        };
        let hazard = functions.hazard().max(of_process);
        let (build_id, debug) = (found.build_id, found.debug);
        Ok(Self { pid, path, file, debug, functions, build_id, hazard })
    }

    /// Path of the file, as the process sees it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its functions.
    #[must_use]
    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Device and inode of the file.
    pub(super) fn identity(&self) -> Option<(u64, u64)> {
        self.file.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
    }
}
