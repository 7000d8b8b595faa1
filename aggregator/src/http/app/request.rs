//! Extractors that authorize a request, and give access to the data that it may read.

use std::{
    collections::{BTreeMap, BTreeSet},
    marker::PhantomData,
    sync::Arc,
    time::Duration,
};

use axum::{extract::FromRequestParts, http::request::Parts};
use chainscope_store::{Budget, Error as StoreError, Store};
use tokio::time::{Instant, sleep};

use super::{App, authenticate::AuthContext, check_budget};
use crate::{
    access::{
        Refusal,
        permission::{AccessPolicy, Permission},
    },
    catalog::Catalog,
    http::{
        code::Code,
        params::{NodeParameters, parse},
        problem::Problem,
        request_id::RequestId,
    },
    ingest::AgentInfo,
    memory::Memory,
    network::losses::LossStats,
    nodes::{NodeEntry, Nodes, ResolveError, check_name},
};

/// Time between two attempts to check the permission while the reviewer is unavailable.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Maximum number of events of targets that a summary of all nodes reads, and of each node.
const MAX_EVENTS: u64 = 20_000;
const MIN_EVENTS_OF_NODE: u64 = 20;
const MAX_EVENTS_OF_NODE: u64 = 1000;

/// The node that the path's prefix or the listener names; `node_name` is ignored then.
#[derive(Debug, Clone)]
pub(crate) struct PinnedNode(pub(crate) Arc<str>);

/// Marks requests that came to the listener for metrics and health.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OperationsListener;

/// A request for the data of one node, not yet authorized.
struct NodeRequest {
    /// The node's name or alias; none: the default node.
    wanted: Option<String>,
    auth: AuthContext,
}

impl NodeRequest {
    fn new(parts: &Parts) -> Result<Self, Problem> {
        let auth = AuthContext::of(parts)?;
        let wanted = match parts.extensions.get::<PinnedNode>() {
            Some(PinnedNode(name)) => Some(name.to_string()),
            None => parse::<NodeParameters>(parts.uri.query().unwrap_or_default())?.node_name,
        };
        Ok(Self { wanted, auth })
    }

    async fn authorize<P: AccessPolicy>(self, app: &Arc<App>) -> Result<AuthorizedNode<P>, Problem> {
        let found = resolve(app, self.wanted.as_deref(), &self.auth, P::PERMISSION).await;
        if let Some(name) = found.as_ref().ok().or(self.wanted.as_ref()) {
            self.auth.set_node(name);
        }
        let (app, name) = (Arc::clone(app), Arc::from(found?));
        Ok(AuthorizedNode { app, name, auth: self.auth, policy: PhantomData })
    }
}

/// The name of the requested node, which the caller may read.
///
/// Nodes that the caller may not read do not exist for them: they make no alias ambiguous and are in no list. A request
/// for one by its name is refused whether it exists or not.
async fn resolve(
    app: &App,
    wanted: Option<&str>,
    auth: &AuthContext,
    permission: Permission,
) -> Result<String, Problem> {
    let (access, nodes) = (&app.services.access, &app.services.nodes);
    if access.is_open() {
        return Ok(nodes.find(wanted, None)?);
    }
    let caller = auth.caller();
    let visible = access.visible_nodes(caller, permission, nodes.candidates(wanted)).await?;
    match nodes.find(wanted, Some(&visible)) {
        Err(ResolveError::Unknown(name)) => {
            if check_name(&name).is_ok() {
                access.authorize(caller, permission, &name).await?;
            }
            Err(ResolveError::Unknown(name).into())
        }
        Err(ResolveError::NoNodes) if !access.may_read_all(caller, permission).await? => {
            let (user, permission) = (caller.user(), permission.name());
            Err(Refusal::Forbidden(format!("there is no node that {user} may get {permission} of")).into())
        }
        found => Ok(found?),
    }
}

/// A node that the caller may read with the permission of `P`: the way to its data.
pub(crate) struct AuthorizedNode<P> {
    app: Arc<App>,
    name: Arc<str>,
    auth: AuthContext,
    policy: PhantomData<fn() -> P>,
}

impl<P> Clone for AuthorizedNode<P> {
    fn clone(&self) -> Self {
        let Self { app, name, auth, policy } = self;
        Self { app: Arc::clone(app), name: Arc::clone(name), auth: auth.clone(), policy: *policy }
    }
}

impl<P: AccessPolicy> FromRequestParts<Arc<App>> for AuthorizedNode<P> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        NodeRequest::new(parts)?.authorize(app).await
    }
}

impl<P: AccessPolicy> AuthorizedNode<P> {
    pub(crate) fn app(&self) -> &App {
        &self.app
    }

    /// The node's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn request_id(&self) -> Option<&RequestId> {
        self.auth.request_id()
    }

    /// Reads the store on a thread of the pool. The job gets the node's name.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Store, &str, Budget) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Problem> {
        let name = Arc::clone(&self.name);
        self.app.read(move |store, budget| job(store, &name, budget)).await
    }

    /// As [`Self::read`], on a thread for summaries: for a job that computes for long.
    pub(crate) async fn read_long<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Store, &str, Budget) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Problem> {
        let name = Arc::clone(&self.name);
        self.app.read_on(&self.app.services.summaries, move |store, budget| job(store, &name, budget)).await
    }

    /// Starts a job on one of the threads for responses that are written at the client's pace.
    pub(crate) fn spawn_bulk(&self, job: impl FnOnce(&Store, &str) + Send + 'static) -> Result<(), Problem> {
        let (store, name) = (self.app.services.store.clone(), Arc::clone(&self.name));
        Ok(self.app.services.bulk.submit(Box::new(move || job(&store, &name)))?)
    }

    /// Current memory profiles.
    pub(crate) fn memory(&self) -> Arc<Memory> {
        Arc::clone(&self.app.services.memory)
    }

    /// Whether the permission may be withdrawn while a response is sent.
    fn is_revocable(&self) -> bool {
        !self.app.services.access.is_open()
    }

    /// Authenticates and authorizes the caller again, without cached answers.
    async fn reauthorize(&self) -> Result<(), Refusal> {
        self.app.services.access.reauthorize(self.auth.caller(), P::PERMISSION, &self.name).await
    }
}

/// When the permission of the caller of a long response was checked.
#[derive(Debug)]
pub(crate) struct Authorized(Instant);

impl Authorized {
    /// The request was authorized.
    pub(crate) fn now() -> Self {
        Self(Instant::now())
    }

    /// Time until the next check; none if the permission cannot be withdrawn.
    pub(crate) fn due<P: AccessPolicy>(&self, node: &AuthorizedNode<P>) -> Option<Duration> {
        node.is_revocable().then(|| node.app().limits().reauthorize_interval.saturating_sub(self.0.elapsed()))
    }

    /// Checks the permission again if that is due. Waits while it cannot be checked.
    pub(crate) async fn check<P: AccessPolicy>(&mut self, node: &AuthorizedNode<P>) -> Result<(), Refusal> {
        if self.due(node).is_none_or(|due| !due.is_zero()) {
            return Ok(());
        }
        while let Err(refusal) = node.reauthorize().await {
            let Refusal::Unavailable(_) = refusal else { return Err(refusal) };
            tracing::debug!(%refusal, "a response is suspended");
            sleep(RETRY_INTERVAL.min(node.app().limits().heartbeat_interval)).await;
        }
        *self = Self::now();
        Ok(())
    }
}

/// The nodes that the caller may read with the permission of `P`.
pub(crate) struct AuthorizedNodes<P> {
    app: Arc<App>,
    names: BTreeSet<String>,
    /// These are all nodes that exist.
    is_complete: bool,
    policy: PhantomData<fn() -> P>,
}

impl<P: AccessPolicy> FromRequestParts<Arc<App>> for AuthorizedNodes<P> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let auth = AuthContext::of(parts)?;
        let (access, all) = (&app.services.access, app.services.nodes.candidates(None));
        let is_complete = access.is_open() || access.may_read_all(auth.caller(), P::PERMISSION).await?;
        let names = match is_complete {
            true => all.into_iter().collect(),
            false => access.visible_nodes(auth.caller(), P::PERMISSION, all).await?,
        };
        Ok(Self { app: Arc::clone(app), names, is_complete, policy: PhantomData })
    }
}

/// The node that is named, or all nodes that the caller may read.
pub(crate) struct SelectedNodes<P>(pub(crate) AuthorizedNodes<P>);

impl<P: AccessPolicy> FromRequestParts<Arc<App>> for SelectedNodes<P> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let request = NodeRequest::new(parts)?;
        if request.wanted.is_none() {
            return AuthorizedNodes::from_request_parts(parts, app).await.map(Self);
        }
        let AuthorizedNode { app, name, policy, .. } = request.authorize::<P>(app).await?;
        let is_complete = app.services.access.is_open();
        Ok(Self(AuthorizedNodes { names: [name.to_string()].into(), app, is_complete, policy }))
    }
}

impl<P: AccessPolicy> AuthorizedNodes<P> {
    pub(crate) fn app(&self) -> &App {
        &self.app
    }

    pub(crate) fn names(&self) -> &BTreeSet<String> {
        &self.names
    }

    /// What is known of these nodes.
    pub(crate) fn known(&self) -> Vec<(String, NodeEntry)> {
        let mut known = self.app.services.nodes.all();
        known.retain(|(name, _)| self.names.contains(name));
        known
    }

    /// The agents, by name. Agents of other nodes only, and the names of other nodes, are left out unless the caller may
    /// read every node.
    pub(crate) fn agents(&self) -> BTreeMap<String, AgentInfo> {
        let mut agents: BTreeMap<_, _> = self.app.services.ingest.agents().into_iter().collect();
        if !self.is_complete {
            agents.retain(|_, agent| {
                agent.nodes.retain(|node| self.names.contains(node));
                !agent.nodes.is_empty()
            });
        }
        agents
    }

    /// Nodes whose memory is currently reported by an agent.
    pub(crate) fn with_current_memory(&self) -> BTreeSet<String> {
        let memory = &self.app.services.memory;
        memory.nodes().into_iter().filter(|node| self.names.contains(node) && memory.is_reported(node)).collect()
    }

    /// What keeps records from being stored; none if nothing does.
    pub(crate) fn ingest_trouble(&self) -> Option<String> {
        self.app.services.ingest.write_error()
    }

    /// Losses of a node. Reads the store: to be called from a job of [`Self::read`].
    pub(crate) fn losses(&self, store: &Store, node: &str, budget: &Budget) -> Result<Vec<LossStats>, StoreError> {
        self.app.losses.of(store, node, || check_budget(budget))
    }

    /// Maximum number of events of targets that are read of a node: all nodes together cause a bounded amount of work.
    pub(crate) fn max_events(&self) -> u64 {
        (MAX_EVENTS / self.names.len().max(1) as u64).clamp(MIN_EVENTS_OF_NODE, MAX_EVENTS_OF_NODE)
    }

    /// Reads the store on a thread for summaries. The job calls [`check_budget`] for each node.
    pub(crate) async fn read<T: Send + 'static>(
        self,
        job: impl FnOnce(&Self, &Store, &Budget) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Problem>
    where
        Self: 'static,
    {
        let app = Arc::clone(&self.app);
        app.summarise(&app.services.summaries, move |store, budget| job(&self, store, budget)).await
    }
}

/// Access for the operator of the program: on the listener for metrics and health, and on the others only while access is
/// open. Responses contain names and counts of nodes, but no records.
#[derive(Clone)]
pub(crate) struct OperationsAccess {
    app: Arc<App>,
}

impl FromRequestParts<Arc<App>> for OperationsAccess {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        if parts.extensions.get::<OperationsListener>().is_none() && !app.services.access.is_open() {
            return Err(Problem::new(Code::UnknownPath, "this is served on the port for metrics and health"));
        }
        Ok(Self { app: Arc::clone(app) })
    }
}

impl OperationsAccess {
    pub(crate) fn app(&self) -> &App {
        &self.app
    }

    pub(crate) fn nodes(&self) -> &Nodes {
        &self.app.services.nodes
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.app.services.memory
    }

    pub(crate) fn catalog(&self) -> Option<&Catalog> {
        self.app.services.catalog.as_deref()
    }

    /// Whether the program is about to end.
    pub(crate) fn is_draining(&self) -> bool {
        self.app.services.draining.is_cancelled() || self.app.services.stop.is_cancelled()
    }

    /// Requests that wait for a thread.
    pub(crate) fn waiting_queries(&self) -> usize {
        self.app.services.pool.waiting()
    }

    /// What keeps records from being stored; none if nothing does.
    pub(crate) fn ingest_trouble(&self) -> Option<String> {
        self.app.services.ingest.write_error()
    }

    /// Reads the store on the thread for metrics. The job calls [`check_budget`] for each node.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Self, &Store, &Budget) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Problem> {
        let access = self.clone();
        self.app.summarise(&self.app.services.operations, move |store, budget| job(&access, store, budget)).await
    }
}
