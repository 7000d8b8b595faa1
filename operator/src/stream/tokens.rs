//! Token reviews with a cache, and with limits on what a caller without a valid token can make the API server do.
//!
//! ```text
//! token ─▶ cached? ─▶ under review already? wait for it ─▶ permit of the peer ─▶ permit ─▶ TokenReview ─▶ cache
//! ```
//!
//! A peer has few of the permits: its unknown tokens wait for each other, not those of other peers for them.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use chainscope_hygiene::{EscapedTruncated, warn_limited};
use chainscope_tls::reviews::{PeerPermits, PeerScope, TokenDigest, TooManyReviews, UnderReview};
use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::{sync::Semaphore, time::timeout};

use super::{
    metrics::Metrics,
    review::{Review, ReviewError, ReviewToken},
};

/// Lifetime of a cached acceptance.
const ACCEPTED_TTL: Duration = Duration::from_secs(60);
/// Lifetime of a cached refusal.
const REFUSED_TTL: Duration = Duration::from_secs(10);
/// Maximum number of cached reviews.
const MAX_CACHED: usize = 8192;
/// Maximum number of concurrent reviews.
const MAX_REVIEWS: usize = 32;
/// Timeout of a review, including the wait for those of other peers. With that for those of the same peer less than clients wait
/// for the first message of a stream.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

type Outcome = Result<Arc<Review>, ReviewError>;
type ReviewFuture = BoxFuture<'static, Outcome>;

/// Reviews tokens.
pub(super) struct TokenReviews {
    reviewer: Arc<dyn ReviewToken>,
    cache: Mutex<HashMap<TokenDigest, CachedReview>>,
    under_review: UnderReview<Outcome>,
    permits: Semaphore,
    peers: PeerPermits,
    metrics: Metrics,
}

struct CachedReview {
    expires: Instant,
    outcome: Outcome,
}

impl TokenReviews {
    pub(super) fn new(reviewer: Arc<dyn ReviewToken>, metrics: Metrics) -> Self {
        let (under_review, peers) = (UnderReview::default(), PeerPermits::new(PeerScope::Address));
        Self { reviewer, cache: Mutex::default(), under_review, permits: Semaphore::new(MAX_REVIEWS), peers, metrics }
    }

    /// Reviews a token that `peer` sent.
    pub(super) async fn review(self: &Arc<Self>, token: &str, peer: Option<IpAddr>) -> Outcome {
        let digest: TokenDigest = Sha256::digest(token.as_bytes()).into();
        if let Some(outcome) = self.cached(&digest) {
            self.metrics.reviewed("cached");
            return outcome;
        }
        self.join(digest, token, peer).await
    }

    /// The review of the token: the one under way, or a new one.
    fn join(self: &Arc<Self>, digest: TokenDigest, token: &str, peer: Option<IpAddr>) -> Shared<ReviewFuture> {
        self.under_review.join(digest, || {
            let permit = self.peers.acquire(peer);
            let (reviews, token) = (Arc::clone(self), token.to_owned());
            async move {
                let _permit = permit.await.map_err(|TooManyReviews| ReviewError::TooManyReviews)?;
                reviews.perform(digest, &token).await
            }
            .boxed()
        })
    }

    /// Reviews a token when the limit of all peers allows it; caches the API server's answer. The semaphore is never closed.
    async fn perform(&self, digest: TokenDigest, token: &str) -> Outcome {
        let review = async {
            let _permit = self.permits.acquire().await;
            self.reviewer.review(token).await
        };
        let outcome = match timeout(REVIEW_TIMEOUT, review).await {
            Ok(outcome) => outcome.map(Arc::new),
            Err(_) => Err(ReviewError::Unavailable(format!("the request timed out after {REVIEW_TIMEOUT:?}"))),
        };
        match &outcome {
            Ok(_) => self.metrics.reviewed("accepted"),
            Err(ReviewError::Refused(_)) => self.metrics.reviewed("refused"),
            Err(error) => {
                self.metrics.reviewed("failed");
                let reason = error.to_string();
                warn_limited!(reason = %EscapedTruncated(&reason), "cannot review a token");
                return outcome;
            }
        }
        self.store(digest, outcome.clone());
        outcome
    }

    fn cached(&self, digest: &TokenDigest) -> Option<Outcome> {
        let cache = self.cache.lock();
        let cached = cache.get(digest).filter(|cached| Instant::now() < cached.expires)?;
        Some(cached.outcome.clone())
    }

    fn store(&self, digest: TokenDigest, outcome: Outcome) {
        let now = Instant::now();
        let expires = now + if outcome.is_ok() { ACCEPTED_TTL } else { REFUSED_TTL };
        let mut cache = self.cache.lock();
        if cache.len() >= MAX_CACHED {
            cache.retain(|_, old| now < old.expires);
        }
        if cache.len() >= MAX_CACHED {
            // Refused tokens must not displace accepted ones.
            cache.retain(|_, old| old.outcome.is_ok());
        }
        if cache.len() < MAX_CACHED {
            cache.insert(digest, CachedReview { expires, outcome });
        }
    }
}
