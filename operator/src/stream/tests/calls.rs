//! Who may call, and who may not.

use chainscope_proto::v1::{CatalogRequest, HostStatus, host_report};
use prost::Message as _;
use tonic::Code;

use super::*;

async fn refusal(rig: &Rig, token: &str) -> (Code, String) {
    let status = match rig.agent(token).await {
        Ok(mut agent) => agent.end().await,
        Err(status) => status,
    };
    (status.code(), status.message().to_owned())
}

async fn catalog(rig: &Rig, token: &str) -> Result<chainscope_proto::v1::CatalogUpdate, Status> {
    let hello = CatalogRequest { least_version: 1, greatest_version: 2, build: String::new() };
    let mut updates = rig.client().await.catalog(request(hello, token)).await?.into_inner();
    timeout(PATIENCE, updates.message()).await.unwrap().map(Option::unwrap)
}

#[tokio::test]
async fn a_host_is_told_about_its_own_pods_only() {
    let rig = Rig::new().await;
    rig.desire(hosts([("h1", pods([pod("u1", b"first secret")])), ("h2", pods([pod("u2", b"second secret")]))]));
    for (host, own, other) in [("h1", "first secret", "second secret"), ("h2", "second secret", "first secret")] {
        let mut agent = rig.agent(&rig.reviewer.agent(host)).await.unwrap();
        let update = agent.next().await.unwrap().encode_to_vec();
        let holds = |text: &str| update.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(holds(own) && !holds(other));
    }
    let mut stranger = rig.agent(&rig.reviewer.agent("h3")).await.unwrap();
    let update = stranger.next().await.unwrap();
    assert!(update.snapshot && update.pods.is_empty() && update.generation == 1);
    // Neither a host's name that contains another's nor one with odd characters opens a door.
    for host in ["h1 ", "h", "h1/../h2", "*"] {
        let mut agent = rig.agent(&rig.reviewer.agent(host)).await.unwrap();
        assert!(agent.next().await.unwrap().pods.is_empty(), "{host}");
    }
}

#[tokio::test]
async fn the_catalog_has_no_identity_and_is_the_aggregators() {
    let rig = Rig::new().await;
    rig.desire(hosts([("h1", pods([pod("u1", b"first secret")]))]));
    let update = catalog(&rig, &rig.reviewer.issue(AGGREGATOR, None, 3600)).await.unwrap();
    assert_eq!((update.nodes.len(), update.nodes[0].keep_rows, update.snapshot), (1, Some(7), true));
    let bytes = update.encode_to_vec();
    assert!(!bytes.windows(6).any(|window| window == b"secret"));

    let status = catalog(&rig, &rig.reviewer.agent("h1")).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(status.message().contains("cs-agent is not the account of the aggregator"), "{}", status.message());
    let (code, message) = refusal(&rig, &rig.reviewer.issue(AGGREGATOR, Some("h1"), 3600)).await;
    assert_eq!(code, Code::PermissionDenied, "{message}");
}

#[tokio::test]
async fn tokens_that_prove_nothing_are_refused_with_the_reason() {
    let rig = Rig::new().await;
    let other_audience = Review { username: AGENT.to_owned(), ..Review::default() };
    let granted_nothing = jwt(AUDIENCE, 3600, 1000);
    let broken = jwt(AUDIENCE, 3600, 1001);
    rig.reviewer.known.lock().insert(granted_nothing.clone(), Ok(other_audience));
    rig.reviewer.known.lock().insert(broken.clone(), Err(ReviewError::Unavailable("connection refused".to_owned())));
    let foreign = rig.reviewer.issue("system:serviceaccount:other:cs-agent", Some("h1"), 3600);
    for (token, code, reason) in [
        (String::new(), Code::Unauthenticated, "no bearer token"),
        ("rubbish".to_owned(), Code::Unauthenticated, "not a service account's token"),
        (jwt("https://kubernetes.default.svc", 3600, 2001), Code::Unauthenticated, "not for the audience"),
        (jwt(AUDIENCE, 0, 2002), Code::Unauthenticated, "has expired"),
        (jwt(AUDIENCE, 3600, 2003), Code::Unauthenticated, "never issued"),
        (granted_nothing, Code::Unauthenticated, "not for the audience"),
        (broken, Code::Unavailable, "cannot be reviewed"),
        (foreign, Code::PermissionDenied, "is not the account of the agent"),
        (rig.reviewer.issue(AGENT, None, 3600), Code::PermissionDenied, "no node-name"),
        (rig.reviewer.issue(AGENT, Some(""), 3600), Code::PermissionDenied, "no node-name"),
    ] {
        let (found, message) = refusal(&rig, &token).await;
        assert_eq!(found, code, "{reason}: {message}");
        assert!(message.contains(reason), "{reason}: {message}");
        assert!(token.is_empty() || !message.contains(&token), "a token is not repeated");
    }
    assert_eq!(**rig.reports.borrow(), Reports::default(), "nobody got as far as being a host");
}

#[tokio::test]
async fn a_token_is_reviewed_once_a_minute_and_an_outage_not_remembered() {
    let rig = Rig::new().await;
    let token = rig.reviewer.agent("h1");
    let refused = jwt(AUDIENCE, 3600, 2007);
    for _ in 0..3 {
        rig.agent(&token).await.unwrap().next().await.unwrap();
        refusal(&rig, &refused).await;
        refusal(&rig, "rubbish that no review could accept").await;
    }
    // A remembered refusal is short: on a machine that hangs for ten seconds it is asked about again.
    assert!((2..=4).contains(&rig.reviewer.asked.load(Ordering::Relaxed)), "{:?}", rig.reviewer.asked);

    let late = rig.reviewer.agent("h2");
    let good = rig.reviewer.known.lock().insert(late.clone(), Err(ReviewError::Unavailable("down".to_owned())));
    assert_eq!(refusal(&rig, &late).await.0, Code::Unavailable);
    rig.reviewer.known.lock().insert(late.clone(), good.unwrap());
    rig.agent(&late).await.unwrap().next().await.unwrap();
}

#[tokio::test]
async fn versions_that_have_nothing_in_common_are_told_which_side_to_upgrade() {
    let rig = Rig::new().await;
    let token = rig.reviewer.agent("h1");
    let mut client = rig.client().await;
    // One version newer, that still speaks ours.
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
fn neighbouring_versions_work_together() {
    use super::super::negotiate;
    assert_eq!(negotiate((1, 2), (1, 1), "agent").unwrap(), 1);
    assert_eq!(negotiate((1, 2), (2, 3), "agent").unwrap(), 2);
    assert_eq!(negotiate((2, 3), (1, 2), "agent").unwrap(), 2);
    assert_eq!(negotiate((1, 2), (1, 9), "agent").unwrap(), 2);
    assert!(negotiate((1, 2), (3, 4), "agent").unwrap_err().message().ends_with("upgrade the operator"));
    assert!(negotiate((2, 3), (1, 1), "agent").unwrap_err().message().ends_with("upgrade the agent"));
}
