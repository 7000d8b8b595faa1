//! Limits on the reviews of bearer tokens that callers without a valid one can cause.
//!
//! A server joins the review of a token that is under way ([`UnderReview`]), and begins few at a time of unknown tokens from one
//! peer ([`PeerPermits`]): those wait for each other, not those of other peers for them.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Weak},
    time::Duration,
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared, WeakShared},
};
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// Maximum number of concurrent reviews of tokens from one peer. Further ones wait.
const MAX_REVIEWS_OF_PEER: usize = 4;
/// Maximum time that a review waits for those of the same peer.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);

/// SHA-256 of a token.
pub type TokenDigest = [u8; 32];

/// The tokens that are under review, each once.
pub struct UnderReview<T>(Mutex<HashMap<TokenDigest, WeakShared<BoxFuture<'static, T>>>>);

impl<T> Default for UnderReview<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> UnderReview<T> {
    /// The review of a token: the one under way, or the one that `begin` returns. It ends when nobody waits for it any more.
    pub fn join(
        &self,
        token: TokenDigest,
        begin: impl FnOnce() -> BoxFuture<'static, T>,
    ) -> Shared<BoxFuture<'static, T>> {
        let mut under_review = self.0.lock();
        if let Some(review) = under_review.get(&token).and_then(WeakShared::upgrade) {
            return review;
        }
        let review = begin().shared();
        under_review.retain(|_, review| review.upgrade().is_some());
        under_review.extend(review.downgrade().map(|weak| (token, weak)));
        review
    }
}

/// Too many tokens from one peer are under review.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many unknown tokens come from this address")]
pub struct TooManyReviews;

/// Permits to review tokens, some for each peer.
pub struct PeerPermits<K>(Mutex<HashMap<K, Weak<Semaphore>>>);

impl<K> Default for PeerPermits<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> PeerPermits<K> {
    /// Waits for a permit of the peer, 5 seconds at most.
    ///
    /// # Errors
    /// If other tokens of the peer are under review all that time.
    pub fn acquire(&self, peer: K) -> impl Future<Output = Result<OwnedSemaphorePermit, TooManyReviews>> + use<K> {
        let permits = self.permits(peer);
        // The semaphore is never closed.
        async move { timeout(PEER_TIMEOUT, permits.acquire_owned()).await.ok().and_then(Result::ok).ok_or(TooManyReviews) }
    }

    fn permits(&self, peer: K) -> Arc<Semaphore> {
        let mut peers = self.0.lock();
        if let Some(permits) = peers.get(&peer).and_then(Weak::upgrade) {
            return permits;
        }
        let permits = Arc::new(Semaphore::new(MAX_REVIEWS_OF_PEER));
        peers.retain(|_, permits| permits.strong_count() > 0);
        peers.insert(peer, Arc::downgrade(&permits));
        permits
    }
}
