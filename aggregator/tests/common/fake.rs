//! Fakes of Kubernetes' reviews and of the operator's catalog.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use chainscope_aggregator::access::{AccessDecision, AccessReview, Identity, ReviewError, ReviewFuture, Reviewer};
use chainscope_proto::v1::{
    CatalogNode, CatalogRequest, CatalogUpdate, HostReport, HostUpdate,
    configuration_server::{Configuration, ConfigurationServer},
};
use futures::Stream;
use tokio::{
    net::TcpListener,
    runtime::Runtime,
    sync::{broadcast, watch},
};
use tokio_stream::{StreamExt as _, wrappers::TcpListenerStream};
use tonic::{Request, Response, Status, Streaming, transport::Server};

/// Token and access reviews from tables; can be unavailable.
#[derive(Default)]
pub(crate) struct Reviews {
    /// Token and audience ("" for the API server's own).
    tokens: Mutex<BTreeMap<(String, String), Identity>>,
    /// User, subresource, namespace, name; an empty string matches all.
    rights: Mutex<BTreeSet<[String; 4]>>,
    pub(crate) is_away: AtomicBool,
    pub(crate) requests: AtomicUsize,
    /// While true, reviews of tokens that begin with `held` are not answered.
    pub(crate) is_holding: watch::Sender<bool>,
}

impl Reviews {
    pub(crate) fn user(&self, token: &str, user: &str) {
        let identity = Identity { user: user.into(), ..Identity::default() };
        self.tokens.lock().unwrap().insert((token.into(), String::new()), identity);
    }

    /// An agent's token, bound to a pod on a host.
    pub(crate) fn agent(&self, token: &str, user: &str, host: Option<&str>) {
        let key = "authentication.kubernetes.io/node-name".to_owned();
        let extra = host.map(|host| (key, vec![host.to_owned()])).into_iter().collect();
        let identity = Identity { user: user.into(), extra, ..Identity::default() };
        self.tokens.lock().unwrap().insert((token.into(), "chainscope".into()), identity);
    }

    pub(crate) fn allow(&self, user: &str, subresource: &str, namespace: &str, name: &str) {
        self.rights.lock().unwrap().insert([user, subresource, namespace, name].map(str::to_owned));
    }

    /// Every permission, for every node.
    pub(crate) fn allow_all(&self, user: &str) {
        for subresource in ["messages", "connections", "chunks", "stats", "memory", "logs", "trace"] {
            self.allow(user, subresource, "", "");
        }
    }

    pub(crate) fn revoke(&self, user: &str) {
        self.rights.lock().unwrap().retain(|right| right[0] != user);
    }

    pub(crate) fn away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::SeqCst);
    }

    /// Reviews so far.
    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    fn answer<T>(&self, answer: T) -> Result<T, ReviewError> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        if self.is_away.load(Ordering::SeqCst) { Err(ReviewError("it is away".into())) } else { Ok(answer) }
    }
}

impl Reviewer for Reviews {
    fn authenticate<'a>(&'a self, token: &'a str, audience: Option<&'a str>) -> ReviewFuture<'a, Option<Identity>> {
        let key = (token.to_owned(), audience.unwrap_or_default().to_owned());
        let identity = self.tokens.lock().unwrap().get(&key).cloned();
        let answer = self.answer(identity);
        Box::pin(async move {
            if token.starts_with("held") {
                self.is_holding.subscribe().wait_for(|is_holding| !is_holding).await.unwrap();
            }
            answer
        })
    }

    fn authorize<'a>(&'a self, who: &'a Identity, what: &'a AccessReview) -> ReviewFuture<'a, AccessDecision> {
        let fits = |right: &[String; 4]| {
            let [user, subresource, namespace, name] = right;
            *user == who.user
                && subresource == what.subresource
                && (namespace.is_empty() || *namespace == what.namespace)
                && (name.is_empty() || *name == what.name)
        };
        let allowed = self.rights.lock().unwrap().iter().any(fits);
        let reason = if allowed { String::new() } else { "no role says so".to_owned() };
        Box::pin(async move { self.answer(AccessDecision { allowed, reason }) })
    }
}

/// A token with an expiry.
#[expect(clippy::disallowed_methods, reason = "an expiry is a wall-clock time")]
pub(crate) fn token_ending_in(left: Duration) -> String {
    let end = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + left;
    let claims = BASE64_URL_SAFE_NO_PAD.encode(format!("{{\"exp\":{}}}", end.as_secs_f64()));
    format!("e30.{claims}.c2ln")
}

/// An operator that serves a catalog.
pub(crate) struct Operator {
    pub(crate) address: SocketAddr,
    nodes: Arc<Mutex<BTreeMap<String, CatalogNode>>>,
    changes: broadcast::Sender<CatalogUpdate>,
    /// Tokens of the callers.
    pub(crate) authorizations: Arc<Mutex<Vec<String>>>,
    server: tokio::task::JoinHandle<()>,
}

struct Service {
    nodes: Arc<Mutex<BTreeMap<String, CatalogNode>>>,
    changes: broadcast::Sender<CatalogUpdate>,
    authorizations: Arc<Mutex<Vec<String>>>,
}

type Updates<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Configuration for Service {
    type HostStream = Updates<HostUpdate>;
    type CatalogStream = Updates<CatalogUpdate>;

    async fn host(&self, _: Request<Streaming<HostReport>>) -> Result<Response<Self::HostStream>, Status> {
        Err(Status::unimplemented("for agents"))
    }

    async fn catalog(&self, request: Request<CatalogRequest>) -> Result<Response<Self::CatalogStream>, Status> {
        let shown = request.metadata().get("authorization").map(|value| value.to_str().unwrap().to_owned());
        self.authorizations.lock().unwrap().push(shown.unwrap_or_default());
        let changes = self.changes.subscribe();
        let all: Vec<CatalogNode> = self.nodes.lock().unwrap().values().cloned().collect();
        // In parts, as for a large catalog: none is complete alone.
        let mut parts: Vec<CatalogUpdate> = all.into_iter().map(|node| update(true, vec![node], &[], true)).collect();
        parts.push(update(true, vec![], &[], false));
        let changes = tokio_stream::wrappers::BroadcastStream::new(changes).filter_map(Result::ok).map(Ok);
        Ok(Response::new(Box::pin(tokio_stream::iter(parts).map(Ok).chain(changes))))
    }
}

fn update(snapshot: bool, nodes: Vec<CatalogNode>, removed: &[&str], more: bool) -> CatalogUpdate {
    let removed = removed.iter().map(|&name| name.into()).collect();
    CatalogUpdate { version: 1, generation: 1, snapshot, nodes, removed, more }
}

pub(crate) fn node(name: &str, aliases: &[&str], hosts: &[&str]) -> CatalogNode {
    let list = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    CatalogNode { node: name.into(), aliases: list(aliases), hosts: list(hosts), ..CatalogNode::default() }
}

impl Operator {
    pub(crate) fn start(runtime: &Runtime, nodes: &[CatalogNode]) -> Self {
        let nodes = nodes.iter().map(|node| (node.node.clone(), node.clone())).collect();
        let nodes = Arc::new(Mutex::new(nodes));
        let (changes, _) = broadcast::channel(16);
        let authorizations = Arc::default();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let service = Service {
            nodes: Arc::clone(&nodes),
            changes: changes.clone(),
            authorizations: Arc::clone(&authorizations),
        };
        let server = runtime.spawn(async move {
            let incoming = TcpListenerStream::new(listener);
            Server::builder()
                .add_service(ConfigurationServer::new(service))
                .serve_with_incoming(incoming)
                .await
                .unwrap();
        });
        Self { address, nodes, changes, authorizations, server }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn set(&self, node: CatalogNode) {
        self.nodes.lock().unwrap().insert(node.node.clone(), node.clone());
        // Fails without receivers: the snapshot contains it then.
        let _ = self.changes.send(update(false, vec![node], &[], false));
    }

    pub(crate) fn remove(&self, name: &str) {
        self.nodes.lock().unwrap().remove(name);
        let _ = self.changes.send(update(false, vec![], &[name], false));
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.server.abort();
    }
}
