//! `chainscope run`: agent and aggregator in one process.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use chainscope_agent::{Agent, Finding, Link, Uplink};
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
    chainscope_hygiene::protect_process()?;
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
    running.wait_for(std::future::pending::<()>())?;
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
        self.wait_for(async { tokio::time::sleep(at_most).await }).map(drop)
    }

    /// Waits until it is done, or until somebody presses Ctrl-C: then nothing came of it.
    pub(crate) fn wait_for<T>(&self, done: impl Future<Output = T>) -> anyhow::Result<Option<T>> {
        self.runtime.block_on(async {
            tokio::select! {
                stopped = stop_signal() => stopped.map(|()| None),
                // It ends by itself on an error only; stopping says which.
                () = self.agent.ended() => Ok(None),
                done = done => Ok(Some(done)),
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
    let findings = chainscope_agent::self_check();
    terminal::write(lines(&findings).as_bytes())?;
    verdict(&findings)
}

/// An error if nothing can be recorded here.
fn verdict(findings: &[Finding]) -> anyhow::Result<()> {
    let missing = findings.iter().filter(|finding| finding.is_obstacle()).count();
    if missing > 0 {
        bail!("this machine lacks {missing} of the things above");
    }
    Ok(())
}

/// What this machine has and lacks, a line each.
pub(crate) fn self_check_text() -> String {
    lines(&chainscope_agent::self_check())
}

fn lines(findings: &[Finding]) -> String {
    findings.iter().map(|finding| format!("{finding}\n")).collect()
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

#[cfg(test)]
mod tests {
    use chainscope_agent::Finding;

    use super::{lines, verdict};

    #[test]
    fn only_what_nothing_makes_up_for_fails_the_check() {
        let finding = |name: &str, ok, optional| Finding { name: name.into(), ok, optional, detail: "there".into() };
        let mut findings = vec![finding("BTF", true, false), finding("tracepoint a", false, true)];
        assert_eq!(lines(&findings), "ok      BTF: there\nlimited tracepoint a: there\n");
        verdict(&findings).unwrap();
        findings.push(finding("tracepoint b", false, false));
        assert!(lines(&findings).ends_with("MISSING tracepoint b: there\n"));
        assert_eq!(verdict(&findings).unwrap_err().to_string(), "this machine lacks 1 of the things above");
    }
}
