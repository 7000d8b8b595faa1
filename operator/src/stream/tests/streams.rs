//! Contents and end of streams.

use prost::Message as _;
use tonic::Code;

use super::*;
use crate::clock::monotonic_ns;

#[tokio::test]
async fn a_snapshot_is_followed_by_changes() {
    let service = TestService::new().await;
    let first = pods([pod("u1", b"1"), pod("u2", b"2")]);
    service.desire(hosts([("h1", Arc::clone(&first))]));
    let mut agent = service.agent(&service.reviewer.agent("h1")).await.unwrap();
    let update = agent.next().await.unwrap();
    assert_eq!((update.version, update.generation, update.snapshot, update.more), (1, 1, true, false));
    assert_eq!(agent.until(&first).await, 0);

    // The change of another host is not sent; the next update contains u2 and u3 only.
    service.desire(hosts([("h1", first), ("h2", pods([pod("u9", b"9")]))]));
    let second = pods([pod("u1", b"1"), pod("u2", b"new"), pod("u3", b"3")]);
    service.desire(hosts([("h1", Arc::clone(&second))]));
    let update = agent.next().await.unwrap();
    assert_eq!((update.generation, update.snapshot, update.pods.len(), update.removed.len()), (2, false, 2, 0));
    assert_eq!(agent.until(&second).await, 0);

    // A host without pods is absent from the map.
    service.desire(hosts([]));
    let update = agent.next().await.unwrap();
    assert_eq!(
        (update.generation, update.pods.len(), update.removed),
        (3, 0, vec!["u1".into(), "u2".into(), "u3".into()])
    );
}

#[tokio::test]
async fn reports_and_disconnects_are_published() {
    let began = monotonic_ns();
    let mut service = TestService::new().await;
    service.desire(hosts([("h1", pods([pod("u1", b"1")])), ("h2", pods([pod("u2", b"2")]))]));
    let mut agent = service.agent(&service.reviewer.agent("h1")).await.unwrap();
    agent.next().await.unwrap();
    service.reported("h1 connected", |reports| reports.hosts.get("h1").is_some_and(|host| host.connected)).await;

    let report = |uid: &str| PodReport {
        uid: uid.to_owned(),
        node: "tezos/rolling".to_owned(),
        messages: 5,
        ..Default::default()
    };
    agent.report(1, vec![report("u1"), report("u2")]).await;
    let reports = service.reported("h1's status", |reports| reports.hosts["h1"].status.generation == 1).await;
    assert_eq!(reports.hosts["h1"].status.pods, vec![report("u1")], "u2 is on another host");
    assert!(!reports.hosts.contains_key("h2"));
    assert!((began..=monotonic_ns()).contains(&reports.hosts["h1"].last_report_ns), "a time of the monotonic clock");

    drop(agent);
    let reports = service.reported("h1 disconnected", |reports| !reports.hosts["h1"].connected).await;
    assert_eq!(reports.hosts["h1"].status.pods, vec![report("u1")], "the last status is kept");
    let page = page(&service.metrics);
    assert!(page.contains("config_stream_ignored_reports_total 1"), "{page}");
    assert!(page.contains("config_stream_updates_total{client=\"agent\"} 1"), "{page}");
}

#[tokio::test]
async fn a_stream_ends_when_its_token_expires() {
    let service = TestService::new().await;
    // On a slow machine a token may expire before its first call is served.
    for seconds in [2, 4, 8, 16, 32] {
        let token = service.reviewer.issue(AGENT, Some("h1"), seconds);
        let Ok(mut agent) = service.agent(&token).await else { continue };
        if agent.next().await.is_err() {
            continue;
        }
        let status = agent.end().await;
        assert_eq!(status.code(), Code::Unauthenticated);
        assert!(status.message().contains("has expired"), "{}", status.message());
        let status = service.agent(&token).await.err().expect("a cached review does not outlive the token");
        assert_eq!(status.code(), Code::Unauthenticated);
        service.agent(&service.reviewer.agent("h1")).await.unwrap().next().await.unwrap();
        return;
    }
    panic!("no call was served within 32 seconds");
}

#[tokio::test]
async fn only_the_leader_serves() {
    let mut service = TestService::new().await;
    service.serving.send_replace(false);
    let token = service.reviewer.agent("h1");
    let status = service.agent(&token).await.err().unwrap();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(service.reviewer.reviews(), 0, "no token is reviewed");

    service.serving.send_replace(true);
    let mut agent = service.agent(&token).await.unwrap();
    agent.next().await.unwrap();
    service.reported("h1 connected", |reports| reports.hosts.contains_key("h1")).await;
    service.serving.send_replace(false);
    assert_eq!(agent.end().await.code(), Code::Unavailable);
    service.reported("reports are discarded", |reports| reports.hosts.is_empty()).await;
}

#[tokio::test]
async fn a_newer_stream_of_a_host_replaces_the_older() {
    let mut service = TestService::new().await;
    let token = service.reviewer.agent("h1");
    let mut old = service.agent(&token).await.unwrap();
    old.next().await.unwrap();
    let mut other = service.agent(&service.reviewer.agent("h2")).await.unwrap();
    other.next().await.unwrap();
    let mut new = service.agent(&token).await.unwrap();
    new.next().await.unwrap();
    let status = old.end().await;
    assert_eq!(status.code(), Code::Aborted, "{}", status.message());
    drop(old);
    new.report(1, Vec::new()).await;
    let reports =
        service.reported("a report of the newer stream", |reports| reports.hosts["h1"].status.generation == 1).await;
    assert!(reports.hosts["h1"].connected && reports.hosts["h2"].connected);
}

#[tokio::test]
async fn shutdown_ends_the_streams() {
    let service = TestService::new().await;
    let mut agent = service.agent(&service.reviewer.agent("h1")).await.unwrap();
    agent.next().await.unwrap();
    service.stop.cancel();
    assert_eq!(agent.end().await.code(), Code::Unavailable);
}

#[tokio::test]
async fn a_slow_client_receives_merged_changes() {
    const CHANGES: usize = 500;
    let service = TestService::new().await;
    let mut agent = service.agent(&service.reviewer.agent("h1")).await.unwrap();
    agent.next().await.unwrap();
    // The client does not read while the state changes; each change is 50 KB.
    let mut last = pods([]);
    for change in 0..CHANGES {
        let filler = vec![u8::try_from(change % 251).unwrap(); 50_000];
        last = pods([pod(&format!("u{}", change % 3), &filler)]);
        service.desire(hosts([("h1", Arc::clone(&last))]));
        tokio::task::yield_now().await;
    }
    let updates = agent.until(&last).await;
    assert!(updates < CHANGES / 4, "{updates} updates for {CHANGES} changes");
}

#[tokio::test]
async fn a_large_snapshot_is_split_into_parts() {
    let service = TestService::new().await;
    let mut all: Vec<_> = (0..60).map(|at| pod(&format!("u{at:02}"), &vec![7; 60_000])).collect();
    service.desire(hosts([("h1", pods(all.clone()))]));
    let mut agent = service.agent(&service.reviewer.agent("h1")).await.unwrap();
    let mut parts = 0;
    loop {
        let part = agent.next().await.unwrap();
        assert!(part.encoded_len() <= 1 << 20, "{} bytes", part.encoded_len());
        assert_eq!((part.snapshot, part.generation), (true, 1));
        parts += 1;
        if !part.more {
            break;
        }
        assert!(agent.pods.is_empty(), "applied before the last part");
    }
    assert!(parts >= 4, "{parts} parts");
    assert_eq!(agent.until(&pods(all.clone())).await, 0);

    // An oversized identity is replaced by an error.
    all.push(pod("u99", &vec![7; 3 << 20]));
    service.desire(hosts([("h1", pods(all))]));
    let update = agent.next().await.unwrap();
    let reason = Identity::IdentityMissing("the identity is longer than 64 KiB".to_owned());
    assert_eq!(update.pods[0].identity, Some(reason));
}
