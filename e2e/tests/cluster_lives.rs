//! Restarts in a cluster: of the node's process and pod, of the agent, the aggregator and the operator.

use std::time::{Duration, Instant};

use chainscope_e2e::cluster::release::{RELEASE, find_condition, pods_of};
use chainscope_e2e::cluster::scene::{HANDSHAKE, NODE, Scene};
use chainscope_e2e::harness::stats::Account;
use chainscope_e2e::harness::wait;

/// Messages that each side sends.
const MESSAGES: u64 = 3_000;
/// Messages per second and side.
const RATE: u64 = 100;
/// Messages of one connection.
const ALL: u64 = all(MESSAGES);

const fn all(messages: u64) -> u64 {
    2 * messages + HANDSHAKE
}

/// Waits until each side has sent that many messages.
fn until_sent(scene: &Scene, messages: u64) {
    let is_sent = || (scene.transcript().len() as u64 >= 2 * messages).then_some(());
    wait::until_within(wait::WAIT_TIMEOUT * 3, "the conversation's end", is_sent);
}

#[test]
fn an_aggregator_that_is_killed_and_one_that_is_away_for_a_minute_cost_nothing() {
    // 75 seconds: the restart, and the minute without an aggregator.
    const MESSAGES: u64 = 75 * RATE;
    let scene = Scene::new(1, &[]);
    scene.play_load(MESSAGES, RATE);
    scene.until_count(500);
    scene.cluster.kill("aggregator");
    scene.until_count(1_500);

    // Without an aggregator until all messages are sent: the records are in the agent's spool.
    scene.cluster.scale_aggregator(0);
    until_sent(&scene, MESSAGES);
    scene.cluster.scale_aggregator(1);
    scene.until_count(all(MESSAGES));
    assert_eq!(scene.assert_true_messages(), all(MESSAGES));
    assert_eq!(scene.reader.connections(NODE).len(), 1);
    let nodes = scene.reader.get("/nodes");
    assert_eq!((&nodes[0]["loss"]["records"], &nodes[0]["loss"]["bytes"]), (&0.into(), &0.into()), "{nodes}");
    Account::read(&scene.reader, NODE).assert_conserved();
}

#[test]
fn an_agent_that_is_killed_has_lost_nothing_of_its_spool() {
    const MESSAGES: u64 = 10 * RATE;
    let scene = Scene::new(1, &[]);
    scene.play_load(MESSAGES, RATE);
    scene.until_count(200);
    scene.cluster.scale_aggregator(0);
    until_sent(&scene, MESSAGES);
    // Records in memory are written to the spool within a second.
    let mut since = (0.0, Instant::now());
    let spooled = wait::until("the spool to be complete", || {
        let now = scene.cluster.metric("agent", "chainscope_agent_spool_records")?;
        // Periodic account records keep the count growing slowly.
        if now > since.0 + 5.0 {
            since = (now, Instant::now());
        }
        (since.1.elapsed() > Duration::from_secs(3)).then_some(now)
    });
    assert!(spooled >= MESSAGES as f64, "{spooled} records");
    scene.cluster.kill("agent");
    assert_eq!(scene.cluster.metric("agent", "chainscope_agent_spool_dropped_records_total"), Some(0.0));
    scene.cluster.scale_aggregator(1);
    scene.until_count(all(MESSAGES));
    assert_eq!(scene.assert_true_messages(), all(MESSAGES));
    assert_eq!(scene.reader.connections(NODE).len(), 1, "one session is one connection");
    assert!(scene.undecryptable().is_empty(), "{:?}", scene.undecryptable());
}

#[test]
fn sessions_live_through_an_agent_that_is_killed() {
    let scene = Scene::new(1, &[]);
    scene.play_load(MESSAGES, RATE);
    scene.until_count(500);
    scene.cluster.kill("agent");
    // No served message is lost, and the same session continues.
    let before = scene.count();
    assert!(before >= 500, "{before}");
    scene.until_count(before + 500);
    until_sent(&scene, MESSAGES);
    assert!(scene.assert_true_messages() <= ALL);
    assert_eq!(scene.reader.connections(NODE).len(), 1, "one session is one connection");
    assert!(scene.undecryptable().is_empty(), "{:?}", scene.undecryptable());
    // The interval without an agent is reported.
    assert!(scene.reader.stats().to_string().contains("agent restarted"), "{}", scene.reader.stats());
    scene.cluster.condition("tezos", "rolling", "Recording", "True");
}

#[test]
fn processes_and_pods_that_restart_are_followed() {
    let scene = Scene::new(1, &[]);
    scene.play_load(1_000_000, RATE);
    scene.until_count(200);
    let until_connected = |processes: usize| {
        wait::until("a connection of the new process", || {
            (scene.reader.connections(NODE).len() >= processes).then_some(())
        });
        let before = scene.count();
        scene.until_count(before + 200);
    };
    let status_because = |kind: &str, reason: &str| {
        scene.cluster.until(&format!("{kind} to be {reason}"), "tezosnode rolling --namespace tezos", |found| {
            let condition = find_condition(found, kind).filter(|condition| condition["reason"] == reason)?;
            condition["status"].as_str().map(str::to_owned)
        })
    };
    for process in 2..=4 {
        // The shell of the container restarts it; the container keeps running.
        scene.cluster.kubectl("exec rolling-node-0 --namespace tezos -- killall -9 octez-node");
        until_connected(process);
        if process < 4 {
            scene.cluster.condition("tezos", "rolling", "ProcessRunning", "True");
        }
    }
    assert_eq!(status_because("ProcessRunning", "RestartLoop"), "False");
    scene.cluster.kubectl("delete pod rolling-node-0 --namespace tezos");
    until_connected(5);
    assert!(scene.undecryptable().is_empty(), "{:?}", scene.undecryptable());
    scene.cluster.condition("tezos", "rolling", "Ready", "True");

    // Without an agent on its host the state of the pod is unknown; without pods there is nothing to record.
    let nowhere = r#"{"spec":{"template":{"spec":{"nodeSelector":{"nobody":"has"}}}}}"#;
    let agents = format!("daemonset {RELEASE}-agent --namespace {RELEASE}");
    scene.cluster.kubectl(&format!("patch {agents} --type merge --patch {nowhere}"));
    for kind in ["Recording", "Ready"] {
        assert_eq!(status_because(kind, "AgentUnreachable"), "Unknown");
    }
    scene.cluster.kubectl("scale statefulset rolling-node --namespace tezos --replicas 0");
    assert_eq!(status_because("Ready", "NoPodsSelected"), "False");
}

#[test]
fn another_operator_takes_over() {
    let scene = Scene::new(1, &["operator.replicas=2"]);
    let lease = format!("lease {RELEASE}-operator --namespace {RELEASE}");
    let holder = |not: &str| {
        scene.cluster.until("a leader", &lease, |found| {
            found["spec"]["holderIdentity"].as_str().filter(|&name| !name.is_empty() && name != not).map(str::to_owned)
        })
    };
    let first = holder("");
    let pods = scene.cluster.find(&pods_of("operator")).expect("pods");
    let names: Vec<_> =
        pods["items"].as_array().into_iter().flatten().filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
    let leader =
        names.iter().find(|name| first.contains(*name)).unwrap_or_else(|| panic!("{first} is none of {names:?}"));
    scene.cluster.kubectl(&format!("delete pod {leader} --namespace {RELEASE} --force --grace-period 0"));
    let second = holder(&first);
    assert_ne!(first, second);
    // New pods are observed and reported with the second operator.
    scene.play_load(200, RATE);
    scene.until_count(400 + HANDSHAKE);
    scene.cluster.condition("tezos", "rolling", "Ready", "True");
}
