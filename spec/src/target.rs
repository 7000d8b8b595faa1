//! Selection of a node's process on a machine.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Selects a process. All given conditions must be met; at least one of port, pid, executable and container is
/// required.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostTarget {
    /// Port on which the node listens for peers, in its network namespace.
    pub p2p_port: Option<u16>,
    /// Process id on the host.
    pub pid: Option<u32>,
    /// Executable, as an absolute path or a file name.
    pub exe: Option<PathBuf>,
    /// Container, by id (at least its first 12 digits) or by name.
    pub container: Option<String>,
    /// Network namespace, such as `/run/netns/a` or `/proc/4711/ns/net`, to distinguish nodes with the same port.
    pub netns: Option<PathBuf>,
}

impl HostTarget {
    /// Whether at least one condition selects a process.
    pub fn is_specified(&self) -> bool {
        self.p2p_port.is_some() || self.pid.is_some() || self.exe.is_some() || self.container.is_some()
    }

    /// Default name of a node: its port, container, executable or pid.
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
