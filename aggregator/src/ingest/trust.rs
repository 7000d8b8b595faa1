//! Authentication of agents over gRPC.
//!
//! An agent sends the token of its service account, which is bound to its pod. The token review of Kubernetes returns the
//! account and the host of the pod.

use std::{
    fmt,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use chainscope_hygiene::EscapedTruncated;
use chainscope_tls::reviews::PeerScope;
use tonic::{Status, metadata::MetadataMap};

use crate::{
    access::{AUDIENCE, Reviewer, TokenReviews, expiry},
    clock,
};

/// Key of the token review's extra information that has the host of the pod.
const HOST_KEY: &str = "authentication.kubernetes.io/node-name";

/// Maximum duration of a session; it is shorter if the token expires before.
const MAX_SESSION: Duration = Duration::from_secs(3600);

/// Which agents may deliver records over gRPC.
#[derive(Clone)]
pub struct IngestTrust {
    /// Reviews tokens.
    pub reviewer: Arc<dyn Reviewer>,
    /// Service account of the agents: `system:serviceaccount:<namespace>:<name>`.
    pub account: String,
}

impl fmt::Debug for IngestTrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IngestTrust({})", self.account)
    }
}

/// An authenticated agent.
#[derive(Debug, Clone)]
pub(super) struct Proof {
    /// Host of its pod.
    pub(super) host: String,
    /// When its token expires.
    pub(super) until: Instant,
}

/// Authenticates agents.
pub(super) struct AgentAuthenticator {
    tokens: TokenReviews,
    account: String,
}

impl From<IngestTrust> for AgentAuthenticator {
    fn from(IngestTrust { reviewer, account }: IngestTrust) -> Self {
        Self { tokens: TokenReviews::new(reviewer, Some(AUDIENCE), PeerScope::Address), account }
    }
}

impl AgentAuthenticator {
    /// Authenticates the caller by the token of its call.
    pub(super) async fn prove(&self, metadata: &MetadataMap, peer: Option<IpAddr>) -> Result<Proof, Status> {
        let token = chainscope_tls::bearer(metadata)?;
        let identity = self.tokens.authenticate(token, peer).await;
        let identity = identity.map_err(|error| Status::unavailable(error.to_string()))?.ok_or_else(|| {
            Status::unauthenticated(format!("the token has expired, or is not for the audience {AUDIENCE}"))
        })?;
        if identity.user != self.account {
            let text = format!("{} is not the agents' account {}", EscapedTruncated(&identity.user), self.account);
            return Err(Status::permission_denied(text));
        }
        let host = identity
            .extra(HOST_KEY)
            .ok_or_else(|| Status::permission_denied("the token names no host: it must be bound to a pod"))?;
        let left = expiry(token).map_or(MAX_SESSION, |end| end.duration_since(clock::now()).unwrap_or_default());
        Ok(Proof { host: host.to_owned(), until: Instant::now() + left.min(MAX_SESSION) })
    }
}
