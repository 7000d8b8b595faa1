//! The life of a stream.

use prost::Message as _;
use tonic::Code;

use super::*;

#[tokio::test]
async fn a_snapshot_comes_first_and_then_what_changes() {
    let rig = Rig::new().await;
    let first = pods([pod("u1", b"1"), pod("u2", b"2")]);
    rig.desire(hosts([("h1", Arc::clone(&first))]));
    let mut agent = rig.agent(&rig.reviewer.agent("h1")).await.unwrap();
    let update = agent.next().await.unwrap();
    assert_eq!((update.version, update.generation, update.snapshot, update.more), (1, 1, true, false));
    assert_eq!(agent.until(&first).await, 0);

    // Another host's change is not this one's business; the next update is about u2 and u3 only.
    rig.desire(hosts([("h1", first), ("h2", pods([pod("u9", b"9")]))]));
    let second = pods([pod("u1", b"1"), pod("u2", b"new"), pod("u3", b"3")]);
    rig.desire(hosts([("h1", Arc::clone(&second))]));
    let update = agent.next().await.unwrap();
    assert_eq!((update.generation, update.snapshot, update.pods.len(), update.removed.len()), (2, false, 2, 0));
    assert_eq!(agent.until(&second).await, 0);

    // A host without any pod is no longer in the map.
    rig.desire(hosts([]));
    let update = agent.next().await.unwrap();
    assert_eq!(
        (update.generation, update.pods.len(), update.removed),
        (3, 0, vec!["u1".into(), "u2".into(), "u3".into()])
    );
}

#[tokio::test]
async fn what_an_agent_says_reaches_reconcile_and_its_going_too() {
    let mut rig = Rig::new().await;
    rig.desire(hosts([("h1", pods([pod("u1", b"1")])), ("h2", pods([pod("u2", b"2")]))]));
    let mut agent = rig.agent(&rig.reviewer.agent("h1")).await.unwrap();
    agent.next().await.unwrap();
    rig.reported("h1 is here", |reports| reports.hosts.get("h1").is_some_and(|host| host.connected)).await;

    let report = |uid: &str| PodReport {
        uid: uid.to_owned(),
        node: "tezos/rolling".to_owned(),
        messages: 5,
        ..Default::default()
    };
    agent.say(1, vec![report("u1"), report("u2")]).await;
    let reports = rig.reported("h1's status", |reports| reports.hosts["h1"].status.generation == 1).await;
    assert_eq!(reports.hosts["h1"].status.pods, vec![report("u1")], "u2 is on another host");
    assert!(!reports.hosts.contains_key("h2"));
    let (since, heard) = (reports.hosts["h1"].since_ns, reports.hosts["h1"].heard_ns);
    assert!(since > 0 && heard >= since);

    drop(agent);
    let reports = rig.reported("h1 is gone", |reports| !reports.hosts["h1"].connected).await;
    assert!(reports.hosts["h1"].since_ns > since);
    assert_eq!(reports.hosts["h1"].status.pods, vec![report("u1")], "its last word stays");
    let page = page(&rig.metrics);
    assert!(page.contains("config_stream_ignored_reports_total 1"), "{page}");
    assert!(page.contains("config_stream_updates_total{to=\"agent\"} 1"), "{page}");
}

fn page(metrics: &Metrics) -> String {
    let mut registry = prometheus_client::registry::Registry::default();
    metrics.register(&mut registry);
    let mut page = String::new();
    prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
    page
}

#[tokio::test]
async fn a_stream_ends_with_its_token() {
    let rig = Rig::new().await;
    // On a slow machine a token may expire before its first call comes through.
    for seconds in [2, 4, 8, 16, 32] {
        let token = rig.reviewer.issue(AGENT, Some("h1"), seconds);
        let Ok(mut agent) = rig.agent(&token).await else { continue };
        if agent.next().await.is_err() {
            continue;
        }
        let status = agent.end().await;
        assert_eq!(status.code(), Code::Unauthenticated);
        assert!(status.message().contains("has expired"), "{}", status.message());
        let status = rig.agent(&token).await.err().expect("a remembered review does not outlive the token");
        assert_eq!(status.code(), Code::Unauthenticated);
        rig.agent(&rig.reviewer.agent("h1")).await.unwrap().next().await.unwrap();
        return;
    }
    panic!("no call came through in 32 seconds");
}

#[tokio::test]
async fn only_the_leader_serves() {
    let mut rig = Rig::new().await;
    rig.serving.send_replace(false);
    let token = rig.reviewer.agent("h1");
    let status = rig.agent(&token).await.err().unwrap();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(rig.reviewer.asked.load(Ordering::Relaxed), 0, "nothing is asked of the API server");

    rig.serving.send_replace(true);
    let mut agent = rig.agent(&token).await.unwrap();
    agent.next().await.unwrap();
    rig.reported("h1 is here", |reports| reports.hosts.contains_key("h1")).await;
    rig.serving.send_replace(false);
    assert_eq!(agent.end().await.code(), Code::Unavailable);
    rig.reported("nothing is known any more", |reports| reports.hosts.is_empty()).await;
}

#[tokio::test]
async fn of_two_streams_of_a_host_the_newer_wins() {
    let mut rig = Rig::new().await;
    let token = rig.reviewer.agent("h1");
    let mut old = rig.agent(&token).await.unwrap();
    old.next().await.unwrap();
    let mut other = rig.agent(&rig.reviewer.agent("h2")).await.unwrap();
    other.next().await.unwrap();
    let mut new = rig.agent(&token).await.unwrap();
    new.next().await.unwrap();
    let status = old.end().await;
    assert_eq!(status.code(), Code::Aborted, "{}", status.message());
    drop(old);
    new.say(1, Vec::new()).await;
    let reports = rig.reported("the newer's word", |reports| reports.hosts["h1"].status.generation == 1).await;
    assert!(reports.hosts["h1"].connected && reports.hosts["h2"].connected);
}

#[tokio::test]
async fn a_stopping_operator_ends_its_streams() {
    let rig = Rig::new().await;
    let mut agent = rig.agent(&rig.reviewer.agent("h1")).await.unwrap();
    agent.next().await.unwrap();
    rig.stop.cancel();
    assert_eq!(agent.end().await.code(), Code::Unavailable);
}

#[tokio::test]
async fn a_slow_client_gets_the_sum_and_not_the_history() {
    const CHANGES: usize = 500;
    let rig = Rig::new().await;
    let mut agent = rig.agent(&rig.reviewer.agent("h1")).await.unwrap();
    agent.next().await.unwrap();
    // It reads nothing while the rest of the world goes on; each change is 50 KB.
    let mut last = pods([]);
    for change in 0..CHANGES {
        let filler = vec![u8::try_from(change % 251).unwrap(); 50_000];
        last = pods([pod(&format!("u{}", change % 3), &filler)]);
        rig.desire(hosts([("h1", Arc::clone(&last))]));
        tokio::task::yield_now().await;
    }
    let updates = agent.until(&last).await;
    assert!(updates < CHANGES / 4, "{updates} updates for {CHANGES} changes");
}

#[tokio::test]
async fn a_large_snapshot_comes_in_parts_that_fit() {
    let rig = Rig::new().await;
    let mut all: Vec<_> = (0..60).map(|at| pod(&format!("u{at:02}"), &vec![7; 60_000])).collect();
    rig.desire(hosts([("h1", pods(all.clone()))]));
    let mut agent = rig.agent(&rig.reviewer.agent("h1")).await.unwrap();
    let mut parts = 0;
    loop {
        let part = agent.next().await.unwrap();
        assert!(part.encoded_len() <= 1 << 20, "{} bytes", part.encoded_len());
        assert_eq!((part.snapshot, part.generation), (true, 1));
        parts += 1;
        if !part.more {
            break;
        }
        assert!(agent.pods.is_empty(), "nothing is applied before the last part");
    }
    assert!(parts >= 4, "{parts} parts");
    assert_eq!(agent.until(&pods(all.clone())).await, 0);

    // An identity that is none does not fill the frame, and does not stop the rest.
    all.push(pod("u99", &vec![7; 3 << 20]));
    rig.desire(hosts([("h1", pods(all))]));
    let update = agent.next().await.unwrap();
    let reason = Identity::IdentityMissing("the identity is longer than 64 KiB".to_owned());
    assert_eq!(update.pods[0].identity, Some(reason));
}
