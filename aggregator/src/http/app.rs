//! What all handlers share.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    extract::FromRequestParts,
    http::{StatusCode, request::Parts},
};
use chainscope_store::{Budget, Error as StoreError, Store};
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{Semaphore, watch},
};
use tokio_util::sync::CancellationToken;

use super::{form::Form, problem::Problem, stats::LossTables};
use crate::{
    config::Limits,
    ingest::Ingest,
    metrics::Metrics,
    nodes::Nodes,
    pool::{Cancel, Pool},
};

/// Threads for answers that are too large to be built before they are sent.
pub(crate) const BULK_THREADS: usize = 2;
/// Such answers that wait for a thread.
pub(crate) const BULK_QUEUE: usize = 16;

/// What all handlers share.
pub(crate) struct App {
    pub(crate) store: Store,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) ingest: Ingest,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) limits: Limits,
    pub(crate) build: String,
    /// Reads that end soon.
    pub(crate) pool: Arc<Pool>,
    /// Answers that wait for their client while they are read.
    pub(crate) bulk: Arc<Pool>,
    /// A permit a live stream.
    pub(crate) streams: Arc<Semaphore>,
    /// Changes when rows became visible.
    pub(crate) visible: watch::Receiver<u64>,
    pub(crate) losses: Mutex<LossTables>,
    pub(crate) stop: CancellationToken,
    pub(crate) runtime: Handle,
}

impl App {
    /// Reads the store on a thread of the pool, for as long as a query may take.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Store, Budget) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Problem> {
        let store = self.store.clone();
        let deadline = Instant::now().checked_add(self.limits.query_time);
        let answer = self.pool.ask(move |cancel| job(&store, budget(deadline, cancel))).await;
        if answer.is_err() {
            self.metrics.http.refused.inc();
        }
        Ok(answer??)
    }
}

fn budget(deadline: Option<Instant>, cancel: &Cancel) -> Budget {
    Budget { deadline, rows: None, cancel: Some(Arc::clone(cancel)) }
}

/// How long a bulk answer may wait for its client, a block.
pub(crate) fn patience(app: &App) -> Duration {
    app.limits.patience
}

/// The node that the path's prefix, or the listener, is about; then `node_name` is not looked at.
#[derive(Debug, Clone)]
pub(crate) struct Pinned(pub(crate) Arc<str>);

/// A request's query string and node.
#[derive(Debug)]
pub(crate) struct Asked {
    query: String,
    pinned: Option<Pinned>,
}

impl Asked {
    pub(crate) fn form(&self) -> Form<'_> {
        Form::parse(&self.query)
    }

    /// The name of the node that is meant.
    pub(crate) fn node(&self, app: &App, form: &Form<'_>) -> Result<String, Problem> {
        match &self.pinned {
            Some(Pinned(name)) => Ok(app.nodes.find(Some(name))?),
            None => Ok(app.nodes.find(form.text("node_name")?)?),
        }
    }

    /// The node that is meant, if one is named.
    pub(crate) fn named(&self, app: &App, form: &Form<'_>) -> Result<Option<String>, Problem> {
        if self.pinned.is_none() && !form.has("node_name") {
            return Ok(None);
        }
        self.node(app, form).map(Some)
    }
}

impl<S: Sync> FromRequestParts<S> for Asked {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Ok(Self {
            query: parts.uri.query().unwrap_or_default().to_owned(),
            pinned: parts.extensions.get::<Pinned>().cloned(),
        })
    }
}

/// The last part of a path that must be a message's id; anything else is no resource.
pub(crate) fn id(text: &str) -> Result<u64, Problem> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number
        .then(|| text.parse().ok())
        .flatten()
        .ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, "the path does not end in the id of a message"))
}
