//! State of the handlers, and the only ways to the data of nodes.
//!
//! ```text
//! request ─▶ authenticate: the caller (401) ─▶ extractor: the node, the permission (403, 404) ─▶ handler ─▶ store
//! ```
//!
//! [`App`] keeps the store and everything else that holds data of nodes private to this module. A handler gets it through
//! one of the extractors of `request`: [`AuthorizedNode`], [`AuthorizedNodes`] or [`OperationsAccess`]. Their values are
//! made here alone, after the permission that the handler's signature names was checked, so that no handler can omit the
//! check.

mod authenticate;
mod request;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use chainscope_store::{Budget, Error as StoreError, Store};
use tokio::{
    runtime::Handle,
    sync::{Semaphore, watch},
};
use tokio_util::sync::CancellationToken;

pub(crate) use self::{
    authenticate::authenticate,
    request::{
        Authorized, AuthorizedNode, AuthorizedNodes, OperationsAccess, OperationsListener, PinnedNode, SelectedNodes,
    },
};
use super::{in_flight::InFlight, problem::Problem};
use crate::{
    access::Access,
    catalog::Catalog,
    ingest::Ingest,
    limits::Limits,
    memory::Memory,
    metrics::Metrics,
    network::losses::LossTables,
    nodes::Nodes,
    pool::{Cancel, Pool, PoolError},
};

/// What the handlers use.
pub(crate) struct Services {
    pub(crate) store: Store,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) ingest: Ingest,
    /// Current memory profiles.
    pub(crate) memory: Arc<Memory>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) limits: Limits,
    pub(crate) build: String,
    /// Threads for short reads of the store.
    pub(crate) pool: Arc<Pool>,
    /// Threads for summaries of many nodes, which may take long: messages are read meanwhile.
    pub(crate) summaries: Arc<Pool>,
    /// The thread for metrics: readers of summaries cannot delay a scrape.
    pub(crate) operations: Arc<Pool>,
    /// Threads for responses that are written while they are read from the store, at the client's pace.
    pub(crate) bulk: Arc<Pool>,
    /// Memory of responses.
    pub(crate) in_flight: InFlight,
    /// One permit for each live stream.
    pub(crate) streams: Arc<Semaphore>,
    /// Changes whenever rows become visible.
    pub(crate) visible: watch::Receiver<u64>,
    pub(crate) access: Access,
    /// Whether reads are logged, target `audit`.
    pub(crate) audit: bool,
    /// Ends live streams and listeners.
    pub(crate) stop: CancellationToken,
    /// Set before the end: `/readyz` answers 503.
    pub(crate) draining: CancellationToken,
    /// The operator's catalog of nodes, on a cluster.
    pub(crate) catalog: Option<Arc<Catalog>>,
    pub(crate) runtime: Handle,
}

/// State of the handlers.
pub(crate) struct App {
    services: Services,
    losses: LossTables,
}

impl App {
    pub(crate) fn new(services: Services) -> Self {
        Self { services, losses: LossTables::default() }
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.services.metrics
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.services.limits
    }

    /// The commit or version that this was built from.
    pub(crate) fn build(&self) -> &str {
        &self.services.build
    }

    /// Memory of responses.
    pub(crate) fn in_flight(&self) -> &InFlight {
        &self.services.in_flight
    }

    /// One permit for each live stream.
    pub(crate) fn streams(&self) -> &Arc<Semaphore> {
        &self.services.streams
    }

    /// Changes whenever rows become visible.
    pub(crate) fn visible(&self) -> watch::Receiver<u64> {
        self.services.visible.clone()
    }

    /// Cancelled when live streams have to end.
    pub(crate) fn stop(&self) -> &CancellationToken {
        &self.services.stop
    }

    /// The runtime, for threads that write into response bodies.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.services.runtime
    }

    /// Reads the store on a thread of the pool: waits for a thread, and reads, for at most [`Limits::query_timeout`] each. A
    /// query that takes longer is too wide, however busy the threads are.
    async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Store, Budget) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Problem> {
        self.read_on(&self.services.pool, job).await
    }

    /// [`Self::read`] on a thread of the given pool. A summary that takes too long is not the caller's fault.
    async fn summarise<T: Send + 'static>(
        &self,
        pool: &Pool,
        job: impl FnOnce(&Store, &Budget) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Problem> {
        let summary = |store: &Store, budget: Budget| match job(store, &budget) {
            Err(StoreError::Deadline { .. }) => Ok(None),
            result => result.map(Some),
        };
        let too_late = || Problem::busy("the summary of all nodes was not ready in time: ask for one by node_name");
        self.read_on(pool, summary).await?.ok_or_else(too_late)
    }

    async fn read_on<T: Send + 'static>(
        &self,
        pool: &Pool,
        job: impl FnOnce(&Store, Budget) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Problem> {
        let store = self.services.store.clone();
        let (submitted, timeout) = (Instant::now(), self.services.limits.query_timeout);
        let result = pool.run(move |cancel| {
            let began = Instant::now();
            match began.duration_since(submitted) > timeout {
                true => Err(PoolError::Full),
                false => Ok(job(&store, budget(began.checked_add(timeout), cancel))),
            }
        });
        let result = result.await.and_then(|result| result);
        if result.is_err() {
            self.services.metrics.http.refused.inc();
        }
        Ok(result??)
    }
}

/// Whether the client has gone or the deadline has passed.
pub(crate) fn is_exhausted(budget: &Budget) -> bool {
    budget.cancel.as_ref().is_some_and(|cancel| cancel.load(Ordering::Relaxed))
        || budget.deadline.is_some_and(|deadline| Instant::now() > deadline)
}

/// An error if [`is_exhausted`].
pub(crate) fn check_budget(budget: &Budget) -> Result<(), StoreError> {
    if is_exhausted(budget) { Err(StoreError::Deadline { examined: 0 }) } else { Ok(()) }
}

fn budget(deadline: Option<Instant>, cancel: &Cancel) -> Budget {
    Budget { deadline, rows: None, cancel: Some(Arc::clone(cancel)) }
}
