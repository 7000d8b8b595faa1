//! The agent as a program of its own, for a host whose aggregator runs elsewhere.

use std::{path::PathBuf, time::Duration};

use anyhow::Context as _;
use chainscope_agent::{Agent, Config, Remote, protect_process};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

/// Observes the nodes of this host and sends what they say to an aggregator.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Configuration file; of its keys the agent uses data_dir, capture, ring_buffer, queue and the nodes.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address of the aggregator, such as http://aggregator:17733.
    #[arg(long, value_name = "URL")]
    aggregator: String,
    /// Name of this host in the records instead of the kernel's.
    #[arg(long)]
    host: Option<String>,
    /// Look at what this machine offers, and exit.
    #[arg(long)]
    check: bool,
}

/// How long unacknowledged records may hold up the end.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> anyhow::Result<()> {
    protect_process()?;
    let arguments = Arguments::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    if arguments.check {
        return check();
    }
    let mut config = read_config(arguments.config)?;
    if let Ok(container) = std::env::var("TEZEDGE_NODE_NAME")
        && !config.name_container(&container)
    {
        tracing::warn!("TEZEDGE_NODE_NAME is of no use: the nodes' targets are named in the configuration");
    }
    if let Some(host) = arguments.host {
        config.host = host;
    }
    let agent = Agent::start(config, Remote::new(&arguments.aggregator)?)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = agent.ended() => {}
        }
        anyhow::Ok(())
    })?;
    drop(runtime);
    Ok(agent.shutdown(PATIENCE)?)
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

#[allow(clippy::print_stdout)] // what the option is for
fn check() -> anyhow::Result<()> {
    let mut is_fit = true;
    for finding in chainscope_agent::self_check() {
        is_fit &= finding.ok;
        println!("{} {}: {}", if finding.ok { "ok     " } else { "MISSING" }, finding.name, finding.detail);
    }
    anyhow::ensure!(is_fit, "something is missing");
    Ok(())
}
