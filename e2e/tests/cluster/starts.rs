//! Repeated starts of pods: each is recorded from its first message.

use std::time::{Duration, SystemTime};

use chainscope_e2e::cluster::scene::{HANDSHAKE, NODE, Scene};
use jiff::Timestamp;
use serde_json::{Value, json};

/// Pods that are started one after the other and timed.
const SINGLE: u64 = 20;
/// Pods that are started together.
const TOGETHER: u64 = 30;
/// Messages of each side after the handshake.
const MESSAGES: u64 = 20;
/// Messages of one pod.
const ALL: u64 = 2 * MESSAGES + HANDSHAKE;

#[test]
#[expect(clippy::disallowed_methods, reason = "compared with timestamps of the kubelet")]
fn fifty_pods_start_and_each_is_recorded_from_its_first_message_on() {
    let scene = Scene::new(1, &[]);
    scene.play_load(MESSAGES, 100);
    scene.until_count(ALL);
    let template = scene.cluster.find("statefulset rolling-node --namespace tezos").expect("StatefulSet");

    let mut delays: Vec<Duration> = Vec::new();
    for number in 0..SINGLE {
        let before = scene.count();
        scene.cluster.apply(&pod(&template, number).to_string());
        scene.until_count(before + 1);
        delays.push(SystemTime::now().duration_since(start_of(&scene, number)).unwrap_or_default());
        scene.until_count((number + 2) * ALL);
        remove(&scene, [number]);
    }
    delays.sort_unstable();
    let at = |place: usize| delays.get(place).map_or(0, Duration::as_millis);
    let (median, most) = (at(delays.len() / 2), at(delays.len() - 1));
    // Printed only: it depends on the machine. The number of messages does not.
    println!(
        "from a container's start to its first message in the API: median {median} ms, most {most} ms of {SINGLE}"
    );

    let more = SINGLE..SINGLE + TOGETHER;
    let pods: Vec<_> = more.clone().map(|number| pod(&template, number)).collect();
    scene.cluster.apply(&json!({"apiVersion": "v1", "kind": "List", "items": pods}).to_string());
    let all = (1 + SINGLE + TOGETHER) * ALL;
    scene.until_count(all);
    remove(&scene, more);

    let connections = scene.reader.connections(NODE);
    assert_eq!(connections.len() as u64, 1 + SINGLE + TOGETHER);
    assert!(scene.undecryptable().is_empty(), "{:?}", scene.undecryptable());
    assert_eq!(scene.count(), all, "more messages than were sent");
    let nodes = scene.reader.get("/nodes");
    assert_eq!((&nodes[0]["loss"]["records"], &nodes[0]["loss"]["bytes"]), (&0.into(), &0.into()), "{nodes}");
}

/// A pod of the StatefulSet's template, with an emptyDir instead of a volume claim.
fn pod(stateful_set: &Value, number: u64) -> Value {
    let template = &stateful_set["spec"]["template"];
    let mut spec = template["spec"].clone();
    spec["terminationGracePeriodSeconds"] = json!(0);
    let volumes = spec["volumes"].as_array_mut().expect("volumes");
    volumes.push(json!({"name": "var-volume", "emptyDir": {}}));
    json!({
        "apiVersion": "v1", "kind": "Pod", "spec": spec,
        "metadata": {"name": name(number), "namespace": "tezos", "labels": template["metadata"]["labels"]},
    })
}

fn name(number: u64) -> String {
    format!("start-{number}")
}

/// Time of the first log line of the node's container, which precedes the start of the node.
fn start_of(scene: &Scene, number: u64) -> SystemTime {
    let logs = scene.cluster.kubectl(&format!("logs {} --namespace tezos --timestamps", name(number)));
    let moment = logs.split_whitespace().next().and_then(|word| word.parse::<Timestamp>().ok());
    moment.unwrap_or_else(|| panic!("no time in {logs}")).into()
}

fn remove(scene: &Scene, numbers: impl IntoIterator<Item = u64>) {
    let names: Vec<_> = numbers.into_iter().map(name).collect();
    scene.cluster.kubectl(&format!("delete pod --namespace tezos --wait=false {}", names.join(" ")));
}
