//! Configuration of nodes, and limits. Types that several modules need; [`crate::Config`] has the whole configuration.

use std::{net::SocketAddr, time::Duration};

use chainscope_store::{Retention, SnapshotLimits};

/// A configured node.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Its name, `name` or `namespace/name`.
    pub name: String,
    /// Other names that `node_name` may use.
    pub aliases: Vec<String>,
    /// Retention of its records.
    pub retention: Retention,
    /// Snapshots of its memory.
    pub memory: SnapshotPolicy,
    /// Address of an additional listener whose API is pinned to this node.
    pub listen: Option<SocketAddr>,
}

impl NodeConfig {
    /// A node without aliases whose records are never evicted.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            aliases: Vec::new(),
            retention: Retention::default(),
            memory: SnapshotPolicy::default(),
            listen: None,
        }
    }
}

/// How often a snapshot of a node's memory is stored, and its retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotPolicy {
    /// Interval; 0: no snapshots.
    pub every: Duration,
    /// Retention.
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
        let (name, retention) = (node.name.clone(), retention_of(&node.observe.retention));
        Self { name, aliases, retention, memory, listen: node.listen }
    }
}

pub(crate) fn retention_of(limits: &chainscope_spec::Retention) -> Retention {
    Retention { rows: limits.rows, bytes: limits.bytes.map(|bytes| bytes.as_u64()), age: limits.age }
}

/// Limits of the aggregator. Beyond them requests are refused with 503, and agents wait.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Threads that read the store for requests.
    pub query_threads: usize,
    /// Requests that may wait for such a thread.
    pub query_queue: usize,
    /// Maximum duration of a read of the store, from its submission.
    pub query_timeout: Duration,
    /// Maximum number of open HTTP connections of a listener.
    pub max_connections: usize,
    /// Maximum number of open live streams.
    pub max_streams: usize,
    /// Maximum time that a client takes to send the head of a request, and that it leaves a response unread.
    pub client_timeout: Duration,
    /// Time between keep-alive comments of a live stream without events.
    pub heartbeat_interval: Duration,
    /// Maximum bytes of batches that wait for the writer, all agents together.
    pub max_ingest_bytes: usize,
    /// Maximum number of nodes; batches of further ones are refused.
    pub max_nodes: usize,
    /// Time between two evictions by retention.
    pub eviction_interval: Duration,
    /// How long an answer of a Kubernetes review is cached.
    pub review_ttl: Duration,
    /// Time between two checks of the permission of a live stream.
    pub reauthorize_interval: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            query_threads: 4,
            query_queue: 128,
            query_timeout: Duration::from_secs(10),
            max_connections: 1024,
            max_streams: 256,
            client_timeout: Duration::from_secs(30),
            heartbeat_interval: Duration::from_secs(15),
            max_ingest_bytes: 32 << 20,
            max_nodes: 10_000,
            eviction_interval: Duration::from_secs(10),
            review_ttl: Duration::from_secs(60),
            reauthorize_interval: Duration::from_secs(60),
        }
    }
}
