//! Facts about a process, as discovery reads them.

use std::{collections::BTreeSet, net::SocketAddr, path::PathBuf};

use super::{ContainerId, ContainerLocation, PodUid};

/// Facts about a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcessFacts {
    /// Process (thread group) id as the host sees it.
    pub(crate) pid: u32,
    /// Clock ticks from boot to its start: distinguishes a process from a later one with the same id.
    pub(crate) start: u64,
    /// Its executable, as a path in its own root, without the kernel's " (deleted)".
    pub(crate) exe: PathBuf,
    /// Inode of its network namespace.
    pub(crate) netns: u32,
    pub(crate) container: Option<ContainerId>,
    /// Container and pod, in so far as the process cannot forge them.
    pub(crate) location: Option<ContainerLocation>,
    /// Process id of its parent.
    pub(crate) parent: u32,
    /// Its first argument without the directory.
    pub(crate) argument: String,
    /// Local addresses of its listening TCP sockets in that namespace. Of each port one at least.
    pub(crate) listens: BTreeSet<SocketAddr>,
}

/// Processes that share bounds as long as they are not configured.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ProcessGroup {
    Pod(PodUid),
    Container(ContainerId),
    /// Processes outside of containers.
    Host,
}

impl ProcessFacts {
    /// The group of the process.
    pub(crate) fn group(&self) -> ProcessGroup {
        let pod = self.location.as_ref().and_then(|location| location.pod.clone());
        let container = || self.container.clone().map_or(ProcessGroup::Host, ProcessGroup::Container);
        pod.map_or_else(container, ProcessGroup::Pod)
    }

    /// Whether it listens on a port.
    pub(crate) fn is_listening_on(&self, port: u16) -> bool {
        self.listens.iter().any(|local| local.port() == port)
    }

    /// Adds a listening socket. One for each port: the process may open any number.
    pub(crate) fn add_listening(&mut self, local: SocketAddr) {
        if !self.is_listening_on(local.port()) {
            self.listens.insert(local);
        }
    }

    /// Whether its executable or its first argument has this file name.
    pub(crate) fn is_program(&self, name: &str) -> bool {
        self.exe.file_name().is_some_and(|file| file == name) || self.argument == name
    }
}

/// A socket that listens on a port at every IPv4 address.
#[cfg(test)]
pub(crate) fn any_address(port: u16) -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], port))
}
