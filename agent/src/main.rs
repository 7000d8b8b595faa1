//! The agent as a standalone program, for a host whose aggregator runs elsewhere.

use std::{io::IsTerminal as _, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Context as _;
use bytesize::ByteSize;
use chainscope_agent::{Agent, ClusterConfig, Config, Error, Monitor, Remote, Unsupported, Watch};
use clap::Parser;
// Only linked: it overrides `malloc`, and returns what was freed to the kernel.
use tikv_jemalloc_sys as _;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

/// Observes the nodes of this host and sends records to an aggregator.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Configuration file; of its keys the agent uses data_dir, capture, ring_buffer, queue and the nodes.
    #[arg(long, value_name = "FILE", env = "CHAINSCOPE_CONFIG", conflicts_with = "operator")]
    config: Option<PathBuf>,
    /// Address of the operator, which configures what this host observes, such as https://operator:17734.
    #[arg(long, value_name = "URL", env = "CHAINSCOPE_OPERATOR")]
    operator: Option<String>,
    /// Address of the aggregator, such as https://aggregator:17733.
    #[arg(long, value_name = "URL", env = "CHAINSCOPE_AGGREGATOR", required_unless_present = "check")]
    aggregator: Option<String>,
    /// Service-account token sent to the operator and the aggregator; read anew for each connection.
    #[arg(long, value_name = "FILE", env = "CHAINSCOPE_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// CA bundle used to verify the operator and the aggregator; read anew for each connection.
    #[arg(long, value_name = "FILE", env = "CHAINSCOPE_CA_FILE")]
    ca_file: Option<PathBuf>,
    /// Data directory: spool, session journal and the last configuration.
    #[arg(long, value_name = "DIR", env = "CHAINSCOPE_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Address on which /livez, /readyz and /metrics are served, over plain HTTP.
    #[arg(long, value_name = "ADDRESS", env = "CHAINSCOPE_METRICS_LISTEN")]
    metrics_listen: Option<SocketAddr>,
    /// Size of the spool, which keeps records until they are acknowledged, such as 1GiB.
    #[arg(long, value_name = "SIZE", env = "CHAINSCOPE_SPOOL_BYTES")]
    spool_bytes: Option<ByteSize>,
    /// The host's proc file system, whose process ids are used; default: /proc, or host_proc of the configuration file.
    #[arg(long, value_name = "DIR", env = "CHAINSCOPE_HOST_PROC")]
    host_proc: Option<PathBuf>,
    /// Directory with the log files of pods, NAMESPACE_NAME_UID/CONTAINER/*.log.
    #[arg(long, value_name = "DIR", env = "CHAINSCOPE_POD_LOGS", default_value = "/var/log/pods")]
    pod_logs: PathBuf,
    /// Name of this host in the records; default: the kernel's host name. On a cluster: the Kubernetes node's name.
    #[arg(long, value_name = "NAME", env = "CHAINSCOPE_HOST")]
    host: Option<String>,
    /// File names of executables that are captured in pods before they are configured.
    #[arg(
        long,
        value_name = "NAME,...",
        env = "CHAINSCOPE_WATCH_PROCESS_NAMES",
        value_delimiter = ',',
        default_value = "octez-node"
    )]
    watch_process_names: Vec<String>,
    /// Ports on which such processes listen for peers.
    #[arg(
        long,
        value_name = "PORT,...",
        env = "CHAINSCOPE_WATCH_PORTS",
        value_delimiter = ',',
        default_value = "9732"
    )]
    watch_ports: Vec<u16>,
    /// Check prerequisites and exit.
    #[arg(long)]
    check: bool,
}

/// How long the shutdown waits for acknowledgements.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

fn main() -> anyhow::Result<()> {
    chainscope_hygiene::protect_process()?;
    let arguments = Arguments::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    if arguments.check {
        return check(&arguments);
    }
    let config = configure(&arguments)?;
    let findings = chainscope_agent::self_check(&config.host_proc);
    for finding in findings.into_iter().filter(|finding| !finding.ok) {
        tracing::warn!("{}: {}", finding.name, finding.detail);
    }
    let aggregator = arguments.aggregator.as_deref().context("an aggregator is needed: --aggregator")?;
    // In tests the operator may be reached through TLS and the aggregator not.
    let ca_file = arguments.ca_file.clone().filter(|_| aggregator.starts_with("https:"));
    let link = Remote::secured(aggregator, ca_file, arguments.token_file.clone())?;
    let cluster = config.cluster.clone();
    match (Agent::start(config, link), cluster) {
        (Ok(agent), _) => {
            run(arguments.metrics_listen, agent.monitor(), agent.ended())?;
            Ok(agent.shutdown(SHUTDOWN_GRACE)?)
        }
        // The operator shows the cause as a condition; a restart would not help.
        (Err(cause @ (Error::Unsupported(_) | Error::Probe(_))), Some(cluster)) => {
            tracing::error!(%cause, "this host cannot record");
            let unsupported = Unsupported::start(&cluster, &cause)?;
            run(arguments.metrics_listen, unsupported.monitor(), std::future::pending())
        }
        (Err(cause), _) => Err(cause.into()),
    }
}

/// Serves health and metrics until a signal arrives or the agent ends.
fn run(listen: Option<SocketAddr>, monitor: Monitor, ended: impl Future<Output = ()>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let serving = async {
            match listen {
                Some(address) => {
                    let listener = TcpListener::bind(address).await.with_context(|| format!("metrics on {address}"))?;
                    monitor.serve(listener).await.context("metrics")
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = terminate.recv() => Ok(()),
            _ = interrupt.recv() => Ok(()),
            () = ended => Ok(()),
            result = serving => result,
        }
    })
}

fn configure(arguments: &Arguments) -> anyhow::Result<Config> {
    let mut config = match &arguments.operator {
        Some(operator) => {
            let data_dir = arguments.data_dir.clone().unwrap_or_else(|| "/var/lib/chainscope".into());
            let cluster = ClusterConfig {
                operator: chainscope_tls::Remote::new(operator, arguments.ca_file.clone())?,
                token_file: arguments.token_file.clone(),
                watch: Watch {
                    process_names: arguments.watch_process_names.iter().cloned().collect(),
                    ports: arguments.watch_ports.iter().copied().collect(),
                    ..Watch::default()
                },
            };
            Config { cluster: Some(cluster), ..Config::new(data_dir, Vec::new()) }
        }
        None => {
            let mut config = read_config(arguments.config.clone())?;
            if let Ok(container) = std::env::var("TEZEDGE_NODE_NAME")
                && !config.name_container(&container)
            {
                tracing::warn!("TEZEDGE_NODE_NAME is ignored: the configuration names the targets of its nodes");
            }
            config
        }
    };
    if let Some(host_proc) = &arguments.host_proc {
        config.host_proc.clone_from(host_proc);
    }
    config.container_logs.pods.clone_from(&arguments.pod_logs);
    if let Some(data_dir) = &arguments.data_dir {
        config.data_dir.clone_from(data_dir);
    }
    if let Some(host) = &arguments.host {
        config.host.clone_from(host);
    }
    if let Some(bytes) = arguments.spool_bytes {
        config.spool_bytes = Some(bytes.as_u64());
    }
    Ok(config)
}

fn read_config(path: Option<PathBuf>) -> anyhow::Result<Config> {
    let path = path
        .or_else(|| chainscope_spec::SEARCH_PATHS.iter().map(PathBuf::from).find(|path| path.exists()))
        .context("no configuration file: give one with --config")?;
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let (config, warnings) = chainscope_spec::Config::parse(&text).with_context(|| path.display().to_string())?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    Ok(Config::from(&config))
}

#[expect(clippy::print_stdout, reason = "the option prints its findings")]
fn check(arguments: &Arguments) -> anyhow::Result<()> {
    let mut is_supported = true;
    let host_proc = match (&arguments.host_proc, &arguments.config) {
        (Some(host_proc), _) => host_proc.clone(),
        (None, Some(file)) => read_config(Some(file.clone()))?.host_proc,
        (None, None) => "/proc".into(),
    };
    for finding in chainscope_agent::self_check(&host_proc) {
        is_supported &= !finding.is_obstacle();
        println!("{finding}");
    }
    anyhow::ensure!(is_supported, "a prerequisite is missing");
    Ok(())
}
