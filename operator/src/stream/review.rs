//! Who calls: the bearer token of the call, reviewed by the API server and remembered for a minute.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use chainscope_hygiene::{EscapedTruncated, warn_limited};
use futures::future::BoxFuture;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::{Api, Client, api::PostParams};
use sha2::{Digest as _, Sha256};
use tokio::{sync::Semaphore, time::timeout};
use tonic::{Status, metadata::MetadataMap};

use super::{claims::Claims, metrics::Metrics};

/// The audience of tokens for the config stream.
pub const AUDIENCE: &str = "chainscope";

/// How long a token that was accepted is taken without asking again, and one that was refused.
const ACCEPTED_FOR: Duration = Duration::from_secs(60);
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Tokens that are remembered at most.
const REMEMBERED: usize = 8192;
/// Reviews under way at most, and how long one may take.
const REVIEWS: usize = 32;
const PATIENCE: Duration = Duration::from_secs(10);

/// Claims that the API server adds to tokens bound to a pod.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";

/// What the API server says about a token that it issued.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Review {
    /// As `system:serviceaccount:NAMESPACE:NAME`.
    pub username: String,
    /// The asked-for audiences that the token is for.
    pub audiences: Vec<String>,
    /// What the token is bound to.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Why there is no review.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReviewError {
    /// The token is no good, and why.
    #[error("{0}")]
    Refused(String),
    /// It could not be asked, and why.
    #[error("{0}")]
    Unavailable(String),
}

/// Tells whose token it is.
pub trait Reviewer: Send + Sync + 'static {
    /// Asks about a token for [`AUDIENCE`].
    fn review<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Review, ReviewError>>;
}

/// Asks the API server by `TokenReview`.
#[derive(Clone)]
pub struct ApiReviewer(Api<TokenReview>);

impl ApiReviewer {
    /// Asks through `client`, which needs the verb `create` on `tokenreviews.authentication.k8s.io`.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self(Api::all(client))
    }
}

impl Reviewer for ApiReviewer {
    fn review<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Review, ReviewError>> {
        Box::pin(async move {
            let question = TokenReview {
                spec: TokenReviewSpec { token: Some(token.to_owned()), audiences: Some(vec![AUDIENCE.to_owned()]) },
                ..Default::default()
            };
            let answer = self
                .0
                .create(&PostParams::default(), &question)
                .await
                .map_err(|error| ReviewError::Unavailable(error.to_string()))?;
            understood(answer)
        })
    }
}

fn understood(answer: TokenReview) -> Result<Review, ReviewError> {
    let status = answer.status.unwrap_or_default();
    if !status.authenticated.unwrap_or(false) {
        return Err(ReviewError::Refused(status.error.unwrap_or_else(|| "the token is not known".to_owned())));
    }
    let user = status.user.unwrap_or_default();
    let review = Review {
        username: user.username.unwrap_or_default(),
        audiences: status.audiences.unwrap_or_default(),
        extra: user.extra.unwrap_or_default(),
    };
    Ok(review)
}

/// The service accounts that may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accounts {
    /// Where both are.
    pub namespace: String,
    /// Name of the agents' account.
    pub agent: String,
    /// Name of the aggregator's account.
    pub aggregator: String,
}

impl Accounts {
    /// As the API server calls the user of an account.
    fn username(&self, account: &str) -> String {
        format!("system:serviceaccount:{}:{account}", self.namespace)
    }
}

/// An agent, as its token proves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Agent {
    /// The Kubernetes node that its pod runs on.
    pub(crate) host: String,
    /// Its pod; empty if the token does not say.
    pub(crate) pod: String,
    pub(crate) expires: SystemTime,
}

/// Checks the callers.
pub(crate) struct Gate {
    /// User names.
    agent: String,
    aggregator: String,
    reviewer: Arc<dyn Reviewer>,
    remembered: parking_lot::Mutex<HashMap<[u8; 32], Remembered>>,
    under_way: Semaphore,
    metrics: Metrics,
}

struct Remembered {
    until: Instant,
    outcome: Result<Arc<Review>, String>,
}

impl Gate {
    pub(crate) fn new(accounts: &Accounts, reviewer: Arc<dyn Reviewer>, metrics: Metrics) -> Self {
        let (agent, aggregator) = (accounts.username(&accounts.agent), accounts.username(&accounts.aggregator));
        let remembered = parking_lot::Mutex::default();
        Self { agent, aggregator, reviewer, remembered, under_way: Semaphore::new(REVIEWS), metrics }
    }

    /// Admits an agent.
    pub(crate) async fn agent(&self, metadata: &MetadataMap) -> Result<Agent, Status> {
        let (review, expires) = self.caller(metadata, &self.agent, "agent").await?;
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

    /// Admits the aggregator; returns when its token expires.
    pub(crate) async fn aggregator(&self, metadata: &MetadataMap) -> Result<SystemTime, Status> {
        Ok(self.caller(metadata, &self.aggregator, "aggregator").await?.1)
    }

    async fn caller(
        &self,
        metadata: &MetadataMap,
        account: &str,
        role: &str,
    ) -> Result<(Arc<Review>, SystemTime), Status> {
        let token = chainscope_tls::bearer(metadata).inspect_err(|_| self.metrics.refused("no token"))?;
        let claims = Claims::read(token, AUDIENCE, SystemTime::now()).map_err(|reason| {
            self.metrics.refused("bad token");
            Status::unauthenticated(reason)
        })?;
        let review = self.reviewed(token).await?;
        if !review.audiences.iter().any(|audience| audience == AUDIENCE) {
            self.metrics.refused("bad token");
            return Err(Status::unauthenticated("the token is not for the audience chainscope"));
        }
        if review.username != account {
            self.metrics.refused("wrong account");
            let who = EscapedTruncated(&review.username);
            return Err(Status::permission_denied(format!("{who} is not the account of the {role} ({account})")));
        }
        Ok((review, claims.expires))
    }

    async fn reviewed(&self, token: &str) -> Result<Arc<Review>, Status> {
        let key: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(outcome) = self.recall(&key) {
            self.metrics.reviewed("remembered");
            return outcome.map_err(|reason| self.unauthenticated(&reason));
        }
        let asked = async {
            let _permit = self.under_way.acquire().await;
            self.reviewer.review(token).await
        };
        let outcome = match timeout(PATIENCE, asked).await {
            Ok(Ok(review)) => Ok(Arc::new(review)),
            Ok(Err(ReviewError::Refused(reason))) => Err(reason),
            Ok(Err(ReviewError::Unavailable(reason))) => return Err(self.unavailable(&reason)),
            Err(_) => return Err(self.unavailable("no answer in 10 seconds")),
        };
        self.metrics.reviewed(if outcome.is_ok() { "accepted" } else { "refused" });
        self.remember(key, outcome.clone());
        outcome.map_err(|reason| self.unauthenticated(&reason))
    }

    fn unavailable(&self, reason: &str) -> Status {
        self.metrics.reviewed("failed");
        warn_limited!(reason = %EscapedTruncated(reason), "a token could not be reviewed");
        Status::unavailable("the token cannot be reviewed at the moment: the API server does not answer as it should")
    }

    fn unauthenticated(&self, reason: &str) -> Status {
        self.metrics.refused("bad token");
        Status::unauthenticated(format!("the API server refuses the token: {}", EscapedTruncated(reason)))
    }

    fn recall(&self, key: &[u8; 32]) -> Option<Result<Arc<Review>, String>> {
        let remembered = self.remembered.lock();
        let found = remembered.get(key).filter(|found| Instant::now() < found.until)?;
        Some(found.outcome.clone())
    }

    fn remember(&self, key: [u8; 32], outcome: Result<Arc<Review>, String>) {
        let now = Instant::now();
        let until = now + if outcome.is_ok() { ACCEPTED_FOR } else { REFUSED_FOR };
        let mut remembered = self.remembered.lock();
        if remembered.len() >= REMEMBERED {
            remembered.retain(|_, old| now < old.until);
        }
        if remembered.len() >= REMEMBERED {
            // Many refused tokens must not crowd out the good ones.
            remembered.retain(|_, old| old.outcome.is_ok());
        }
        if remembered.len() < REMEMBERED {
            remembered.insert(key, Remembered { until, outcome });
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::authentication::v1::{TokenReviewStatus, UserInfo};

    use super::{Accounts, ReviewError, TokenReview, understood};

    fn answer(status: TokenReviewStatus) -> TokenReview {
        TokenReview { status: Some(status), ..Default::default() }
    }

    #[test]
    fn an_answer_that_does_not_say_yes_is_a_no() {
        assert!(matches!(understood(TokenReview::default()), Err(ReviewError::Refused(_))));
        let no = TokenReviewStatus { error: Some("token has expired".to_owned()), ..Default::default() };
        assert_eq!(understood(answer(no)), Err(ReviewError::Refused("token has expired".to_owned())));
        let user = UserInfo { username: Some("system:serviceaccount:a:b".to_owned()), ..Default::default() };
        let yes = TokenReviewStatus { authenticated: Some(true), user: Some(user), ..Default::default() };
        let review = understood(answer(yes)).unwrap();
        let accounts = Accounts { namespace: "a".to_owned(), agent: "b".to_owned(), aggregator: "c".to_owned() };
        assert_eq!(review.username, accounts.username(&accounts.agent));
        assert!(review.audiences.is_empty(), "no audience is granted that the answer does not name");
    }
}
