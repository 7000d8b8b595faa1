//! The machine as the target table reads it: facts about processes, and their exits.

use std::{collections::BTreeSet, os::fd::OwnedFd, path::Path};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::{
    ContainerId, ProcessFacts, docker,
    proc::{self, Proc},
};

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
    /// A watch on the exit of a process; none if it is gone.
    fn watch(&self, pid: u32) -> Option<Box<dyn ExitWatch>>;
}

/// A watch on the exit of one process.
pub(crate) trait ExitWatch: Send {
    /// Whether the process has exited.
    fn has_exited(&self) -> bool;
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

    fn watch(&self, pid: u32) -> Option<Box<dyn ExitWatch>> {
        let start = self.proc.start_of(pid)?;
        let raw = Pid::from_raw(i32::try_from(pid).ok()?)?;
        match pidfd_open(raw, PidfdFlags::NONBLOCK) {
            Ok(fd) => Some(Box::new(PidfdWatch(fd))),
            // Kernels and sandboxes without pidfd: another start time shows that the process is another one.
            Err(_) => Some(Box::new(StartTimeWatch { proc: self.proc.clone(), pid, start })),
        }
    }
}

/// A watch that a test ends.
#[cfg(test)]
pub(super) struct FakeExit(pub(super) std::sync::Arc<std::sync::atomic::AtomicBool>);

#[cfg(test)]
impl ExitWatch for FakeExit {
    fn has_exited(&self) -> bool {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}

struct PidfdWatch(OwnedFd);

impl ExitWatch for PidfdWatch {
    fn has_exited(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

struct StartTimeWatch {
    proc: Proc,
    pid: u32,
    start: u64,
}

impl ExitWatch for StartTimeWatch {
    fn has_exited(&self) -> bool {
        self.proc.start_of(self.pid) != Some(self.start)
    }
}
