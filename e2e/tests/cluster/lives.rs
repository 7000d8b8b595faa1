//! Restarts in a cluster: of the node's process and pod, of the agent, the aggregator and the operator. Two clusters serve all of
//! them, because the start of a cluster takes as long as most of these restarts.

use std::time::{Duration, Instant};

use chainscope_e2e::cluster::Cluster;
use chainscope_e2e::cluster::release::{RELEASE, find_condition, pods_of};
use chainscope_e2e::cluster::scene::{HANDSHAKE, NODE, Scene};
use chainscope_e2e::harness::stats::Account;
use chainscope_e2e::harness::transcript::Missing;
use chainscope_e2e::harness::wait;

/// Messages per second and side.
const RATE: u64 = 50;
/// No message is missing.
const COMPLETE: Missing = Missing { run: 0, tail: 0 };

/// Waits until each side has sent that many messages.
fn until_sent(scene: &Scene, messages: u64) {
    let is_sent = || (scene.transcript().len() as u64 >= 2 * messages).then_some(());
    wait::until_within(wait::WAIT_TIMEOUT * 3, "the conversation to go on", is_sent);
}

#[test]
fn an_aggregator_that_is_killed_or_away_and_an_agent_that_is_killed_meanwhile_cost_nothing() {
    const MESSAGES: u64 = 75 * RATE;
    const ALL: u64 = 2 * MESSAGES + HANDSHAKE;
    let scene = Scene::new(1, &[]);
    scene.play_load(MESSAGES, RATE);
    scene.until_count(5 * RATE);
    scene.cluster.kill("aggregator");
    scene.until_count(20 * RATE);

    // Without an aggregator for longer than the agent's longest backoff: the records are in its spool.
    scene.cluster.scale_aggregator(0);
    until_sent(&scene, 35 * RATE);
    scene.cluster.scale_aggregator(1);
    scene.until_count(2 * 35 * RATE);

    // Without an aggregator until all messages are sent; the agent is killed when all of them are in the spool.
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
    assert!(spooled >= RATE as f64, "{spooled} records");
    scene.cluster.kill("agent");
    assert_eq!(scene.cluster.metric("agent", "chainscope_agent_spool_dropped_records_total"), Some(0.0));
    scene.cluster.scale_aggregator(1);
    scene.until_count(ALL);
    assert_eq!(scene.missing(), [COMPLETE, COMPLETE]);
    assert_eq!(scene.count(), ALL);
    assert_eq!(scene.reader.connections(NODE).len(), 1, "one session is one connection");
    assert!(scene.undecryptable().is_empty(), "{:?}", scene.undecryptable());
    let nodes = scene.reader.get("/nodes");
    assert_eq!((&nodes[0]["loss"]["records"], &nodes[0]["loss"]["bytes"]), (&0.into(), &0.into()), "{nodes}");
    Account::read(&scene.reader, NODE).assert_conserved();
}

#[test]
fn operators_agents_processes_and_pods_that_end_are_followed() {
    let scene = Scene::new(1, &["operator.replicas=2"]);
    another_operator_takes_over(&scene.cluster);
    // From now on nodes are observed and reported with the second operator.
    deleted_certificates_are_restored(&scene.cluster);
    scene.play_load(1_000_000, RATE);
    scene.cluster.condition("tezos", "rolling", "Ready", "True");
    a_session_goes_on_when_the_agent_is_killed(&scene);
    processes_and_pods_that_restart_are_followed(&scene);
}

fn another_operator_takes_over(cluster: &Cluster) {
    let lease = format!("lease {RELEASE}-operator --namespace {RELEASE}");
    let holder = |not: &str| {
        cluster.until("a leader", &lease, |found| {
            found["spec"]["holderIdentity"].as_str().filter(|&name| !name.is_empty() && name != not).map(str::to_owned)
        })
    };
    let first = holder("");
    let pods = cluster.find(&pods_of("operator")).expect("pods");
    let names: Vec<_> =
        pods["items"].as_array().into_iter().flatten().filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
    let leader =
        names.iter().find(|name| first.contains(*name)).unwrap_or_else(|| panic!("{first} is none of {names:?}"));
    cluster.kubectl(&format!("delete pod {leader} --namespace {RELEASE} --force --grace-period 0"));
    let second = holder(&first);
    assert_ne!(first, second);
}

fn deleted_certificates_are_restored(cluster: &Cluster) {
    let secret = format!("secret {RELEASE}-ca --namespace {RELEASE}");
    let ca = cluster.find(&secret).expect("the CA's Secret");
    assert_eq!(ca["metadata"]["ownerReferences"][0]["kind"], "Deployment", "{}", ca["metadata"]);
    // The Lease owns no object, and is recreated.
    cluster.kubectl(&format!("delete lease {RELEASE}-operator --namespace {RELEASE}"));
    cluster.until("a Lease", &format!("lease {RELEASE}-operator --namespace {RELEASE}"), |found| {
        found["spec"]["holderIdentity"].as_str().filter(|name| !name.is_empty()).map(drop)
    });
    assert_eq!(cluster.find(&secret).expect("the Secret")["metadata"]["uid"], ca["metadata"]["uid"]);
    cluster.kubectl(&format!("delete {secret}"));
    cluster.until("the CA's Secret to be back", &secret, |found| {
        (found["metadata"]["uid"] != ca["metadata"]["uid"]).then(|| assert_eq!(found["data"], ca["data"]))
    });
}

fn a_session_goes_on_when_the_agent_is_killed(scene: &Scene) {
    scene.until_count(10 * RATE);
    let listed_at_kill = scene.transcript().len();
    scene.cluster.kill("agent");
    let away = scene.transcript().len() - listed_at_kill;
    // No served message is lost, and the session is resumed.
    let before = scene.count();
    assert!(before >= 10 * RATE, "{before}");
    scene.until_more_both_ways(before, 5 * RATE);
    let missing = scene.missing();
    let run: usize = missing.iter().map(|missing| missing.run).sum();
    // And those that were not spooled, and those until the session is resumed.
    assert!(run <= away + usize::try_from(2 * 5 * RATE).expect("small"), "{missing:?}, {away} without an agent");
    assert_eq!(scene.reader.connections(NODE).len(), 1, "one session is one connection");
    assert!(scene.undecryptable().is_empty(), "{:?}", scene.undecryptable());
    // The interval without an agent is reported.
    assert!(scene.reader.stats().to_string().contains("agent restarted"), "{}", scene.reader.stats());
    scene.cluster.condition("tezos", "rolling", "Recording", "True");
}

fn processes_and_pods_that_restart_are_followed(scene: &Scene) {
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
