//! Limits of token reviews. Where the clock is paused, it advances only when every call waits.

use std::pin::pin;

use futures::future::join_all;
use tokio::{task::JoinSet, time::Instant};
use tonic::Code;

use super::*;
use crate::stream::auth::Authenticator;

/// Number of forged tokens: more than can be under review in all.
const FORGED: usize = 40;
/// Number of them under review, of one address.
const UNDER_REVIEW: usize = 4;
/// Shorter than the timeouts of reviews.
const SHORT: Duration = Duration::from_secs(1);

fn authenticator(reviewer: &Arc<FakeReviewer>, metrics: &Metrics) -> Authenticator {
    Authenticator::new(&accounts(), Arc::clone(reviewer) as Arc<dyn ReviewToken>, metrics.clone())
}

fn address(last: u8) -> Option<IpAddr> {
    Some(IpAddr::from([10, 0, 0, last]))
}

#[tokio::test(start_paused = true)]
async fn invalid_tokens_of_one_peer_are_refused_and_do_not_delay_others() {
    let (reviewer, metrics) = (Arc::new(FakeReviewer::default()), Metrics::default());
    let authenticator = authenticator(&reviewer, &metrics);
    reviewer.is_holding.send_replace(true);
    let forged: Vec<_> = (0..FORGED).map(|number| request((), &jwt(AUDIENCE, 3600, 3000 + number))).collect();
    let mut calls = pin!(join_all(forged.iter().map(|forged| authenticator.agent(forged.metadata(), address(1)))));
    assert!(timeout(SHORT, calls.as_mut()).await.is_err(), "reviews are held");

    let token = reviewer.agent("h1");
    let began = Instant::now();
    let agent = authenticator.agent(request((), &token).metadata(), address(2)).await.unwrap();
    assert_eq!((agent.host.as_str(), began.elapsed()), ("h1", Duration::ZERO));
    assert_eq!(reviewer.reviews(), UNDER_REVIEW + 1, "some of the first address, one of the second");
    // What is cached needs no review.
    authenticator.agent(request((), &token).metadata(), address(1)).await.unwrap();
    assert_eq!(began.elapsed(), Duration::ZERO);

    let refusals: Vec<Status> = calls.await.into_iter().filter_map(Result::err).collect();
    let refused = |code: Code| refusals.iter().filter(|status| status.code() == code).count();
    assert_eq!(refused(Code::ResourceExhausted), FORGED - UNDER_REVIEW, "{refusals:?}");
    assert_eq!(refused(Code::Unavailable), UNDER_REVIEW, "{refusals:?}");
    let reason = "the token was not reviewed: too many unknown tokens come from this address";
    assert!(refusals.iter().all(|status| status.code() == Code::Unavailable || status.message() == reason));
    assert_eq!(reviewer.reviews(), UNDER_REVIEW + 1, "refused tokens were not reviewed");
    let page = page(&metrics);
    let count = format!("config_stream_refusals_total{{reason=\"too many reviews\"}} {}", FORGED - UNDER_REVIEW);
    assert!(page.contains(&count), "{page}");

    // The address is not blocked for longer than its reviews take.
    authenticator.agent(request((), &reviewer.agent("h2")).metadata(), address(1)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_token_is_under_review_once() {
    let reviewer = Arc::new(FakeReviewer::default());
    let authenticator = authenticator(&reviewer, &Metrics::default());
    reviewer.is_holding.send_replace(true);
    let forged = request((), &jwt(AUDIENCE, 3600, 3000));
    let mut calls = pin!(join_all((1..=5).map(|last| authenticator.agent(forged.metadata(), address(last)))));
    assert!(timeout(SHORT, calls.as_mut()).await.is_err(), "reviews are held");
    reviewer.is_holding.send_replace(false);
    for outcome in calls.await {
        assert_eq!(outcome.unwrap_err().code(), Code::Unauthenticated);
    }
    assert_eq!(reviewer.reviews(), 1);
}

#[tokio::test]
async fn an_agent_connects_while_tokens_of_another_address_are_under_review() {
    let service = TestService::new().await;
    service.reviewer.is_holding.send_replace(true);
    let client = service.client().await;
    let mut forged = JoinSet::new();
    for number in 0..2 * UNDER_REVIEW {
        let (mut client, token) = (client.clone(), jwt(AUDIENCE, 3600, 3000 + number));
        forged.spawn(async move { Agent::connect(&mut client, &token, (1, 1)).await.err() });
    }
    let mut reviews = service.reviewer.reviews.subscribe();
    timeout(TIMEOUT, reviews.wait_for(|reviews| *reviews >= UNDER_REVIEW)).await.unwrap().unwrap();
    // A loopback listener sees the address that a client is bound to.
    let mut client = service.client_at(IpAddr::from([127, 0, 0, 2])).await;
    let mut agent = Agent::connect(&mut client, &service.reviewer.agent("h1"), (1, 1)).await.unwrap();
    agent.next().await.unwrap();
    assert_eq!(service.reviewer.reviews(), UNDER_REVIEW + 1);
}
