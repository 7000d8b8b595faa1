//! Limits on the reviews of bearer tokens that callers without a valid one can cause.
//!
//! A server joins the review of a token that is under way ([`UnderReview`]), and begins few at a time of unknown tokens from one
//! peer ([`PeerPermits`]): those wait for each other, not those of other peers for them.

use std::{
    collections::HashMap,
    net::IpAddr,
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
    /// The review of a token: the one under way, or the one that `begin` returns. It is cancelled when no
    /// caller waits for it any more.
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

/// What counts as one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerScope {
    /// An address: the pods of a host share its /64 network of IPv6 with its agent.
    Address,
    /// An address of IPv4, a /64 network of IPv6: a host of the Internet has all of it.
    Network,
}

impl PeerScope {
    /// The peer that has this address.
    fn peer(self, address: IpAddr) -> IpAddr {
        match (self, address.to_canonical()) {
            (Self::Network, IpAddr::V6(address)) => IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into()),
            (_, address) => address,
        }
    }
}

/// Too many tokens from one peer are under review.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many unknown tokens come from this address")]
pub struct TooManyReviews;

/// Permits to review tokens, some for each peer.
pub struct PeerPermits {
    scope: PeerScope,
    /// Callers without an address are one peer.
    peers: Mutex<HashMap<Option<IpAddr>, Weak<Semaphore>>>,
}

impl PeerPermits {
    /// Permits for peers of this scope.
    #[must_use]
    pub fn new(scope: PeerScope) -> Self {
        Self { scope, peers: Mutex::default() }
    }

    /// Waits for a permit of the peer that has this address, 5 seconds at most.
    ///
    /// # Errors
    /// If other tokens of the peer are under review all that time.
    pub fn acquire(
        &self,
        address: Option<IpAddr>,
    ) -> impl Future<Output = Result<OwnedSemaphorePermit, TooManyReviews>> + use<> {
        let permits = self.permits(address.map(|address| self.scope.peer(address)));
        // The semaphore is never closed.
        async move { timeout(PEER_TIMEOUT, permits.acquire_owned()).await.ok().and_then(Result::ok).ok_or(TooManyReviews) }
    }

    fn permits(&self, peer: Option<IpAddr>) -> Arc<Semaphore> {
        let mut peers = self.peers.lock();
        if let Some(permits) = peers.get(&peer).and_then(Weak::upgrade) {
            return permits;
        }
        let permits = Arc::new(Semaphore::new(MAX_REVIEWS_OF_PEER));
        peers.retain(|_, permits| permits.strong_count() > 0);
        peers.insert(peer, Arc::downgrade(&permits));
        permits
    }
}

#[cfg(test)]
mod tests {
    use super::PeerScope;

    #[test]
    fn neighbours_are_one_peer_by_network_only() {
        for (one, other, is_one_address, is_one_network) in [
            ("2001:db8::1", "2001:db8::2", false, true),
            ("2001:db8::1", "2001:db8:0:1::1", false, false),
            ("10.0.0.1", "10.0.0.2", false, false),
            ("10.0.0.1", "::ffff:10.0.0.1", true, true),
        ] {
            let [one, other] = [one, other].map(|address| address.parse().unwrap());
            let is_one = |scope: PeerScope| scope.peer(one) == scope.peer(other);
            assert_eq!(
                (is_one(PeerScope::Address), is_one(PeerScope::Network)),
                (is_one_address, is_one_network),
                "{one}"
            );
        }
    }
}
