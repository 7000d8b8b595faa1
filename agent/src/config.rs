//! Configuration of the agent of one host: data directory, limits, observed nodes or the operator that names them.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use chainscope_ebpf::network::CaptureMode;
use chainscope_spec as spec;

/// Which bytes of a chunk are sent on.
pub use chainscope_spec::Stored as Store;

use crate::Error;

/// Configuration of one agent.
#[derive(Debug, Clone)]
pub struct Config {
    /// Directory for the epoch, the session journal and the list of streams; below it the agent makes `agent/`.
    pub data_dir: PathBuf,
    /// Name of this host in the records.
    pub host: String,
    /// The capture mode; none: the best mode of the running kernel.
    pub capture: Option<CaptureMode>,
    /// Buffer between kernel and agent in bytes, a power of two.
    pub ring_bytes: u32,
    /// Bytes pending in that buffer at which the kernel wakes the agent up.
    pub wake_bytes: u32,
    /// Memory for unacknowledged records, in bytes; each node may use its share.
    pub queue_bytes: usize,
    /// Disk space for unacknowledged records, in bytes; none: they are kept in memory only.
    pub spool_bytes: Option<u64>,
    /// Limits of one observed process.
    pub limits: TargetLimits,
    /// The nodes to observe; empty if an operator configures them.
    pub nodes: Vec<NodeConfig>,
    /// The operator that configures what is observed on this host.
    pub cluster: Option<ClusterConfig>,
    /// The host's proc file system, whose process ids are used.
    pub host_proc: PathBuf,
    /// Where container runtimes write what containers print.
    pub container_logs: ContainerLogs,
}

/// Directories of the host in which container runtimes write what containers print. Symbolic links lead from one to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerLogs {
    /// Of pods: `NAMESPACE_NAME_UID/CONTAINER/*.log`.
    pub pods: PathBuf,
    /// Of Docker: `ID/ID-json.log`.
    pub docker: PathBuf,
    /// The kubelet's links to the files of containers.
    pub links: PathBuf,
}

impl Default for ContainerLogs {
    fn default() -> Self {
        Self {
            pods: "/var/log/pods".into(),
            docker: "/var/lib/docker/containers".into(),
            links: "/var/log/containers".into(),
        }
    }
}

/// How the agent gets its configuration from an operator.
#[derive(Debug, Clone)]
pub struct ClusterConfig {
    /// Address of the operator.
    pub operator: chainscope_tls::Remote,
    /// The service-account token with which the agent authenticates; read anew for each connection.
    pub token_file: Option<PathBuf>,
    /// Processes that are captured in pods before they are configured.
    pub watch: Watch,
}

/// Processes that are captured in pods before they are configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watch {
    /// File names of executables.
    pub process_names: BTreeSet<String>,
    /// Ports on which such processes listen for peers.
    pub ports: BTreeSet<u16>,
    /// How long an unconfigured process is captured.
    pub hold: Duration,
}

impl Default for Watch {
    /// As in the charts that run Octez: `octez-node`, 9732, 60 seconds.
    fn default() -> Self {
        Self {
            process_names: BTreeSet::from(["octez-node".to_owned()]),
            ports: BTreeSet::from([9732]),
            hold: Duration::from_secs(60),
        }
    }
}

/// Bounds on what peers can make the agent hold for one target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetLimits {
    /// Connections whose handshake is not complete; beyond it the oldest is given up.
    pub undecided_connections: usize,
    /// Bytes that such connections hold together; beyond it the oldest is given up.
    pub undecided_bytes: u64,
    /// Bytes that the other connections buffer together: incomplete chunks and messages, and searches after gaps.
    pub session_bytes: usize,
    /// Bytes that the connections of all targets buffer together.
    pub all_session_bytes: usize,
}

impl Default for TargetLimits {
    fn default() -> Self {
        Self {
            undecided_connections: 4096,
            undecided_bytes: 16 << 20,
            session_bytes: 64 << 20,
            all_session_bytes: 512 << 20,
        }
    }
}

impl Config {
    /// Lowers the bounds on memory to parts of the memory that the process may use: a quarter for the connections of all targets, an
    /// eighth for those of one, an eighth for unacknowledged records. The rest is for the ring buffer, held processes (64
    /// MiB), memory profiles, and the program itself.
    pub(crate) fn fit(&mut self, memory_limit: u64) {
        let part = |divisor: u64| usize::try_from(memory_limit / divisor).unwrap_or(usize::MAX);
        self.queue_bytes = self.queue_bytes.min(part(8));
        let limits = &mut self.limits;
        limits.all_session_bytes = limits.all_session_bytes.min(part(4));
        limits.session_bytes = limits.session_bytes.min(part(8));
        limits.undecided_bytes = limits.undecided_bytes.min(memory_limit / 64);
    }
}

/// One node and how its process is found. All given conditions must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeConfig {
    /// Its name in the records.
    pub name: String,
    /// The port on which it listens for peers, as it sees it in its own network namespace.
    pub p2p_port: Option<u16>,
    /// Process id as seen on the host.
    pub pid: Option<u32>,
    /// The executable: an absolute path, or a bare name.
    pub exe: Option<PathBuf>,
    /// A container by id (12 digits or more) or by name.
    pub container: Option<String>,
    /// A network namespace such as `/run/netns/a`.
    pub netns: Option<PathBuf>,
    /// Its `identity.json` as the process sees it; none: found from the process's command line and environment.
    pub identity: Option<PathBuf>,
    /// Whether its peer-to-peer messages are left alone.
    pub is_network_disabled: bool,
    /// Which bytes of a chunk are sent on.
    pub store: Store,
    /// Whether its memory is profiled.
    pub memory: bool,
    /// How its log messages are recorded; none: they are not.
    pub logs: Option<NodeLogs>,
    /// Which events of its tracepoints are recorded; none: none are.
    pub trace: Option<spec::Trace>,
}

/// How the log of a node is recorded. The output of its container is always read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeLogs {
    /// What is replaced by `[redacted]`.
    pub redact: spec::Redaction,
    /// Further sources.
    pub sources: spec::LogSources,
}

impl NodeLogs {
    /// None if a pattern is invalid: nothing is recorded that would have to be redacted.
    fn new(logs: &spec::Logs, node: &spec::NodeConfig) -> Option<Self> {
        match spec::Redaction::new(&logs.redact) {
            Ok(redact) => Some(Self { redact, sources: node.log_sources.clone() }),
            Err(cause) => {
                tracing::error!(node = node.name, %cause, "no log messages of this node are recorded");
                None
            }
        }
    }
}

impl NodeConfig {
    /// Whether the entry selects one of several processes on its port, so that it names one node only.
    pub(crate) fn is_narrowed(&self) -> bool {
        self.pid.is_some() || self.exe.is_some() || self.container.is_some() || self.netns.is_some()
    }
}

impl Config {
    /// Default limits with a data directory and nodes; the host has the kernel's host name.
    pub fn new(data_dir: PathBuf, nodes: Vec<NodeConfig>) -> Self {
        Self {
            data_dir,
            host: host_name(),
            capture: None,
            ring_bytes: 32 << 20,
            wake_bytes: 2 << 20,
            queue_bytes: 256 << 20,
            spool_bytes: None,
            limits: TargetLimits::default(),
            nodes,
            cluster: None,
            host_proc: "/proc".into(),
            container_logs: ContainerLogs::default(),
        }
    }

    /// Applies the value of the variable `TEZEDGE_NODE_NAME`, with which the TezEdge tools name the node's container: it
    /// selects the container where there is one node and only its port is configured.
    ///
    /// Returns whether it was used.
    pub fn name_container(&mut self, container: &str) -> bool {
        match self.nodes.as_mut_slice() {
            [] => {
                let name = container.to_owned();
                self.nodes.push(NodeConfig { container: Some(name.clone()), name, ..NodeConfig::default() });
                true
            }
            [node] if !node.is_narrowed() => {
                node.container = Some(container.to_owned());
                true
            }
            _ => false,
        }
    }

    /// Validates the configuration.
    ///
    /// # Errors
    /// [`Error::Config`] names the entry and the value.
    pub fn check(&self) -> Result<(), Error> {
        let refuse = |what: String| Err(Error::Config(what));
        match (&self.cluster, self.nodes.is_empty()) {
            (None, true) => return refuse("no node to observe".to_owned()),
            (Some(_), false) => return refuse("the operator says which nodes to observe".to_owned()),
            _ => {}
        }
        if !self.ring_bytes.is_power_of_two() || self.ring_bytes < 1 << 16 {
            return refuse(format!("ring buffer of {} bytes: a power of two from 65536 on is needed", self.ring_bytes));
        }
        for (index, node) in self.nodes.iter().enumerate() {
            if node.name.is_empty() || node.name.chars().any(char::is_control) {
                return refuse(format!("node {index}: {:?} is no name", node.name));
            }
            if self.nodes.iter().take(index).any(|earlier| earlier.name == node.name) {
                return refuse(format!("node {index}: the name {:?} is taken", node.name));
            }
            if node.p2p_port.is_none() && node.pid.is_none() && node.exe.is_none() && node.container.is_none() {
                return refuse(format!("node {:?}: needs a p2p_port, pid, exe or container", node.name));
            }
            if node.p2p_port == Some(0) {
                return refuse(format!("node {:?}: p2p_port 0 is no port", node.name));
            }
        }
        Ok(())
    }
}

impl From<&spec::Config> for Config {
    fn from(file: &spec::Config) -> Self {
        let nodes = file.nodes.iter().map(NodeConfig::from).collect();
        let ring = file.ring_buffer.as_u64();
        Self {
            capture: match file.capture {
                spec::Capture::Auto => None,
                spec::Capture::Sock => Some(CaptureMode::Sock),
                spec::Capture::Syscall => Some(CaptureMode::Syscall),
            },
            // A value that does not fit is refused by `check`, as one that is no power of two.
            ring_bytes: u32::try_from(ring).unwrap_or(u32::MAX),
            wake_bytes: u32::try_from((ring / 8).min(2 << 20)).unwrap_or(2 << 20),
            queue_bytes: usize::try_from(file.queue.as_u64()).unwrap_or(usize::MAX),
            host_proc: file.host_proc.clone(),
            ..Self::new(file.data_dir.clone(), nodes)
        }
    }
}

impl From<&spec::NodeConfig> for NodeConfig {
    fn from(node: &spec::NodeConfig) -> Self {
        Self {
            name: node.name.clone(),
            p2p_port: node.target.p2p_port,
            pid: node.target.pid,
            exe: node.target.exe.clone(),
            container: node.target.container.clone(),
            netns: node.target.netns.clone(),
            identity: node.identity.clone(),
            is_network_disabled: !node.observe.network.enabled,
            store: node.observe.network.store,
            memory: node.observe.memory.as_ref().is_some_and(|memory| memory.enabled),
            logs: node.observe.logs.as_ref().filter(|logs| logs.enabled).and_then(|logs| NodeLogs::new(logs, node)),
            trace: node.observe.trace.clone().filter(|trace| trace.enabled),
        }
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeConfig {
        NodeConfig { name: name.to_owned(), p2p_port: Some(9732), ..NodeConfig::default() }
    }

    fn refusal(nodes: Vec<NodeConfig>) -> String {
        Config::new("/tmp".into(), nodes).check().unwrap_err().to_string()
    }

    #[test]
    fn bounds_are_parts_of_the_memory_limit() {
        let mut config = Config::new("/data".into(), vec![node("a")]);
        let default = (config.queue_bytes, config.limits);
        config.fit(16 << 30);
        assert_eq!((config.queue_bytes, config.limits), default);
        config.fit(256 << 20);
        let TargetLimits { undecided_bytes, session_bytes, all_session_bytes, .. } = config.limits;
        let bounds = (config.queue_bytes, all_session_bytes, session_bytes, undecided_bytes);
        assert_eq!(bounds, (32 << 20, 64 << 20, 32 << 20, 4 << 20));
    }

    #[test]
    fn what_cannot_work_is_refused_by_name_and_value() {
        assert_eq!(refusal(vec![]), "configuration: no node to observe");
        assert_eq!(refusal(vec![node("a"), node("a")]), "configuration: node 1: the name \"a\" is taken");
        assert_eq!(refusal(vec![node("a\nb")]), "configuration: node 0: \"a\\nb\" is no name");
        let nothing = NodeConfig { p2p_port: None, ..node("a") };
        assert_eq!(refusal(vec![nothing]), "configuration: node \"a\": needs a p2p_port, pid, exe or container");
        assert_eq!(
            refusal(vec![NodeConfig { p2p_port: Some(0), ..node("a") }]),
            "configuration: node \"a\": p2p_port 0 is no port"
        );
        let odd = Config { ring_bytes: 100_000, ..Config::new("/tmp".into(), vec![node("a")]) };
        assert!(odd.check().unwrap_err().to_string().contains("100000"));
        Config::new("/tmp".into(), vec![node("a"), node("b")]).check().unwrap();
    }

    #[test]
    fn the_file_of_one_machine_is_taken_over() {
        let text = "ring_buffer = \"16MiB\"\ncapture = \"syscall\"\n[[nodes]]\np2p_port = 9732\nnetwork = { store = \"plain\" }\nmemory = {}\n";
        let (file, _) = spec::Config::parse(text).unwrap();
        let config = Config::from(&file);
        assert_eq!((config.ring_bytes, config.wake_bytes), (16 << 20, 2 << 20));
        assert_eq!(config.capture, Some(CaptureMode::Syscall));
        assert_eq!(config.nodes, [NodeConfig { store: Store::Plain, memory: true, ..node("9732") }]);
        config.check().unwrap();
    }

    #[test]
    fn a_container_may_be_named_by_the_environment() {
        let mut none = Config::new("/tmp".into(), vec![]);
        assert!(none.name_container("tezedge"));
        assert_eq!(none.nodes[0].container.as_deref(), Some("tezedge"));
        none.check().unwrap();
        let mut one = Config::new("/tmp".into(), vec![node("a")]);
        assert!(one.name_container("tezedge"));
        assert!(!one.name_container("other"), "said already");
        assert_eq!(one.nodes[0].container.as_deref(), Some("tezedge"));
        assert!(!Config::new("/tmp".into(), vec![node("a"), node("b")]).name_container("tezedge"));
    }
}
