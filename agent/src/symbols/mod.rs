//! Symbolization: from an offset in a mapped file to function names.
//!
//! ```text
//!   MappedFile (path, inode, a process that maps it)
//!      │ files: opened within the root of the process and kept open, so that a deleted file can still be symbolized
//!      ▼
//!   elf: validated tables ──▶ copy: symbols and debug information in private memory ──▶ module: blazesym ──▶ demangle (crate functions)
//! ```
//!
//! Loading symbols takes milliseconds to seconds, so [`Symbols`] is used on a dedicated thread. Open files, copies and
//! cached locations are bounded, with LRU eviction of files and copies. Damaged or crafted files yield no names and
//! cannot end the process.

mod access;
mod category;
mod copy;
mod elf;
mod files;
pub mod fuzzing;
mod module;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

use access::{FileAccess, HeldFile};
pub(crate) use category::Category;
use category::Owner;
use chainscope_ebpf::memory::{Answer, ForeignCalls, LateAnswer};
use chainscope_functions::Demangled;
use chainscope_hygiene::{Escaped, EscapedTruncated, warn_limited};
use elf::ElfError;
use module::{FileSymbolizer, SymbolFiles};

use crate::targets::proc::Proc;

/// Maximum memory for copies of symbols and debug information, in bytes.
const MAX_COPIED_BYTES: u64 = 256 << 20;
/// Maximum number of open files.
const MAX_OPEN_FILES: usize = 512;
/// Maximum number of cached locations.
const MAX_LOCATIONS: usize = 1 << 18;
/// Maximum number of process roots searched for a file.
const MAX_ROOTS: usize = 16;
/// Maximum length of the base name of a file, in bytes.
const MAX_FILE_NAME: usize = 255;

/// A mapped file, as reported by the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MappedFile {
    /// Path in the process without the " (deleted)" suffix, or a bracketed name such as `[vdso]`.
    pub(crate) path: PathBuf,
    /// Inode number; 0 if unknown.
    pub(crate) inode: u64,
    /// Pid of a process that maps the file.
    pub(crate) pid: u32,
    /// Whether the path was unlinked.
    pub(crate) is_deleted: bool,
}

/// A function.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Function {
    /// Demangled name.
    pub(crate) name: Box<str>,
    pub(crate) category: Category,
}

/// Symbolized address in a file, as `Location` in pprof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location {
    /// Base name of the file.
    pub(crate) executable: Arc<str>,
    /// Outermost function first, followed by inlined ones; empty if no symbol covers the address.
    pub(crate) functions: Box<[Function]>,
    /// Category of an address without a symbol.
    pub(crate) category: Category,
    /// The file was deleted or replaced, so the symbols are not certain.
    pub(crate) is_deleted: bool,
}

/// Id of a module, assigned by the probe.
pub(crate) type ModuleId = u32;

/// A module and its file.
struct Module {
    mapped: MappedFile,
    executable: Arc<str>,
    owner: Owner,
    state: FileState,
    last_used: u64,
}

enum FileState {
    /// Not opened yet, or evicted.
    Closed,
    /// Its file system has not answered yet.
    Opening(LateAnswer<Option<HeldFile>>),
    /// Not found through the process `pid`.
    Missing {
        pid: u32,
    },
    Open(OpenModule),
}

struct OpenModule {
    file: HeldFile,
    symbols: SymbolState,
}

enum SymbolState {
    NotLoaded,
    /// Not read in time.
    Loading(LateAnswer<Result<SymbolFiles, ElfError>>),
    Loaded(Box<FileSymbolizer>),
    Unreadable,
}

/// Symbolizer of all modules.
pub(crate) struct Symbols {
    access: FileAccess,
    modules: BTreeMap<ModuleId, Module>,
    locations: HashMap<(ModuleId, u64, bool), Arc<Location>>,
    /// Observed processes, through whose roots a file may be found.
    processes: Vec<u32>,
    /// Logical clock for LRU eviction.
    clock: u64,
    /// Number of times that a file was not opened or read in time.
    late: u64,
}

impl Symbols {
    /// `calls` runs what accesses files of processes.
    pub(crate) fn new(proc: Proc, calls: ForeignCalls) -> Self {
        Self {
            access: FileAccess::new(proc, calls),
            modules: BTreeMap::new(),
            locations: HashMap::new(),
            processes: Vec::new(),
            clock: 0,
            late: 0,
        }
    }

    /// Number of times that a file was not opened or read in time.
    pub(crate) fn late(&self) -> u64 {
        self.late
    }

    /// Adds or updates a module and opens its file, so that it stays readable after deletion. A reused id replaces the
    /// previous module.
    pub(crate) fn add_module(&mut self, id: ModuleId, mapped: MappedFile) {
        self.clock += 1;
        match self.modules.get_mut(&id) {
            Some(module) if module.mapped.path == mapped.path && module.mapped.inode == mapped.inode => {
                module.mapped = mapped;
            }
            Some(_) => {
                self.remove_module(id);
                self.insert(id, mapped);
            }
            None => self.insert(id, mapped),
        }
        self.open(id);
    }

    fn insert(&mut self, id: ModuleId, mapped: MappedFile) {
        let owner = Owner::of(&mapped.path, self.access.is_executable(&mapped));
        let executable = base_name(&mapped.path);
        let last_used = self.clock;
        self.modules.insert(id, Module { mapped, executable, owner, state: FileState::Closed, last_used });
    }

    /// Sets the processes observed at present.
    pub(crate) fn set_processes(&mut self, processes: &[u32]) {
        self.processes = processes.to_vec();
    }

    /// Closes files opened through the root of a process that exited or is no longer observed, so that its file systems
    /// can be unmounted. They are reopened through another process when needed.
    pub(crate) fn release_process(&mut self, pid: u32) {
        self.processes.retain(|process| *process != pid);
        let next = self.processes.first().copied();
        for module in self.modules.values_mut().filter(|module| module.mapped.pid == pid) {
            module.state = match next {
                Some(next) => {
                    module.mapped.pid = next;
                    FileState::Closed
                }
                None => FileState::Missing { pid },
            };
        }
    }

    /// Removes a module and closes its file.
    pub(crate) fn remove_module(&mut self, id: ModuleId) {
        if self.modules.remove(&id).is_some() {
            self.locations.retain(|(module, ..), _| *module != id);
        }
    }

    /// Returns the functions at a file offset of a module, or `None` if the module is unknown. `is_return_address`: the
    /// offset follows a call.
    pub(crate) fn symbolize(&mut self, id: ModuleId, offset: u64, is_return_address: bool) -> Option<Arc<Location>> {
        if let Some(location) = self.locations.get(&(id, offset, is_return_address)) {
            return Some(Arc::clone(location));
        }
        self.open(id);
        self.clock += 1;
        let module = self.modules.get_mut(&id)?;
        module.last_used = self.clock;
        let was_loaded = module.is_loaded();
        self.late += u64::from(module.load(&self.access));
        let location = Arc::new(module.symbolize(offset, is_return_address));
        if module.is_late() {
            return Some(location);
        }
        if !was_loaded {
            self.evict_copies(id);
        }
        if self.locations.len() >= MAX_LOCATIONS {
            self.locations.clear();
        }
        self.locations.insert((id, offset, is_return_address), Arc::clone(&location));
        Some(location)
    }

    fn open(&mut self, id: ModuleId) {
        let is_full =
            self.modules.values().filter(|module| matches!(module.state, FileState::Open(_))).count() >= MAX_OPEN_FILES;
        let Some(module) = self.modules.get_mut(&id) else { return };
        let was_opening = matches!(module.state, FileState::Opening(_));
        let answer = match std::mem::replace(&mut module.state, FileState::Closed) {
            FileState::Opening(late) => late.take(),
            // A different process may have the file in its root.
            FileState::Missing { pid } if pid != module.mapped.pid => self.access.open(&module.mapped, &self.processes),
            FileState::Closed => self.access.open(&module.mapped, &self.processes),
            tried => {
                module.state = tried;
                return;
            }
        };
        module.state = match answer {
            Answer::Ready(Some(file)) => FileState::Open(OpenModule { file, symbols: SymbolState::NotLoaded }),
            Answer::Ready(None) | Answer::Refused => FileState::Missing { pid: module.mapped.pid },
            Answer::Late(late) => {
                if !was_opening {
                    self.late += 1;
                    let path = module.mapped.path.to_string_lossy();
                    let path = EscapedTruncated(&path);
                    warn_limited!(%path, "a file is not symbolized yet: its file system does not answer");
                }
                FileState::Opening(late)
            }
        };
        if !matches!(module.state, FileState::Open(_)) {
            return;
        }
        if is_full {
            self.evict_file(id);
        }
    }

    /// Closes the least recently used file. It is reopened when needed, if it still exists.
    fn evict_file(&mut self, except: ModuleId) {
        let open =
            self.modules.iter_mut().filter(|(id, module)| **id != except && matches!(module.state, FileState::Open(_)));
        if let Some((_, module)) = open.min_by_key(|(_, module)| module.last_used) {
            module.state = FileState::Closed;
        }
    }

    /// Evicts the least recently used copies.
    fn evict_copies(&mut self, except: ModuleId) {
        while self.modules.values().map(Module::bytes).sum::<u64>() > MAX_COPIED_BYTES {
            let held = self.modules.iter_mut().filter(|(id, module)| **id != except && module.bytes() > 0);
            let Some((_, module)) = held.min_by_key(|(_, module)| module.last_used) else { return };
            if let FileState::Open(open) = &mut module.state {
                open.symbols = SymbolState::NotLoaded;
            }
        }
    }

    /// Drops all copies while the symbolizer is idle.
    pub(crate) fn drop_copies(&mut self) {
        for module in self.modules.values_mut() {
            if let FileState::Open(open) = &mut module.state
                && matches!(open.symbols, SymbolState::Loaded(_))
            {
                open.symbols = SymbolState::NotLoaded;
            }
        }
    }

    /// Returns the memory used by copies, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.modules.values().map(Module::bytes).sum()
    }
}

impl Module {
    fn bytes(&self) -> u64 {
        match &self.state {
            FileState::Open(OpenModule { symbols: SymbolState::Loaded(names), .. }) => names.bytes,
            _ => 0,
        }
    }

    fn is_loaded(&self) -> bool {
        matches!(
            &self.state,
            FileState::Open(OpenModule { symbols: SymbolState::Loaded(_) | SymbolState::Unreadable, .. })
        )
    }

    /// Whether names may still be found: its file system has not answered yet.
    fn is_late(&self) -> bool {
        matches!(
            self.state,
            FileState::Opening(_) | FileState::Open(OpenModule { symbols: SymbolState::Loading(_), .. })
        )
    }

    /// Loads the symbols, if they are not loaded. Returns whether they have become late.
    fn load(&mut self, access: &FileAccess) -> bool {
        let FileState::Open(open) = &mut self.state else { return false };
        let (answer, is_first) = match std::mem::replace(&mut open.symbols, SymbolState::Unreadable) {
            SymbolState::NotLoaded => (access.read(&self.mapped, &open.file), true),
            SymbolState::Loading(late) => (late.take(), false),
            loaded => {
                open.symbols = loaded;
                return false;
            }
        };
        let path = self.mapped.path.to_string_lossy();
        let path = EscapedTruncated(&path);
        open.symbols = match answer {
            Answer::Ready(Ok(files)) => SymbolState::Loaded(Box::new(files.into())),
            Answer::Ready(Err(cause)) => {
                warn_limited!(%path, %cause, "a file cannot be symbolized");
                SymbolState::Unreadable
            }
            Answer::Refused => {
                warn_limited!(%path, "a file is not symbolized: too many reads of files do not return");
                SymbolState::Unreadable
            }
            Answer::Late(late) => {
                if is_first {
                    warn_limited!(%path, "a file is not symbolized yet: its file system does not answer");
                }
                SymbolState::Loading(late)
            }
        };
        is_first && matches!(open.symbols, SymbolState::Loading(_))
    }

    fn symbolize(&mut self, offset: u64, is_return_address: bool) -> Location {
        let (functions, is_same_file) = match &mut self.state {
            FileState::Open(open) => (open.functions(offset, is_return_address), open.file.is_same_file),
            FileState::Closed | FileState::Opening(_) | FileState::Missing { .. } => {
                (Vec::new(), !self.mapped.is_deleted)
            }
        };
        let mut is_rust = false;
        let function = |function: Demangled| {
            // A function inlined into a Rust function is Rust, even if its name in the debug information is not
            // mangled.
            is_rust |= function.is_rust;
            Function { name: function.name.into(), category: self.owner.category(is_rust) }
        };
        Location {
            executable: Arc::clone(&self.executable),
            functions: functions.into_iter().map(function).collect(),
            category: self.owner.category(false),
            is_deleted: !is_same_file,
        }
    }
}

impl OpenModule {
    fn functions(&mut self, offset: u64, is_return_address: bool) -> Vec<Demangled> {
        match &mut self.symbols {
            SymbolState::Loaded(names) => names.symbolize(offset, is_return_address),
            SymbolState::NotLoaded | SymbolState::Loading(_) | SymbolState::Unreadable => Vec::new(),
        }
    }
}

/// The separate debug file of a file, and its build id in hexadecimal.
#[derive(Debug, Default)]
pub(crate) struct DebugFile {
    pub(crate) debug: Option<File>,
    pub(crate) build_id: Option<String>,
}

/// Finds the debug file of a file at a path in the root of a process: by build id or debug link.
pub(crate) fn debug_file(proc: &Proc, path: &Path, pid: u32, file: &File) -> DebugFile {
    let Ok(elf) = elf::Elf::read(file) else { return DebugFile::default() };
    let mapped = MappedFile { path: path.to_owned(), inode: 0, pid, is_deleted: false };
    let debug = files::open_debug(proc, &mapped, &elf).map(|(file, _)| file);
    let build_id = elf.build_id.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    DebugFile { debug, build_id: (!build_id.is_empty()).then_some(build_id) }
}

/// Opens the file of a module, through another process if necessary.
fn find(proc: &Proc, mapped: &MappedFile, processes: &[u32]) -> Option<files::OpenedFile> {
    let first = files::open_mapped(proc, mapped);
    if first.as_ref().is_some_and(|found| found.is_same_file) {
        return first;
    }
    let others = processes.iter().filter(|pid| **pid != mapped.pid).take(MAX_ROOTS);
    let mut elsewhere = others.filter_map(|pid| files::open_mapped(proc, &MappedFile { pid: *pid, ..mapped.clone() }));
    elsewhere.find(|found| found.is_same_file).or(first)
}

/// Returns the base name of a path; never empty.
fn base_name(path: &Path) -> Arc<str> {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_else(|| path.to_string_lossy());
    let mut name = Escaped(&name).to_string();
    while name.len() > MAX_FILE_NAME {
        name.pop();
    }
    if name.is_empty() { "[unknown]".into() } else { name.into() }
}
