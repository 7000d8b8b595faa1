//! `chainscope run`: agent and aggregator in one process.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use chainscope_agent::{Agent, Link, Uplink, protect_process};
use chainscope_aggregator::Aggregator;
use chainscope_spec::{Config, SEARCH_PATHS};
use chainscope_store::{Store, StoreOptions};
use tokio::{runtime::Runtime, signal::unix};
use tracing::{info, warn};

use crate::{args::RunArgs, logs, terminal};

/// The shortest configuration, for who has none.
const SHORTEST: &str = "\
no configuration file. The shortest one, as ./chainscope.toml or /etc/chainscope/chainscope.toml:

    [[nodes]]
    p2p_port = 9732

It records the node that listens for peers on port 9732; for that node alone, `chainscope run --p2p-port 9732` does the same.";

/// How long the last records may take to be stored at the end.
const DRAIN: Duration = Duration::from_secs(10);

pub(crate) fn run(args: RunArgs) -> anyhow::Result<()> {
    protect_process()?;
    if args.check {
        return check();
    }
    let (source, mut config, warnings) = configuration(&args)?;
    if let Some(data_dir) = args.data_dir {
        config.data_dir = data_dir;
    }
    if let Some(listen) = args.listen {
        config.listen = listen;
    }
    fs::create_dir_all(&config.data_dir)
        .with_context(|| format!("cannot make the data folder {}", config.data_dir.display()))?;
    logs::start(Some(&config.data_dir), "info")?;
    for warning in warnings {
        warn!("{source}: {warning}");
    }
    let running = start(&config)?;
    info!("API on http://{}, its description at /docs", reachable(running.address()));
    running.runtime.block_on(async {
        tokio::select! {
            stopped = stop_signal() => stopped,
            // It ends by itself on an error only; stopping says which.
            () = running.agent.ended() => Ok(()),
        }
    })?;
    info!("stopping");
    running.stop()
}

fn configuration(args: &RunArgs) -> anyhow::Result<(String, Config, Vec<String>)> {
    if let Some(port) = args.p2p_port {
        return Ok((String::from("command line"), Config::for_port(port, args.identity.clone()), Vec::new()));
    }
    let file = read_config(args.config.as_deref())?;
    Ok((file.path.display().to_string(), file.config, file.warnings))
}

/// A configuration file that was read.
pub(crate) struct ConfigFile {
    pub(crate) path: PathBuf,
    /// As written.
    pub(crate) text: String,
    pub(crate) config: Config,
    warnings: Vec<String>,
}

/// The configuration file: the one named, else the first that is found.
pub(crate) fn read_config(named: Option<&Path>) -> anyhow::Result<ConfigFile> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => match SEARCH_PATHS.iter().map(PathBuf::from).find(|path| path.exists()) {
            Some(path) => path,
            None => bail!(SHORTEST),
        },
    };
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let (config, warnings) = Config::parse(&text).with_context(|| path.display().to_string())?;
    Ok(ConfigFile { path, text, config, warnings })
}

/// Everything that runs.
pub(crate) struct Running {
    runtime: Runtime,
    agent: chainscope_agent::Running,
    aggregator: chainscope_aggregator::Running,
}

impl Running {
    /// Where the API is served.
    pub(crate) fn address(&self) -> SocketAddr {
        self.aggregator.http_addr()
    }

    /// Waits so long, or until somebody presses Ctrl-C.
    pub(crate) fn wait(&self, at_most: Duration) -> anyhow::Result<()> {
        self.runtime.block_on(async {
            tokio::select! {
                stopped = stop_signal() => stopped,
                () = self.agent.ended() => Ok(()),
                () = tokio::time::sleep(at_most) => Ok(()),
            }
        })
    }

    /// Stops recording, stores what is on the way, stops serving.
    pub(crate) fn stop(self) -> anyhow::Result<()> {
        let Self { runtime, agent, aggregator } = self;
        let ended = agent.shutdown(DRAIN);
        runtime.block_on(aggregator.shutdown());
        Ok(ended?)
    }
}

/// Starts agent and aggregator, joined by a channel.
pub(crate) fn start(config: &Config) -> anyhow::Result<Running> {
    let runtime = Runtime::new()?;
    let store = Store::open(config.data_dir.join("db"), StoreOptions::default())?;
    let mut serve = chainscope_aggregator::Config::new(store, config.listen);
    serve.ingest = config.ingest_listen;
    serve.memory = config.memory_listen;
    serve.nodes = config.nodes.iter().map(Into::into).collect();
    let aggregator = runtime.block_on(Aggregator::start(serve))?;
    let ingest = aggregator.ingest().clone();
    let link = Link::Reopen(Box::new(move || {
        let (requests, replies) = ingest.connect();
        Some(Uplink { requests, replies })
    }));
    let mut observe = chainscope_agent::Config::from(config);
    if let Ok(container) = std::env::var("TEZEDGE_NODE_NAME")
        && observe.name_container(&container)
    {
        warn!("TEZEDGE_NODE_NAME = {container:?} is now spelled container = {container:?}");
    }
    let agent = {
        let _inside = runtime.enter();
        Agent::start(observe, link)?
    };
    Ok(Running { runtime, agent, aggregator })
}

async fn stop_signal() -> anyhow::Result<()> {
    let mut interrupt = unix::signal(unix::SignalKind::interrupt())?;
    let mut terminate = unix::signal(unix::SignalKind::terminate())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

fn check() -> anyhow::Result<()> {
    terminal::write(self_check_text().as_bytes())?;
    let missing = chainscope_agent::self_check().into_iter().filter(|finding| !finding.ok).count();
    if missing > 0 {
        bail!("this machine lacks {missing} of the things above");
    }
    Ok(())
}

/// What this machine has and lacks, a line each.
pub(crate) fn self_check_text() -> String {
    let mut text = String::new();
    for finding in chainscope_agent::self_check() {
        let mark = if finding.ok { "ok     " } else { "MISSING" };
        text.push_str(&format!("{mark} {}: {}\n", finding.name, finding.detail));
    }
    text
}

/// An address that a client on this machine can use: not "everywhere".
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
