//! Wiring: starts the parts, and stops them in order.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use chainscope_hygiene::warn_limited;
use chainscope_proto::v1::{RecordReply, RecordRequest};
use chainscope_tls::{Acceptor, CertificateDir, Protocol, Remote};
use tokio::{
    net::TcpListener,
    runtime::Handle,
    sync::{Semaphore, mpsc, watch},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    Error,
    access::{Access, AccessConfig},
    catalog::{Catalog, client},
    clock::now_ns,
    config::Config,
    http::{
        self,
        app::{App, PinnedNode, Services},
        browser::BrowserPolicy,
        in_flight::InFlight,
        prefix, router,
        server::Server,
    },
    ingest::{Ingest, grpc},
    memory::{Memory, snapshots},
    metrics::Metrics,
    nodes::Nodes,
    periodic::PeriodicTask,
    pool::Pool,
    retention,
};

/// Threads for summaries of many nodes, and those that wait for one.
const SUMMARY_THREADS: usize = 2;
const SUMMARY_QUEUE: usize = 32;
/// Scrapes of metrics that wait for their thread.
const OPERATIONS_QUEUE: usize = 4;
/// Threads for responses that are written at the client's pace.
const BULK_THREADS: usize = 2;
/// Such responses that wait for a thread.
const BULK_QUEUE: usize = 16;

/// Time that open connections have to end.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

/// The aggregator: ingests records, stores them, serves the API.
#[derive(Debug)]
pub struct Aggregator;

/// A running aggregator. [`Running::shutdown`] ends it in order. Dropping it closes its connections at once, and waits for
/// its threads.
pub struct Running {
    http: SocketAddr,
    grpc: Option<SocketAddr>,
    operation: Option<SocketAddr>,
    memory: Option<SocketAddr>,
    pinned: Vec<(String, SocketAddr)>,
    ingest: Ingest,
    servers: JoinSet<()>,
    threads: Threads,
    draining: CancellationToken,
    stop: CancellationToken,
    gone: CancellationToken,
    _subscription: chainscope_store::Subscription,
}

impl Aggregator {
    /// Binds its addresses and starts. Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// [`Error`]: an address cannot be bound, a name is unusable, a thread cannot be started.
    pub async fn start(config: Config) -> Result<Running, Error> {
        let Config { store, http, ingest: grpc_address, nodes: configured, retention, build, limits, .. } = config;
        let stored =
            store.nodes().into_iter().filter(|node| config.catalog.is_none() || !crate::catalog::is_empty(node));
        let nodes = Arc::new(Nodes::new(&configured, stored.map(|node| node.name), limits.max_nodes, retention)?);
        let catalog = match &config.catalog {
            Some(from) => Some(Arc::new(Catalog::open(from, Arc::clone(&nodes), store.clone(), now_ns())?)),
            None => None,
        };
        for (name, _) in nodes.all() {
            nodes.apply_retention(&store, &name)?;
        }
        let audit = config.audit || !matches!(config.access, AccessConfig::Open);
        let access = Access::new(config.access, limits.review_ttl)?;
        let policy = Arc::new(BrowserPolicy::new(&config.cors_origins, &config.hosts, access.is_open())?);
        if access.is_open() && !http.ip().is_loopback() {
            tracing::warn!(%http, "the API has no authentication: who reaches this address reads decrypted messages");
        }
        let acceptors = Acceptors::new(config.tls, config.api_tls)?;
        let operator = match config.catalog {
            Some(from) => Some((Remote::new(&from.operator, from.ca_file.clone())?, from)),
            None => None,
        };
        let api = listen(http).await?;
        let operation_listener = match config.operation {
            Some(address) => Some((listen(address).await?, address)),
            None => None,
        };
        let grpc_listener = match grpc_address {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        let memory_listener = match config.memory {
            Some(address) => Some((listen(address).await?, address)),
            None => None,
        };
        let mut pinned_listeners = Vec::new();
        for node in &configured {
            if let Some(address) = node.listen {
                pinned_listeners.push((node.name.clone(), listen(address).await?));
            }
        }

        let metrics = Arc::new(Metrics::new());
        let memory = Arc::new(Memory::new(metrics.ingest.refused_states.clone()));
        let ingest = Ingest::start(
            &store,
            Arc::clone(&nodes),
            catalog.clone(),
            Arc::clone(&memory),
            Arc::clone(&metrics.ingest),
            &build,
            &limits,
        )?;
        let snapshots = snapshots::start(store.clone(), Arc::clone(&nodes), Arc::clone(&memory))?;
        let pool = Arc::new(Pool::start("query", limits.query_threads, limits.query_queue)?);
        let summaries = Arc::new(Pool::start("summaries", SUMMARY_THREADS, SUMMARY_QUEUE)?);
        let operations = Arc::new(Pool::start("operations", 1, OPERATIONS_QUEUE)?);
        let bulk = Arc::new(Pool::start("bulk", BULK_THREADS, BULK_QUEUE)?);
        let eviction = retention::start(store.clone(), catalog.clone(), limits.eviction_interval)?;
        let (stop, draining) = (CancellationToken::new(), CancellationToken::new());
        let (changed, visible) = watch::channel(0);
        let subscription =
            store.on_visible(Box::new(move || changed.send_modify(|count: &mut u64| *count = count.wrapping_add(1))));
        let app = Arc::new(App::new(Services {
            store,
            nodes,
            ingest: ingest.clone(),
            memory,
            metrics: Arc::clone(&metrics),
            build: build.clone(),
            access,
            audit,
            catalog: catalog.clone(),
            draining: draining.clone(),
            pool: Arc::clone(&pool),
            summaries: Arc::clone(&summaries),
            operations: Arc::clone(&operations),
            bulk: Arc::clone(&bulk),
            in_flight: InFlight::new(limits.max_response_bytes),
            streams: Arc::new(Semaphore::new(limits.max_streams)),
            visible,
            stop: stop.clone(),
            runtime: Handle::current(),
            limits: limits.clone(),
        }));

        let mut servers = JoinSet::new();
        let router = router(Arc::clone(&app));
        let service = |pinned: Option<PinnedNode>| {
            let (router, policy) = (router.clone(), Arc::clone(&policy));
            move |request| prefix::respond(router.clone(), Arc::clone(&policy), pinned.clone(), request)
        };
        let server = Server {
            acceptor: acceptors.api,
            max_connections: limits.max_connections,
            client_timeout: limits.client_timeout,
            least_rate: limits.least_rate,
            connections: metrics.http.connections.clone(),
            stop: stop.clone(),
        };
        let mut operation = None;
        // Stopped last: it serves the state until the end.
        let gone = CancellationToken::new();
        if let Some((listener, address)) = operation_listener {
            operation = Some(address_of(&listener, address)?);
            let router = http::operations_router(app);
            let server = Server { acceptor: Acceptor::plain(), stop: gone.clone(), ..server.clone() };
            let policy = Arc::new(policy.any_host());
            let service = move |request| prefix::respond(router.clone(), Arc::clone(&policy), None, request);
            servers.spawn(server.serve(listener, service));
        }
        if let (Some((remote, from)), Some(catalog)) = (operator, catalog) {
            servers.spawn(client::follow(catalog, from, remote, build, stop.clone()));
        }
        let http = address_of(&api, http)?;
        servers.spawn(server.clone().serve(api, service(None)));
        let mut memory_address = None;
        if let Some((listener, address)) = memory_listener {
            memory_address = Some(address_of(&listener, address)?);
            servers.spawn(server.clone().serve(listener, service(None)));
        }
        let mut pinned = Vec::new();
        for (name, listener) in pinned_listeners {
            pinned.push((name.clone(), address_of(&listener, http)?));
            servers.spawn(server.clone().serve(listener, service(Some(PinnedNode(name.into())))));
        }
        let mut grpc = None;
        if let Some(listener) = grpc_listener {
            grpc = Some(address_of(&listener, http)?);
            let serving = {
                let (ingest, stop, trust) = (ingest.clone(), stop.clone(), config.trust);
                async move { grpc::serve(listener, acceptors.ingest, ingest, trust, &limits, stop).await }
            };
            servers.spawn(async move {
                if let Err(error) = serving.await {
                    warn_limited!(%error, "the ingest service failed");
                }
            });
        }
        tracing::info!(%http, ingest = ?grpc, "the aggregator is running");
        Ok(Running {
            http,
            grpc,
            operation,
            memory: memory_address,
            pinned,
            ingest,
            servers,
            threads: Threads { pools: [pool, summaries, operations, bulk], _periodic: [snapshots, eviction] },
            draining,
            stop,
            gone,
            _subscription: subscription,
        })
    }
}

impl Running {
    /// Address of the API.
    #[must_use]
    pub fn http_addr(&self) -> SocketAddr {
        self.http
    }

    /// Address on which agents deliver records over gRPC, if there is one.
    #[must_use]
    pub fn ingest_addr(&self) -> Option<SocketAddr> {
        self.grpc
    }

    /// Address of the listener for metrics and health, if there is one.
    #[must_use]
    pub fn operation_addr(&self) -> Option<SocketAddr> {
        self.operation
    }

    /// Address of the additional listener for clients of the original's memory profiler, if there is one.
    #[must_use]
    pub fn memory_addr(&self) -> Option<SocketAddr> {
        self.memory
    }

    /// Makes `/readyz` fail, so that no new clients are directed here. Part of [`Running::shutdown`], too.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    /// Listeners that are pinned to a node: its name and the address.
    #[must_use]
    pub fn pinned_addrs(&self) -> &[(String, SocketAddr)] {
        &self.pinned
    }

    /// A session with an agent of this process; see [`Ingest::connect`].
    pub fn connect(&self) -> (mpsc::Sender<RecordRequest>, mpsc::Receiver<RecordReply>) {
        self.ingest.connect()
    }

    /// The ingest, for sessions over another transport ([`crate::ingest::session`]).
    #[must_use]
    pub fn ingest(&self) -> &Ingest {
        &self.ingest
    }

    /// Completes with the reason if the database fails so that nothing can be stored until it is opened again. The program
    /// should exit then.
    pub async fn failed(&self) -> String {
        self.ingest.failed().await
    }

    /// Ends in order: `/readyz` fails, sessions store and acknowledge what they have received, live streams end, responses
    /// under way have a few seconds, threads are joined. Afterwards nothing here holds the store.
    pub async fn shutdown(self) {
        let Self { ingest, mut servers, threads, draining, stop, gone, _subscription, .. } = self;
        draining.cancel();
        ingest.stop().await;
        stop.cancel();
        gone.cancel();
        let ended = timeout(SHUTDOWN_GRACE, async { while servers.join_next().await.is_some() {} });
        if ended.await.is_err() {
            warn_limited!("open connections are closed after the grace period");
            servers.shutdown().await;
        }
        let ended = tokio::task::spawn_blocking(move || drop(threads));
        if ended.await.is_err() {
            warn_limited!("a thread of the aggregator panicked");
        }
    }
}

/// Threads that hold the store. None may outlive the aggregator: closing the store while the process exits would use
/// RocksDB's global state after its destruction.
struct Threads {
    pools: [Arc<Pool>; 4],
    _periodic: [PeriodicTask; 2],
}

impl Drop for Threads {
    fn drop(&mut self) {
        for pool in &self.pools {
            pool.stop();
        }
    }
}

/// Transport security of the listeners.
struct Acceptors {
    api: Acceptor,
    ingest: Acceptor,
}

impl Acceptors {
    fn new(tls: Option<PathBuf>, api_tls: bool) -> Result<Self, Error> {
        let Some(dir) = tls else { return Ok(Self { api: Acceptor::plain(), ingest: Acceptor::plain() }) };
        let folder = CertificateDir::open(dir)?;
        let ingest = Acceptor::tls(folder.clone(), Protocol::Grpc)?;
        let api = if api_tls { Acceptor::tls(folder, Protocol::Http)? } else { Acceptor::plain() };
        Ok(Self { api, ingest })
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })
}

fn address_of(listener: &TcpListener, requested: SocketAddr) -> Result<SocketAddr, Error> {
    listener.local_addr().map_err(|source| Error::Listen { address: requested, source })
}

#[cfg(test)]
mod tests;
