//! `chainscope.toml`: parsing, defaults and validation.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

use crate::{
    Error, HostTarget, LogSources, Memory, Network, ObserveSpec, Retention, Trace,
    legacy::{LegacyNode, LegacyTop, Log, P2p},
    logs::{self, FileLogs},
};

/// Default paths of the file; the first that exists is used.
pub const SEARCH_PATHS: [&str; 3] = ["chainscope.toml", "config.toml", "/etc/chainscope/chainscope.toml"];

/// Default of `host_proc`.
const HOST_PROC: &str = "/proc";

/// Default of `queue`.
const QUEUE: ByteSize = ByteSize::mib(256);

/// Default port of the HTTP API.
const API_PORT: u16 = 17732;

/// Configuration of one machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Address of the HTTP API.
    pub listen: SocketAddr,
    /// Address on which agents of other machines deliver records (gRPC); `None` to accept none.
    pub ingest_listen: Option<SocketAddr>,
    /// Additional address of the API, for clients that request memory trees on port 17832.
    pub memory_listen: Option<SocketAddr>,
    /// Origins whose pages may read the API beside those of loopback; `*`: all.
    pub cors_origins: Vec<String>,
    /// Host names of the API beside `localhost` and IP addresses; `*`: all.
    pub hosts: Vec<String>,
    /// Directory of the database and the agent's journal.
    pub data_dir: PathBuf,
    /// The host's proc file system, whose process ids are used.
    pub host_proc: PathBuf,
    /// Kernel hooks that capture the bytes.
    pub capture: Capture,
    /// Size of the ring buffer between kernel and agent: a power of two.
    pub ring_buffer: ByteSize,
    /// Maximum memory for unacknowledged records, shared equally by the nodes; at most an eighth of the machine's memory or
    /// of the memory limit.
    pub queue: ByteSize,
    /// Observed nodes.
    pub nodes: Vec<NodeConfig>,
}

/// Kernel hooks that capture the bytes of connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Capture {
    /// The best that the running kernel supports.
    #[default]
    Auto,
    /// The socket layer: Linux 6.3 or newer; without overhead for other programs.
    Sock,
    /// The exit of system calls: Linux 5.17, or older with `bpf_loop` backported.
    Syscall,
}

/// Configuration of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeConfig {
    /// Name in the API.
    pub name: String,
    /// Additional names accepted by the `node_name` parameter.
    pub aliases: Vec<String>,
    /// Selects the node's process.
    pub target: HostTarget,
    /// Path of `identity.json`; `None` to search the data directory of the process.
    pub identity: Option<PathBuf>,
    /// What is recorded, and how long it is kept.
    pub observe: ObserveSpec,
    /// Where its log is read, besides the output of its container.
    pub log_sources: LogSources,
    /// Additional address of an API that serves this node only.
    pub listen: Option<SocketAddr>,
}

/// The keys of the file, including legacy keys.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    listen: Option<SocketAddr>,
    ingest_listen: Option<SocketAddr>,
    memory_listen: Option<SocketAddr>,
    #[serde(default)]
    cors_origins: Vec<String>,
    #[serde(default)]
    hosts: Vec<String>,
    data_dir: Option<PathBuf>,
    host_proc: Option<PathBuf>,
    #[serde(default)]
    capture: Capture,
    ring_buffer: Option<ByteSize>,
    queue: Option<ByteSize>,
    #[serde(default)]
    nodes: Vec<FileNode>,

    // Legacy keys.
    http_v2: Option<u16>,
    rpc_port: Option<u16>,
    bpf_sniffer_path: Option<PathBuf>,
}

/// The keys of a `[[nodes]]` entry, including legacy keys.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileNode {
    name: Option<String>,
    #[serde(default)]
    aliases: Vec<String>,
    p2p_port: Option<u16>,
    pid: Option<u32>,
    exe: Option<PathBuf>,
    container: Option<String>,
    netns: Option<PathBuf>,
    identity: Option<PathBuf>,
    retention: Option<Retention>,
    network: Option<Network>,
    memory: Option<Memory>,
    logs: Option<FileLogs>,
    trace: Option<Trace>,
    listen: Option<SocketAddr>,

    // Legacy keys.
    http_v3: Option<u16>,
    db: Option<PathBuf>,
    p2p: Option<P2p>,
    log: Option<Log>,
    rpc_port: Option<u16>,
    db_path: Option<PathBuf>,
    identity_path: Option<PathBuf>,
    syslog_port: Option<u16>,
}

impl Config {
    /// Parses and validates a configuration. Returns it with warnings to show: each legacy key with its new spelling.
    ///
    /// # Errors
    /// An [`Error`] that names the line, or the entry and the value.
    pub fn parse(text: &str) -> Result<(Self, Vec<String>), Error> {
        let file: File = toml::from_str(text)?;
        let mut warnings = Vec::new();
        let top = LegacyTop { http_v2: file.http_v2, rpc_port: file.rpc_port, bpf_sniffer_path: file.bpf_sniffer_path };
        let listen = top.listen(file.listen, &mut warnings)?;
        let mut data_dir = file.data_dir;
        let mut nodes = Vec::with_capacity(file.nodes.len());
        for (index, node) in file.nodes.into_iter().enumerate() {
            nodes.push(node.resolve(index, &mut data_dir, &mut warnings)?);
        }
        let config = Self {
            listen: listen.unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), API_PORT)),
            ingest_listen: file.ingest_listen,
            memory_listen: file.memory_listen,
            cors_origins: file.cors_origins,
            hosts: file.hosts,
            data_dir: data_dir.unwrap_or_else(|| PathBuf::from("/var/lib/chainscope")),
            host_proc: file.host_proc.unwrap_or_else(|| PathBuf::from(HOST_PROC)),
            capture: file.capture,
            ring_buffer: file.ring_buffer.unwrap_or(ByteSize::mib(32)),
            queue: file.queue.unwrap_or(QUEUE),
            nodes,
        };
        config.validate()?;
        Ok((config, warnings))
    }

    /// A configuration that observes one node, selected by its port, with defaults otherwise.
    pub fn for_port(port: u16, identity: Option<PathBuf>) -> Self {
        let target = HostTarget { p2p_port: Some(port), ..HostTarget::default() };
        Self::for_target(port.to_string(), target, identity, ObserveSpec::default())
    }

    /// A configuration that observes the memory of one process, with defaults otherwise.
    pub fn for_memory_of(pid: u32) -> Self {
        let target = HostTarget { pid: Some(pid), ..HostTarget::default() };
        let observe = ObserveSpec { memory: Some(Memory::default()), ..ObserveSpec::default() };
        Self::for_target(format!("pid-{pid}"), target, None, observe)
    }

    /// A configuration of one node, with defaults otherwise.
    fn for_target(name: String, target: HostTarget, identity: Option<PathBuf>, observe: ObserveSpec) -> Self {
        Self {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), API_PORT),
            ingest_listen: None,
            memory_listen: None,
            cors_origins: Vec::new(),
            hosts: Vec::new(),
            data_dir: PathBuf::from("/var/lib/chainscope"),
            host_proc: PathBuf::from(HOST_PROC),
            capture: Capture::Auto,
            ring_buffer: ByteSize::mib(32),
            queue: QUEUE,
            nodes: vec![NodeConfig {
                name,
                aliases: Vec::new(),
                target,
                identity,
                observe,
                log_sources: LogSources::default(),
                listen: None,
            }],
        }
    }

    fn validate(&self) -> Result<(), Error> {
        if self.nodes.is_empty() {
            return Err(Error::NoNodes);
        }
        for (index, node) in self.nodes.iter().enumerate() {
            node.validate(index)?;
            logs::validate(index, node, &self.nodes[..index])?;
            if self.nodes[..index].iter().any(|earlier| earlier.name == node.name) {
                return Err(Error::DuplicateName { index, name: node.name.clone() });
            }
        }
        Ok(())
    }
}

impl NodeConfig {
    fn validate(&self, index: usize) -> Result<(), Error> {
        for name in std::iter::once(&self.name).chain(&self.aliases) {
            if !is_valid_name(name) {
                return Err(Error::InvalidName { index, name: name.clone() });
            }
        }
        if self.target.p2p_port == Some(0) {
            return Err(Error::ZeroPort { index, key: "p2p_port" });
        }
        let ObserveSpec { network, memory, logs, trace, retention } = &self.observe;
        let is_enabled = network.enabled
            || memory.as_ref().is_some_and(|memory| memory.enabled)
            || logs.as_ref().is_some_and(|logs| logs.enabled)
            || trace.as_ref().is_some_and(|trace| trace.enabled);
        if !is_enabled {
            return Err(Error::NothingObserved { index });
        }
        trace.as_ref().map_or(Ok(()), Trace::validate).map_err(|cause| Error::Trace { index, cause })?;
        let of_logs = logs.as_ref().map(|logs| ("logs.retention", &logs.retention));
        let of_trace = trace.as_ref().map(|trace| ("trace.retention", &trace.retention));
        for (table, retention) in [("retention", retention)].into_iter().chain(of_logs).chain(of_trace) {
            for (key, is_zero) in [
                ("rows", retention.rows == Some(0)),
                ("bytes", retention.bytes == Some(ByteSize::b(0))),
                ("age", retention.age.is_some_and(|age| age.is_zero())),
            ] {
                if is_zero {
                    return Err(Error::ZeroLimit { index, key: format!("{table}.{key}") });
                }
            }
        }
        let Some(Memory { snapshots, .. }) = memory else { return Ok(()) };
        for (key, is_zero) in [
            ("every", snapshots.every.is_zero()),
            ("age", snapshots.age.is_zero()),
            ("bytes", snapshots.bytes == ByteSize::b(0)),
        ] {
            if is_zero {
                return Err(Error::ZeroSnapshots { index, key });
            }
        }
        Ok(())
    }
}

impl FileNode {
    /// Resolves legacy keys and defaults.
    fn resolve(
        self,
        index: usize,
        data_dir: &mut Option<PathBuf>,
        warnings: &mut Vec<String>,
    ) -> Result<NodeConfig, Error> {
        let legacy = LegacyNode {
            index,
            http_v3: self.http_v3,
            rpc_port: self.rpc_port,
            db: self.db,
            db_path: self.db_path,
            identity_path: self.identity_path,
            syslog_port: self.syslog_port,
            p2p: self.p2p,
            log: self.log,
        };
        legacy.data_dir(data_dir, warnings);
        let target = HostTarget {
            p2p_port: legacy.port(self.p2p_port, warnings)?,
            pid: self.pid,
            exe: self.exe,
            container: self.container,
            netns: self.netns,
        };
        if !target.is_specified() {
            return Err(Error::NoTarget { index });
        }
        // Without port and identity there is nothing to decrypt: a node that is traced may be any program.
        let is_other_program = self.trace.is_some() && target.p2p_port.is_none() && self.identity.is_none();
        let network = self.network.unwrap_or(Network { enabled: !is_other_program, ..Network::default() });
        let (logs, log_sources) = legacy.logs(self.logs, warnings)?.map(FileLogs::split).unzip();
        let name = self.name.or_else(|| target.default_name()).ok_or(Error::NoTarget { index })?;
        Ok(NodeConfig {
            name,
            aliases: self.aliases,
            identity: legacy.identity(self.identity, warnings)?,
            observe: ObserveSpec {
                network,
                memory: self.memory,
                logs,
                trace: self.trace,
                retention: legacy.retention(self.retention, warnings)?,
            },
            listen: legacy.listen(self.listen, warnings)?,
            log_sources: log_sources.unwrap_or_default(),
            target,
        })
    }
}

/// Whether a name consists of at most two parts separated by `/`, and can be used in a URL path.
fn is_valid_name(name: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && part != "."
            && part != ".."
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:@-".contains(&byte))
    };
    let mut parts = name.split('/');
    name.len() <= 253 && parts.next().is_some_and(is_part) && parts.next().is_none_or(is_part) && parts.next().is_none()
}
