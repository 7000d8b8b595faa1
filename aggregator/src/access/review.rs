//! Reviews by Kubernetes: TokenReview authenticates a token, SubjectAccessReview authorizes its user.
//!
//! [`Reviewer`] is the interface. A review without an answer is a refusal.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use chainscope_proto::NODE_TRACE_PREFIX;

/// The API group of the resources that describe nodes.
pub const GROUP: &str = "chainscope.dev";
/// The audience of tokens between agents, aggregator and operator.
pub const AUDIENCE: &str = "chainscope";

/// The user of a token, as in the status of a TokenReview.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// `system:serviceaccount:<namespace>:<name>`, or the name from an identity provider.
    pub user: String,
    /// Distinguishes users that had the same name at different times.
    pub uid: String,
    /// Groups of the user.
    pub groups: Vec<String>,
    /// Further attributes, such as the Kubernetes node that a pod's token is bound to.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Identity {
    /// The value of a key of `extra` that has exactly one.
    #[must_use]
    pub fn extra(&self, key: &str) -> Option<&str> {
        match self.extra.get(key).map(Vec::as_slice) {
            Some([value]) if !value.is_empty() => Some(value),
            _ => None,
        }
    }
}

/// A resource that describes nodes; each kind of data is a subresource of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    /// `TezosNode`.
    TezosNodes,
    /// `NodeTrace`.
    NodeTraces,
}

impl Resource {
    /// Every resource.
    pub const ALL: [Self; 2] = [Self::TezosNodes, Self::NodeTraces];

    /// Its name in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TezosNodes => "tezosnodes",
            Self::NodeTraces => "nodetraces",
        }
    }

    /// The resource that describes the node of this name, its namespace and its name.
    pub(crate) fn of(node: &str) -> (Self, &str, &str) {
        let (namespace, name) = node.split_once('/').unwrap_or(("", node));
        match name.strip_prefix(NODE_TRACE_PREFIX).filter(|_| !namespace.is_empty()) {
            Some(name) => (Self::NodeTraces, namespace, name),
            None => (Self::TezosNodes, namespace, name),
        }
    }
}

/// Resource attributes of a SubjectAccessReview: `get` on a subresource of a resource that describes nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessReview {
    /// The resource.
    pub resource: Resource,
    /// `messages`, `connections`, …
    pub subresource: &'static str,
    /// Empty: in all namespaces.
    pub namespace: String,
    /// Empty: all of the namespace.
    pub name: String,
}

/// The status of a SubjectAccessReview.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccessDecision {
    /// The user has the permission.
    pub allowed: bool,
    /// The API server's reason; often empty.
    pub reason: String,
}

/// A review failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the Kubernetes API server gives no answer: {0}")]
pub struct ReviewError(pub String);

/// The future of a review.
pub type ReviewFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, ReviewError>> + Send + 'a>>;

/// Performs reviews: the API server, or a fake in tests.
pub trait Reviewer: Send + Sync + 'static {
    /// The user of a token that is valid for `audience`; without one: for the API server itself.
    fn authenticate<'a>(&'a self, token: &'a str, audience: Option<&'a str>) -> ReviewFuture<'a, Option<Identity>>;

    /// Whether the user has the permission.
    fn authorize<'a>(&'a self, who: &'a Identity, what: &'a AccessReview) -> ReviewFuture<'a, AccessDecision>;
}

/// The expiry in a token; none if it is no JWT or has no such claim. Does not verify the token.
#[must_use]
pub fn expiry(token: &str) -> Option<SystemTime> {
    #[derive(serde::Deserialize)]
    struct Claims {
        exp: Option<f64>,
    }
    let payload = token.split('.').nth(1)?;
    let payload = BASE64_URL_SAFE_NO_PAD.decode(payload.trim_end_matches('=')).ok()?;
    let seconds = serde_json::from_slice::<Claims>(&payload).ok()?.exp?;
    UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(seconds.max(0.0)).ok()?)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
    use proptest::prelude::*;

    use super::{Resource, expiry};

    fn token(claims: &str) -> String {
        format!("e30.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn a_node_is_described_by_the_resource_of_its_name() {
        assert_eq!(Resource::of("tezos/rolling"), (Resource::TezosNodes, "tezos", "rolling"));
        assert_eq!(Resource::of("bitcoin/trace:bitcoind"), (Resource::NodeTraces, "bitcoin", "bitcoind"));
        assert_eq!(Resource::of("trace:x"), (Resource::TezosNodes, "", "trace:x"), "of a configuration file");
        assert_eq!(Resource::of("9732"), (Resource::TezosNodes, "", "9732"));
    }

    #[test]
    fn the_expiry_is_read_from_the_claims() {
        let at = |seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
        assert_eq!(expiry(&token(r#"{"exp":1700000000,"sub":"x"}"#)), at(1_700_000_000));
        assert_eq!(expiry(&token(r#"{"exp":-5}"#)), at(0));
        for silent in ["", "abc", "a.b", "a.!.c", &token("{}"), &token("[]"), &token(r#"{"exp":1e300}"#)] {
            assert_eq!(expiry(silent), None, "{silent}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,40}", claims in ".{0,40}") {
            let _ = (expiry(&text), expiry(&token(&claims)));
        }
    }
}
