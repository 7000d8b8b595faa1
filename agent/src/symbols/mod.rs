//! Names of code: from a place in a mapped file to the functions there.
//!
//! ```text
//!   MappedFile (path, inode, a process that maps it)
//!      │ files: opened inside the process's root, once, and kept open: a file that is deleted later still has its names
//!      ▼
//!   elf: tables, checked ──▶ copy: symbols and debug information, in memory of our own ──▶ module: blazesym ──▶ demangle
//! ```
//!
//! Reading symbols takes milliseconds to seconds: [`Symbols`] lives on a thread of its own. What it holds is bounded: open
//! files, copies (the least used goes first and is made again when it is needed) and names. Of a damaged or hostile file
//! there are no names; nothing of it ends this program.

mod category;
mod copy;
mod demangle;
mod elf;
mod files;
mod module;
mod ocaml;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

pub(crate) use category::Category;
use category::Owner;
use chainscope_hygiene::{Escaped, EscapedTruncated};
use module::Names;

use crate::targets::proc::Proc;

/// Memory for copies of symbols and debug information.
const COPIED_BYTES: u64 = 256 << 20;
/// Files that are kept open.
const OPEN_FILES: usize = 512;
/// Places whose names are remembered.
const PLACES: usize = 1 << 18;
/// Processes in whose roots a file is looked for.
const MAX_ROOTS: usize = 16;
/// Longest base name of a file, in bytes.
const MAX_FILE_NAME: usize = 255;

/// A mapped file, as the kernel tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MappedFile {
    /// As its process sees it, without the kernel's " (deleted)"; or in brackets, of what is no file.
    pub(crate) path: PathBuf,
    /// 0: unknown.
    pub(crate) inode: u64,
    /// A process that maps it.
    pub(crate) pid: u32,
    /// The path leads to it no more.
    pub(crate) is_deleted: bool,
}

/// A function.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Function {
    /// Demangled.
    pub(crate) name: Box<str>,
    pub(crate) category: Category,
}

/// What is known of a place in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Base name of the file.
    pub(crate) executable: Arc<str>,
    /// Outermost first; the others were inlined. Empty: no symbol covers the place.
    pub(crate) functions: Box<[Function]>,
    /// Of a function without a name.
    pub(crate) category: Category,
    /// The file was deleted or replaced, and the name is not known for certain.
    pub(crate) is_deleted: bool,
}

/// Number of a module, given by who maps it.
pub(crate) type ModuleId = u32;

/// A module as it is known.
struct Module {
    mapped: MappedFile,
    executable: Arc<str>,
    owner: Owner,
    state: State,
    used: u64,
}

enum State {
    /// Not opened yet, or closed for want of room.
    Closed,
    /// Could not be found in this process.
    Missing {
        pid: u32,
    },
    Open(Open),
}

struct Open {
    file: File,
    is_certain: bool,
    names: Reading,
}

enum Reading {
    NotRead,
    Read(Box<Names>),
    Unreadable,
}

/// The names of all modules.
pub(crate) struct Symbols {
    proc: Proc,
    modules: BTreeMap<ModuleId, Module>,
    places: HashMap<(ModuleId, u64, bool), Arc<Place>>,
    /// Processes that may have a file that another's root has no more.
    processes: Vec<u32>,
    /// Grows with each use.
    clock: u64,
}

impl Symbols {
    pub(crate) fn new(proc: Proc) -> Self {
        Self { proc, modules: BTreeMap::new(), places: HashMap::new(), processes: Vec::new(), clock: 0 }
    }

    /// Tells of a module: its file is opened, so that it is there when names are asked for. A number that stood for
    /// another file before means this one from now on.
    pub(crate) fn see(&mut self, id: ModuleId, mapped: MappedFile) {
        self.clock += 1;
        match self.modules.get_mut(&id) {
            Some(module) if module.mapped.path == mapped.path && module.mapped.inode == mapped.inode => {
                module.mapped = mapped;
            }
            Some(_) => {
                self.forget(id);
                self.add(id, mapped);
            }
            None => self.add(id, mapped),
        }
        self.open(id);
    }

    fn add(&mut self, id: ModuleId, mapped: MappedFile) {
        let owner = Owner::of(&mapped.path, files::is_executable(&self.proc, &mapped));
        let executable = base_name(&mapped.path);
        let used = self.clock;
        self.modules.insert(id, Module { mapped, executable, owner, state: State::Closed, used });
    }

    /// Processes that are observed now.
    pub(crate) fn set_processes(&mut self, processes: &[u32]) {
        self.processes = processes.to_vec();
    }

    /// A process ended, or is no longer observed: the files that were opened in its root are closed, so that nobody waits
    /// for them to unmount it. Those that another process has are opened there when they are needed.
    pub(crate) fn leave(&mut self, pid: u32) {
        self.processes.retain(|process| *process != pid);
        let next = self.processes.first().copied();
        for module in self.modules.values_mut().filter(|module| module.mapped.pid == pid) {
            module.state = match next {
                Some(next) => {
                    module.mapped.pid = next;
                    State::Closed
                }
                None => State::Missing { pid },
            };
        }
    }

    /// The number stands for another file from now on.
    fn forget(&mut self, id: ModuleId) {
        if self.modules.remove(&id).is_some() {
            self.places.retain(|(module, ..), _| *module != id);
        }
    }

    /// The functions at an offset in a module's file; none if the module was never told of. `is_call`: the place is the
    /// one that a call returns to.
    pub(crate) fn place(&mut self, id: ModuleId, offset: u64, is_call: bool) -> Option<Arc<Place>> {
        if let Some(place) = self.places.get(&(id, offset, is_call)) {
            return Some(Arc::clone(place));
        }
        self.open(id);
        self.clock += 1;
        let module = self.modules.get_mut(&id)?;
        module.used = self.clock;
        let was_read = module.is_read();
        let place = Arc::new(module.place(&self.proc, offset, is_call));
        if !was_read {
            self.make_room(id);
        }
        if self.places.len() >= PLACES {
            self.places.clear();
        }
        self.places.insert((id, offset, is_call), Arc::clone(&place));
        Some(place)
    }

    fn open(&mut self, id: ModuleId) {
        let is_full =
            self.modules.values().filter(|module| matches!(module.state, State::Open(_))).count() >= OPEN_FILES;
        let Some(module) = self.modules.get_mut(&id) else { return };
        let is_tried = match module.state {
            State::Open(_) => true,
            // Another process may have it in its root.
            State::Missing { pid } => pid == module.mapped.pid,
            State::Closed => false,
        };
        if is_tried {
            return;
        }
        let Some(found) = find(&self.proc, &module.mapped, &self.processes) else {
            module.state = State::Missing { pid: module.mapped.pid };
            return;
        };
        module.state = State::Open(Open { file: found.file, is_certain: found.is_certain, names: Reading::NotRead });
        if is_full {
            self.close_least_used(id);
        }
    }

    /// Of so many files one that is asked for its names again is opened again, if it is still there.
    fn close_least_used(&mut self, except: ModuleId) {
        let open =
            self.modules.iter_mut().filter(|(id, module)| **id != except && matches!(module.state, State::Open(_)));
        if let Some((_, module)) = open.min_by_key(|(_, module)| module.used) {
            module.state = State::Closed;
        }
    }

    /// Drops the copies that were not used for longest.
    fn make_room(&mut self, except: ModuleId) {
        while self.modules.values().map(Module::bytes).sum::<u64>() > COPIED_BYTES {
            let held = self.modules.iter_mut().filter(|(id, module)| **id != except && module.bytes() > 0);
            let Some((_, module)) = held.min_by_key(|(_, module)| module.used) else { return };
            if let State::Open(open) = &mut module.state {
                open.names = Reading::NotRead;
            }
        }
    }

    /// Drops all copies: nothing is asked for at present.
    pub(crate) fn rest(&mut self) {
        for module in self.modules.values_mut() {
            if let State::Open(open) = &mut module.state
                && matches!(open.names, Reading::Read(_))
            {
                open.names = Reading::NotRead;
            }
        }
    }

    /// Memory that copies take.
    pub(crate) fn bytes(&self) -> u64 {
        self.modules.values().map(Module::bytes).sum()
    }
}

impl Module {
    fn bytes(&self) -> u64 {
        match &self.state {
            State::Open(Open { names: Reading::Read(names), .. }) => names.bytes,
            _ => 0,
        }
    }

    fn is_read(&self) -> bool {
        matches!(&self.state, State::Open(Open { names: Reading::Read(_) | Reading::Unreadable, .. }))
    }

    fn place(&mut self, proc: &Proc, offset: u64, is_call: bool) -> Place {
        let (functions, is_certain) = match &mut self.state {
            State::Open(open) => (open.functions(proc, &self.mapped, offset, is_call), open.is_certain),
            State::Closed | State::Missing { .. } => (Vec::new(), !self.mapped.is_deleted),
        };
        let mut is_rust = false;
        let function = |function: demangle::Demangled| {
            // What is inlined into Rust is Rust, also where debug information has plain names.
            is_rust |= function.is_rust;
            Function { name: function.name.into(), category: self.owner.category(is_rust) }
        };
        Place {
            executable: Arc::clone(&self.executable),
            functions: functions.into_iter().map(function).collect(),
            category: self.owner.category(false),
            is_deleted: !is_certain,
        }
    }
}

impl Open {
    fn functions(&mut self, proc: &Proc, mapped: &MappedFile, offset: u64, is_call: bool) -> Vec<demangle::Demangled> {
        if matches!(self.names, Reading::NotRead) {
            self.names = match Names::read(proc, mapped, &self.file) {
                Ok(names) => Reading::Read(Box::new(names)),
                Err(cause) => {
                    let path = mapped.path.to_string_lossy();
                    tracing::info!(path = %EscapedTruncated(&path), %cause, "no names of this file");
                    Reading::Unreadable
                }
            };
        }
        match &mut self.names {
            Reading::Read(names) => names.at(offset, is_call),
            Reading::NotRead | Reading::Unreadable => Vec::new(),
        }
    }
}

/// Opens a module's file, if need be by another process than the one that was told of.
fn find(proc: &Proc, mapped: &MappedFile, processes: &[u32]) -> Option<files::Found> {
    let first = files::open_mapped(proc, mapped);
    if first.as_ref().is_some_and(|found| found.is_certain) {
        return first;
    }
    let others = processes.iter().filter(|pid| **pid != mapped.pid).take(MAX_ROOTS);
    let mut elsewhere = others.filter_map(|pid| files::open_mapped(proc, &MappedFile { pid: *pid, ..mapped.clone() }));
    elsewhere.find(|found| found.is_certain).or(first)
}

/// Never empty.
fn base_name(path: &Path) -> Arc<str> {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_else(|| path.to_string_lossy());
    let mut name = Escaped(&name).to_string();
    while name.len() > MAX_FILE_NAME {
        name.pop();
    }
    if name.is_empty() { "[unknown]".into() } else { name.into() }
}
