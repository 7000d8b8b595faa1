//! Configuration of nodes.

use std::{net::SocketAddr, time::Duration};

use chainscope_store::{Retention, SnapshotLimits};

/// Configuration of one node.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Its name, `name` or `namespace/name`.
    pub name: String,
    /// Other values of `node_name` that select it.
    pub aliases: Vec<String>,
    /// Limits of its stored records.
    pub retention: Retention,
    /// Limits of its stored log messages.
    pub log_retention: Retention,
    /// Limits of its stored events of tracepoints.
    pub trace_retention: Retention,
    /// Snapshots of its memory.
    pub memory: SnapshotPolicy,
    /// Address of a listener whose API serves this node only.
    pub listen: Option<SocketAddr>,
}

impl NodeConfig {
    /// A node without aliases, and without limits but those of memory snapshots, log messages and events of tracepoints, the
    /// defaults.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            aliases: Vec::new(),
            retention: Retention::default(),
            log_retention: default_log_retention(),
            trace_retention: default_trace_retention(),
            memory: SnapshotPolicy::default(),
            listen: None,
        }
    }
}

/// How often a snapshot of a node's memory is stored, and how long it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotPolicy {
    /// Interval between two snapshots; 0: none are stored.
    pub every: Duration,
    /// Limits of the stored snapshots.
    pub limits: SnapshotLimits,
}

impl Default for SnapshotPolicy {
    fn default() -> Self {
        Self::from(&chainscope_spec::MemorySnapshots::default())
    }
}

impl From<&chainscope_spec::MemorySnapshots> for SnapshotPolicy {
    fn from(snapshots: &chainscope_spec::MemorySnapshots) -> Self {
        let limits = SnapshotLimits { age: Some(snapshots.age), bytes: Some(snapshots.bytes.as_u64()) };
        Self { every: snapshots.every, limits }
    }
}

impl From<&chainscope_spec::NodeConfig> for NodeConfig {
    /// The P2P port becomes an alias: TezEdge Explorer names a node by it.
    fn from(node: &chainscope_spec::NodeConfig) -> Self {
        let mut aliases = node.aliases.clone();
        aliases.extend(node.target.p2p_port.map(|port| port.to_string()));
        aliases.retain(|alias| *alias != node.name);
        let memory =
            node.observe.memory.as_ref().map_or_else(SnapshotPolicy::default, |memory| (&memory.snapshots).into());
        let logs = node.observe.logs.as_ref();
        let log_retention = logs.map_or_else(default_log_retention, |logs| retention_of(&logs.retention));
        let trace = node.observe.trace.as_ref();
        let trace_retention = trace.map_or_else(default_trace_retention, |trace| retention_of(&trace.retention));
        let (name, retention) = (node.name.clone(), retention_of(&node.observe.retention));
        Self { name, aliases, retention, log_retention, trace_retention, memory, listen: node.listen }
    }
}

/// Limits of log messages where none are configured: 5 GiB of a node.
pub(crate) fn default_log_retention() -> Retention {
    retention_of(&chainscope_spec::Logs::default().retention)
}

/// Limits of events of tracepoints where none are configured: 5 GiB of a node.
pub(crate) fn default_trace_retention() -> Retention {
    retention_of(&chainscope_spec::Trace::of::<&str>([]).retention)
}

/// The limits as the store takes them.
pub(crate) fn retention_of(limits: &chainscope_spec::Retention) -> Retention {
    Retention { rows: limits.rows, bytes: limits.bytes.map(|bytes| bytes.as_u64()), age: limits.age }
}
