//! Targets: which processes are observed, and as which node.
//!
//! [`entries`] (one machine) and [`pods`] (a cluster) decide, [`proc`] and [`docker`] look things up behind the trait
//! [`System`], and [`Roster`] keeps what is known: it is asked with every hint (a process listens, a program was executed,
//! a look around, another configuration) and answers with what is to be done.

mod cgroup;
mod docker;
pub(crate) mod entries;
pub(crate) mod identity;
pub(crate) mod matching;
pub(crate) mod pods;
pub(crate) mod proc;
pub(crate) mod rooted;
mod roster;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, os::fd::OwnedFd, path::Path, sync::Arc};

pub(crate) use cgroup::{ContainerId, Place, PodUid};
use chainscope_spec::Stored;
use matching::ProcessFacts;
use proc::Proc;
#[cfg(test)]
pub(crate) use roster::Ended;
pub(crate) use roster::{Change, Found, Judgement, Live, Owner, Plan, Roster, Standing};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};

use crate::targets::identity::Source;

/// What a process is observed as.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Assignment {
    pub(crate) node: Arc<str>,
    /// The process or its pod, for people.
    pub(crate) label: Arc<str>,
    pub(crate) p2p_port: Option<u16>,
    pub(crate) store: Stored,
    pub(crate) identity: Source,
    /// Whether what it sends and receives is recorded.
    pub(crate) network: bool,
    /// Whether it is profiled which code holds its memory.
    pub(crate) memory: bool,
}

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
pub(crate) struct Machine {
    pub(crate) proc: Proc,
}

impl System for Machine {
    fn facts(&self, pid: u32) -> Option<ProcessFacts> {
        self.proc.facts(pid)
    }

    fn scan(&self, ports: &BTreeSet<u16>) -> Vec<ProcessFacts> {
        self.proc.scan(ports)
    }

    fn netns(&self, path: &Path) -> Option<u32> {
        proc::netns_inode(path)
    }

    fn containers(&self, name: &str) -> Vec<ContainerId> {
        match docker::containers_named(Path::new(docker::SOCKET), name) {
            Ok(containers) => containers,
            Err(cause) => {
                chainscope_hygiene::warn_limited!(name, %cause, "cannot ask Docker for the container of this name");
                Vec::new()
            }
        }
    }

    fn watch(&self, pid: u32) -> Option<Box<dyn Life>> {
        let start = self.proc.start_of(pid)?;
        let raw = Pid::from_raw(i32::try_from(pid).ok()?)?;
        match pidfd_open(raw, PidfdFlags::NONBLOCK) {
            Ok(fd) => Some(Box::new(Pidfd(fd))),
            // Kernels and sandboxes without pidfd: the start time tells.
            Err(_) => Some(Box::new(Started { proc: self.proc.clone(), pid, start })),
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
    proc: Proc,
    pid: u32,
    start: u64,
}

impl Life for Started {
    fn is_over(&self) -> bool {
        self.proc.start_of(self.pid) != Some(self.start)
    }
}
