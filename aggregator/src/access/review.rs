//! Asking Kubernetes who a token belongs to, and what they may read.
//!
//! The questions are TokenReview and SubjectAccessReview; [`Reviewer`] is whoever answers them. No answer is never a yes.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};

/// The API group of `TezosNode`.
pub const GROUP: &str = "chainscope.dev";
/// The resource that rights are about; each kind of data is a subresource of it.
pub const RESOURCE: &str = "tezosnodes";
/// The audience of tokens that agents and aggregator show to each other and to the operator.
pub const AUDIENCE: &str = "chainscope";

/// Whom a token belongs to, as the API server says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// `system:serviceaccount:<namespace>:<name>`, or what an identity provider says.
    pub user: String,
    /// Tells one from a later one of the same name.
    pub uid: String,
    /// Groups that the user is in.
    pub groups: Vec<String>,
    /// More, such as the node that a pod's token is bound to.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Identity {
    /// The one value of a key of `extra`.
    #[must_use]
    pub fn extra(&self, key: &str) -> Option<&str> {
        match self.extra.get(key).map(Vec::as_slice) {
            Some([value]) if !value.is_empty() => Some(value),
            _ => None,
        }
    }
}

/// May one `get` this subresource of a `TezosNode`?
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// `messages`, `connections`, …
    pub subresource: &'static str,
    /// Empty: in all namespaces.
    pub namespace: String,
    /// Empty: all of the namespace.
    pub name: String,
}

/// The answer to a [`Question`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// They may.
    pub allowed: bool,
    /// Why, in the API server's words; often empty.
    pub reason: String,
}

/// There is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the Kubernetes API server gives no answer: {0}")]
pub struct NoAnswer(pub String);

/// An answer to come.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, NoAnswer>> + Send + 'a>>;

/// Who answers reviews: the API server, or a stand-in for it.
pub trait Reviewer: Send + Sync + 'static {
    /// Whom the token belongs to, if it is good for `audience`; without one: for the API server itself.
    fn identify<'a>(&'a self, token: &'a str, audience: Option<&'a str>) -> Answer<'a, Option<Identity>>;

    /// What they may do.
    fn permits<'a>(&'a self, who: &'a Identity, what: &'a Question) -> Answer<'a, Verdict>;
}

/// When a token ends by its own word; none if it is no JWT or does not say. Says nothing of whether the token is good.
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

    use super::expiry;

    fn token(claims: &str) -> String {
        format!("e30.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn a_token_says_when_it_ends() {
        let at = |seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
        assert_eq!(expiry(&token(r#"{"exp":1700000000,"sub":"x"}"#)), at(1_700_000_000));
        assert_eq!(expiry(&token(r#"{"exp":-5}"#)), at(0));
        for silent in ["", "abc", "a.b", "a.!.c", &token("{}"), &token("[]"), &token(r#"{"exp":1e300}"#)] {
            assert_eq!(expiry(silent), None, "{silent}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in ".{0,40}", claims in ".{0,40}") {
            let _ = (expiry(&text), expiry(&token(&claims)));
        }
    }
}
