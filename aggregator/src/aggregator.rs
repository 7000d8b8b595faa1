//! Putting the parts together, and taking them apart in order.

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
    Config, Error,
    access::{Access, AccessConfig},
    catalog::{self, Catalog},
    clock::now_ns,
    http::{
        self,
        app::{App, BULK_QUEUE, BULK_THREADS, Pinned},
        router,
        server::{self, Served},
    },
    ingest::{Ingest, grpc},
    memory::{Memory, snapshots},
    metrics::Metrics,
    nodes::Nodes,
    pool::Pool,
    regularly::Regular,
    retention,
};

/// Time that open connections have to end once they should.
const FAREWELL: Duration = Duration::from_secs(10);

/// The aggregator: takes records, stores them, answers questions.
#[derive(Debug)]
pub struct Aggregator;

/// A running aggregator. [`Running::shutdown`] ends it in order; dropped, it is cut off, and its threads are waited for.
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
    _watching: chainscope_store::Subscription,
}

impl Aggregator {
    /// Binds its addresses and starts. Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// [`Error`]: an address cannot be bound, a name is unusable, a thread cannot be started.
    pub async fn start(config: Config) -> Result<Running, Error> {
        let Config { store, http, ingest: grpc_address, nodes: configured, retention, build, limits, .. } = config;
        let stored = store.nodes().into_iter().filter(|node| config.catalog.is_none() || !catalog::is_empty(node));
        let nodes = Arc::new(Nodes::new(&configured, stored.map(|node| node.name), limits.nodes, retention)?);
        let catalog = match &config.catalog {
            Some(from) => Some(Arc::new(Catalog::open(from, Arc::clone(&nodes), store.clone(), now_ns())?)),
            None => None,
        };
        for (name, _) in nodes.all() {
            nodes.apply_retention(&store, &name)?;
        }
        let audit = config.audit || !matches!(config.access, AccessConfig::Open);
        let access = Access::new(config.access, limits.remember)?;
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
        let memory = Arc::new(Memory::default());
        let ingest = Ingest::start(
            &store,
            Arc::clone(&nodes),
            catalog.clone(),
            Arc::clone(&memory),
            Arc::clone(&metrics.ingest),
            &build,
            &limits,
        )?;
        let keeping = snapshots::start(store.clone(), Arc::clone(&nodes), Arc::clone(&memory))?;
        let pool = Arc::new(Pool::start("query", limits.query_threads, limits.query_queue)?);
        let bulk = Arc::new(Pool::start("bulk", BULK_THREADS, BULK_QUEUE)?);
        let evicting = retention::start(store.clone(), catalog.clone(), limits.eviction)?;
        let (stop, draining) = (CancellationToken::new(), CancellationToken::new());
        let (moved, visible) = watch::channel(0);
        let watching =
            store.on_visible(Box::new(move || moved.send_modify(|count: &mut u64| *count = count.wrapping_add(1))));
        let app = Arc::new(App {
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
            bulk: Arc::clone(&bulk),
            streams: Arc::new(Semaphore::new(limits.streams)),
            visible,
            losses: Default::default(),
            stop: stop.clone(),
            runtime: Handle::current(),
            limits: limits.clone(),
        });

        let mut servers = JoinSet::new();
        let served = Served {
            router: router(Arc::clone(&app)),
            pinned: None,
            acceptor: acceptors.api,
            limits: limits.clone(),
            metrics,
            stop: stop.clone(),
        };
        let mut operation = None;
        // It answers as long as there is something to be said about the end.
        let gone = CancellationToken::new();
        if let Some((listener, address)) = operation_listener {
            operation = Some(address_of(&listener, address)?);
            let router = http::operation(app);
            let served = Served { router, acceptor: Acceptor::plain(), stop: gone.clone(), ..served.clone() };
            servers.spawn(server::serve(listener, served));
        }
        if let (Some((remote, from)), Some(catalog)) = (operator, catalog) {
            servers.spawn(catalog::client::follow(catalog, from, remote, build, stop.clone()));
        }
        let http = address_of(&api, http)?;
        servers.spawn(server::serve(api, served.clone()));
        let mut memory_address = None;
        if let Some((listener, address)) = memory_listener {
            memory_address = Some(address_of(&listener, address)?);
            servers.spawn(server::serve(listener, served.clone()));
        }
        let mut pinned = Vec::new();
        for (name, listener) in pinned_listeners {
            pinned.push((name.clone(), address_of(&listener, http)?));
            servers.spawn(server::serve(listener, Served { pinned: Some(Pinned(name.into())), ..served.clone() }));
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
                    warn_limited!(%error, "the ingest service ended");
                }
            });
        }
        tracing::info!(%http, ingest = ?grpc, "the aggregator runs");
        Ok(Running {
            http,
            grpc,
            operation,
            memory: memory_address,
            pinned,
            ingest,
            servers,
            threads: Threads { pools: [pool, bulk], _regular: [keeping, evicting] },
            draining,
            stop,
            gone,
            _watching: watching,
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

    /// Address of the further listener that memory profilers of old are asked at, if there is one.
    #[must_use]
    pub fn memory_addr(&self) -> Option<SocketAddr> {
        self.memory
    }

    /// Says from now on that it is not ready, so that no new clients are sent here. [`Running::shutdown`] does, too.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    /// Addresses of listeners that are about one node: its name and the address.
    #[must_use]
    pub fn pinned_addrs(&self) -> &[(String, SocketAddr)] {
        &self.pinned
    }

    /// A session with an agent of this process; see [`Ingest::connect`].
    pub fn connect(&self) -> (mpsc::Sender<RecordRequest>, mpsc::Receiver<RecordReply>) {
        self.ingest.connect()
    }

    /// Where sessions are made, for a caller that brings its own transport ([`crate::ingest::session`]).
    #[must_use]
    pub fn ingest(&self) -> &Ingest {
        &self.ingest
    }

    /// Ends in order: it is said not to be ready, sessions store and acknowledge what they have received, live streams
    /// end, answers under way are given a few seconds, threads are waited for. Afterwards nobody holds the store any more.
    pub async fn shutdown(self) {
        let Self { ingest, mut servers, threads, draining, stop, gone, _watching, .. } = self;
        draining.cancel();
        ingest.stop().await;
        stop.cancel();
        gone.cancel();
        let ended = timeout(FAREWELL, async { while servers.join_next().await.is_some() {} });
        if ended.await.is_err() {
            warn_limited!("a client holds its connection: it is cut");
            servers.shutdown().await;
        }
        let ended = tokio::task::spawn_blocking(move || drop(threads));
        if ended.await.is_err() {
            warn_limited!("a thread of the aggregator did not end as it should");
        }
    }
}

/// Threads that hold the store: none may outlive the aggregator, for a store that is closed while the process exits
/// finds what RocksDB keeps for the whole process gone.
struct Threads {
    pools: [Arc<Pool>; 2],
    _regular: [Regular; 2],
}

impl Drop for Threads {
    fn drop(&mut self) {
        for pool in &self.pools {
            pool.stop();
        }
    }
}

/// How connections become ours, a listener's kind.
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

fn address_of(listener: &TcpListener, asked: SocketAddr) -> Result<SocketAddr, Error> {
    listener.local_addr().map_err(|source| Error::Listen { address: asked, source })
}
