//! Token reviews, with limits on what a caller without a valid token can make the API server do.
//!
//! ```text
//! token ─▶ expired? ─▶ under review already? wait for it ─▶ permit of the peer ─▶ TokenReview
//! ```
//!
//! Readers and agents each have an instance of their own.

use std::{net::IpAddr, sync::Arc, time::Duration};

use chainscope_tls::reviews::{PeerPermits, PeerScope, UnderReview};
use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use sha2::{Digest as _, Sha256};

use super::review::{Identity, ReviewError, Reviewer, expiry};
use crate::clock;

/// How far the clock of the API server may be behind.
const CLOCK_SKEW: Duration = Duration::from_secs(60);

type Answer = Result<Option<Arc<Identity>>, ReviewError>;
type Review = Shared<BoxFuture<'static, Answer>>;

/// Reviews tokens for one audience.
pub(crate) struct TokenReviews {
    reviewer: Arc<dyn Reviewer>,
    audience: Option<&'static str>,
    under_review: UnderReview<Answer>,
    peers: PeerPermits,
}

impl TokenReviews {
    pub(crate) fn new(reviewer: Arc<dyn Reviewer>, audience: Option<&'static str>, scope: PeerScope) -> Self {
        Self { reviewer, audience, under_review: UnderReview::default(), peers: PeerPermits::new(scope) }
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
        self.under_review.join(Sha256::digest(token.as_bytes()).into(), || {
            let permit = peer.map(|peer| self.peers.acquire(Some(peer)));
            let (reviewer, audience, token) = (Arc::clone(&self.reviewer), self.audience, token.to_owned());
            async move {
                let _permit = match permit {
                    None => None,
                    Some(permit) => Some(permit.await.map_err(|error| ReviewError(error.to_string()))?),
                };
                Ok(reviewer.authenticate(&token, audience).await?.map(Arc::new))
            }
            .boxed()
        })
    }
}
