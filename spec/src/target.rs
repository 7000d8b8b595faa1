//! How a node's process is found on this machine.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Which process is meant. What is given must all hold; at least one of port, pid, executable and container is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostTarget {
    /// The port on which the node listens for peers, as the node sees it in its own network namespace.
    pub p2p_port: Option<u16>,
    /// A process id, as seen on the host.
    pub pid: Option<u32>,
    /// The executable, as an absolute path or as a bare name.
    pub exe: Option<PathBuf>,
    /// A container by id (a prefix of 12 digits or more will do) or by name.
    pub container: Option<String>,
    /// A network namespace, such as `/run/netns/a` or `/proc/4711/ns/net`: tells apart two nodes on the same port.
    pub netns: Option<PathBuf>,
}

impl HostTarget {
    /// Whether anything says which process is meant.
    pub fn is_given(&self) -> bool {
        self.p2p_port.is_some() || self.pid.is_some() || self.exe.is_some() || self.container.is_some()
    }

    /// The name of a node that was not given one: its port, else what else identifies it.
    pub fn default_name(&self) -> Option<String> {
        if let Some(port) = self.p2p_port {
            return Some(port.to_string());
        }
        if let Some(container) = &self.container {
            return Some(container.clone());
        }
        if let Some(exe) = &self.exe {
            return exe.file_name().map(|name| name.to_string_lossy().into_owned());
        }
        self.pid.map(|pid| format!("pid-{pid}"))
    }
}
