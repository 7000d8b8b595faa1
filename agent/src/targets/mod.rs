//! Targets: which processes are observed, and as which node.
//!
//! [`matching`] decides, [`proc`] and [`docker`] look things up behind the trait [`System`], and [`Roster`] keeps what is
//! known: it is asked with every hint (a process listens, a program was executed, a look around) and answers with
//! processes that begin and end to be observed.

mod container;
mod docker;
pub(crate) mod matching;
pub(crate) mod proc;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::OwnedFd,
    path::Path,
    sync::Arc,
};

use container::ContainerId;
use matching::{Entry, Names, ProcessFacts, entry_of};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};

use crate::config::NodeConfig;

/// Where facts about processes come from.
pub(crate) trait System {
    /// Everything about one process; none if it is gone.
    fn facts(&self, pid: u32) -> Option<ProcessFacts>;
    /// Every process, with those of the given ports on which it listens.
    fn scan(&self, ports: &BTreeSet<u16>) -> Vec<ProcessFacts>;
    /// Inode of the network namespace that a path names.
    fn netns(&self, path: &Path) -> Option<u32>;
    /// Running containers of this name.
    fn containers(&self, name: &str) -> Vec<ContainerId>;
    /// Something that tells of the process's end.
    fn watch(&self, pid: u32) -> Option<Box<dyn Life>>;
}

/// The life of one process.
pub(crate) trait Life: Send {
    fn is_over(&self) -> bool;
}

/// The machine this runs on.
#[derive(Debug, Default)]
pub(crate) struct Machine;

impl System for Machine {
    fn facts(&self, pid: u32) -> Option<ProcessFacts> {
        proc::facts(pid)
    }

    fn scan(&self, ports: &BTreeSet<u16>) -> Vec<ProcessFacts> {
        proc::scan(ports)
    }

    fn netns(&self, path: &Path) -> Option<u32> {
        proc::netns_inode(path)
    }

    fn containers(&self, name: &str) -> Vec<ContainerId> {
        match docker::containers_named(Path::new(docker::SOCKET), name) {
            Ok(containers) => containers,
            Err(cause) => {
                chainscope_quiet::warn_limited!(name, %cause, "cannot ask Docker for the container of this name");
                Vec::new()
            }
        }
    }

    fn watch(&self, pid: u32) -> Option<Box<dyn Life>> {
        let start = proc::start_of(pid)?;
        let raw = Pid::from_raw(i32::try_from(pid).ok()?)?;
        match pidfd_open(raw, PidfdFlags::NONBLOCK) {
            Ok(fd) => Some(Box::new(Pidfd(fd))),
            // Kernels and sandboxes without pidfd: the start time tells.
            Err(_) => Some(Box::new(Started { pid, start })),
        }
    }
}

struct Pidfd(OwnedFd);

impl Life for Pidfd {
    fn is_over(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

struct Started {
    pid: u32,
    start: u64,
}

impl Life for Started {
    fn is_over(&self) -> bool {
        proc::start_of(self.pid) != Some(self.start)
    }
}

/// A process that begins to be observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) facts: ProcessFacts,
    pub(crate) node: Arc<str>,
    /// The process, for people.
    pub(crate) label: Arc<str>,
    pub(crate) entry: NodeConfig,
}

struct Live {
    entry: usize,
    facts: ProcessFacts,
    life: Box<dyn Life>,
}

/// The observed processes.
pub(crate) struct Roster<Y> {
    system: Y,
    entries: Vec<Entry>,
    names: Names,
    live: BTreeMap<u32, Live>,
}

impl<Y: System> Roster<Y> {
    pub(crate) fn new(system: Y, nodes: &[NodeConfig]) -> Self {
        let entries = nodes.iter().cloned().map(Entry::new).collect();
        Self { system, entries, names: Names::default(), live: BTreeMap::new() }
    }

    /// Ports to watch in the kernel, with the namespace if the entry names one that is there.
    pub(crate) fn watched_ports(&mut self) -> BTreeSet<(Option<u32>, u16)> {
        self.resolve();
        let watched = |entry: &Entry| {
            let port = entry.config.p2p_port?;
            // Before its namespace is there, the port is watched everywhere.
            Some((entry.netns, port))
        };
        self.entries.iter().filter_map(watched).collect()
    }

    /// Whether programs that are executed can be targets.
    pub(crate) fn needs_exec(&self) -> bool {
        self.entries.iter().any(|entry| entry.config.p2p_port.is_none() && entry.config.pid.is_none())
    }

    /// Looks up what the entries name: namespaces, containers.
    fn resolve(&mut self) {
        for entry in &mut self.entries {
            entry.netns = entry.config.netns.as_deref().and_then(|path| self.system.netns(path));
            if let Some(name) = entry.config.container.as_deref().filter(|name| ContainerId::parse(name).is_none()) {
                entry.containers = self.system.containers(name);
            }
        }
    }

    /// Looks at every process.
    pub(crate) fn scan(&mut self) -> Vec<Found> {
        self.resolve();
        let ports = self.entries.iter().filter_map(|entry| entry.config.p2p_port).collect();
        let processes = self.system.scan(&ports);
        processes.into_iter().filter_map(|facts| self.consider(facts)).collect()
    }

    /// A process listens on a port.
    pub(crate) fn listening(&mut self, pid: u32, netns: u32, port: u16) -> Option<Found> {
        if let Some(live) = self.live.get_mut(&pid) {
            live.facts.listens.insert(port);
            return None;
        }
        let mut facts = self.system.facts(pid)?;
        if facts.netns == netns {
            facts.listens.insert(port);
        }
        self.consider_anew(facts)
    }

    /// A process executes another program.
    pub(crate) fn executed(&mut self, pid: u32) -> Option<Found> {
        let facts = self.system.facts(pid)?;
        self.consider_anew(facts)
    }

    /// Once more with the containers' names looked up, if they may matter.
    fn consider_anew(&mut self, facts: ProcessFacts) -> Option<Found> {
        let by_name = |entry: &Entry| {
            entry.config.container.as_deref().is_some_and(|name| ContainerId::parse(name).is_none())
                || entry.config.netns.is_some()
        };
        if entry_of(&self.entries, &facts).is_none() && self.entries.iter().any(by_name) {
            self.resolve();
        }
        self.consider(facts)
    }

    fn consider(&mut self, facts: ProcessFacts) -> Option<Found> {
        if self.live.contains_key(&facts.pid) {
            return None;
        }
        let index = entry_of(&self.entries, &facts)?;
        let entry = self.entries.get(index)?.config.clone();
        let life = self.system.watch(facts.pid)?;
        let is_live = |netns: u32| {
            self.live.values().any(|live| live.entry == index && live.facts.netns == netns && !live.life.is_over())
        };
        let node = self.names.name(index, &entry, facts.netns, is_live);
        let label = match &facts.container {
            Some(container) => format!("pid {} in {}", facts.pid, container.short()),
            None => format!("pid {}", facts.pid),
        };
        self.live.insert(facts.pid, Live { entry: index, facts: facts.clone(), life });
        Some(Found { facts, node: node.into(), label: label.into(), entry })
    }

    /// Processes that ended since the last call.
    pub(crate) fn ended(&mut self) -> Vec<u32> {
        let over: Vec<u32> = self.live.iter().filter(|(_, live)| live.life.is_over()).map(|(pid, _)| *pid).collect();
        for pid in &over {
            self.live.remove(pid);
        }
        over
    }

    /// Whether some entry has no live process.
    pub(crate) fn is_incomplete(&self) -> bool {
        (0..self.entries.len()).any(|index| !self.live.values().any(|live| live.entry == index))
    }

    /// A live process in a network namespace.
    pub(crate) fn process_in(&self, netns: u32) -> Option<u32> {
        self.live.iter().find(|(_, live)| live.facts.netns == netns).map(|(pid, _)| *pid)
    }
}
