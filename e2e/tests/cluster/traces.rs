//! Tracepoints of a pod by a `NodeTrace`, through the aggregator's Service: what the node says that it fired, each event once.

use chainscope_e2e::cluster::release::find_condition;
use chainscope_e2e::cluster::scene::node_trace;
use chainscope_e2e::cluster::traced_pod::TracedPod;
use chainscope_e2e::cluster::{Cluster, Level, Setup};
use chainscope_e2e::harness::api::{Api, id};
use chainscope_e2e::harness::document::{Document, assert_has_columns};
use chainscope_e2e::harness::{programs, wait};
use chainscope_e2e::image;
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
    let mut node = TracedPod::start(&cluster, NAMESPACE, "bitcoind", Flavour::Core(31));

    // Before the resource exists nobody is attached.
    assert!(node.execute("fire net:inbound_message peer_id=1 size=1").iter().all(|fired| fired.active == 0));
    apply_trace(&cluster, &PATTERNS);
    until_ready(&cluster, "True", "Available");
    let table = cluster.kubectl("get nodetraces -n bitcoin");
    assert_has_columns(&table, Document::read("docs/kubernetes.md").block("$ kubectl get nodetraces -n bitcoin"));
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
    transactions_are_found(&cluster, &reader);
    an_unknown_tracepoint_is_a_condition(&cluster, &mut node, &reader, &mut expected);
    arguments_select_events(&cluster, &mut node, &reader, &mut expected);
    old_events_are_evicted(&cluster, &mut node, &reader, expected.len());
    a_deleted_resource_detaches(&cluster, &mut node, &reader);
}

/// By the same resource, instead of events.
fn functions_are_timed(cluster: &Cluster, node: &mut TracedPod<'_>, anyone: &Api, reader: &Api) {
    let get = |path: &str| reader.get(&format!("/nodes/{NODE}/v2/latency/{path}"));
    let runs = || get("runs").as_array().expect("runs").len();
    // Functions with the tracepoints of these names.
    let functions = ["net_inbound_message_1", "net_outbound_message_1"];
    let apply = |tag: &str, functions: &[&str]| {
        let functions: Vec<_> = functions.iter().map(|function| json!({ "function": function })).collect();
        apply_spec(cluster, &json!({ "latency": { "functions": functions, "block": "1s", "tags": [tag] } }));
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

/// Of a rippled with USDT, by the ready set.
fn transactions_are_found(cluster: &Cluster, reader: &Api) {
    let mut node = TracedPod::start(cluster, NAMESPACE, "rippled", Flavour::Rippled);
    let latency = json!({ "functions": [{ "set": "rippled" }], "block": "1s" });
    apply_spec_of(cluster, "rippled", &json!({ "process": "rippled", "latency": latency }));
    until_ready_of(cluster, "rippled", "True", "Available");
    let mut expected = Vec::new();
    for (number, result) in [0, 125, -99, 0, 0].into_iter().enumerate() {
        let fired = node.execute(&format!("transaction kind=payment txid={number} result={result} apply_us=300"));
        let transaction =
            fired.iter().find(|fired| fired.tracepoint.ends_with(":transactor_exit")).expect("a transaction");
        expected.push((transaction.show("txid").to_uppercase(), result));
    }
    let get = |query: &str| {
        let path = format!("/nodes/bitcoin/trace:rippled/v2/latency/transactions?direction=forward&{query}");
        let rows = reader.get(&path);
        let fact = |row: &Value| Some((row["id"].as_str()?.to_owned(), row["result"].as_i64()?));
        rows.as_array().expect("transactions").iter().map(|row| fact(row).expect("a transaction")).collect::<Vec<_>>()
    };
    wait::until("the transactions", || (get("").len() == expected.len()).then_some(()));
    assert_eq!(get(""), expected);
    assert_eq!(get("result=125,-99"), expected[1..3]);
}

/// The others are recorded.
fn an_unknown_tracepoint_is_a_condition(
    cluster: &Cluster,
    node: &mut TracedPod<'_>,
    reader: &Api,
    expected: &mut Vec<(String, Value)>,
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
    until_served(reader, expected);
}

/// By the conditions of a `filter`.
fn arguments_select_events(
    cluster: &Cluster,
    node: &mut TracedPod<'_>,
    reader: &Api,
    expected: &mut Vec<(String, Value)>,
) {
    let selections = [
        json!({ "patterns": ["net:inbound_message"], "filter": ["message_type=ping", "size>=8"] }),
        json!({ "patterns": ["net:outbound_message"] }),
    ];
    apply_spec(cluster, &json!({ "tracepoints": selections }));
    until_ready(cluster, "True", "Available");
    let mut fire = |command: &str| traced(&node.execute(&format!("fire {command}")));
    let selected = [
        "net:inbound_message peer_id=1 message_type=ping size=8",
        "net:outbound_message peer_id=2 message_type=pong size=1",
    ];
    fire("net:inbound_message peer_id=3 message_type=ping size=7");
    expected.extend(fire(selected[0]));
    fire("net:inbound_message peer_id=4 message_type=tx size=100");
    expected.extend(fire(selected[1]));
    until_served(reader, expected);
}

/// By the age that `retention` allows; ids go on.
fn old_events_are_evicted(cluster: &Cluster, node: &mut TracedPod<'_>, reader: &Api, count: usize) {
    let tracepoints = json!([{ "patterns": ["net:inbound_message"] }]);
    apply_spec(cluster, &json!({ "tracepoints": tracepoints, "retention": { "age": "1s" } }));
    wait::until_within(wait::WAIT_TIMEOUT * 3, "the events to be evicted", || {
        reader.events(NODE).is_empty().then_some(())
    });
    apply_spec(cluster, &json!({ "tracepoints": tracepoints, "retention": { "age": "1h" } }));
    until_ready(cluster, "True", "Available");
    let fired = traced(&node.execute("fire net:inbound_message peer_id=5 size=1"));
    let rows = wait::until("the next event", || Some(reader.events(NODE)).filter(|rows| !rows.is_empty()));
    assert_eq!(rows.iter().map(event).collect::<Vec<_>>(), fired);
    assert_eq!(id(&rows[0]), count as u64);
}

/// Its events are kept for a while.
fn a_deleted_resource_detaches(cluster: &Cluster, node: &mut TracedPod<'_>, reader: &Api) {
    apply_trace(cluster, &["nonsense:*"]);
    until_ready(cluster, "False", "TracepointsNotAttached");
    wait::until("the agent to be detached", || (!node.is_attached("net:inbound_message")).then_some(()));
    let before = reader.events(NODE);
    cluster.kubectl(&format!("delete nodetrace bitcoind --namespace {NAMESPACE}"));
    assert_eq!(reader.events(NODE), before);
    assert_eq!(before.len(), 1);
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
    for flavour in [Flavour::Core(31), Flavour::Rippled] {
        let name = flavour.program();
        let archive = folder.path().join(format!("{name}.tar"));
        let image = image::traced_node(&build(folder.path(), flavour), name);
        image.and_then(|image| image.write(&archive)).unwrap_or_else(|e| panic!("image: {e:#}"));
        archives.push(archive);
    }
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
    apply_spec(cluster, &json!({ "tracepoints": [{ "patterns": patterns }] }));
}

/// Applies the resource of the node with these fields of its specification.
fn apply_spec(cluster: &Cluster, fields: &Value) {
    apply_spec_of(cluster, "bitcoind", fields);
}

fn apply_spec_of(cluster: &Cluster, name: &str, fields: &Value) {
    let mut resource = node_trace(NAMESPACE, name, &json!({ "app": name }), &[]);
    let spec = resource["spec"].as_object_mut().expect("an object");
    spec.remove("tracepoints");
    spec.extend(fields.as_object().expect("an object").clone());
    cluster.apply(&resource.to_string());
}

/// Waits for the condition `Ready` of the current specification; returns its message.
fn until_ready(cluster: &Cluster, status: &str, reason: &str) -> String {
    until_ready_of(cluster, "bitcoind", status, reason)
}

fn until_ready_of(cluster: &Cluster, name: &str, status: &str, reason: &str) -> String {
    let resource = format!("nodetrace {name} --namespace {NAMESPACE}");
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
