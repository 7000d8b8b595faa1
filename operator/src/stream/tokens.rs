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
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use chainscope_hygiene::{EscapedTruncated, warn_limited};
use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared, WeakShared},
};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::{sync::Semaphore, time::timeout};

use super::{
    auth::{Review, ReviewError, ReviewToken},
    metrics::Metrics,
};

/// Lifetime of a cached acceptance.
const ACCEPTED_TTL: Duration = Duration::from_secs(60);
/// Lifetime of a cached refusal.
const REFUSED_TTL: Duration = Duration::from_secs(10);
/// Maximum number of cached reviews.
const MAX_CACHED: usize = 8192;
/// Maximum number of concurrent reviews.
const MAX_REVIEWS: usize = 32;
/// Maximum number of concurrent reviews of tokens from one peer. Further ones wait.
const MAX_REVIEWS_OF_PEER: usize = 4;
/// Maximum time that a review waits for those of the same peer.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a review, including the wait for those of other peers. With [`PEER_TIMEOUT`] less than clients wait for the
/// first message of a stream.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

type TokenDigest = [u8; 32];
type Outcome = Result<Arc<Review>, ReviewError>;
type ReviewFuture = BoxFuture<'static, Outcome>;

/// Reviews tokens.
pub(super) struct TokenReviews {
    reviewer: Arc<dyn ReviewToken>,
    cache: Mutex<HashMap<TokenDigest, CachedReview>>,
    under_review: Mutex<HashMap<TokenDigest, WeakShared<ReviewFuture>>>,
    permits: Semaphore,
    /// Permits of each peer with reviews. Calls without an address share those of `None`.
    peers: Mutex<HashMap<Option<IpAddr>, Weak<Semaphore>>>,
    metrics: Metrics,
}

struct CachedReview {
    expires: Instant,
    outcome: Outcome,
}

impl TokenReviews {
    pub(super) fn new(reviewer: Arc<dyn ReviewToken>, metrics: Metrics) -> Self {
        let (cache, under_review, peers) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { reviewer, cache, under_review, permits: Semaphore::new(MAX_REVIEWS), peers, metrics }
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
        let mut under_review = self.under_review.lock();
        if let Some(review) = under_review.get(&digest).and_then(WeakShared::upgrade) {
            return review;
        }
        let (reviews, token, permits) = (Arc::clone(self), token.to_owned(), self.permits_of(peer));
        let review = async move { reviews.perform(digest, &token, permits).await }.boxed().shared();
        under_review.retain(|_, review| review.upgrade().is_some());
        under_review.extend(review.downgrade().map(|weak| (digest, weak)));
        review
    }

    /// The permits of a peer. It is one address: the pods of a host share the /64 network of IPv6 with its agent.
    fn permits_of(&self, peer: Option<IpAddr>) -> Arc<Semaphore> {
        let peer = peer.map(|address| address.to_canonical());
        let mut peers = self.peers.lock();
        if let Some(permits) = peers.get(&peer).and_then(Weak::upgrade) {
            return permits;
        }
        let permits = Arc::new(Semaphore::new(MAX_REVIEWS_OF_PEER));
        peers.retain(|_, permits| permits.strong_count() > 0);
        peers.insert(peer, Arc::downgrade(&permits));
        permits
    }

    /// Reviews a token when the limits allow it; caches the API server's answer. The semaphores are never closed.
    async fn perform(&self, digest: TokenDigest, token: &str, permits: Arc<Semaphore>) -> Outcome {
        let permit = timeout(PEER_TIMEOUT, permits.acquire_owned()).await;
        let _permit_of_peer = permit.map_err(|_| ReviewError::TooManyReviews)?;
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
