//! What an aggregator is started with.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use chainscope_store::{Retention, SnapshotLimits, Store};

use crate::{access::AccessConfig, catalog::CatalogConfig, ingest::IngestTrust};

/// What an aggregator is started with.
#[derive(Clone)]
pub struct Config {
    /// Where records go and answers come from.
    pub store: Store,
    /// Address of the HTTP API; port 0 lets the system choose.
    pub http: SocketAddr,
    /// Address on which agents deliver records over gRPC; none: in-process only.
    pub ingest: Option<SocketAddr>,
    /// Nodes known beforehand; others are added by their first record.
    pub nodes: Vec<NodeConfig>,
    /// How long records of all other nodes are kept.
    pub retention: Retention,
    /// What `/v2/version` answers: the commit this was built from, or a version.
    pub build: String,
    /// Address of a further listener for metrics and health, never encrypted and without a token; none: the API has them.
    pub operation: Option<SocketAddr>,
    /// A further address of the API: 17832, where the original's memory profiler was; none: the API's own alone.
    pub memory: Option<SocketAddr>,
    /// Who may use the API.
    pub access: AccessConfig,
    /// Whether reads are logged (target `audit`). They always are where callers have names.
    pub audit: bool,
    /// Whom records are taken from over gRPC; none: from whoever reaches it.
    pub trust: Option<IngestTrust>,
    /// Where the nodes are learnt from; none: from `nodes`, and from agents.
    pub catalog: Option<CatalogConfig>,
    /// Folder with `tls.crt` and `tls.key` for the ingest; none: plain text.
    pub tls: Option<PathBuf>,
    /// The API is encrypted, too.
    pub api_tls: bool,
    /// What the aggregator takes on at most.
    pub limits: Limits,
}

impl Config {
    /// A configuration without nodes and without gRPC, with every limit at its default; 20 GiB are kept of a node.
    #[must_use]
    pub fn new(store: Store, http: SocketAddr) -> Self {
        let build = option_env!("CHAINSCOPE_COMMIT").unwrap_or(env!("CARGO_PKG_VERSION")).to_owned();
        let retention = keep(&chainscope_spec::Retention::default());
        Self {
            store,
            http,
            ingest: None,
            nodes: Vec::new(),
            retention,
            build,
            operation: None,
            memory: None,
            access: AccessConfig::Open,
            audit: false,
            trust: None,
            catalog: None,
            tls: None,
            api_tls: false,
            limits: Limits::default(),
        }
    }
}

/// A node known beforehand.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Its name, `name` or `namespace/name`.
    pub name: String,
    /// Other names that `node_name` may use.
    pub aliases: Vec<String>,
    /// How long its records are kept.
    pub retention: Retention,
    /// How snapshots of its memory are kept.
    pub memory: MemoryKeep,
    /// A further listener whose API is about this node alone.
    pub listen: Option<SocketAddr>,
}

impl NodeConfig {
    /// A node without aliases whose records are kept for ever.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            aliases: Vec::new(),
            retention: Retention::default(),
            memory: MemoryKeep::default(),
            listen: None,
        }
    }
}

/// How often a snapshot of a node's memory is kept, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryKeep {
    /// Time between two; 0: none are kept.
    pub every: Duration,
    /// What is let go.
    pub limits: SnapshotLimits,
}

impl Default for MemoryKeep {
    fn default() -> Self {
        Self::from(&chainscope_spec::MemorySnapshots::default())
    }
}

impl From<&chainscope_spec::MemorySnapshots> for MemoryKeep {
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
        let memory = node.observe.memory.as_ref().map_or_else(MemoryKeep::default, |memory| (&memory.snapshots).into());
        let (name, retention) = (node.name.clone(), keep(&node.observe.retention));
        Self { name, aliases, retention, memory, listen: node.listen }
    }
}

fn keep(limits: &chainscope_spec::Retention) -> Retention {
    Retention { rows: limits.rows, bytes: limits.bytes.map(|bytes| bytes.as_u64()), age: limits.age }
}

/// What the aggregator takes on at most. Beyond it requests are refused with 503, and agents wait.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Threads that read the store for requests.
    pub query_threads: usize,
    /// Requests that wait for such a thread.
    pub query_queue: usize,
    /// How long one read of the store may take, its wait included.
    pub query_time: Duration,
    /// HTTP connections open at a time, a listener.
    pub connections: usize,
    /// Live streams open at a time.
    pub streams: usize,
    /// How long a client may take for its request's head, and how long it may leave an answer unread.
    pub patience: Duration,
    /// Time between the signs of life on a quiet stream.
    pub heartbeat: Duration,
    /// Bytes of batches that wait for the writer, all agents together.
    pub ingest_bytes: usize,
    /// Nodes there may be; a batch for one more is refused.
    pub nodes: usize,
    /// Time between two looks for what retention lets go.
    pub eviction: Duration,
    /// How long an answer of Kubernetes is good.
    pub remember: Duration,
    /// Time between two questions whether the caller of a live stream still may.
    pub recheck: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            query_threads: 4,
            query_queue: 128,
            query_time: Duration::from_secs(10),
            connections: 1024,
            streams: 256,
            patience: Duration::from_secs(30),
            heartbeat: Duration::from_secs(15),
            ingest_bytes: 32 << 20,
            nodes: 10_000,
            eviction: Duration::from_secs(10),
            remember: Duration::from_secs(60),
            recheck: Duration::from_secs(60),
        }
    }
}
