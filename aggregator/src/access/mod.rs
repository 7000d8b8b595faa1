//! Who may read what.
//!
//! ```text
//! request ─▶ guard: which right does the route need, who asks (401) ─▶ handler ─▶ which node is meant, may they (403)
//!                                      │                                              │
//!                    nobody asked / file of tokens / TokenReview       yes / patterns / SubjectAccessReview
//! ```
//!
//! A right is `get` on a subresource of `tezosnodes`, for the node that a request is about. Answers of Kubernetes are
//! remembered for a minute; where there is none the request is refused with 503. A caller learns nothing of nodes that
//! they may not read, not even their names.

mod cache;
mod file;
#[cfg(feature = "kubernetes")]
mod kubernetes;
pub(crate) mod review;
pub(crate) mod routes;

use std::{
    collections::BTreeSet,
    fmt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use axum::http::{HeaderMap, header};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use sha2::{Digest as _, Sha256};

use self::{
    cache::Cache,
    file::{Entry, TokenFile},
    routes::Right,
};
#[cfg(feature = "kubernetes")]
pub use self::kubernetes::ApiServer;
pub use self::review::{AUDIENCE, Answer, GROUP, Identity, NoAnswer, Question, RESOURCE, Reviewer, Verdict, expiry};
use crate::Error;

/// How long a refusal is remembered: whoever is given a right should not wait a minute for it.
const REFUSED_FOR: Duration = Duration::from_secs(5);

/// Reviews of one request that are under way at a time.
const AT_ONCE: usize = 16;

/// Longest token, in bytes.
const LONGEST_TOKEN: usize = 16 << 10;

/// Who may use the API.
#[derive(Clone, Default)]
pub enum AccessConfig {
    /// Whoever reaches it.
    #[default]
    Open,
    /// Who has a token of this file.
    TokenFile(PathBuf),
    /// Whom Kubernetes allows it.
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
    NoAnswer(#[from] NoAnswer),
}

/// Who asks.
#[derive(Clone)]
pub(crate) struct Caller {
    who: Who,
    /// What they showed: live streams look again whether it is good.
    token: Arc<str>,
}

#[derive(Clone)]
enum Who {
    Anyone,
    Listed(Arc<Entry>),
    Reviewed(Arc<Identity>, TokenDigest),
}

type TokenDigest = [u8; 32];

impl Caller {
    fn anyone() -> Self {
        Self { who: Who::Anyone, token: "".into() }
    }

    /// The name for the audit log; empty if nobody was asked for theirs.
    pub(crate) fn user(&self) -> &str {
        match &self.who {
            Who::Anyone => "",
            Who::Listed(entry) => &entry.user,
            Who::Reviewed(identity, _) => &identity.user,
        }
    }
}

/// Answers whether someone may.
pub(crate) struct Access {
    mode: Mode,
    /// How long an answer of Kubernetes is good.
    remember: Duration,
}

enum Mode {
    Open,
    File(TokenFile),
    Kubernetes(Reviews),
}

struct Reviews {
    reviewer: Arc<dyn Reviewer>,
    identities: Cache<TokenDigest, Option<Arc<Identity>>>,
    verdicts: Cache<(TokenDigest, Right, String, String), Verdict>,
}

impl Access {
    pub(crate) fn new(config: AccessConfig, remember: Duration) -> Result<Self, Error> {
        let mode = match config {
            AccessConfig::Open => Mode::Open,
            AccessConfig::TokenFile(path) => {
                Mode::File(TokenFile::open(&path).map_err(|source| Error::File { path, source })?)
            }
            AccessConfig::Kubernetes(reviewer) => {
                Mode::Kubernetes(Reviews { reviewer, identities: Cache::default(), verdicts: Cache::default() })
            }
        };
        Ok(Self { mode, remember })
    }

    /// Nobody is asked who they are.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.mode, Mode::Open)
    }

    /// Who sends these headers.
    pub(crate) async fn identify(&self, headers: &HeaderMap) -> Result<Caller, Refusal> {
        if self.is_open() {
            return Ok(Caller::anyone());
        }
        let token = bearer(headers)?;
        self.recognise(token.into(), false).await
    }

    async fn recognise(&self, token: Arc<str>, anew: bool) -> Result<Caller, Refusal> {
        let who = match &self.mode {
            Mode::Open => Who::Anyone,
            Mode::File(file) => Who::Listed(Arc::new(file.identify(&token)?.ok_or(Refusal::BadToken)?)),
            Mode::Kubernetes(reviews) => {
                let digest: TokenDigest = Sha256::digest(token.as_bytes()).into();
                let identity = reviews.identity(&token, digest, self.remember, anew).await?;
                Who::Reviewed(identity.ok_or(Refusal::BadToken)?, digest)
            }
        };
        Ok(Caller { who, token })
    }

    /// Whether they may read this of the node.
    pub(crate) async fn may(&self, caller: &Caller, right: Right, node: &str) -> Result<(), Refusal> {
        self.check(caller, right, node, false).await
    }

    /// Whether they still may, from scratch: the token is looked at anew, too.
    pub(crate) async fn still_may(&self, caller: &Caller, right: Right, node: &str) -> Result<(), Refusal> {
        let caller = self.recognise(Arc::clone(&caller.token), true).await?;
        self.check(&caller, right, node, true).await
    }

    async fn check(&self, caller: &Caller, right: Right, node: &str, anew: bool) -> Result<(), Refusal> {
        let refused = |reason: &str| {
            let (user, right) = (caller.user(), right.name());
            let because = if reason.is_empty() { String::new() } else { format!(": {reason}") };
            Refusal::Forbidden(format!("{user} may not get tezosnodes/{right} of {node}{because}"))
        };
        match (&self.mode, &caller.who) {
            (Mode::Open, _) => Ok(()),
            (_, Who::Listed(entry)) if entry.sees(node) => Ok(()),
            (Mode::Kubernetes(reviews), Who::Reviewed(identity, token)) => {
                let (namespace, name) = node.split_once('/').unwrap_or(("", node));
                let key = (*token, right, namespace.to_owned(), name.to_owned());
                let verdict = reviews.verdict(identity, key, self.remember, anew).await?;
                if verdict.allowed { Ok(()) } else { Err(refused(&verdict.reason)) }
            }
            _ => Err(refused("")),
        }
    }

    /// Whether they may read this of every node.
    pub(crate) async fn may_all(&self, caller: &Caller, right: Right) -> Result<bool, Refusal> {
        self.may_namespace(caller, right, "").await
    }

    /// Whether they may read this of every node of the namespace; empty: of all namespaces.
    async fn may_namespace(&self, caller: &Caller, right: Right, namespace: &str) -> Result<bool, Refusal> {
        match (&self.mode, &caller.who) {
            (Mode::Open, _) => Ok(true),
            (_, Who::Listed(entry)) => Ok(entry.sees_all()),
            (Mode::Kubernetes(reviews), Who::Reviewed(identity, token)) => {
                let key = (*token, right, namespace.to_owned(), String::new());
                Ok(reviews.verdict(identity, key, self.remember, false).await?.allowed)
            }
            _ => Ok(false),
        }
    }

    /// Those of the nodes that they may read this of. Asks for all at once first, then a namespace, then a node.
    pub(crate) async fn visible(
        &self,
        caller: &Caller,
        right: Right,
        nodes: Vec<String>,
    ) -> Result<BTreeSet<String>, Refusal> {
        if nodes.is_empty() || self.may_all(caller, right).await? {
            return Ok(nodes.into_iter().collect());
        }
        let namespaces: BTreeSet<String> =
            nodes.iter().filter_map(|node| Some(node.split_once('/')?.0.to_owned())).collect();
        let whole = stream::iter(namespaces)
            .map(|namespace: String| async move {
                let all = self.may_namespace(caller, right, &namespace).await?;
                Ok::<_, Refusal>(all.then_some(namespace))
            })
            .buffer_unordered(AT_ONCE)
            .try_filter_map(|namespace| async move { Ok(namespace) });
        let whole: BTreeSet<String> = whole.try_collect().await?;
        let is_whole = |node: &String| node.split_once('/').is_some_and(|(namespace, _)| whole.contains(namespace));
        let (visible, rest): (Vec<String>, Vec<String>) = nodes.into_iter().partition(is_whole);
        let mut visible: BTreeSet<String> = visible.into_iter().collect();
        let single = stream::iter(rest)
            .map(|node: String| async move {
                match self.may(caller, right, &node).await {
                    Ok(()) => Ok(Some(node)),
                    Err(Refusal::Forbidden(_)) => Ok(None),
                    Err(other) => Err(other),
                }
            })
            .buffer_unordered(AT_ONCE)
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
        remember: Duration,
        anew: bool,
    ) -> Result<Option<Arc<Identity>>, NoAnswer> {
        if !anew && let Some(known) = self.identities.get(&digest) {
            return Ok(known);
        }
        let identity = self.reviewer.identify(token, None).await?.map(Arc::new);
        let keep = match &identity {
            None => remember.min(REFUSED_FOR),
            // Not beyond the token's own end.
            Some(_) => expiry(token)
                .map_or(remember, |end| remember.min(end.duration_since(SystemTime::now()).unwrap_or(Duration::ZERO))),
        };
        self.identities.put(digest, identity.clone(), Instant::now() + keep);
        Ok(identity)
    }

    async fn verdict(
        &self,
        identity: &Identity,
        key: (TokenDigest, Right, String, String),
        remember: Duration,
        anew: bool,
    ) -> Result<Verdict, NoAnswer> {
        if !anew && let Some(known) = self.verdicts.get(&key) {
            return Ok(known);
        }
        let (_, right, namespace, name) = &key;
        let question = Question { subresource: right.name(), namespace: namespace.clone(), name: name.clone() };
        let verdict = self.reviewer.permits(identity, &question).await?;
        let keep = if verdict.allowed { remember } else { remember.min(REFUSED_FOR) };
        self.verdicts.put(key, verdict.clone(), Instant::now() + keep);
        Ok(verdict)
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
    if token.len() > LONGEST_TOKEN { Err(Refusal::BadToken) } else { Ok(token) }
}
