//! Lives in a cluster: of the node's process and pod, of the agent, the aggregator and the operator.

use chainscope_e2e::cluster::release::{RELEASE, pods_of};
use chainscope_e2e::cluster::scene::{HANDSHAKE, NODE, Scene};
use chainscope_e2e::harness::wait;

/// What each side says.
const MESSAGES: u64 = 3_000;
/// A second: half a minute of conversation.
const RATE: u64 = 100;
/// Everything that is said on one connection.
const ALL: u64 = 2 * MESSAGES + HANDSHAKE;

#[test]
fn an_aggregator_that_is_killed_and_one_that_is_away_cost_nothing() {
    let scene = Scene::new(1, &[]);
    scene.play_load(MESSAGES, RATE);
    scene.until_count(500);
    scene.cluster.kill("aggregator");
    scene.until_count(1_500);

    // Away until everything is said: it waits in the agent's spool.
    let scale = |replicas: u8| {
        let name = format!("statefulset/{RELEASE}-aggregator");
        scene.cluster.kubectl(&format!("scale {name} --namespace {RELEASE} --replicas {replicas}"));
    };
    scale(0);
    scene.cluster.until("the aggregator to be gone", &pods_of("aggregator"), |found| {
        found["items"].as_array()?.is_empty().then_some(())
    });
    wait::until("the conversation's end", || (scene.transcript().len() as u64 >= ALL - HANDSHAKE).then_some(()));
    scale(1);
    scene.until_count(ALL);
    assert_eq!(scene.assert_true_messages(), ALL);
    assert_eq!(scene.reader.connections(NODE).len(), 1);
    let nodes = scene.reader.get("/nodes");
    assert_eq!((&nodes[0]["loss"]["records"], &nodes[0]["loss"]["bytes"]), (&0.into(), &0.into()), "{nodes}");
}

#[test]
fn sessions_live_through_an_agent_that_is_killed() {
    let scene = Scene::new(1, &[]);
    scene.play_load(MESSAGES, RATE);
    scene.until_count(500);
    scene.cluster.kill("agent");
    // Nothing of what was served is lost, and the same session goes on.
    let before = scene.count();
    assert!(before >= 500, "{before}");
    scene.until_count(before + 500);
    wait::until("the conversation's end", || (scene.transcript().len() as u64 >= ALL - HANDSHAKE).then_some(()));
    assert!(scene.assert_true_messages() <= ALL);
    assert_eq!(scene.reader.connections(NODE).len(), 1, "one session is one connection");
    assert!(scene.undecryptable().is_empty(), "{:?}", scene.undecryptable());
    // The interval without an agent is shown as such.
    assert!(scene.reader.stats().to_string().contains("agent restarted"), "{}", scene.reader.stats());
    scene.cluster.condition("tezos", "rolling", "Recording", "True");
}

#[test]
fn processes_and_pods_that_restart_are_followed() {
    let scene = Scene::new(1, &[]);
    scene.play_load(1_000_000, RATE);
    scene.until_count(200);
    for life in 2..=3 {
        // The shell starts it again; the container does not end.
        scene.cluster.kubectl("exec rolling-node-0 --namespace tezos -- killall -9 octez-node");
        wait::until("a connection of the new process", || (scene.reader.connections(NODE).len() >= life).then_some(()));
        let before = scene.count();
        scene.until_count(before + 200);
    }
    scene.cluster.condition("tezos", "rolling", "NodeProcessRunning", "True");
    scene.cluster.kubectl("delete pod rolling-node-0 --namespace tezos");
    wait::until("a connection of the new pod", || (scene.reader.connections(NODE).len() >= 4).then_some(()));
    let before = scene.count();
    scene.until_count(before + 200);
    assert!(scene.undecryptable().is_empty(), "{:?}", scene.undecryptable());
    scene.cluster.condition("tezos", "rolling", "Ready", "True");
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
    // What comes now is seen, recorded and reported by the second one.
    scene.play_load(200, RATE);
    scene.until_count(400 + HANDSHAKE);
    scene.cluster.condition("tezos", "rolling", "Ready", "True");
}
