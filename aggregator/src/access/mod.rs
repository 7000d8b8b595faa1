//! Authentication and authorization of callers.
//!
//! ```text
//! Authorization: Bearer … ─▶ authenticate: open / file of tokens / TokenReview ─▶ Caller (else 401)
//! Caller, permission, node ─▶ authorize: yes / patterns / SubjectAccessReview ─▶ (else 403)
//! ```
//!
//! A permission is `get` on a subresource of `tezosnodes` or `nodetraces`, for the node that a request is about. Answers of Kubernetes are
//! cached for a minute; without one the request is refused with 503. A caller learns nothing of nodes that they may not read,
//! not even their names.

mod cache;
mod file;
#[cfg(feature = "kubernetes")]
mod kubernetes;
pub(crate) mod permission;
pub(crate) mod review;
mod tokens;

use std::{collections::BTreeSet, fmt, net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use axum::http::{HeaderMap, header};
use chainscope_tls::reviews::PeerScope;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use sha2::{Digest as _, Sha256};

#[cfg(feature = "kubernetes")]
pub use self::kubernetes::ApiServer;
pub use self::review::{
    AUDIENCE, AccessDecision, AccessReview, GROUP, Identity, Resource, ReviewError, ReviewFuture, Reviewer, expiry,
};
pub(crate) use self::tokens::TokenReviews;
use self::{
    cache::Cache,
    file::{Entry, TokenFile},
    permission::Permission,
};
use crate::{Error, clock};

/// Maximum time that a refusal is cached: a new permission takes effect sooner than after a minute.
const REFUSAL_TTL: Duration = Duration::from_secs(5);

/// Concurrent reviews of one request.
const MAX_CONCURRENT_REVIEWS: usize = 16;

/// Maximum length of a token, in bytes.
const MAX_TOKEN: usize = 16 << 10;

/// How callers of the API are authenticated and authorized.
#[derive(Clone, Default)]
pub enum AccessConfig {
    /// Every caller may read everything.
    #[default]
    Open,
    /// By a file of tokens.
    TokenFile(PathBuf),
    /// By reviews of Kubernetes.
    Kubernetes(Arc<dyn Reviewer>),
}

impl fmt::Debug for AccessConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("Open"),
            Self::TokenFile(path) => f.debug_tuple("TokenFile").field(path).finish(),
            Self::Kubernetes(_) => f.write_str("Kubernetes(..)"),
        }
    }
}

/// Why a caller is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("a token is needed: `Authorization: Bearer …`")]
    NoToken,
    #[error("the token is not accepted: it is unknown, expired, or meant for something else")]
    BadToken,
    #[error("{0}")]
    Forbidden(String),
    #[error(transparent)]
    Unavailable(#[from] ReviewError),
}

/// An authenticated caller.
#[derive(Clone)]
pub(crate) struct Caller {
    identity: CallerIdentity,
    /// The token, for [`Access::reauthorize`].
    token: Arc<str>,
}

#[derive(Clone)]
enum CallerIdentity {
    Anyone,
    Listed(Arc<Entry>),
    Reviewed(Arc<Identity>, TokenDigest),
}

type TokenDigest = [u8; 32];

/// Token, resource, subresource, namespace and name.
type DecisionKey = (TokenDigest, Resource, &'static str, String, String);

impl Caller {
    fn anyone() -> Self {
        Self { identity: CallerIdentity::Anyone, token: "".into() }
    }

    /// The name for the audit log; empty while access is open.
    pub(crate) fn user(&self) -> &str {
        match &self.identity {
            CallerIdentity::Anyone => "",
            CallerIdentity::Listed(entry) => &entry.user,
            CallerIdentity::Reviewed(identity, _) => &identity.user,
        }
    }
}

/// Authenticates and authorizes callers.
pub(crate) struct Access {
    mode: Mode,
    /// How long an answer of Kubernetes is cached.
    ttl: Duration,
}

enum Mode {
    Open,
    File(TokenFile),
    Kubernetes(Reviews),
}

struct Reviews {
    tokens: TokenReviews,
    reviewer: Arc<dyn Reviewer>,
    identities: Cache<TokenDigest, Option<Arc<Identity>>>,
    decisions: Cache<DecisionKey, AccessDecision>,
}

impl Access {
    pub(crate) fn new(config: AccessConfig, ttl: Duration) -> Result<Self, Error> {
        let mode = match config {
            AccessConfig::Open => Mode::Open,
            AccessConfig::TokenFile(path) => {
                Mode::File(TokenFile::open(&path).map_err(|source| Error::File { path, source })?)
            }
            AccessConfig::Kubernetes(reviewer) => {
                let tokens = TokenReviews::new(Arc::clone(&reviewer), None, PeerScope::Network);
                Mode::Kubernetes(Reviews {
                    tokens,
                    reviewer,
                    identities: Cache::default(),
                    decisions: Cache::default(),
                })
            }
        };
        Ok(Self { mode, ttl })
    }

    /// Whether every caller may read everything.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.mode, Mode::Open)
    }

    /// The caller that sends these headers from `peer`.
    pub(crate) async fn authenticate(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> Result<Caller, Refusal> {
        if self.is_open() {
            return Ok(Caller::anyone());
        }
        let token = bearer(headers)?;
        self.caller(token.into(), peer, false).await
    }

    async fn caller(&self, token: Arc<str>, peer: Option<IpAddr>, uncached: bool) -> Result<Caller, Refusal> {
        let identity = match &self.mode {
            Mode::Open => CallerIdentity::Anyone,
            Mode::File(file) => CallerIdentity::Listed(Arc::new(file.authenticate(&token)?.ok_or(Refusal::BadToken)?)),
            Mode::Kubernetes(reviews) => {
                let digest: TokenDigest = Sha256::digest(token.as_bytes()).into();
                let identity = reviews.identity(&token, digest, peer, self.ttl, uncached).await?;
                CallerIdentity::Reviewed(identity.ok_or(Refusal::BadToken)?, digest)
            }
        };
        Ok(Caller { identity, token })
    }

    /// Checks that the caller has the permission for the node.
    pub(crate) async fn authorize(&self, caller: &Caller, permission: Permission, node: &str) -> Result<(), Refusal> {
        self.check(caller, permission, node, false).await
    }

    /// Authenticates the caller and checks the permission again, without cached answers.
    pub(crate) async fn reauthorize(&self, caller: &Caller, permission: Permission, node: &str) -> Result<(), Refusal> {
        // The token was accepted before: no limit of its peer applies.
        let caller = self.caller(Arc::clone(&caller.token), None, true).await?;
        self.check(&caller, permission, node, true).await
    }

    async fn check(&self, caller: &Caller, permission: Permission, node: &str, uncached: bool) -> Result<(), Refusal> {
        let (resource, namespace, name) = Resource::of(node);
        let subresource = permission.subresource(resource);
        let refused = |reason: &str| {
            let because = if reason.is_empty() { String::new() } else { format!(": {reason}") };
            let (user, resource) = (caller.user(), resource.name());
            Refusal::Forbidden(format!("{user} may not get {resource}/{subresource} of {node}{because}"))
        };
        match (&self.mode, &caller.identity) {
            (Mode::Open, _) => Ok(()),
            (_, CallerIdentity::Listed(entry)) if entry.may_read(node) => Ok(()),
            (Mode::Kubernetes(reviews), CallerIdentity::Reviewed(identity, token)) => {
                let key = (*token, resource, subresource, namespace.to_owned(), name.to_owned());
                let decision = reviews.decision(identity, key, self.ttl, uncached).await?;
                if decision.allowed { Ok(()) } else { Err(refused(&decision.reason)) }
            }
            _ => Err(refused("")),
        }
    }

    /// Whether the caller has the permission for every node.
    pub(crate) async fn may_read_all(&self, caller: &Caller, permission: Permission) -> Result<bool, Refusal> {
        for resource in Resource::ALL {
            if !self.may_namespace(caller, permission, resource, "").await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the caller has the permission for every node of the namespace that the resource describes; empty: of all
    /// namespaces.
    async fn may_namespace(
        &self,
        caller: &Caller,
        permission: Permission,
        resource: Resource,
        namespace: &str,
    ) -> Result<bool, Refusal> {
        match (&self.mode, &caller.identity) {
            (Mode::Open, _) => Ok(true),
            (_, CallerIdentity::Listed(entry)) => Ok(entry.may_read_all()),
            (Mode::Kubernetes(reviews), CallerIdentity::Reviewed(identity, token)) => {
                let subresource = permission.subresource(resource);
                let key = (*token, resource, subresource, namespace.to_owned(), String::new());
                Ok(reviews.decision(identity, key, self.ttl, false).await?.allowed)
            }
            _ => Ok(false),
        }
    }

    /// Those of the nodes that the caller has the permission for. Reviews all nodes first, then each namespace, then each node.
    pub(crate) async fn visible_nodes(
        &self,
        caller: &Caller,
        permission: Permission,
        nodes: Vec<String>,
    ) -> Result<BTreeSet<String>, Refusal> {
        let mut visible = BTreeSet::new();
        for resource in Resource::ALL {
            let described = nodes.iter().filter(|node| Resource::of(node).0 == resource).cloned().collect();
            visible.extend(self.visible_of(caller, permission, resource, described).await?);
        }
        Ok(visible)
    }

    /// [`Self::visible_nodes`] of nodes that the resource describes.
    async fn visible_of(
        &self,
        caller: &Caller,
        permission: Permission,
        resource: Resource,
        nodes: Vec<String>,
    ) -> Result<BTreeSet<String>, Refusal> {
        if nodes.is_empty() || self.may_namespace(caller, permission, resource, "").await? {
            return Ok(nodes.into_iter().collect());
        }
        let namespaces: BTreeSet<String> =
            nodes.iter().filter_map(|node| Some(node.split_once('/')?.0.to_owned())).collect();
        let whole = stream::iter(namespaces)
            .map(|namespace: String| async move {
                let all = self.may_namespace(caller, permission, resource, &namespace).await?;
                Ok::<_, Refusal>(all.then_some(namespace))
            })
            .buffer_unordered(MAX_CONCURRENT_REVIEWS)
            .try_filter_map(|namespace| async move { Ok(namespace) });
        let whole: BTreeSet<String> = whole.try_collect().await?;
        let is_whole = |node: &String| node.split_once('/').is_some_and(|(namespace, _)| whole.contains(namespace));
        let (visible, rest): (Vec<String>, Vec<String>) = nodes.into_iter().partition(is_whole);
        let mut visible: BTreeSet<String> = visible.into_iter().collect();
        let single = stream::iter(rest)
            .map(|node: String| async move {
                match self.authorize(caller, permission, &node).await {
                    Ok(()) => Ok(Some(node)),
                    Err(Refusal::Forbidden(_)) => Ok(None),
                    Err(other) => Err(other),
                }
            })
            .buffer_unordered(MAX_CONCURRENT_REVIEWS)
            .try_filter_map(|node| async move { Ok(node) });
        visible.extend(single.try_collect::<Vec<String>>().await?);
        Ok(visible)
    }
}

impl Reviews {
    async fn identity(
        &self,
        token: &str,
        digest: TokenDigest,
        peer: Option<IpAddr>,
        ttl: Duration,
        uncached: bool,
    ) -> Result<Option<Arc<Identity>>, ReviewError> {
        if !uncached && let Some(known) = self.identities.get(&digest) {
            return Ok(known);
        }
        let identity = self.tokens.authenticate(token, peer).await?;
        let keep = match &identity {
            None => ttl.min(REFUSAL_TTL),
            // Not beyond the token's own expiry.
            Some(_) => {
                expiry(token).map_or(ttl, |end| ttl.min(end.duration_since(clock::now()).unwrap_or(Duration::ZERO)))
            }
        };
        self.identities.put(digest, identity.clone(), keep);
        Ok(identity)
    }

    async fn decision(
        &self,
        identity: &Identity,
        key: DecisionKey,
        ttl: Duration,
        uncached: bool,
    ) -> Result<AccessDecision, ReviewError> {
        if !uncached && let Some(known) = self.decisions.get(&key) {
            return Ok(known);
        }
        let (_, resource, subresource, namespace, name) = &key;
        let (namespace, name) = (namespace.clone(), name.clone());
        let review = AccessReview { resource: *resource, subresource, namespace, name };
        let decision = self.reviewer.authorize(identity, &review).await?;
        let keep = if decision.allowed { ttl } else { ttl.min(REFUSAL_TTL) };
        self.decisions.put(key, decision.clone(), keep);
        Ok(decision)
    }
}

/// The token of `Authorization: Bearer …`.
fn bearer(headers: &HeaderMap) -> Result<&str, Refusal> {
    let value = headers.get(header::AUTHORIZATION).ok_or(Refusal::NoToken)?;
    let value = value.to_str().map_err(|_| Refusal::BadToken)?;
    let (scheme, token) = value.split_once(' ').ok_or(Refusal::NoToken)?;
    let token = token.trim();
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
        return Err(Refusal::NoToken);
    }
    if token.len() > MAX_TOKEN { Err(Refusal::BadToken) } else { Ok(token) }
}
