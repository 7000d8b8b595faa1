//! The memory probe: the processes that it watches, and the maps that it shares with the programs.

mod code;
mod lifecycle;
mod preexisting;
mod read;
mod reclaim;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{HashMap as KernelMap, Map, MapData, MapError, Queue};

use super::abi::{
    Counters, Edge, FOLIO_BATCH, Globals, MAX_ADDRESS_SPACES, PREEXISTING_BATCH, PreexistingPage, TREE_FULL, Target,
};
use super::address_spaces::{AddressSpaces, Root, UnwindMapping};
use super::call_tree::CallTree;
use super::code_files::CodeReading;
use super::foreign::ForeignCalls;
use super::mmap_events::MmapEvents;
use super::modules::Modules;
use super::preexisting::PreexistingPages;
use super::process;
use super::programs::{self, NOTICE_RING_BYTES};
use super::reading::{MappingShare, MemoryEvent, ModuleId, TargetId};
use super::targets::Targets;
use crate::error::Error;
use crate::load::{missing_map, mmap_array, take_map};
use crate::mmap_array::MmapArray;
use crate::pid_namespace::PidNamespace;
use crate::ring::Ring;
use code::Code;
use reclaim::OfRemoved;

/// Options of [`MemoryProbe::load`].
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// Capacity of the kernel's call tree in nodes; each takes about 140 bytes. At most 2^24.
    pub nodes: u32,
    /// Verification for tests: every stack is unwound a second time without caches, and compared.
    pub verify_stacks: bool,
    /// Whether children of a target become targets.
    pub follow_children: bool,
    /// The proc file system whose process ids are used.
    pub proc: PathBuf,
    /// Runs what reads the code and the memory of targets.
    pub calls: ForeignCalls,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            nodes: 1 << 18,
            verify_stacks: false,
            follow_children: true,
            proc: "/proc".into(),
            calls: ForeignCalls::threads(),
        }
    }
}

/// User space state of a target.
struct Process {
    pid: u32,
    parent: Option<TargetId>,
    /// Number of its address space.
    mm: u32,
    start_time: u64,
    alive: bool,
    /// Target whose address space was copied by fork, until this one executes another program.
    copied_from: Option<TargetId>,
    /// Executable mappings, by address.
    mappings: Arc<Vec<UnwindMapping>>,
    /// Pages that were resident before it was watched, as an estimate.
    preexisting: PreexistingPages,
    /// Resident pages by mapping at the moment of attach.
    at_attach: Vec<MappingShare>,
    /// Nodes of the pages that were resident before it was watched, if their pfns are known.
    preexisting_roots: Option<preexisting::PreexistingRoots>,
    /// Numbers of stacks in earlier address spaces, by how their unwinding ended.
    past_stacks: [u64; 8],
}

impl Process {
    fn new(pid: u32, mm: u32, start_time: u64, mappings: Arc<Vec<UnwindMapping>>) -> Self {
        Self {
            pid,
            parent: None,
            mm,
            start_time,
            alive: true,
            copied_from: None,
            mappings,
            preexisting: PreexistingPages::default(),
            at_attach: Vec::new(),
            preexisting_roots: None,
            past_stacks: [0; 8],
        }
    }
}

/// Attributes the resident pages of watched processes to code. Dropping it detaches and frees everything.
///
/// # Minimum kernel version
///
/// 5.17, or an older one with `bpf_loop` backported; owners of migrated pages are known from 5.19 on.
pub struct MemoryProbe {
    proc: PathBuf,
    targets: Targets,
    globals: MmapArray<Globals>,
    counters: MmapArray<Counters>,
    ring: Ring,
    mmap_events: MmapEvents,
    address_spaces: AddressSpaces,
    modules: Modules,
    tree: CallTree,
    processes: BTreeMap<TargetId, Process>,
    /// The first module that no earlier reading contained.
    modules_reported: ModuleId,
    reclaiming: reclaim::Reclaiming,
    /// `Globals::lost_notices` at the last drain.
    lost_notices: u32,
    /// Capacity of the call tree.
    nodes: u32,
    /// Greatest pfn of the machine plus 1.
    max_pfn: u32,
    edges: KernelMap<MapData, Edge, u32>,
    free_nodes: Queue<MapData, u32>,
    preexisting_pages: MmapArray<PreexistingPage>,
    /// Orders of the large folios of targets, by their first pfn.
    folios: KernelMap<MapData, u32, u32>,
    folio_batch: MmapArray<u64>,
    calls: ForeignCalls,
    /// Targets whose code is being read.
    code_readings: BTreeMap<TargetId, CodeReading>,
    /// Targets that have mapped code since it was read.
    outdated_code: BTreeSet<TargetId>,
    /// Targets whose preexisting pages are not known yet.
    unscanned: BTreeSet<TargetId>,
    /// Events that [`MemoryProbe::poll`] has not returned yet.
    pending_events: Vec<MemoryEvent>,
    /// Owns the programs and their attachments.
    bpf: Ebpf,
}

impl fmt::Debug for MemoryProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryProbe").field("targets", &self.processes.len()).finish_non_exhaustive()
    }
}

impl MemoryProbe {
    /// Loads and attaches the programs, which takes about 200 ms. No process is watched yet.
    ///
    /// Kernel memory: 4 bytes for each page of the machine, 1 MiB for each CPU, 140 bytes for each node, 12 bytes for each
    /// unwind rule.
    ///
    /// # Errors
    /// No BTF, kernel too old, a missing tracepoint or capability.
    pub fn load(options: &MemoryOptions) -> Result<Self, Error> {
        let programs::Object { mut bpf, nodes, cpus, max_pfn, programs: loaded } = programs::load(options)?;
        let ring = match bpf.take_map("notices") {
            Some(Map::RingBuf(map)) => Ring::new(map.fd().as_fd(), NOTICE_RING_BYTES).map_err(Error::Ring)?,
            _ => return Err(missing_map("notices")),
        };
        let address_spaces = mmap_array(&mut bpf, "address_spaces", MAX_ADDRESS_SPACES)?;
        let address_spaces = AddressSpaces::new(address_spaces, take_map(&mut bpf, "mapping_tables")?)
            .map_err(|error| Error::from_loader("create tables of mappings".to_owned(), &error, 0))?;
        let modules = Modules::new(take_map(&mut bpf, "rule_tables")?)
            .map_err(|error| Error::from_loader("create unwind tables".to_owned(), &error, 0))?;
        let mmap_events = MmapEvents::open(cpus, PidNamespace::of_proc(&options.proc)?.is_own())
            .map_err(|error| Error::from_loader("record mappings of code".to_owned(), &error, 0))?;
        let mut probe = Self {
            proc: options.proc.clone(),
            targets: Targets::new(&mut bpf)?,
            globals: mmap_array(&mut bpf, "globals_map", 1)?,
            counters: mmap_array(&mut bpf, "counters", cpus)?,
            ring,
            mmap_events,
            address_spaces,
            modules,
            tree: CallTree::new(mmap_array(&mut bpf, "nodes", nodes)?),
            processes: BTreeMap::new(),
            modules_reported: ModuleId(0),
            reclaiming: reclaim::Reclaiming::new(nodes),
            lost_notices: 0,
            nodes,
            max_pfn,
            edges: take_map(&mut bpf, "edges")?,
            free_nodes: take_map(&mut bpf, "free_nodes")?,
            preexisting_pages: mmap_array(&mut bpf, "preexisting_pages", PREEXISTING_BATCH)?,
            folios: take_map(&mut bpf, "folios")?,
            folio_batch: mmap_array(&mut bpf, "folio_batch", FOLIO_BATCH)?,
            calls: options.calls.clone(),
            code_readings: BTreeMap::new(),
            outdated_code: BTreeSet::new(),
            unscanned: BTreeSet::new(),
            pending_events: Vec::new(),
            bpf,
        };
        probe.share_nodes();
        programs::attach(&mut probe.bpf, &loaded)?;
        Ok(probe)
    }

    /// Watches a process and the children that it forks from now on. Has no effect on a process that is already watched.
    ///
    /// # Errors
    /// [`Error::NoProcess`], [`Error::TableFull`].
    pub fn watch(&mut self, pid: u32) -> Result<TargetId, Error> {
        // It may be a recently forked child of a target.
        let events = self.drain();
        self.pending_events.extend(events);
        if let Some(target) = self.find_target(pid) {
            return Ok(target);
        }
        let gone = || Error::NoProcess { pid };
        let start_time = process::start_time(&self.proc, pid).ok_or_else(gone)?;
        let target = TargetId(self.globals.fetch_next(0, offset_of!(Globals, last_target)));
        let mm = self.new_mm()?;
        let mappings = match self.read_code(target, pid) {
            Code::Whole(mappings) | Code::Late(mappings) => Arc::new(mappings),
            Code::Gone => return Err(gone()),
        };
        let root = self.new_root(target, &mappings)?;
        let root = self.with_overflow(root)?;
        self.address_spaces.begin(mm, root);
        if let Err(error) = self.publish(mm, &mappings, None) {
            self.address_spaces.end(mm);
            return Err(error);
        }
        self.processes.insert(target, Process::new(pid, mm, start_time, mappings));
        self.share_nodes();
        let inserted = self.targets.insert(pid, Target { id: target.0, parent: 0, mm, flags: 0 });
        // The pid may have been reused in the meantime.
        let is_same = process::start_time(&self.proc, pid) == Some(start_time);
        if inserted.is_err() || !is_same {
            self.unwatch(target);
            // It may have been forked by a target in the meantime.
            let events = self.drain();
            self.pending_events.extend(events);
            return match (self.find_target(pid), inserted) {
                (Some(child), _) => Ok(child),
                (None, Err(MapError::SyscallError(_))) if self.targets.get(pid).is_none() => {
                    Err(Error::TableFull { table: "targets" })
                }
                _ => Err(gone()),
            };
        }
        // A process that does not answer now is scanned once it does.
        if self.code_readings.contains_key(&target) {
            self.unscanned.insert(target);
        } else {
            self.scan_preexisting(target);
        }
        Ok(target)
    }

    fn find_target(&self, pid: u32) -> Option<TargetId> {
        self.processes.iter().find(|(_, process)| process.alive && process.pid == pid).map(|(target, _)| *target)
    }

    /// Stops watching a target and its descendants, and drops their counts.
    pub fn unwatch(&mut self, target: TargetId) {
        let mut removed = vec![target];
        while let Some(target) = removed.pop() {
            removed.extend(self.processes.iter().filter(|(_, p)| p.parent == Some(target)).map(|(child, _)| *child));
            if let Some(process) = self.processes.remove(&target) {
                if self.targets.get(process.pid).is_some_and(|entry| entry.id == target.0) {
                    self.targets.remove(process.pid);
                }
                self.address_spaces.end(process.mm);
            }
            self.code_readings.remove(&target);
            self.outdated_code.remove(&target);
            self.unscanned.remove(&target);
            self.tree.unwatch(target);
            self.reclaiming.of_removed = OfRemoved::Pending;
        }
    }

    /// Returns pending events; if there are none, waits for them for at most `timeout`. Creates unwind tables for newly
    /// mapped files, so it has to be called in a loop.
    ///
    /// # Errors
    /// [`Error::Ring`].
    pub fn poll(&mut self, timeout: Duration) -> Result<Vec<MemoryEvent>, Error> {
        let events = self.drain();
        if !events.is_empty() || timeout.is_zero() {
            return Ok(events);
        }
        self.ring.wait(timeout).map_err(Error::Ring)?;
        Ok(self.drain())
    }

    /// Allocates the number of an address space whose entry is not in use. The programs allocate numbers as well.
    fn new_mm(&self) -> Result<u32, Error> {
        let mut mms = (0..MAX_ADDRESS_SPACES).map(|_| self.globals.fetch_next(0, offset_of!(Globals, last_mm)));
        mms.find(|mm| self.address_spaces.is_free(*mm)).ok_or(Error::TableFull { table: "address spaces" })
    }

    /// Allocates a node of the kernel's call tree.
    fn new_node(&mut self) -> Result<u32, Error> {
        let node = match self.free_nodes.pop(0) {
            Ok(free) => free,
            Err(_) if self.last_node() + 1 >= self.nodes => return Err(Error::TableFull { table: "calls" }),
            Err(_) => self.globals.fetch_next(0, offset_of!(Globals, last_node)),
        };
        if node >= self.nodes {
            return Err(Error::TableFull { table: "calls" });
        }
        Ok(node)
    }

    /// Adds the node for frames that get none.
    fn with_overflow(&mut self, root: u32) -> Result<Root, Error> {
        let overflow = self.new_node()?;
        self.tree.write_overflow(overflow, root);
        let edge = Edge { pc: TREE_FULL, parent: root, pad: 0 };
        let inserted = self.edges.insert(edge, overflow, 0);
        inserted.map_err(|error| Error::from_loader("write to the call tree".to_owned(), &error, 0))?;
        Ok(Root { node: root, overflow })
    }

    /// Allocates a root of the kernel's call tree, whose addresses belong to `mappings`.
    fn new_root(&mut self, target: TargetId, mappings: &Arc<Vec<UnwindMapping>>) -> Result<u32, Error> {
        let root = self.new_node()?;
        self.tree.write_root(root, target);
        self.tree.set_root(root, Arc::clone(mappings));
        Ok(root)
    }

    /// Passes the mappings of an address space to the programs.
    fn publish(&mut self, mm: u32, mappings: &[UnwindMapping], root: Option<Root>) -> Result<(), Error> {
        let in_use: BTreeSet<u32> = self.processes.values().filter(|p| p.alive).map(|process| process.mm).collect();
        self.address_spaces
            .publish(mm, mappings, root, &in_use)
            .map_err(|error| Error::from_loader("write the table of mappings".to_owned(), &error, 0))
    }

    fn last_node(&self) -> u32 {
        self.globals.get(0).map_or(0, |globals| globals.last_node)
    }
}
