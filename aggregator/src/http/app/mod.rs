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

use std::{sync::Arc, time::Instant};

use chainscope_store::{Budget, Error as StoreError, Store};
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{Semaphore, watch},
};
use tokio_util::sync::CancellationToken;

pub(crate) use self::{
    authenticate::authenticate,
    request::{AuthorizedNode, AuthorizedNodes, OperationsAccess, OperationsListener, PinnedNode, SelectedNodes},
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
    pool::{Cancel, Pool},
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
    losses: Mutex<LossTables>,
}

impl App {
    pub(crate) fn new(services: Services) -> Self {
        Self { services, losses: Mutex::default() }
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

    /// Reads the store on a thread of the pool, for at most [`Limits::query_timeout`].
    async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Store, Budget) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Problem> {
        let store = self.services.store.clone();
        let deadline = Instant::now().checked_add(self.services.limits.query_timeout);
        let result = self.services.pool.run(move |cancel| job(&store, budget(deadline, cancel))).await;
        if result.is_err() {
            self.services.metrics.http.refused.inc();
        }
        Ok(result??)
    }
}

fn budget(deadline: Option<Instant>, cancel: &Cancel) -> Budget {
    Budget { deadline, rows: None, cancel: Some(Arc::clone(cancel)) }
}
