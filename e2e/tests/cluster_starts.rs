//! Repeated starts of pods and agents: each pod is recorded from its first message, and agents leave nothing behind.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use chainscope_e2e::cluster::release::{RELEASE, pods_of};
use chainscope_e2e::cluster::scene::{HANDSHAKE, NODE, Scene};
use chainscope_e2e::harness::wait;
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

#[test]
fn agents_come_and_go_and_leave_nothing() {
    const TIMES: u32 = 20;
    let scene = Scene::new(1, &[]);
    scene.play_load(1_000_000, 20);
    scene.until_count(100);
    let before = HostState::now(&scene);
    for time in 0..TIMES {
        let agent = agent_of(&scene, None);
        // SIGTERM and SIGKILL in turn.
        let options = if time % 2 == 0 { "" } else { "--force --grace-period 0" };
        scene.cluster.kubectl(&format!("delete pod {agent} --namespace {RELEASE} {options}"));
        agent_of(&scene, Some(&agent));
        let count = scene.count();
        scene.until_count(count + 20);
    }
    wait::until("the same kernel objects as before", || {
        let now = HostState::now(&scene);
        let is_same = now == before;
        if !is_same {
            eprintln!("before: {before:?}\nnow: {now:?}");
        }
        is_same.then_some(())
    });
    assert!(scene.undecryptable().is_empty(), "{:?}", scene.undecryptable());
    assert_eq!(scene.reader.connections(NODE).len(), 1, "one session is one connection");
}

/// The name of a ready agent pod other than `not`.
fn agent_of(scene: &Scene, not: Option<&str>) -> String {
    scene.cluster.until("an agent to be ready", &pods_of("agent"), |found| {
        let mut pods = found["items"].as_array()?.iter();
        let ready = pods.find(|pod| {
            let name = pod["metadata"]["name"].as_str();
            name != not && pod["status"]["containerStatuses"][0]["ready"] == true
        })?;
        ready["metadata"]["name"].as_str().map(str::to_owned)
    })
}

/// Kernel objects and mounts that an agent could leave on its host.
#[derive(Debug, PartialEq, Eq)]
struct HostState {
    mounts: BTreeSet<String>,
    pins: String,
    programs: usize,
    maps: usize,
    links: usize,
}

impl HostState {
    fn now(scene: &Scene) -> Self {
        let host = scene.cluster.hosts().first().expect("a host");
        let output = |program: &str, arguments: &[&str]| {
            let output = host.command(program).args(arguments).output().expect("a program of the host");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let mounts = output("cat", &["/proc/self/mountinfo"]);
        // Mounts of pods and containers have their ids in the path.
        let mount_point = |line: &str| line.split(' ').nth(4).map(str::to_owned);
        let of_pods =
            |path: &String| path.contains("/pods/") || path.contains("/k8s.io/") || path.contains("/sandboxes/");
        Self {
            mounts: mounts
                .lines()
                .filter_map(mount_point)
                .filter(|path| !of_pods(path) && !path.contains("cni-"))
                .collect(),
            pins: output("find", &["/sys/fs/bpf", "-mindepth", "1"]),
            programs: aya::programs::loaded_programs().count(),
            maps: aya::maps::loaded_maps().count(),
            links: aya::programs::loaded_links().count(),
        }
    }
}
