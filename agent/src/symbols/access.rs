//! Access to files of observed processes with a deadline: their file system may never answer. Files are closed in the same
//! way, since a file system in user space is asked for that, too.

use std::{fs::File, sync::Arc, time::Duration};

use chainscope_ebpf::memory::{Answer, ForeignCalls};

use super::{MappedFile, elf::ElfError, files, find, module::SymbolFiles};
use crate::targets::proc::Proc;

/// Maximum time that the opening of a file is waited for.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time that the symbols of a file are waited for.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens and reads files.
#[derive(Debug, Clone)]
pub(super) struct FileAccess {
    proc: Proc,
    calls: ForeignCalls,
}

/// An open file.
#[derive(Debug)]
pub(super) struct HeldFile {
    /// None while it is dropped.
    file: Option<Arc<File>>,
    pub(super) is_same_file: bool,
    calls: ForeignCalls,
    key: String,
}

impl FileAccess {
    pub(super) fn new(proc: Proc, calls: ForeignCalls) -> Self {
        Self { proc, calls }
    }

    /// Whether a mapped file is the executable of its process; false if that is not known in time.
    pub(super) fn is_executable(&self, mapped: &MappedFile) -> bool {
        let (proc, file) = (self.proc.clone(), mapped.clone());
        let answer = self.calls.call(&self.key(mapped), OPEN_TIMEOUT, move || files::is_executable(&proc, &file));
        matches!(answer, Answer::Ready(true))
    }

    /// Opens a mapped file, through another process if necessary.
    pub(super) fn open(&self, mapped: &MappedFile, processes: &[u32]) -> Answer<Option<HeldFile>> {
        let key = self.key(mapped);
        let (proc, file, processes) = (self.proc.clone(), mapped.clone(), processes.to_vec());
        let held = (self.calls.clone(), key.clone());
        self.calls.call(&key, OPEN_TIMEOUT, move || {
            let files::OpenedFile { file, is_same_file } = find(&proc, &file, &processes)?;
            let (calls, key) = held;
            Some(HeldFile { file: Some(Arc::new(file)), is_same_file, calls, key })
        })
    }

    /// Reads the symbols of a file.
    pub(super) fn read(&self, mapped: &MappedFile, held: &HeldFile) -> Answer<Result<SymbolFiles, ElfError>> {
        let Some(file) = held.file.clone() else { return Answer::Refused };
        let (proc, mapped) = (self.proc.clone(), mapped.clone());
        self.calls.call(&held.key, READ_TIMEOUT, move || SymbolFiles::read(&proc, &mapped, &file))
    }

    /// Processes of one container delay each other only.
    fn key(&self, mapped: &MappedFile) -> String {
        std::fs::read_to_string(self.proc.path(mapped.pid, "cgroup")).unwrap_or_default()
    }
}

impl Drop for HeldFile {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            // Not waited for.
            drop(self.calls.start(&self.key, Duration::ZERO, move || drop(file)));
        }
    }
}
