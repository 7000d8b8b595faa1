//! Authentication of callers by TokenReview of their bearer token.

use std::{net::IpAddr, sync::Arc, time::SystemTime};

use chainscope_hygiene::EscapedTruncated;
use tonic::{Status, metadata::MetadataMap};

use super::{
    claims::Claims,
    metrics::Metrics,
    review::{AUDIENCE, Review, ReviewError, ReviewToken},
    tokens::TokenReviews,
};

/// Extra user information of tokens that are bound to a pod.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";

/// The ServiceAccounts that may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccounts {
    /// Namespace of both accounts.
    pub namespace: String,
    /// Name of the agents' ServiceAccount.
    pub agent: String,
    /// Name of the aggregator's ServiceAccount.
    pub aggregator: String,
}

impl ServiceAccounts {
    /// The user name of a ServiceAccount.
    fn username(&self, account: &str) -> String {
        format!("system:serviceaccount:{}:{account}", self.namespace)
    }
}

/// An authenticated agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Agent {
    /// The Kubernetes node of the agent's pod.
    pub(crate) host: String,
    /// Name of the agent's pod; empty if the token does not contain it.
    pub(crate) pod: String,
    pub(crate) expires: SystemTime,
}

/// Authenticates and authorizes callers.
pub(crate) struct Authenticator {
    /// User name of the agents.
    agent: String,
    aggregator: String,
    tokens: Arc<TokenReviews>,
    metrics: Metrics,
}

impl Authenticator {
    pub(crate) fn new(accounts: &ServiceAccounts, reviewer: Arc<dyn ReviewToken>, metrics: Metrics) -> Self {
        let (agent, aggregator) = (accounts.username(&accounts.agent), accounts.username(&accounts.aggregator));
        let tokens = Arc::new(TokenReviews::new(reviewer, metrics.clone()));
        Self { agent, aggregator, tokens, metrics }
    }

    /// Authenticates an agent that calls from the address `peer`.
    pub(crate) async fn agent(&self, metadata: &MetadataMap, peer: Option<IpAddr>) -> Result<Agent, Status> {
        let (review, expires) = self.caller(metadata, peer, &self.agent, "agent").await?;
        let bound = |key: &str| review.extra.get(key).and_then(|values| values.first()).filter(|name| !name.is_empty());
        let host = bound(NODE_NAME).cloned().ok_or_else(|| {
            self.metrics.refused("no host");
            Status::permission_denied(
                "the token is not bound to a pod on a Kubernetes node (no node-name in it): a projected token of \
                 Kubernetes 1.30 or newer is needed",
            )
        })?;
        Ok(Agent { host, pod: bound(POD_NAME).cloned().unwrap_or_default(), expires })
    }

    /// Authenticates the aggregator, which calls from the address `peer`; returns the expiry of its token.
    pub(crate) async fn aggregator(&self, metadata: &MetadataMap, peer: Option<IpAddr>) -> Result<SystemTime, Status> {
        Ok(self.caller(metadata, peer, &self.aggregator, "aggregator").await?.1)
    }

    async fn caller(
        &self,
        metadata: &MetadataMap,
        peer: Option<IpAddr>,
        account: &str,
        role: &str,
    ) -> Result<(Arc<Review>, SystemTime), Status> {
        let token = chainscope_tls::bearer(metadata).inspect_err(|_| self.metrics.refused("no token"))?;
        #[expect(clippy::disallowed_methods, reason = "an expiry is a wall-clock time")]
        let claims = Claims::parse(token, AUDIENCE, SystemTime::now()).map_err(|reason| {
            self.metrics.refused("bad token");
            Status::unauthenticated(reason)
        })?;
        let review = self.tokens.review(token, peer).await.map_err(|error| self.status(&error))?;
        if !review.audiences.iter().any(|audience| audience == AUDIENCE) {
            self.metrics.refused("bad token");
            return Err(Status::unauthenticated("the token is not for the audience chainscope"));
        }
        if review.username != account {
            self.metrics.refused("wrong account");
            let who = EscapedTruncated(&review.username);
            return Err(Status::permission_denied(format!(
                "{who} is not the ServiceAccount of the {role} ({account})"
            )));
        }
        Ok((review, claims.expires))
    }

    fn status(&self, error: &ReviewError) -> Status {
        match error {
            ReviewError::Refused(reason) => {
                self.metrics.refused("bad token");
                Status::unauthenticated(format!("the API server rejected the token: {}", EscapedTruncated(reason)))
            }
            ReviewError::Unavailable(_) => {
                Status::unavailable("the token cannot be reviewed: the API server is unavailable")
            }
            ReviewError::TooManyReviews => {
                self.metrics.refused("too many reviews");
                Status::resource_exhausted(format!("the token was not reviewed: {error}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ServiceAccounts;

    #[test]
    fn the_user_name_of_a_service_account() {
        let accounts = ServiceAccounts { namespace: "a".to_owned(), agent: "b".to_owned(), aggregator: "c".to_owned() };
        assert_eq!(accounts.username(&accounts.agent), "system:serviceaccount:a:b");
    }
}
