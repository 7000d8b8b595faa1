//! Agent and aggregator in this process, joined by a channel.

use std::{
    cell::Cell,
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::ensure;
use chainscope_agent::{Agent, Link, Uplink};
use chainscope_aggregator::Aggregator;
use chainscope_spec::Config;
use chainscope_store::{Store, StoreOptions};
use tokio::{runtime::Runtime, signal::unix, sync::watch};
use tracing::warn;

use crate::failure;

/// How long the last records may take to be stored at shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between checks while waiting for a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Where the aggregator keeps records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Storage {
    /// In memory: they are lost when this process exits.
    Memory,
    /// In RocksDB, in the data directory.
    RocksDb,
}

impl Storage {
    fn open(self, config: &Config) -> anyhow::Result<Store> {
        match self {
            Self::Memory => Ok(Store::in_memory(StoreOptions::default())?),
            Self::RocksDb => {
                ensure!(
                    cfg!(feature = "rocksdb"),
                    "this binary is built without RocksDB, so it cannot store records in {}; --ephemeral keeps them in memory",
                    config.data_dir.display()
                );
                Ok(Store::open(config.data_dir.join("db"), StoreOptions::default())?)
            }
        }
    }
}

/// A running agent and aggregator.
pub(crate) struct Running {
    runtime: Runtime,
    agent: chainscope_agent::Running,
    aggregator: chainscope_aggregator::Running,
    /// Number of SIGINT, SIGTERM and SIGHUP so far.
    signals: watch::Receiver<u32>,
    /// Those that [`Running::resume`] answered.
    answered: Cell<u32>,
}

impl Running {
    /// The address that serves the API.
    pub(crate) fn address(&self) -> SocketAddr {
        self.aggregator.http_addr()
    }

    /// Whether such a signal has arrived: waiting ends at once then.
    pub(crate) fn is_interrupted(&self) -> bool {
        *self.signals.borrow() > self.answered.get()
    }

    /// Waits again: for the next signal.
    pub(crate) fn resume(&self) {
        self.answered.set(*self.signals.borrow());
    }

    /// Waits for `timeout`, or until a signal.
    pub(crate) fn wait(&self, timeout: Duration) -> anyhow::Result<()> {
        self.wait_for(async { tokio::time::sleep(timeout).await }).map(drop)
    }

    /// Waits for `done` and returns its output; `None` if a signal or the end of the agent came first.
    pub(crate) fn wait_for<T>(&self, done: impl Future<Output = T>) -> anyhow::Result<Option<T>> {
        let (mut signals, answered) = (self.signals.clone(), self.answered.get());
        self.runtime.block_on(async {
            tokio::select! {
                _ = signals.wait_for(|signals| *signals > answered) => Ok(None),
                // The agent ends by itself on an error only, which `stop` returns.
                () = self.agent.ended() => Ok(None),
                error = self.aggregator.failed() => Err(anyhow::anyhow!("the database failed: {error}")),
                done = done => Ok(Some(done)),
            }
        })
    }

    /// Waits for `condition`, but no longer than `timeout` or until a signal. Returns whether it was met.
    pub(crate) fn wait_until(
        &self,
        timeout: Duration,
        mut condition: impl FnMut() -> anyhow::Result<bool>,
    ) -> anyhow::Result<bool> {
        let start = Instant::now();
        while !condition()? {
            if start.elapsed() > timeout || self.is_interrupted() {
                return Ok(false);
            }
            self.wait(POLL_INTERVAL)?;
        }
        Ok(true)
    }

    /// Stops recording, stores the records in flight, stops serving.
    pub(crate) fn stop(self) -> anyhow::Result<()> {
        let Self { runtime, agent, aggregator, .. } = self;
        let ended = agent.shutdown(DRAIN_TIMEOUT);
        runtime.block_on(aggregator.shutdown());
        Ok(ended?)
    }
}

/// Starts agent and aggregator.
pub(crate) fn start(config: &Config, storage: Storage) -> anyhow::Result<Running> {
    launch(config, storage).map_err(|error| match advice(&error, config) {
        Some(advice) => failure::with_hint(error, advice),
        None => failure::of_probe(error),
    })
}

/// What to do about a database or an address that another process has.
fn advice(error: &anyhow::Error, config: &Config) -> Option<String> {
    if let Some(chainscope_store::Error::Locked { .. }) = error.downcast_ref::<chainscope_store::Error>() {
        return Some("stop the other process, or name another directory with --data-dir".to_owned());
    }
    match error.downcast_ref::<chainscope_aggregator::Error>()? {
        chainscope_aggregator::Error::Listen { address, source } if source.kind() == ErrorKind::AddrInUse => {
            let place = if *address == config.listen { "with --listen" } else { "in the configuration file" };
            Some(format!("stop the program that listens there, or name another address {place}"))
        }
        _ => None,
    }
}

fn launch(config: &Config, storage: Storage) -> anyhow::Result<Running> {
    let runtime = Runtime::new()?;
    let store = storage.open(config)?;
    let mut serve = chainscope_aggregator::Config::new(store, config.listen);
    serve.ingest = config.ingest_listen;
    serve.memory = config.memory_listen;
    serve.cors_origins.clone_from(&config.cors_origins);
    serve.hosts.clone_from(&config.hosts);
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
        let _runtime = runtime.enter();
        Agent::start(observe, link)?
    };
    let signals = watch_signals(&runtime)?;
    Ok(Running { runtime, agent, aggregator, signals, answered: Cell::default() })
}

/// Counts SIGINT, SIGTERM and SIGHUP from now on, whether or not [`Running::wait_for`] is called when one arrives.
fn watch_signals(runtime: &Runtime) -> anyhow::Result<watch::Receiver<u32>> {
    let _runtime = runtime.enter();
    let mut interrupt = unix::signal(unix::SignalKind::interrupt())?;
    let mut terminate = unix::signal(unix::SignalKind::terminate())?;
    // Its terminal or ssh session ended. A handler would undo that nohup has it ignored.
    let mut hangup = if ignores_hangup() { None } else { Some(unix::signal(unix::SignalKind::hangup())?) };
    let (sender, signals) = watch::channel(0);
    runtime.spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                Some(_) = async { hangup.as_mut()?.recv().await } => {}
            }
            sender.send_modify(|signals| *signals += 1);
        }
    });
    Ok(signals)
}

/// Whether this process was started with SIGHUP ignored, as by nohup.
fn ignores_hangup() -> bool {
    const SIGHUP: u64 = 1;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & (1 << (SIGHUP - 1)) != 0)
}

/// An address that a client on this machine can connect to: loopback instead of an unspecified address.
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
