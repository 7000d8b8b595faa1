//! Authentication and version negotiation.

use chainscope_proto::v1::{CatalogRequest, HostStatus, host_report};
use prost::Message as _;
use tonic::Code;

use super::*;

async fn refusal(service: &TestService, token: &str) -> (Code, String) {
    let status = match service.agent(token).await {
        Ok(mut agent) => agent.end().await,
        Err(status) => status,
    };
    (status.code(), status.message().to_owned())
}

async fn catalog(service: &TestService, token: &str) -> Result<chainscope_proto::v1::CatalogUpdate, Status> {
    let hello = CatalogRequest { least_version: 1, greatest_version: 2, build: String::new() };
    let mut updates = service.client().await.catalog(request(hello, token)).await?.into_inner();
    timeout(TIMEOUT, updates.message()).await.unwrap().map(Option::unwrap)
}

#[tokio::test]
async fn an_agent_receives_the_pods_of_its_host_only() {
    let service = TestService::new().await;
    service.desire(hosts([("h1", pods([pod("u1", b"first secret")])), ("h2", pods([pod("u2", b"second secret")]))]));
    for (host, own, other) in [("h1", "first secret", "second secret"), ("h2", "second secret", "first secret")] {
        let mut agent = service.agent(&service.reviewer.agent(host)).await.unwrap();
        let update = agent.next().await.unwrap().encode_to_vec();
        let holds = |text: &str| update.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(holds(own) && !holds(other));
    }
    let mut stranger = service.agent(&service.reviewer.agent("h3")).await.unwrap();
    let update = stranger.next().await.unwrap();
    assert!(update.snapshot && update.pods.is_empty() && update.generation == 1);
    // Host names are compared exactly.
    for host in ["h1 ", "h", "h1/../h2", "*"] {
        let mut agent = service.agent(&service.reviewer.agent(host)).await.unwrap();
        assert!(agent.next().await.unwrap().pods.is_empty(), "{host}");
    }
}

#[tokio::test]
async fn the_catalog_has_no_identities_and_is_for_the_aggregator_only() {
    let service = TestService::new().await;
    service.desire(hosts([("h1", pods([pod("u1", b"first secret")]))]));
    let update = catalog(&service, &service.reviewer.issue(AGGREGATOR, None, 3600)).await.unwrap();
    assert_eq!((update.nodes.len(), update.nodes[0].keep_rows, update.snapshot), (1, Some(7), true));
    let bytes = update.encode_to_vec();
    assert!(!bytes.windows(6).any(|window| window == b"secret"));

    let status = catalog(&service, &service.reviewer.agent("h1")).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(status.message().contains("cs-agent is not the ServiceAccount of the aggregator"), "{}", status.message());
    let (code, message) = refusal(&service, &service.reviewer.issue(AGGREGATOR, Some("h1"), 3600)).await;
    assert_eq!(code, Code::PermissionDenied, "{message}");
}

#[tokio::test]
async fn invalid_tokens_are_refused_with_the_reason() {
    let service = TestService::new().await;
    let other_audience = Review { username: AGENT.to_owned(), ..Review::default() };
    let granted_nothing = jwt(AUDIENCE, 3600, 1000);
    let broken = jwt(AUDIENCE, 3600, 1001);
    service.reviewer.known.lock().insert(granted_nothing.clone(), Ok(other_audience));
    service
        .reviewer
        .known
        .lock()
        .insert(broken.clone(), Err(ReviewError::Unavailable("connection refused".to_owned())));
    let foreign = service.reviewer.issue("system:serviceaccount:other:cs-agent", Some("h1"), 3600);
    for (token, code, reason) in [
        (String::new(), Code::Unauthenticated, "no bearer token"),
        ("garbage".to_owned(), Code::Unauthenticated, "not a service-account token"),
        (jwt("https://kubernetes.default.svc", 3600, 2001), Code::Unauthenticated, "not for the audience"),
        (jwt(AUDIENCE, 0, 2002), Code::Unauthenticated, "has expired"),
        (jwt(AUDIENCE, 3600, 2003), Code::Unauthenticated, "never issued"),
        (granted_nothing, Code::Unauthenticated, "not for the audience"),
        (broken, Code::Unavailable, "cannot be reviewed"),
        (foreign, Code::PermissionDenied, "is not the ServiceAccount of the agent"),
        (service.reviewer.issue(AGENT, None, 3600), Code::PermissionDenied, "no node-name"),
        (service.reviewer.issue(AGENT, Some(""), 3600), Code::PermissionDenied, "no node-name"),
    ] {
        let (found, message) = refusal(&service, &token).await;
        assert_eq!(found, code, "{reason}: {message}");
        assert!(message.contains(reason), "{reason}: {message}");
        assert!(token.is_empty() || !message.contains(&token), "the message contains the token");
    }
    assert_eq!(**service.reports.borrow(), Reports::default(), "no agent is registered");
}

#[tokio::test]
async fn reviews_are_cached_and_failures_are_not() {
    let service = TestService::new().await;
    let token = service.reviewer.agent("h1");
    let refused = jwt(AUDIENCE, 3600, 2007);
    for _ in 0..3 {
        service.agent(&token).await.unwrap().next().await.unwrap();
        refusal(&service, &refused).await;
        refusal(&service, "garbage that no review could accept").await;
    }
    // A refusal is cached for ten seconds only: on a slow machine it may be reviewed again.
    assert!((2..=4).contains(&service.reviewer.reviews()), "{}", service.reviewer.reviews());

    let late = service.reviewer.agent("h2");
    let good = service.reviewer.known.lock().insert(late.clone(), Err(ReviewError::Unavailable("down".to_owned())));
    assert_eq!(refusal(&service, &late).await.0, Code::Unavailable);
    service.reviewer.known.lock().insert(late.clone(), good.unwrap());
    service.agent(&late).await.unwrap().next().await.unwrap();
}

#[tokio::test]
async fn incompatible_versions_are_refused_with_the_side_to_upgrade() {
    let service = TestService::new().await;
    let token = service.reviewer.agent("h1");
    let mut client = service.client().await;
    // A newer client that still supports this version.
    let mut newer = Agent::connect(&mut client, &token, (1, 2)).await.unwrap();
    assert_eq!(newer.next().await.unwrap().version, 1);
    for (versions, reason) in [((2, 3), "upgrade the operator"), ((0, 0), "upgrade the agent"), ((3, 1), "upgrade")] {
        let status = Agent::connect(&mut client, &token, versions).await.unwrap().end().await;
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains(reason), "{}", status.message());
    }
    let first = host_report::Report::Status(HostStatus::default());
    let status = Agent::open(&mut client, &token, first).await.unwrap().end().await;
    assert_eq!(status.code(), Code::InvalidArgument, "{}", status.message());
}

#[test]
fn adjacent_versions_are_compatible() {
    use super::super::service::negotiate;
    assert_eq!(negotiate((1, 2), (1, 1), "agent").unwrap(), 1);
    assert_eq!(negotiate((1, 2), (2, 3), "agent").unwrap(), 2);
    assert_eq!(negotiate((2, 3), (1, 2), "agent").unwrap(), 2);
    assert_eq!(negotiate((1, 2), (1, 9), "agent").unwrap(), 2);
    assert!(negotiate((1, 2), (3, 4), "agent").unwrap_err().message().ends_with("upgrade the operator"));
    assert!(negotiate((2, 3), (1, 1), "agent").unwrap_err().message().ends_with("upgrade the agent"));
}
