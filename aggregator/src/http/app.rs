//! What all handlers share.

use std::{
    collections::BTreeSet,
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

use super::{form::Form, guard::Visit, problem::Problem, stats::LossTables};
use crate::{
    access::{Access, Caller, Refusal, routes::Right},
    catalog::Catalog,
    ingest::Ingest,
    limits::Limits,
    memory::Memory,
    metrics::Metrics,
    nodes::{Nodes, ResolveError, check_name},
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
    /// What agents told of memory last.
    pub(crate) memory: Arc<Memory>,
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
    /// Who may read what.
    pub(crate) access: Access,
    /// Reads are logged, target `audit`.
    pub(crate) audit: bool,
    pub(crate) stop: CancellationToken,
    /// The program is about to end: it is said to whoever asks whether it is ready.
    pub(crate) draining: CancellationToken,
    /// Which nodes there are, if an operator says so.
    pub(crate) catalog: Option<Arc<Catalog>>,
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

/// A request's query string and node, and who asks.
pub(crate) struct Asked {
    query: String,
    pinned: Option<Pinned>,
    visit: Visit,
}

impl Asked {
    pub(crate) fn form(&self) -> Form<'_> {
        Form::parse(&self.query)
    }

    pub(crate) fn visit(&self) -> &Visit {
        &self.visit
    }

    /// The name of the node that is meant; who asks may read it.
    ///
    /// For who may not read a node there is none: it makes no alias ambiguous and is in no list. To ask for it by its
    /// name is refused whether it is there or not.
    pub(crate) async fn node(&self, app: &App, form: &Form<'_>) -> Result<String, Problem> {
        let wanted = match &self.pinned {
            Some(Pinned(name)) => Some(&**name),
            None => form.text("node_name")?,
        };
        let found = self.find(app, wanted).await;
        if let Some(name) = found.as_ref().ok().map(String::as_str).or(wanted) {
            // Set once: a handler asks for one node.
            let _ = self.visit.node.set(name.to_owned());
        }
        found
    }

    async fn find(&self, app: &App, wanted: Option<&str>) -> Result<String, Problem> {
        if app.access.is_open() {
            return Ok(app.nodes.find(wanted, None)?);
        }
        let (caller, right) = self.right()?;
        let visible = app.access.visible(caller, right, app.nodes.candidates(wanted)).await?;
        match app.nodes.find(wanted, Some(&visible)) {
            Err(ResolveError::Unknown(name)) => {
                if check_name(&name).is_ok() {
                    app.access.may(caller, right, &name).await?;
                }
                Err(ResolveError::Unknown(name).into())
            }
            Err(ResolveError::NoNodes) if !app.access.may_all(caller, right).await? => {
                let (user, right) = (caller.user(), right.name());
                Err(Refusal::Forbidden(format!("there is no node that {user} may get tezosnodes/{right} of")).into())
            }
            found => Ok(found?),
        }
    }

    /// The node that is meant, if one is named.
    pub(crate) async fn named(&self, app: &App, form: &Form<'_>) -> Result<Option<String>, Problem> {
        if self.pinned.is_none() && !form.has("node_name") {
            return Ok(None);
        }
        self.node(app, form).await.map(Some)
    }

    /// All nodes that who asks may read; none: every one.
    pub(crate) async fn visible(&self, app: &App) -> Result<Option<BTreeSet<String>>, Problem> {
        if app.access.is_open() {
            return Ok(None);
        }
        let (caller, right) = self.right()?;
        if app.access.may_all(caller, right).await? {
            return Ok(None);
        }
        Ok(Some(app.access.visible(caller, right, app.nodes.candidates(None)).await?))
    }

    fn right(&self) -> Result<(&Caller, Right), Problem> {
        let right = self.visit.right.ok_or_else(|| Problem::forbidden("this path is about no node"))?;
        Ok((&self.visit.caller, right))
    }
}

impl<S: Sync> FromRequestParts<S> for Asked {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Ok(Self {
            query: parts.uri.query().unwrap_or_default().to_owned(),
            pinned: parts.extensions.get::<Pinned>().cloned(),
            visit: parts.extensions.get::<Visit>().cloned().ok_or_else(|| Problem::forbidden("nobody asked"))?,
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
