//! Tracepoints of a pod by a `NodeTrace`, through the aggregator's Service: what the node says that it fired, each event once.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

use chainscope_e2e::cluster::release::find_condition;
use chainscope_e2e::cluster::scene::node_trace;
use chainscope_e2e::cluster::{Cluster, Level, Setup};
use chainscope_e2e::harness::api::{Api, id};
use chainscope_e2e::harness::{programs, wait};
use chainscope_e2e::image::{self, BITCOIN};
use chainscope_testing::fakenode::{Fired, Flavour, build};
use serde_json::{Value, json};

const NAMESPACE: &str = "bitcoin";
/// The node of the NodeTrace `bitcoind`.
const NODE: &str = "bitcoin/trace:bitcoind";
/// What the NodeTrace selects.
const PATTERNS: [&str; 2] = ["net:*", "validation:block_connected"];

#[test]
fn events_of_a_pod_are_served_once_to_authorized_readers() {
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = start(&folder);
    let client = cluster.api_client();
    let reader = client.api.with_token(&cluster.token(NAMESPACE, "reader"));
    let mut node = Node::start(&cluster);

    // Before the resource exists nobody is attached.
    assert!(node.execute("fire net:inbound_message peer_id=1 size=1").iter().all(|fired| fired.active == 0));
    apply_trace(&cluster, &PATTERNS);
    until_ready(&cluster, "True", "Available");
    let mut oracle = Vec::new();
    for command in [
        "fire net:inbound_message peer_id=7 address=10.0.0.1:8333 message_type=block size=1000 seed=42",
        "fire net:outbound_message peer_id=-3 message_type=@length:12 size=0",
        "fire mempool:added txid=# fee=7",
        "fire validation:block_connected height=840000 transactions=3",
        "repeat 500 net:inbound_message peer_id=# message_type=tx size=100 threads=2 rate=500",
    ] {
        oracle.extend(node.execute(command));
    }
    let mut expected = traced(&oracle);
    assert_eq!(expected.len(), 503, "without mempool:added");
    until_served(&reader, &expected);

    // The agent is killed; meanwhile its events are missed, and later ones are recorded under the same node.
    cluster.kill("agent");
    wait::until("the agent to be attached again", || node.is_attached("net:inbound_message").then_some(()));
    let again = node.execute("repeat 200 net:outbound_message peer_id=# message_type=tx size=5 rate=500");
    assert!(again.iter().all(|fired| fired.active > 0), "detached");
    expected.extend(traced(&again));
    until_served(&reader, &expected);
    until_ready(&cluster, "True", "Available");

    only_readers_of_events_are_served(&cluster, &client.api, &reader);
    functions_are_timed(&cluster, &mut node, &client.api, &reader);
    an_unknown_tracepoint_is_a_condition(&cluster, &mut node, &reader, expected);
}

/// By the same resource, instead of events.
fn functions_are_timed(cluster: &Cluster, node: &mut Node<'_>, anyone: &Api, reader: &Api) {
    let get = |path: &str| reader.get(&format!("/nodes/{NODE}/v2/latency/{path}"));
    let runs = || get("runs").as_array().expect("runs").len();
    // Functions with the tracepoints of these names.
    let functions = ["net_inbound_message_1", "net_outbound_message_1"];
    let apply = |tag: &str, functions: &[&str]| {
        let functions: Vec<_> = functions.iter().map(|function| json!({ "function": function })).collect();
        let mut resource = node_trace(NAMESPACE, "bitcoind", &json!({"app": "bitcoin"}), &[]);
        let spec = resource["spec"].as_object_mut().expect("an object");
        spec.remove("tracepoints");
        spec.insert("latency".to_owned(), json!({ "functions": functions, "block": "1s", "tags": [tag] }));
        cluster.apply(&resource.to_string());
    };
    let spans = |selector: &str, function: &str| {
        let report = get(&format!("report?run={selector}"));
        let found = report["functions"].as_array().expect("functions").iter().find(|found| found["entry"] == function);
        found.map_or(0, |found| found["sides"][0]["spans"].as_u64().expect("spans"))
    };
    for (number, (tag, calls)) in [("v1", 300), ("v2", 200)].into_iter().enumerate() {
        apply(tag, &functions);
        // A run begins when the functions are attached.
        wait::until(&format!("the run of {tag}"), || (runs() == number + 1).then_some(()));
        until_ready(cluster, "True", "Available");
        node.execute(&format!("repeat {calls} net:inbound_message peer_id=1 size=1 threads=2 rate=1000"));
        node.execute("fire net:outbound_message peer_id=1 size=1");
        wait::until(&format!("the calls of {tag}"), || {
            (functions.map(|function| spans(tag, function)) == [calls, 1]).then_some(())
        });
    }
    assert_eq!(get("compare?a=v1&b=v2")["verdict"], "inconclusive");
    let path = format!("/nodes/{NODE}/v2/latency/runs");
    let status = |api: &Api| api.request(&path).expect("response").0;
    assert_eq!(status(anyone), 401);
    assert_eq!(status(&anyone.with_token(&cluster.token(NAMESPACE, "stranger"))), 403);

    apply("v3", &["net_inbound_message_1", "net_nonsense"]);
    let message = until_ready(cluster, "False", "FunctionsNotTimed");
    assert!(message.contains("net_nonsense"), "{message}");
}

/// The others are recorded.
fn an_unknown_tracepoint_is_a_condition(
    cluster: &Cluster,
    node: &mut Node<'_>,
    reader: &Api,
    mut expected: Vec<(String, Value)>,
) {
    apply_trace(cluster, &["net:inbound_message", "net:nonsense"]);
    let message = until_ready(cluster, "False", "TracepointsNotAttached");
    assert!(message.contains("net:nonsense") && !message.contains("inbound_message"), "{message}");
    let fired = [
        node.execute("fire net:outbound_message peer_id=1 size=1"),
        node.execute("fire net:inbound_message peer_id=99 size=1"),
    ];
    expected.extend(traced(&fired.concat()));
    assert_eq!(expected.len(), 503 + 200 + 1, "outbound messages are not selected any more");
    until_served(reader, &expected);

    apply_trace(cluster, &["nonsense:*"]);
    until_ready(cluster, "False", "TracepointsNotAttached");
    wait::until("the agent to be detached", || (!node.is_attached("net:inbound_message")).then_some(()));
    cluster.kubectl(&format!("delete nodetrace bitcoind --namespace {NAMESPACE}"));
    // The events of a deleted node are kept for a while.
    until_served(reader, &expected);
}

fn only_readers_of_events_are_served(cluster: &Cluster, anyone: &Api, reader: &Api) {
    // By the name of the resource as well, because no TezosNode has it.
    for name in [NODE, "bitcoin/bitcoind"] {
        let path = format!("/nodes/{name}/v2/trace?limit=1");
        let status = |api: &Api| api.request(&path).expect("response").0;
        assert_eq!(status(anyone), 401);
        assert_eq!(status(&anyone.with_token(&cluster.token(NAMESPACE, "stranger"))), 403);
        assert_eq!(status(reader), 200);
    }
    let names = |api: &Api| -> Vec<Value> {
        let nodes = api.get("/nodes");
        nodes.as_array().expect("nodes").iter().map(|node| node["name"].clone()).collect()
    };
    assert_eq!(names(reader), [NODE]);
    assert_eq!(names(&anyone.with_token(&cluster.token(NAMESPACE, "stranger"))), [""; 0]);
}

/// A cluster with Chainscope and a pod of the fake node.
fn start(folder: &tempfile::TempDir) -> Cluster {
    let built = programs();
    let mut archives = image::write_all(&built, folder.path()).unwrap_or_else(|e| panic!("images: {e:#}"));
    let archive = folder.path().join("bitcoin.tar");
    let program = build(folder.path(), Flavour::Core(31));
    image::traced_node(&program).and_then(|image| image.write(&archive)).unwrap_or_else(|e| panic!("image: {e:#}"));
    archives.push(archive);
    let cluster = Setup::new(Level::Hosts(1)).audit().images(archives).start();
    cluster.kubectl(&format!("create namespace {NAMESPACE}"));
    cluster.make_namespace();
    cluster.install(&[]);
    for account in ["reader", "stranger"] {
        cluster.kubectl(&format!("create serviceaccount {account} --namespace {NAMESPACE}"));
    }
    cluster.kubectl(&format!(
        "create rolebinding reader --clusterrole chainscope-viewer --serviceaccount {NAMESPACE}:reader --namespace {NAMESPACE}"
    ));
    cluster
}

fn apply_trace(cluster: &Cluster, patterns: &[&str]) {
    cluster.apply(&node_trace(NAMESPACE, "bitcoind", &json!({"app": "bitcoin"}), patterns).to_string());
}

/// Waits for the condition `Ready` of the current specification; returns its message.
fn until_ready(cluster: &Cluster, status: &str, reason: &str) -> String {
    let resource = format!("nodetrace bitcoind --namespace {NAMESPACE}");
    cluster.until(&format!("Ready to be {status} {reason}"), &resource, |found| {
        let ready = find_condition(found, "Ready")?;
        let is_current = ready["observedGeneration"] == found["metadata"]["generation"];
        (is_current && ready["status"] == status && ready["reason"] == reason)
            .then(|| ready["message"].as_str().unwrap_or_default().to_owned())
    })
}

/// Tracepoint and arguments, by name, of what was fired while the agent was attached. A payload by its length only.
fn traced(fired: &[Fired]) -> Vec<(String, Value)> {
    let selected = fired.iter().filter(|fired| fired.active > 0);
    selected
        .map(|fired| {
            let plain = fired.arguments.iter().filter(|(_, value)| !value.is_object());
            (fired.tracepoint.clone(), plain.map(|(name, value)| (name.clone(), value.clone())).collect())
        })
        .collect()
}

/// Waits until as many events are served, and compares all of them.
fn until_served(reader: &Api, expected: &[(String, Value)]) {
    let rows = wait::until_within(wait::WAIT_TIMEOUT * 3, &format!("{} events to be served", expected.len()), || {
        Some(reader.events(NODE)).filter(|rows| rows.len() >= expected.len())
    });
    assert!(rows.iter().enumerate().all(|(n, row)| id(row) == n as u64), "ids are not dense from 0");
    let mut served: Vec<_> = rows.iter().map(event).collect();
    let mut expected = expected.to_vec();
    // Threads fire at the same time.
    let key = |event: &(String, Value)| format!("{} {}", event.0, event.1);
    served.sort_by_key(key);
    expected.sort_by_key(key);
    assert_eq!(served, expected);
}

/// Tracepoint and arguments of a served event, as in [`traced`].
fn event(row: &Value) -> (String, Value) {
    let mut arguments = row["arguments"].as_object().unwrap_or_else(|| panic!("no arguments: {row}")).clone();
    arguments.retain(|name, _| name != "payload");
    (row["tracepoint"].as_str().unwrap_or_else(|| panic!("no tracepoint: {row}")).to_owned(), arguments.into())
}

/// The pod of the fake node. The test writes to its standard input and reads its log.
struct Node<'a> {
    cluster: &'a Cluster,
    input: File,
    /// Lines of the log that belong to earlier commands.
    read: usize,
}

impl<'a> Node<'a> {
    fn start(cluster: &'a Cluster) -> Self {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "bitcoind-0", "namespace": NAMESPACE, "labels": {"app": "bitcoin"}},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [
                {"name": "node", "image": BITCOIN, "imagePullPolicy": "Never", "stdin": true},
            ]},
        });
        cluster.apply(&pod.to_string());
        let resource = format!("pod bitcoind-0 --namespace {NAMESPACE}");
        let uid = cluster.until("the pod to be ready", &resource, |found| {
            find_condition(found, "Ready").filter(|ready| ready["status"] == "True")?;
            found["metadata"]["uid"].as_str().map(str::to_owned)
        });
        let mut node = Self { cluster, input: input_of_pod(&uid), read: 0 };
        node.read = wait::until("the node to be ready", || Some(node.log().len()).filter(|lines| *lines > 0));
        node
    }

    /// Executes a command of the fake node; returns what it fired.
    fn execute(&mut self, command: &str) -> Vec<Fired> {
        let lines = self.lines(command);
        let fired = lines.into_iter().filter(|line| line["event"] == "fired");
        fired.map(|line| serde_json::from_value(line).expect("a firing")).collect()
    }

    /// Whether the semaphore of a tracepoint is raised.
    fn is_attached(&mut self, tracepoint: &str) -> bool {
        let lines = self.lines("semaphores");
        let values = lines.iter().find(|line| line["event"] == "semaphores").expect("semaphores");
        values["values"][tracepoint].as_u64().expect("a semaphore") > 0
    }

    fn lines(&mut self, command: &str) -> Vec<Value> {
        self.input.write_all(format!("{command}\n").as_bytes()).expect("the pipe of the container");
        let lines = wait::until(&format!("the end of {command:?}"), || {
            let lines = self.log().split_off(self.read);
            lines.last().is_some_and(|line| line["event"] == "done" || line["event"] == "error").then_some(lines)
        });
        let last = lines.last().expect("the last line");
        assert_eq!(last["event"], "done", "{command}: {last}");
        self.read += lines.len();
        lines
    }

    /// What the node has written so far.
    fn log(&self) -> Vec<Value> {
        let log = self.cluster.kubectl(&format!("logs bitcoind-0 --namespace {NAMESPACE}"));
        log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

/// Standard input of a pod's `bitcoind`.
fn input_of_pod(uid: &str) -> File {
    let uids = [uid.to_owned(), uid.replace('-', "_")];
    let processes = std::fs::read_dir("/proc").expect("/proc").map(|entry| entry.expect("an entry").path());
    let is_node = |process: &PathBuf| {
        let cgroup = std::fs::read_to_string(process.join("cgroup")).unwrap_or_default();
        uids.iter().any(|uid| cgroup.contains(uid))
            && std::fs::read_link(process.join("exe")).is_ok_and(|exe| exe.ends_with("bitcoind"))
    };
    let found: Vec<_> = processes.filter(is_node).collect();
    let [process] = &found[..] else { panic!("processes of the node: {found:?}") };
    File::options().append(true).open(process.join("fd/0")).expect("a pipe")
}
