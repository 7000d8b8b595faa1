//! The machine as the target table reads it: facts about processes, and their exits.

use std::{
    collections::BTreeSet,
    io::ErrorKind,
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use chainscope_hygiene::warn_limited;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::{
    ContainerId, ContainerLocation, ProcessFacts, docker,
    proc::{self, Proc},
};
use crate::{blocking::BlockingPool, thread::Heartbeat};

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

/// How long a read of another process's memory, or of a path of the configuration, may take.
const READ_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a request to Docker may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// The machine this runs on. What other programs can delay runs on threads of its own, with a timeout; afterwards nothing
/// more is read of the same container, path or daemon until the call has returned.
#[derive(Debug)]
pub(crate) struct Machine {
    proc: Proc,
    /// Docker's socket.
    docker: PathBuf,
    pool: BlockingPool,
}

impl Machine {
    pub(crate) fn new(proc: Proc) -> Self {
        Self { proc, docker: docker::SOCKET.into(), pool: BlockingPool::new("chainscope-process", "processes") }
    }

    /// Shows calls that do not return.
    pub(crate) fn heartbeat(&self) -> Heartbeat {
        self.pool.heartbeat()
    }

    fn argument(&self, pid: u32, location: &ContainerLocation) -> String {
        let proc = self.proc.clone();
        let read = self.pool.call(&location.container.to_string(), READ_TIMEOUT, move || proc.argument(pid));
        read.unwrap_or_else(|| {
            let container = location.container.short();
            warn_limited!(
                pid,
                container,
                "the command line of a process of this container cannot be read: its processes are matched by executable"
            );
            String::new()
        })
    }
}

impl System for Machine {
    fn facts(&self, pid: u32) -> Option<ProcessFacts> {
        self.proc.facts(pid, &|pid, location| self.argument(pid, location))
    }

    fn scan(&self, ports: &BTreeSet<u16>) -> Vec<ProcessFacts> {
        self.proc.scan(ports, &|pid, location| self.argument(pid, location))
    }

    fn netns(&self, path: &Path) -> Option<u32> {
        let (key, path) = (path.to_string_lossy().into_owned(), path.to_owned());
        self.pool.call(&key, READ_TIMEOUT, move || proc::netns_inode(&path)).flatten()
    }

    fn containers(&self, name: &str) -> Vec<ContainerId> {
        let (socket, wanted) = (self.docker.clone(), name.to_owned());
        let request = move || docker::containers_named(&socket, &wanted);
        let answer = self.pool.call(docker::SOCKET, REQUEST_TIMEOUT, request);
        answer.unwrap_or_else(|| Err(ErrorKind::TimedOut.into())).unwrap_or_else(|cause| {
            warn_limited!(name, %cause, "cannot ask Docker for the container of this name");
            Vec::new()
        })
    }

    fn watch(&self, pid: u32) -> Option<Box<dyn ExitWatch>> {
        watch_exit(&self.proc, pid)
    }
}

fn watch_exit(proc: &Proc, pid: u32) -> Option<Box<dyn ExitWatch>> {
    let start = proc.start_of(pid)?;
    let raw = Pid::from_raw(i32::try_from(pid).ok()?)?;
    match pidfd_open(raw, PidfdFlags::NONBLOCK) {
        Ok(fd) if is_of(&fd, proc, pid) => Some(Box::new(PidfdWatch(fd))),
        // Kernels and sandboxes without pidfd, or process ids of another namespace than the agent's: another start time shows
        // that the process is another one.
        _ => Some(Box::new(StartTimeWatch { proc: proc.clone(), pid, start })),
    }
}

/// Whether a pidfd refers to the process with this id in `proc`: the kernel has looked it up in the agent's pid namespace.
fn is_of(pidfd: &OwnedFd, proc: &Proc, pid: u32) -> bool {
    let info = std::fs::read_to_string(proc.root().join(format!("self/fdinfo/{}", pidfd.as_raw_fd())));
    let id = info.ok().and_then(|info| info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok()));
    id == Some(pid)
}

/// Tells a process from a later one with the same id. The kernel captures by id, also between the exit of a target and
/// the moment at which discovery notices it.
pub(crate) struct ReuseCheck {
    proc: Proc,
    pid: u32,
    start: u64,
    /// None if the process has exited.
    exit: Option<Box<dyn ExitWatch>>,
}

impl ReuseCheck {
    /// `start`: clock ticks from boot to the start of the process.
    pub(crate) fn new(proc: &Proc, pid: u32, start: u64) -> Self {
        let exit = watch_exit(proc, pid).filter(|_| proc.start_of(pid) == Some(start));
        Self { proc: proc.clone(), pid, start, exit }
    }

    /// Whether another process has the id now. Cheap while the process runs.
    pub(crate) fn is_reused(&self) -> bool {
        let has_exited = self.exit.as_ref().is_none_or(|exit| exit.has_exited());
        has_exited && self.proc.start_of(self.pid).is_some_and(|start| start != self.start)
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use chainscope_testing::wait::until_true;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

    use super::*;

    #[test]
    fn a_process_id_that_is_used_again_is_recognised() {
        let (proc, pid) = (Proc::default(), std::process::id());
        let start = proc.start_of(pid).unwrap();
        assert!(!ReuseCheck::new(&proc, pid, start).is_reused());
        assert!(ReuseCheck::new(&proc, pid, start - 1).is_reused());
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let check = ReuseCheck::new(&proc, child.id(), proc.start_of(child.id()).unwrap());
        assert!(!check.is_reused());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!check.is_reused(), "the last sockets of a process may be reported after its exit");
    }

    /// Its queue of connections is full, so that not even the connection is accepted.
    #[test]
    fn a_docker_daemon_that_does_not_answer_delays_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let docker = dir.path().join("docker.sock");
        let daemon = UnixListener::bind(&docker).unwrap();
        let address = SocketAddrUnix::new(&docker).unwrap();
        let connect = || {
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
            rustix::net::connect(&socket, &address).map(|()| socket)
        };
        let queue: Vec<OwnedFd> = std::iter::from_fn(|| connect().ok()).collect();
        assert!(!queue.is_empty());
        let machine = Machine { docker, ..Machine::new(Proc::default()) };
        assert!(machine.containers("node").is_empty());
        assert!(machine.heartbeat().age() > Duration::ZERO, "the request is still waiting");
        assert!(machine.containers("node").is_empty(), "at once");
        assert_eq!(machine.facts(std::process::id()).unwrap().pid, std::process::id());
        drop(daemon);
        until_true("the request ends", || machine.heartbeat().age() == Duration::ZERO);
    }
}
