//! Startup and shutdown of the operator: wires the components together and defines the order in which they stop.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::Context as _;
use chainscope_tls::{Acceptor, CertificateDir, Protocol};
use clap::Args;
use kube::{Client, Config};
use prometheus_client::registry::Registry;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    certificates::{CertificateManager, ServingCertificate},
    cluster::{
        client, events, lease,
        status::StatusWriter,
        watch::{self as watches, SecretWatches},
    },
    controller::Controller,
    desired::Desired,
    health::{self, Health},
    metrics::Metrics,
    reconcile::{NodeKind, Reconciler},
    stream::{self, ServiceAccounts, TokenReviewer},
};

/// Capacity of the queue between the watches and the controller; a full queue delays the watches.
const CHANGE_QUEUE: usize = 256;
/// Capacity of the queue of Events to create; further Events are dropped.
const EVENT_QUEUE: usize = 256;

/// Options of `run`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Namespace of the operator, the agents and the aggregator
    #[arg(long, value_name = "NAMESPACE", env = "CHAINSCOPE_NAMESPACE")]
    pub namespace: String,
    /// Release name: the prefix of the names of its Lease, Secrets and Services
    #[arg(long, value_name = "NAME", env = "CHAINSCOPE_RELEASE")]
    pub release: String,
    /// Listen address of the config stream (gRPC) for agents and aggregator
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:17734", env = "CHAINSCOPE_CONFIG_LISTEN")]
    pub config_listen: SocketAddr,
    /// Listen address of /metrics, /livez and /readyz
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:17739", env = "CHAINSCOPE_METRICS_LISTEN")]
    pub metrics_listen: SocketAddr,
    /// ServiceAccount of the agents, in the same namespace
    #[arg(long, value_name = "NAME", env = "CHAINSCOPE_AGENT_SERVICE_ACCOUNT")]
    pub agent_service_account: String,
    /// ServiceAccount of the aggregator, in the same namespace
    #[arg(long, value_name = "NAME", env = "CHAINSCOPE_AGGREGATOR_SERVICE_ACCOUNT")]
    pub aggregator_service_account: String,
    /// Namespaces in which the operator reads Secrets with identities, separated by commas
    #[arg(long, value_name = "NAMESPACES", value_delimiter = ',', env = "CHAINSCOPE_SECRET_NAMESPACES")]
    pub secret_namespaces: Vec<String>,
    /// Elect a leader among several replicas; required with more than one replica
    #[arg(long, env = "CHAINSCOPE_LEADER_ELECT")]
    pub leader_elect: bool,
    /// Directory of the config stream's certificate (tls.crt and tls.key), reloaded when it changes
    #[arg(long, value_name = "DIRECTORY", env = "CHAINSCOPE_TLS_DIR", conflicts_with = "manage_certificates")]
    pub tls_dir: Option<PathBuf>,
    /// Create and rotate the certificates of operator and aggregator
    #[arg(long, env = "CHAINSCOPE_MANAGE_CERTIFICATES")]
    pub manage_certificates: bool,
    /// Name of this replica, unique among the replicas
    #[arg(long, value_name = "NAME", env = "POD_NAME", default_value = "chainscope-operator")]
    pub replica: String,
}

/// Runs until SIGTERM or SIGINT, or until a component fails.
///
/// # Errors
/// If the operator cannot start, or a component failed.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let config = Config::infer().await.context("cannot configure the Kubernetes client")?;
    let client = client::client(config).context("cannot configure the Kubernetes client")?;
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

/// Runs with the given client until `stop` is cancelled, or until a component fails.
///
/// # Errors
/// If the operator cannot start, or a component failed.
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
    let (leader_sender, is_leader) = watch::channel(!options.leader_elect);
    let (changes_sender, changes) = mpsc::channel(CHANGE_QUEUE);
    let (events_sender, events) = mpsc::channel(EVENT_QUEUE);

    // No component returns before `stop` unless it failed: the first to return stops the others.
    let mut components: JoinSet<anyhow::Result<()>> = JoinSet::new();
    let health = Health { registry, synced, serving: serving.clone() };
    let health_stop = stop.clone();
    components.spawn(async move { Ok(health::serve(metrics_listener, health, health_stop).await?) });

    let acceptor = match &options.tls_dir {
        Some(dir) => Acceptor::tls(CertificateDir::open(dir)?, Protocol::Grpc)?,
        None if options.manage_certificates => {
            let served = Arc::new(ServingCertificate::default());
            let (namespace, release) = (&options.namespace, &options.release);
            let manager = CertificateManager::new(
                client.clone(),
                namespace,
                release,
                Arc::clone(&served),
                metrics.certificate_expiry.clone(),
            );
            components.spawn(run_component(manager.run(is_leader.clone(), stop.clone())));
            Acceptor::tls(served, Protocol::Grpc)?
        }
        None => Acceptor::plain(),
    };
    let (service, reports) = stream::Service::new(stream::Config {
        accounts: ServiceAccounts {
            namespace: options.namespace.clone(),
            agent: options.agent_service_account.clone(),
            aggregator: options.aggregator_service_account.clone(),
        },
        reviewer: Arc::new(TokenReviewer::new(client.clone())),
        desired,
        serving,
        metrics: stream_metrics,
        stop: stop.clone(),
    });
    components.spawn(async move { Ok(service.serve(config_listener, acceptor).await?) });
    for kind in [NodeKind::TezosNode, NodeKind::NodeTrace] {
        components.spawn(run_component(watches::nodes(client.clone(), kind, changes_sender.clone())));
    }
    components.spawn(run_component(watches::pods(client.clone(), changes_sender.clone())));
    components.spawn(run_component(events::publish(
        client.clone(),
        options.replica.clone(),
        events,
        is_leader.clone(),
    )));
    let controller = Controller {
        reconciler: Reconciler::new(options.secret_namespaces.iter().filter(|name| !name.is_empty()).cloned()),
        changes,
        secrets: SecretWatches::new(client.clone(), changes_sender),
        reports,
        is_leader,
        desired: desired_sender,
        serving: serving_sender,
        synced: synced_sender,
        statuses: StatusWriter::new(client.clone()),
        events: events_sender,
        metrics,
    };
    components.spawn(run_component(controller.run(stop.clone())));
    // Stopped last: the Lease is released after this replica has stopped acting as the leader.
    let election_stop = CancellationToken::new();
    let election = options.leader_elect.then(|| {
        // Without an election the sender remains with this function: its receivers fail without one.
        let (client, leader, stop) = (client.clone(), leader_sender.clone(), election_stop.clone());
        let (namespace, name) = (options.namespace.clone(), format!("{}-operator", options.release));
        let identity = holder_identity(&options.replica);
        tokio::spawn(async move { lease::run(client, &namespace, &name, identity, leader, stop).await })
    });
    let result = tokio::select! {
        () = stop.cancelled() => Ok(()),
        ended = components.join_next() => match ended {
            Some(Ok(Err(error))) => Err(error),
            Some(Err(error)) => Err(error.into()),
            Some(Ok(Ok(()))) | None => Ok(()),
        },
    };
    let result = if stop.is_cancelled() {
        Ok(())
    } else {
        result.and_then(|()| anyhow::bail!("a component ended unexpectedly"))
    };
    stop.cancel();
    components.shutdown().await;
    election_stop.cancel();
    if let Some(election) = election {
        election.await.context("leader election panicked")?;
    }
    result
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))
}

async fn run_component(component: impl Future<Output = ()>) -> anyhow::Result<()> {
    component.await;
    Ok(())
}

/// The holder identity of this process: a recreated pod of the same name is another holder.
#[expect(clippy::disallowed_methods, reason = "unique per start")]
fn holder_identity(replica: &str) -> String {
    format!("{replica}_{:x}", k8s_openapi::jiff::Timestamp::now().as_nanosecond())
}
