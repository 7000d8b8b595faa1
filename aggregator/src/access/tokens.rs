//! Token reviews, with limits on what a caller without a valid token can make the API server do.
//!
//! ```text
//! token ─▶ expired? ─▶ under review already? wait for it ─▶ permit of the peer ─▶ TokenReview
//! ```
//!
//! Readers and agents each have an instance of their own.

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
use sha2::{Digest as _, Sha256};
use tokio::{sync::Semaphore, time::timeout};

use super::review::{Identity, ReviewError, Reviewer, expiry};
use crate::clock;

/// Maximum number of concurrent reviews of tokens from one peer. Further ones wait.
const MAX_REVIEWS_OF_PEER: usize = 4;

/// Maximum time that a review waits for those of the same peer.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);

/// How far the clock of the API server may be behind.
const CLOCK_SKEW: Duration = Duration::from_secs(60);

type Answer = Result<Option<Arc<Identity>>, ReviewError>;
type Review = Shared<BoxFuture<'static, Answer>>;
type TokenDigest = [u8; 32];

/// Reviews tokens for one audience.
pub(crate) struct TokenReviews {
    reviewer: Arc<dyn Reviewer>,
    audience: Option<&'static str>,
    under_review: Mutex<HashMap<TokenDigest, WeakShared<BoxFuture<'static, Answer>>>>,
    peers: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
}

impl TokenReviews {
    pub(crate) fn new(reviewer: Arc<dyn Reviewer>, audience: Option<&'static str>) -> Self {
        Self { reviewer, audience, under_review: Mutex::default(), peers: Mutex::default() }
    }

    /// The user of a token that `peer` sent; none if the token is not valid.
    pub(crate) async fn authenticate(&self, token: &str, peer: Option<IpAddr>) -> Answer {
        if expiry(token).and_then(|end| end.checked_add(CLOCK_SKEW)).is_some_and(|end| end < clock::now()) {
            return Ok(None);
        }
        self.review(token, peer).await
    }

    /// The review of the token: the one under way, or a new one.
    fn review(&self, token: &str, peer: Option<IpAddr>) -> Review {
        let digest: TokenDigest = Sha256::digest(token.as_bytes()).into();
        let mut under_review = self.under_review.lock();
        if let Some(review) = under_review.get(&digest).and_then(WeakShared::upgrade) {
            return review;
        }
        let (reviewer, audience, token) = (Arc::clone(&self.reviewer), self.audience, token.to_owned());
        let permits = peer.map(|peer| self.permits(peer));
        let review = async move {
            let _permit = match permits {
                None => None,
                Some(permits) => match timeout(PEER_TIMEOUT, permits.acquire_owned()).await {
                    Ok(permit) => permit.ok(),
                    Err(_) => return Err(ReviewError("too many unknown tokens come from this address".to_owned())),
                },
            };
            Ok(reviewer.authenticate(&token, audience).await?.map(Arc::new))
        };
        let review = review.boxed().shared();
        under_review.retain(|_, review| review.upgrade().is_some());
        under_review.extend(review.downgrade().map(|weak| (digest, weak)));
        review
    }

    fn permits(&self, peer: IpAddr) -> Arc<Semaphore> {
        let mut peers = self.peers.lock();
        let peer = network(peer);
        if let Some(permits) = peers.get(&peer).and_then(Weak::upgrade) {
            return permits;
        }
        let permits = Arc::new(Semaphore::new(MAX_REVIEWS_OF_PEER));
        peers.retain(|_, permits| permits.strong_count() > 0);
        peers.insert(peer, Arc::downgrade(&permits));
        permits
    }
}

/// The address, of IPv6 the /64 network: a host has all of it.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into()),
        address => address,
    }
}
