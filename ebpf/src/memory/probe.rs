//! The memory probe: keeps the tables of what is watched, and follows processes.

mod answer;
mod attach;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{HashMap as KernelMap, Map, MapData, MapError, Queue};

use super::before::Before;
use super::kernel::{ADOPTED, Account, Adopted, BORROWED, Edge, LAYOUTS, Numbers, Target};
use super::layouts::Layouts;
use super::mmaps::Mmaps;
use super::modules::{Modules, Placed};
use super::notices::{self, Notice, What};
use super::programs::{self, RING_BYTES, take};
use super::reading::{MappingShare, MemoryEvent, ModuleId, TargetId};
use super::shared::{SharedArray, array};
use super::tree::Tree;
use super::{maps, process};
use crate::error::Error;
use crate::ring::Ring;

/// `BPF_NOEXIST`: an element of the kernel's own is not written over.
const BPF_NOEXIST: u64 = 1;

/// How to follow memory.
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// Room of the kernel's call tree, in nodes; each takes about 140 bytes. At most 2^24.
    pub nodes: u32,
    /// Soundness check: every stack is unwound twice and compared. For tests.
    pub check: bool,
    /// Whether children of a target are targets too.
    pub follow_children: bool,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self { nodes: 1 << 18, check: false, follow_children: true }
    }
}

/// A target on our side.
struct Process {
    pid: u32,
    parent: Option<TargetId>,
    image: u32,
    start_time: u64,
    alive: bool,
    /// Whose address space it began with a copy of, until it executes another program.
    copied_from: Option<TargetId>,
    layout: Arc<Vec<Placed>>,
    before: Before,
    at_attach: Vec<MappingShare>,
    /// Nodes of the pages that it had when it was watched, if their frames could be told.
    exact: Option<attach::Apart>,
    /// Of the address spaces that it had before.
    past_stacks: [u64; 8],
}

/// How far the freeing of nodes is. A program that was running when its target was forgotten may still count a page, so
/// there is a reading between the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forgotten {
    Nothing,
    /// Targets that are not followed any more have nodes.
    Targets,
    /// Their nodes are marked.
    Buried,
}

/// Follows the pages of watched processes. Everything is detached and freed on drop.
pub struct MemoryProbe {
    targets: KernelMap<MapData, u32, Target>,
    numbers: SharedArray<Numbers>,
    accounts: SharedArray<Account>,
    ring: Ring,
    mmaps: Mmaps,
    layouts: Layouts,
    modules: Modules,
    tree: Tree,
    processes: HashMap<TargetId, Process>,
    modules_reported: usize,
    lost_notices: u32,
    nodes: u32,
    frames: u32,
    edges: KernelMap<MapData, Edge, u32>,
    free_nodes: Queue<MapData, u32>,
    adopted: SharedArray<Adopted>,
    /// Targets were forgotten: their nodes are to be freed.
    forgotten: Forgotten,
    /// What happened and was not asked for yet.
    untold: Vec<MemoryEvent>,
    /// Holds the programs and their attachments.
    bpf: Ebpf,
}

impl fmt::Debug for MemoryProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryProbe").field("targets", &self.processes.len()).finish_non_exhaustive()
    }
}

impl MemoryProbe {
    /// Loads and attaches the programs (some 200 ms). Nothing is watched yet.
    ///
    /// Memory of the kernel: 4 bytes a page frame of the machine, 1 MiB a processor, 140 bytes a node, 12 bytes a rule.
    ///
    /// # Errors
    /// One sentence each: no BTF, kernel too old, a tracepoint or a capability missing (by name).
    pub fn load(options: &MemoryOptions) -> Result<Self, Error> {
        let programs::Object { mut bpf, nodes, cpus, frames, programs: loaded } = programs::load(options)?;
        let ring = match bpf.take_map("notices") {
            Some(Map::RingBuf(map)) => Ring::new(map.fd().as_fd(), RING_BYTES).map_err(Error::Ring)?,
            _ => return Err(missing("notices")),
        };
        let layouts = Layouts::new(shared(&mut bpf, "layouts", LAYOUTS)?, take(&mut bpf, "mapping_tables")?)
            .map_err(|error| Error::from_loader("create tables of mappings".to_owned(), &error, 0))?;
        let modules = Modules::new(take(&mut bpf, "rule_tables")?)
            .map_err(|error| Error::from_loader("create unwind tables".to_owned(), &error, 0))?;
        let mut probe = Self {
            targets: take(&mut bpf, "targets")?,
            numbers: shared(&mut bpf, "numbers_map", 1)?,
            accounts: shared(&mut bpf, "accounts", cpus)?,
            ring,
            mmaps: Mmaps::new(cpus)
                .map_err(|error| Error::from_loader("follow mappings of code".to_owned(), &error, 0))?,
            layouts,
            modules,
            tree: Tree::new(shared(&mut bpf, "nodes", nodes)?),
            processes: HashMap::new(),
            modules_reported: 0,
            lost_notices: 0,
            nodes,
            frames,
            edges: take(&mut bpf, "edges")?,
            free_nodes: take(&mut bpf, "free_nodes")?,
            adopted: shared(&mut bpf, "adopted", ADOPTED)?,
            forgotten: Forgotten::Nothing,
            untold: Vec::new(),
            bpf,
        };
        programs::attach(&mut probe.bpf, &loaded)?;
        Ok(probe)
    }

    /// Watches a process from now on, and the children that it will have. Watching a watched one changes nothing.
    ///
    /// # Errors
    /// [`Error::NoProcess`], [`Error::TableFull`].
    pub fn watch(&mut self, pid: u32) -> Result<TargetId, Error> {
        // It may be a child that was born a moment ago.
        let news = self.drain();
        self.untold.extend(news);
        if let Some(target) = self.watched(pid) {
            return Ok(target);
        }
        let gone = || Error::NoProcess { pid };
        let start_time = process::start_time(pid).ok_or_else(gone)?;
        let target = TargetId(self.numbers.next_number(0, offset_of!(Numbers, last_target)));
        let image = self.new_image()?;
        let layout = Arc::new(self.place(pid).ok_or_else(gone)?);
        let root = self.new_root(target, &layout)?;
        self.layouts.begin(image, root);
        if let Err(error) = self.publish(image, &layout, None) {
            self.layouts.end(image);
            return Err(error);
        }
        let process = Process {
            pid,
            parent: None,
            image,
            start_time,
            alive: true,
            copied_from: None,
            layout,
            before: Before::default(),
            at_attach: Vec::new(),
            exact: None,
            past_stacks: [0; 8],
        };
        self.processes.insert(target, process);
        let entry = Target { id: target.0, parent: 0, image, flags: 0 };
        let inserted = self.targets.insert(pid, entry, BPF_NOEXIST);
        // Its number may have become another process's in the meantime.
        let same = process::start_time(pid) == Some(start_time);
        if inserted.is_err() || !same {
            self.forget(target);
            // Born as a child in this very moment.
            let news = self.drain();
            self.untold.extend(news);
            return match (self.watched(pid), inserted) {
                (Some(child), _) => Ok(child),
                (None, Err(MapError::SyscallError(_))) if self.targets.get(&pid, 0).is_err() => {
                    Err(Error::TableFull { table: "targets" })
                }
                _ => Err(gone()),
            };
        }
        self.take_stock(target);
        Ok(target)
    }

    fn watched(&self, pid: u32) -> Option<TargetId> {
        self.processes.iter().find(|(_, process)| process.alive && process.pid == pid).map(|(target, _)| *target)
    }

    /// A number for an address space whose entry nobody has. The kernel takes them as well.
    fn new_image(&self) -> Result<u32, Error> {
        let mut numbers = (0..LAYOUTS).map(|_| self.numbers.next_number(0, offset_of!(Numbers, last_image)));
        numbers.find(|image| self.layouts.is_free(*image)).ok_or(Error::TableFull { table: "layouts" })
    }

    /// Watches a target and its descendants no more, and drops their counts.
    pub fn forget(&mut self, target: TargetId) {
        let mut gone = vec![target];
        while let Some(target) = gone.pop() {
            gone.extend(self.processes.iter().filter(|(_, p)| p.parent == Some(target)).map(|(child, _)| *child));
            if let Some(process) = self.processes.remove(&target) {
                if self.targets.get(&process.pid, 0).is_ok_and(|entry| entry.id == target.0) {
                    // An error means that it has just ended.
                    let _ = self.targets.remove(&process.pid);
                }
                self.layouts.end(process.image);
            }
            self.tree.forget(target);
            self.forgotten = Forgotten::Targets;
        }
    }

    /// Frees the nodes of forgotten targets.
    fn free_nodes(&mut self) -> Result<(), Error> {
        self.forgotten = match self.forgotten {
            Forgotten::Nothing => return Ok(()),
            Forgotten::Targets if self.tree.bury() > 0 => Forgotten::Buried,
            Forgotten::Targets => Forgotten::Nothing,
            Forgotten::Buried => {
                programs::sweep(&mut self.bpf, self.frames)?;
                let cleared = self.tree.clear();
                for (_, edge) in cleared.iter().filter(|(_, edge)| edge.parent != 0) {
                    // An error means that there is none: another processor was first when the node was made.
                    let _ = self.edges.remove(edge);
                }
                // What remembers an edge forgets it, before a number is given again.
                self.numbers.next_number(0, offset_of!(Numbers, freed));
                for (number, _) in &cleared {
                    // There is room for all of them; one more or less does not matter.
                    let _ = self.free_nodes.push(number, 0);
                }
                Forgotten::Nothing
            }
        };
        Ok(())
    }

    /// What has happened; if nothing has, waits for at most `timeout`. Makes new tables where processes map new files, so
    /// it is to be called in a loop.
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

    fn drain(&mut self) -> Vec<MemoryEvent> {
        let mut notices: Vec<Notice> = Vec::new();
        self.ring.drain(&mut |record| notices.extend(notices::parse(record)));
        let lost = self.numbers.get(0).map_or(0, |numbers| numbers.lost_notices);
        let mut events = std::mem::take(&mut self.untold);
        events.extend(notices.into_iter().filter_map(|notice| self.follow(notice)));
        if lost != self.lost_notices {
            self.lost_notices = lost;
            events.extend(self.look_around());
        }
        events.extend(self.look_at_mappings());
        events
    }

    /// Refreshes those that have mapped new code.
    fn look_at_mappings(&mut self) -> Vec<MemoryEvent> {
        let mapped = self.mmaps.take();
        let concerned = |process: &Process| process.alive && (mapped.lost || mapped.pids.contains(&process.pid));
        let targets: Vec<(TargetId, u32)> = self
            .processes
            .iter()
            .filter(|(_, process)| concerned(process))
            .map(|(target, process)| (*target, process.pid))
            .collect();
        let refreshed = targets.into_iter().filter(|(target, _)| self.refresh(*target));
        refreshed.map(|(target, pid)| MemoryEvent::Mapped { target, pid }).collect()
    }

    fn follow(&mut self, notice: Notice) -> Option<MemoryEvent> {
        let Notice { what, pid, target, parent } = notice;
        match what {
            What::Forked => self.forked(pid, target, parent?),
            What::Executed => self.executed(pid, target),
            What::Exited => self.exited(target),
            What::Unmapped => self.refresh(target).then_some(MemoryEvent::Mapped { target, pid }),
        }
    }

    fn forked(&mut self, pid: u32, target: TargetId, parent: TargetId) -> Option<MemoryEvent> {
        if self.processes.contains_key(&target) {
            return None;
        }
        let Some(origin) = self.processes.get(&parent) else {
            // Its parent was forgotten while it was born.
            if let Some(entry) = self.targets.get(&pid, 0).ok().filter(|entry| entry.id == target.0) {
                let _ = self.targets.remove(&pid);
                self.layouts.end(entry.image);
            }
            self.tree.forget(target);
            self.forgotten = Forgotten::Targets;
            return None;
        };
        let layout = Arc::clone(&origin.layout);
        let image = self.targets.get(&pid, 0).ok().filter(|entry| entry.id == target.0).map(|entry| entry.image);
        let process = Process {
            pid,
            parent: Some(parent),
            image: image.unwrap_or(0),
            start_time: process::start_time(pid).unwrap_or(0),
            alive: true,
            copied_from: Some(parent),
            layout: Arc::clone(&layout),
            before: Before::default(),
            at_attach: Vec::new(),
            exact: None,
            past_stacks: [0; 8],
        };
        self.processes.insert(target, process);
        if let Some(entry) = image.and_then(|image| self.layouts.get(image)) {
            self.tree.set_root(entry.root, layout);
        }
        Some(MemoryEvent::Forked { target, parent, pid })
    }

    fn executed(&mut self, pid: u32, target: TargetId) -> Option<MemoryEvent> {
        let image = self.targets.get(&pid, 0).ok().filter(|entry| entry.id == target.0).map(|entry| entry.image);
        let process = self.processes.get_mut(&target)?;
        if let Some(before) = self.layouts.get(process.image) {
            process.past_stacks.iter_mut().zip(before.stacks).for_each(|(sum, stacks)| *sum += stacks);
        }
        process.image = image.unwrap_or(0);
        process.copied_from = None;
        process.layout = Arc::new(Vec::new());
        process.before = Before::default();
        process.at_attach.clear();
        process.exact = None;
        self.refresh(target);
        Some(MemoryEvent::Executed { target, pid })
    }

    fn exited(&mut self, target: TargetId) -> Option<MemoryEvent> {
        let process = self.processes.get_mut(&target).filter(|process| process.alive)?;
        process.alive = false;
        Some(MemoryEvent::Exited { target, pid: process.pid })
    }

    /// Notices were lost: the kernel's table tells how things are now.
    fn look_around(&mut self) -> Vec<MemoryEvent> {
        let mut events = Vec::new();
        let entries: Vec<(u32, Target)> =
            self.targets.iter().filter_map(Result::ok).filter(|(_, entry)| entry.flags & BORROWED == 0).collect();
        let mut sorted = entries.clone();
        sorted.sort_unstable_by_key(|(_, entry)| entry.id);
        for (pid, entry) in sorted {
            let target = TargetId(entry.id);
            if !self.processes.contains_key(&target) {
                events.extend(self.forked(pid, target, TargetId(entry.parent)));
            }
            if self.processes.get(&target).is_some_and(|process| process.image != entry.image) {
                events.extend(self.executed(pid, target));
            }
        }
        let living: HashSet<u32> = entries.iter().map(|(_, entry)| entry.id).collect();
        let ended: Vec<TargetId> =
            self.processes.keys().filter(|target| !living.contains(&target.0)).copied().collect();
        events.extend(ended.into_iter().filter_map(|target| self.exited(target)));
        events
    }

    /// Looks at a target's mappings again; whether they have changed.
    fn refresh(&mut self, target: TargetId) -> bool {
        let Some((pid, image)) = self.processes.get(&target).map(|process| (process.pid, process.image)) else {
            return false;
        };
        let Some(placed) = self.place(pid) else { return false };
        let Some(process) = self.processes.get_mut(&target) else { return false };
        let ready = self.layouts.get(image).is_some_and(|entry| entry.mappings != 0);
        if ready && *process.layout == placed {
            self.layouts.answer(image);
            return false;
        }
        // Nodes say where their addresses led to when they were new: another file at the same place is another tree.
        let kept = process.layout.iter().all(|place| placed.contains(place));
        let layout = Arc::new(placed);
        process.layout = Arc::clone(&layout);
        let root = if kept {
            if let Some(entry) = self.layouts.get(image) {
                self.tree.set_root(entry.root, Arc::clone(&layout));
            }
            None
        } else {
            self.new_root(target, &layout).ok()
        };
        self.publish(image, &layout, root).is_ok()
    }

    /// A process's code; `None` if it is gone.
    fn place(&mut self, pid: u32) -> Option<Vec<Placed>> {
        let mappings = maps::code_of(pid).ok().filter(|mappings| !mappings.is_empty())?;
        let in_use: HashSet<ModuleId> = self
            .processes
            .values()
            .filter(|process| process.alive)
            .flat_map(|process| process.layout.iter().filter_map(|place| place.module))
            .collect();
        Some(mappings.iter().map(|mapping| self.modules.place(pid, mapping, &in_use)).collect())
    }

    fn new_root(&mut self, target: TargetId, layout: &Arc<Vec<Placed>>) -> Result<u32, Error> {
        let root = match self.free_nodes.pop(0) {
            Ok(free) => free,
            Err(_) => self.numbers.next_number(0, offset_of!(Numbers, last_node)),
        };
        if root >= self.nodes {
            return Err(Error::TableFull { table: "calls" });
        }
        self.tree.write_root(root, target);
        self.tree.set_root(root, Arc::clone(layout));
        Ok(root)
    }

    fn publish(&mut self, image: u32, layout: &[Placed], root: Option<u32>) -> Result<(), Error> {
        let in_use: HashSet<u32> = self.processes.values().filter(|p| p.alive).map(|process| process.image).collect();
        self.layouts
            .publish(image, layout, root, &in_use)
            .map_err(|error| Error::from_loader("write the table of mappings".to_owned(), &error, 0))
    }
}

fn last_node(numbers: &SharedArray<Numbers>) -> u32 {
    numbers.get(0).map_or(0, |numbers| numbers.last_node)
}

fn missing(name: &str) -> Error {
    Error::Load { action: format!("find the table {name}"), cause: "it is not in the object".to_owned() }
}

fn shared<T: aya::Pod>(bpf: &mut Ebpf, name: &'static str, length: u32) -> Result<SharedArray<T>, Error> {
    let data = bpf.take_map(name).and_then(array).ok_or_else(|| missing(name))?;
    SharedArray::of(&data, length)
        .map_err(|error| Error::Load { action: format!("map the table {name}"), cause: error.to_string() })
}
