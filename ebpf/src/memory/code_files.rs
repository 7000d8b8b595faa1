//! Reads the executable mappings of a process and the unwind tables of their files, on a thread that may wait for them for
//! ever.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chainscope_unwind::{Limits, Table};
use object::read::ReadCache;

use super::address_spaces::UnwindMapping;
use super::foreign::{ForeignCalls, Started, lock};
use super::mapped_file::open;
use super::proc_maps::{CodeMapping, code_of};
use super::reading::ModuleId;

/// Maximum time that a process is waited for; a process that takes longer gets its unwind tables later.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Tables that wait for being loaded. They take up to 48 MiB each.
const MAX_READ: usize = 1;

/// Identity of a file; a file that is overwritten in place gets another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileIdentity {
    device: (u32, u32),
    inode: u64,
    path: PathBuf,
    size: u64,
    changed: (i64, i64),
}

impl FileIdentity {
    fn of(mapping: &CodeMapping, file: Option<&File>) -> Self {
        let metadata = file.and_then(|file| file.metadata().ok());
        Self {
            device: mapping.device,
            inode: mapping.inode,
            path: mapping.path.clone(),
            size: metadata.as_ref().map_or(0, MetadataExt::size),
            changed: metadata.as_ref().map_or((0, 0), |metadata| (metadata.mtime(), metadata.mtime_nsec())),
        }
    }
}

/// Modules by the identity of their file.
pub(crate) type KnownFiles = Arc<Mutex<HashMap<FileIdentity, ModuleId>>>;

/// A mapping, and what was read of its file.
#[derive(Debug)]
pub(crate) struct ReadMapping {
    pub(crate) mapping: CodeMapping,
    pub(crate) file: CodeFile,
}

/// What was read of the file of a mapping.
#[derive(Debug)]
pub(crate) enum CodeFile {
    /// The mapping has no file.
    None,
    /// It cannot be opened: the process may have exited.
    Unopened(FileIdentity, String),
    /// Its module exists.
    Known(FileIdentity),
    /// A new file, with its unwind table or the reason why there is none.
    New(FileIdentity, Result<Table, String>),
}

/// Code of a process that is being read.
#[derive(Debug)]
pub(super) struct CodeReading {
    items: Receiver<Item>,
    /// None once it is late.
    started: Option<Started<()>>,
    /// The file that is being read.
    current: Arc<Mutex<PathBuf>>,
    /// Mappings with their unwind tables so far, by address.
    pub(super) resolved: Vec<UnwindMapping>,
}

#[derive(Debug)]
enum Item {
    Mapping(Box<ReadMapping>),
    End,
}

/// The next result of a reading.
#[derive(Debug)]
pub(super) enum Next {
    Mapping(Box<ReadMapping>),
    /// There are no more.
    End,
    /// The next one has not been read before the deadline.
    Late,
    /// The process has exited, or its mappings cannot be read.
    Failed,
}

impl CodeReading {
    /// Starts to read the executable mappings of a process; `None` if it cannot be started.
    pub(super) fn start(calls: &ForeignCalls, proc: &Path, pid: u32, known: &KnownFiles) -> Option<Self> {
        let (sender, items) = sync_channel(MAX_READ);
        let current = Arc::new(Mutex::new(proc.join(format!("{pid}/maps"))));
        let key = container_of(proc, pid);
        let (proc, known, progress) = (proc.to_owned(), Arc::clone(known), Arc::clone(&current));
        let started = calls.start(&key, TIMEOUT, move || {
            // Ends early if nobody waits for the result any more.
            let _ = read_code(&proc, pid, &known, &progress, &sender);
        })?;
        Some(Self { items, started: Some(started), current, resolved: Vec::new() })
    }

    /// Returns the next mapping. Waits for it until the deadline, later not at all.
    pub(super) fn next(&mut self) -> Next {
        let received = match &self.started {
            Some(started) => self.items.recv_timeout(started.deadline().saturating_duration_since(Instant::now())),
            None => self.items.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            }),
        };
        match received {
            Ok(Item::Mapping(mapping)) => Next::Mapping(mapping),
            Ok(Item::End) => Next::End,
            Err(RecvTimeoutError::Disconnected) => Next::Failed,
            Err(RecvTimeoutError::Timeout) => {
                // Counts the call as late.
                drop(self.started.take().map(Started::wait));
                Next::Late
            }
        }
    }

    /// The file that is being read.
    pub(super) fn current(&self) -> PathBuf {
        lock(&self.current).clone()
    }
}

/// The key of foreign calls: processes of one container delay each other only.
pub(super) fn container_of(proc: &Path, pid: u32) -> String {
    fs::read_to_string(proc.join(format!("{pid}/cgroup"))).unwrap_or_default()
}

/// Sends the mappings one by one, so that few tables are in memory. Sends no end if there are none.
fn read_code(
    proc: &Path,
    pid: u32,
    known: &KnownFiles,
    current: &Mutex<PathBuf>,
    items: &SyncSender<Item>,
) -> Result<(), SendError<Item>> {
    let mappings = code_of(proc, pid).unwrap_or_default();
    if mappings.is_empty() {
        return Ok(());
    }
    let mut read = HashSet::new();
    for mapping in mappings {
        let file = match mapping.inode {
            0 => CodeFile::None,
            _ => {
                lock(current).clone_from(&mapping.path);
                read_file(proc, pid, &mapping, known, &mut read)
            }
        };
        items.send(Item::Mapping(Box::new(ReadMapping { mapping, file })))?;
    }
    items.send(Item::End)
}

fn read_file(
    proc: &Path,
    pid: u32,
    mapping: &CodeMapping,
    known: &KnownFiles,
    read: &mut HashSet<FileIdentity>,
) -> CodeFile {
    let file = match open(proc, pid, mapping) {
        Ok(file) => file,
        Err(cause) => return CodeFile::Unopened(FileIdentity::of(mapping, None), cause),
    };
    let identity = FileIdentity::of(mapping, Some(&file));
    if lock(known).contains_key(&identity) || !read.insert(identity.clone()) {
        return CodeFile::Known(identity);
    }
    let table = Table::read(&ReadCache::new(file), &Limits::default()).map_err(|error| error.to_string());
    CodeFile::New(identity, table)
}
