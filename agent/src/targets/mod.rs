//! Targets: which processes are observed, and as which node.
//!
//! ```text
//!   plan ([`entries`] of a file, or [`pods`] of an operator) ─┐
//!   system: /proc, cgroups, Docker's socket ──────────────────┼─▶ [`table`] ─ [`transition`] ─▶ [`TargetChange`]
//!   notices of probes: exec, listen, unknown socket ──────────┘
//! ```
//!
//! [`discovery`] runs this on a thread of its own. Reads that another program can delay have threads and timeouts of their
//! own ([`system`]): `/proc/PID/cmdline` waits for the process's `mmap_lock` and file systems, a socket for the daemon
//! behind it. Pillars get the changes in their inboxes and know nothing of where they come from.

mod cgroup;
mod change;
pub(crate) mod discovery;
pub(crate) mod docker;
mod entries;
mod entry_match;
pub(crate) mod identity;
mod plan;
pub(crate) mod pod_map;
mod pods;
mod process;
pub(crate) mod rooted;
mod system;
mod table;
mod tracked;
mod transition;
mod view;

pub(crate) mod proc;

use std::sync::Arc;

pub(crate) use cgroup::{ContainerId, ContainerLocation, PodUid};
use chainscope_spec::Redaction;
pub(crate) use change::{Inbox, Notice, RefusedTarget, StartCause, StartedTarget, TargetChange, WatchList};
use identity::Source;
pub(crate) use plan::{ExecInterest, Plan};
#[cfg(test)]
pub(crate) use process::any_address;
pub(crate) use process::{ProcessFacts, ProcessGroup};
pub(crate) use system::{Machine, ReuseCheck};
pub(crate) use view::{PodProcesses, TargetsView};

/// What a process is observed as.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Assignment {
    pub(crate) node: Arc<str>,
    /// The process or its pod, as records and log lines show it.
    pub(crate) label: Arc<str>,
    /// The port on which the node listens for peers.
    pub(crate) p2p_port: Option<u16>,
    pub(crate) identity: Source,
    pub(crate) observe: Observe,
}

impl Assignment {
    /// The node of the events of its tracepoints.
    pub(crate) fn traced_node(&self) -> &Arc<str> {
        self.observe.trace_node.as_ref().unwrap_or(&self.node)
    }
}

/// What is observed of a target: the part of [`chainscope_spec::ObserveSpec`] that an agent acts on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Observe {
    /// Peer-to-peer messages are recorded.
    pub(crate) network: Option<Network>,
    /// Resident memory is profiled.
    pub(crate) memory: bool,
    /// Log messages of its container are recorded.
    pub(crate) logs: Option<Logs>,
    /// Events of its tracepoints are recorded. The options are valid.
    pub(crate) trace: Option<Arc<chainscope_spec::Trace>>,
    /// The node of these events, if it is not the target's: that of a `NodeTrace` beside a `TezosNode`.
    pub(crate) trace_node: Option<Arc<str>>,
}

/// Options of the network pillar.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) store: chainscope_spec::Stored,
}

/// Options of the logs pillar.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Logs {
    /// What is replaced by `[redacted]`.
    pub(crate) redact: Redaction,
    /// Directory of the container's log files below that of all pods; none outside of Kubernetes.
    pub(crate) pod_dir: Option<Arc<str>>,
}

impl Observe {
    /// Whether nothing is observed.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The part of a plan that a process belongs to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// An entry of the configuration file, by index.
    Entry(usize),
    /// A pod, by uid.
    Pod(String),
}

impl Owner {
    /// The pod's uid.
    pub(crate) fn pod(&self) -> Option<&str> {
        match self {
            Self::Pod(uid) => Some(uid),
            Self::Entry(_) => None,
        }
    }
}
