//! The operator as a whole: what is started, what ends what, and in which order it ends.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::Context as _;
use chainscope_tls::{Acceptor, CertificateDir, Protocol};
use clap::Args;
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    certificates::{Keeper, Served},
    cluster::{
        events, lease,
        watch::{self as watches, Secrets},
        write::Statuses,
    },
    desired::Desired,
    driver::Driver,
    health::{self, Health},
    metrics::Metrics,
    reconcile::Engine,
    stream::{self, Accounts, ApiReviewer},
};

/// Changes that wait for the driver; a watch that is ahead waits itself.
const CHANGES: usize = 256;
/// Events that wait to be made; more are held back.
const EVENTS: usize = 256;

/// Options of `run`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Namespace that the operator, the agents and the aggregator run in
    #[arg(long, value_name = "NAMESPACE", env = "CHAINSCOPE_NAMESPACE")]
    pub namespace: String,
    /// Name of the release: the beginning of the names of its Lease, Secrets and Services
    #[arg(long, value_name = "NAME", env = "CHAINSCOPE_RELEASE")]
    pub release: String,
    /// Address of the config stream (gRPC), for agents and aggregator
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:17734", env = "CHAINSCOPE_CONFIG_LISTEN")]
    pub config_listen: SocketAddr,
    /// Address of /metrics, /livez and /readyz
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:17739", env = "CHAINSCOPE_METRICS_LISTEN")]
    pub metrics_listen: SocketAddr,
    /// ServiceAccount of the agents, in the same namespace
    #[arg(long, value_name = "NAME", env = "CHAINSCOPE_AGENT_ACCOUNT")]
    pub agent_account: String,
    /// ServiceAccount of the aggregator, in the same namespace
    #[arg(long, value_name = "NAME", env = "CHAINSCOPE_AGGREGATOR_ACCOUNT")]
    pub aggregator_account: String,
    /// Namespaces whose Secrets may hold identities, separated by commas
    #[arg(long, value_name = "NAMESPACES", value_delimiter = ',', env = "CHAINSCOPE_SECRET_NAMESPACES")]
    pub secret_namespaces: Vec<String>,
    /// Of several replicas one leads; without this the only one does
    #[arg(long, env = "CHAINSCOPE_LEADER_ELECT")]
    pub leader_elect: bool,
    /// Folder of the config stream's certificate: tls.crt and tls.key, read again when they change
    #[arg(long, value_name = "FOLDER", env = "CHAINSCOPE_TLS_DIR", conflicts_with = "manage_certificates")]
    pub tls_dir: Option<PathBuf>,
    /// Make and rotate the certificates of operator and aggregator
    #[arg(long, env = "CHAINSCOPE_MANAGE_CERTIFICATES")]
    pub manage_certificates: bool,
    /// Name of this replica among the others
    #[arg(long, value_name = "NAME", env = "POD_NAME", default_value = "chainscope-operator")]
    pub replica: String,
}

/// Runs until a signal, or until a part of it that must not end does.
///
/// # Errors
/// If it cannot start, or a part of it failed.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let client = Client::try_default().await.context("cannot find the API server")?;
    let stop = CancellationToken::new();
    let ended = stop.clone();
    let mut signals = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::spawn(async move {
        tokio::select! {
            _ = signals.0.recv() => {}
            _ = signals.1.recv() => {}
        }
        ended.cancel();
    });
    run_with(client, options, stop).await
}

/// Runs against a given API server until told to stop.
///
/// # Errors
/// If it cannot start, or a part of it failed.
pub async fn run_with(client: Client, options: Options, stop: CancellationToken) -> anyhow::Result<()> {
    let config_listener = listen(options.config_listen).await?;
    let metrics_listener = listen(options.metrics_listen).await?;
    let mut registry = Registry::with_prefix("chainscope_operator");
    let metrics = Metrics::new(&mut registry);
    let stream_metrics = stream::Metrics::default();
    stream_metrics.register(&mut registry);

    let (desired_sender, desired) = watch::channel(Arc::<Desired>::default());
    let (serving_sender, serving) = watch::channel(false);
    let (synced_sender, synced) = watch::channel(false);
    let (leading_sender, leading) = watch::channel(!options.leader_elect);
    let (changes_sender, changes) = mpsc::channel(CHANGES);
    let (events_sender, happenings) = mpsc::channel(EVENTS);

    // Whatever ends first ends everything: none of these ends by itself unless it failed.
    let mut parts: JoinSet<anyhow::Result<()>> = JoinSet::new();
    let health = Health { registry, synced, serving: serving.clone() };
    let stopped = stop.clone();
    parts.spawn(async move { Ok(health::serve(metrics_listener, health, stopped).await?) });

    let acceptor = match &options.tls_dir {
        Some(dir) => Acceptor::tls(CertificateDir::open(dir)?, Protocol::Grpc)?,
        None if options.manage_certificates => {
            let served = Arc::new(Served::default());
            let (namespace, release) = (&options.namespace, &options.release);
            let keeper =
                Keeper::new(client.clone(), namespace, release, Arc::clone(&served), metrics.certificate_ends.clone());
            parts.spawn(forever(keeper.run(leading.clone(), stop.clone())));
            Acceptor::tls(served, Protocol::Grpc)?
        }
        None => Acceptor::plain(),
    };
    let (service, reports) = stream::Service::new(stream::Config {
        accounts: Accounts {
            namespace: options.namespace.clone(),
            agent: options.agent_account.clone(),
            aggregator: options.aggregator_account.clone(),
        },
        reviewer: Arc::new(ApiReviewer::new(client.clone())),
        desired,
        serving,
        metrics: stream_metrics,
        stop: stop.clone(),
    });
    parts.spawn(async move { Ok(service.serve(config_listener, acceptor).await?) });
    parts.spawn(forever(watches::nodes(client.clone(), changes_sender.clone())));
    parts.spawn(forever(watches::pods(client.clone(), changes_sender.clone())));
    parts.spawn(forever(events::publish(client.clone(), options.replica.clone(), happenings)));
    let driver = Driver {
        engine: Engine::new(options.secret_namespaces.iter().filter(|name| !name.is_empty()).cloned()),
        changes,
        secrets: Secrets::new(client.clone(), changes_sender),
        reports,
        leading,
        desired: desired_sender,
        serving: serving_sender,
        synced: synced_sender,
        statuses: Statuses::new(client.clone()),
        events: events_sender,
        metrics,
    };
    parts.spawn(forever(driver.run(stop.clone())));
    // The last to end: the Lease is handed over when this replica does not act any more.
    let elected = CancellationToken::new();
    let election = options.leader_elect.then(|| {
        let (client, elected) = (client.clone(), elected.clone());
        let (namespace, name) = (options.namespace.clone(), format!("{}-operator", options.release));
        let identity = identity(&options.replica);
        tokio::spawn(async move { lease::elect(client, &namespace, &name, identity, leading_sender, elected).await })
    });
    let result = tokio::select! {
        () = stop.cancelled() => Ok(()),
        ended = parts.join_next() => match ended {
            Some(Ok(Err(error))) => Err(error),
            Some(Err(error)) => Err(error.into()),
            Some(Ok(Ok(()))) | None => Ok(()),
        },
    };
    let result = if stop.is_cancelled() { Ok(()) } else { result.and_then(|()| anyhow::bail!("a part of it ended")) };
    stop.cancel();
    parts.shutdown().await;
    elected.cancel();
    if let Some(election) = election {
        election.await.context("leader election broke off")?;
    }
    result
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))
}

async fn forever(work: impl Future<Output = ()>) -> anyhow::Result<()> {
    work.await;
    Ok(())
}

/// The name of this run of this replica: a pod that was made again under its name is another holder.
fn identity(replica: &str) -> String {
    format!("{replica}_{:x}", k8s_openapi::jiff::Timestamp::now().as_nanosecond())
}
