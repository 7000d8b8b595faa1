//! Putting the parts together, and taking them apart in order.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use chainscope_proto::v1::{RecordReply, RecordRequest};
use chainscope_quiet::warn_limited;
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
    http::{
        app::{App, BULK_QUEUE, BULK_THREADS, Pinned},
        router,
        server::{self, Served},
    },
    ingest::{Ingest, grpc},
    metrics::Metrics,
    nodes::Nodes,
    pool::Pool,
    retention::Retention,
};

/// Time that open connections have to end once they should.
const FAREWELL: Duration = Duration::from_secs(10);

/// The aggregator: takes records, stores them, answers questions.
#[derive(Debug)]
pub struct Aggregator;

/// A running aggregator. Without [`Running::shutdown`] it runs until the runtime ends.
pub struct Running {
    http: SocketAddr,
    grpc: Option<SocketAddr>,
    pinned: Vec<(String, SocketAddr)>,
    ingest: Ingest,
    servers: JoinSet<()>,
    pools: [Arc<Pool>; 2],
    retention: Retention,
    stop: CancellationToken,
    _watching: chainscope_store::Subscription,
}

impl Aggregator {
    /// Binds its addresses and starts. Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// [`Error`]: an address cannot be bound, a name is unusable, a thread cannot be started.
    pub async fn start(config: Config) -> Result<Running, Error> {
        let Config { store, http, ingest: grpc_address, nodes: configured, retention, build, limits } = config;
        let stored = store.nodes().into_iter().map(|node| node.name);
        let nodes = Arc::new(Nodes::new(&configured, stored, limits.nodes)?);
        for (name, known) in nodes.all() {
            if !known.configured {
                store.set_retention(&name, retention)?;
            }
        }
        for node in &configured {
            store.set_retention(&node.name, node.retention)?;
        }
        let api = listen(http).await?;
        let grpc_listener = match grpc_address {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        let mut pinned_listeners = Vec::new();
        for node in &configured {
            if let Some(address) = node.listen {
                pinned_listeners.push((node.name.clone(), listen(address).await?));
            }
        }

        let metrics = Arc::new(Metrics::new());
        let ingest =
            Ingest::start(&store, Arc::clone(&nodes), Arc::clone(&metrics.ingest), &build, &limits, retention)?;
        let pool = Arc::new(Pool::start("query", limits.query_threads, limits.query_queue)?);
        let bulk = Arc::new(Pool::start("bulk", BULK_THREADS, BULK_QUEUE)?);
        let retention = Retention::start(store.clone(), limits.eviction)?;
        let stop = CancellationToken::new();
        let (moved, visible) = watch::channel(0);
        let watching =
            store.on_visible(Box::new(move || moved.send_modify(|count: &mut u64| *count = count.wrapping_add(1))));
        let app = Arc::new(App {
            store,
            nodes,
            ingest: ingest.clone(),
            metrics: Arc::clone(&metrics),
            build,
            pool: Arc::clone(&pool),
            bulk: Arc::clone(&bulk),
            streams: Arc::new(Semaphore::new(limits.streams)),
            visible,
            losses: Default::default(),
            stop: stop.clone(),
            runtime: Handle::current(),
            limits: limits.clone(),
        });

        let served = Served { router: router(app), pinned: None, limits: limits.clone(), metrics, stop: stop.clone() };
        let mut servers = JoinSet::new();
        let http = address_of(&api, http)?;
        servers.spawn(server::serve(api, served.clone()));
        let mut pinned = Vec::new();
        for (name, listener) in pinned_listeners {
            pinned.push((name.clone(), address_of(&listener, http)?));
            servers.spawn(server::serve(listener, Served { pinned: Some(Pinned(name.into())), ..served.clone() }));
        }
        let mut grpc = None;
        if let Some(listener) = grpc_listener {
            grpc = Some(address_of(&listener, http)?);
            let serving = {
                let (ingest, stop) = (ingest.clone(), stop.clone());
                async move { grpc::serve(listener, ingest, &limits, stop).await }
            };
            servers.spawn(async move {
                if let Err(error) = serving.await {
                    warn_limited!(%error, "the ingest service ended");
                }
            });
        }
        tracing::info!(%http, ingest = ?grpc, "the aggregator runs");
        Ok(Running { http, grpc, pinned, ingest, servers, pools: [pool, bulk], retention, stop, _watching: watching })
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

    /// Ends in order: sessions store and acknowledge what they have received, live streams end, answers under way are
    /// given a few seconds, threads are waited for. Afterwards nobody holds the store any more.
    pub async fn shutdown(self) {
        let Self { ingest, mut servers, pools, mut retention, stop, _watching, .. } = self;
        ingest.stop().await;
        stop.cancel();
        let ended = timeout(FAREWELL, async { while servers.join_next().await.is_some() {} });
        if ended.await.is_err() {
            warn_limited!("a client holds its connection: it is cut");
            servers.shutdown().await;
        }
        let ended = tokio::task::spawn_blocking(move || {
            for pool in &pools {
                pool.stop();
            }
            retention.stop();
        });
        if ended.await.is_err() {
            warn_limited!("a thread of the aggregator did not end as it should");
        }
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })
}

fn address_of(listener: &TcpListener, asked: SocketAddr) -> Result<SocketAddr, Error> {
    listener.local_addr().map_err(|source| Error::Listen { address: asked, source })
}
