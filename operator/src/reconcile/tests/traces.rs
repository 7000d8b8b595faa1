//! `NodeTrace`s, alone and beside `TezosNode`s.

use chainscope_proto::v1::{
    LatencyOptions, LatencyTarget, TraceOptions, TraceRetention, TraceRule, latency_target::Select,
};
use serde_json::json;

use super::*;

/// The node of [`trace`] `t`.
const NODE: &str = "tezos/trace:t";

fn cluster(spec: Value) -> TestCluster {
    let mut cluster = TestCluster::new();
    cluster.reconciler.apply_pod(&key("p"), octez("u0", "host-1"));
    cluster.reconciler.apply_node(trace("t", 0, spec));
    cluster.step();
    cluster
}

fn conditions(cluster: &TestCluster, node: &str) -> Vec<String> {
    let conditions = &cluster.statuses[node].conditions;
    conditions.iter().map(|one| format!("{} {} {}", one.type_, one.status, one.reason)).collect()
}

/// The node and the generation of the tracepoints of a pod.
fn traced(cluster: &TestCluster, uid: &str) -> Option<(String, i64)> {
    let trace = cluster.observed("host-1", uid)?.trace.as_ref()?;
    Some((trace.node.clone(), trace.node_generation))
}

#[test]
fn a_trace_and_its_pod_appear_in_the_desired_state() {
    let cluster = cluster(json!({
        "tracepoints": [
            { "patterns": ["net:*", "mempool:added"], "filter": ["size>1000"] }, { "patterns": ["utxocache:*"] },
        ],
        "maxText": "2KiB", "maxPayload": "1MiB", "contract": "bitcoin-core",
        "retention": { "rows": 5, "bytes": "1GiB", "age": "2d" },
    }));
    let pod = cluster.observed("host-1", "u0").unwrap();
    assert_eq!((&*pod.node, &*pod.container, &*pod.process), (NODE, "octez-node", "octez-node"));
    assert_eq!((pod.container_ids.len(), pod.p2p_port, &pod.memory, &pod.logs), (1, None, &None, &None));
    assert!(pod.network.is_some_and(|network| !network.enabled));
    let rule = |tracepoints: &[&str], filters: &[&str]| TraceRule {
        tracepoints: tracepoints.iter().map(ToString::to_string).collect(),
        filters: filters.iter().map(ToString::to_string).collect(),
    };
    let options = TraceOptions {
        enabled: true,
        rules: vec![rule(&["net:*", "mempool:added"], &["size>1000"]), rule(&["utxocache:*"], &[])],
        max_text_bytes: Some(2 << 10),
        max_payload_bytes: Some(1 << 20),
        contract: "bitcoin-core".to_owned(),
        node: NODE.to_owned(),
        node_generation: 1,
        latency: None,
    };
    assert_eq!(pod.trace, Some(options));
    let catalog = &cluster.desired.catalog[NODE];
    let limits = TraceRetention { keep_rows: Some(5), keep_bytes: Some(1 << 30), keep_seconds: Some(172_800) };
    assert_eq!(catalog.trace_retention, Some(limits));
    assert_eq!((&catalog.aliases[..], &catalog.hosts[..]), (&["tezos/t".to_owned()][..], &["host-1".to_owned()][..]));
}

#[test]
fn functions_that_are_timed_appear_in_the_desired_state() {
    let latency = json!({
        "functions": [{ "function": "f*", "returns": true }, { "span": "a..b" }, { "set": "rippled" }],
        "block": "90s", "tags": ["v2"], "commit": "c0ffee", "version": "2.4.0",
    });
    let mut cluster = cluster(json!({ "latency": latency }));
    let target = |select, returns| LatencyTarget { select: Some(select), returns };
    let options = LatencyOptions {
        functions: vec![
            target(Select::Function("f*".to_owned()), true),
            target(Select::Span("a..b".to_owned()), false),
            target(Select::Set("rippled".to_owned()), false),
        ],
        block_ms: Some(90_000),
        tags: vec!["v2".to_owned()],
        commit: "c0ffee".to_owned(),
        version: "2.4.0".to_owned(),
    };
    let of_pod = |cluster: &TestCluster| cluster.observed("host-1", "u0").unwrap().trace.clone().unwrap();
    assert_eq!(of_pod(&cluster).latency, Some(options));
    cluster.reconciler.apply_node(trace("t", 0, json!({ "latency": { "functions": [{ "span": "a" }] } })));
    cluster.wait(2);
    let options = of_pod(&cluster);
    assert!(!options.enabled && options.latency.is_none());
    assert_eq!(cluster.ready(NODE), ("False", "TracepointsInvalid"));
    let message = &cluster.condition(NODE, "Ready").message;
    assert!(message.contains("latency.functions[0].span: \"a\": not ENTRY..EXIT"), "{message}");
}

#[test]
fn every_condition_is_true_for_a_traced_pod() {
    let mut cluster = cluster(json!({}));
    assert_eq!(conditions(&cluster, NODE)[0], "Ready Unknown WaitingForAgent");
    cluster.report("host-1", host_status([attached("u0", NODE)])).wait(2);
    let expected = ["Ready True Available", "Recording True Available", "ProcessRunning True Available"];
    assert_eq!(conditions(&cluster, NODE), expected);
    let status = &cluster.statuses[NODE];
    assert_eq!((status.pod_count, status.recording_count, status.pods[0].pid), (1, 1, 4711));
    assert_eq!(status.pods[0].state, crate::crd::PodState::Recording);
}

#[test]
fn each_failure_of_a_trace_has_its_reason() {
    let report = || attached("u0", NODE);
    let error = "tracepoint net:foo: the executable has none of this name";
    for (report, expected) in [
        (
            PodReport { state: Reported::WaitingForContainer.into(), pid: 0, process_starts: 0, ..report() },
            ["False WaitingForContainer", "False WaitingForContainer", "False WaitingForContainer"],
        ),
        (
            PodReport { state: Reported::WaitingForProcess.into(), pid: 0, process_starts: 0, ..report() },
            ["False ProcessNotFound", "False ProcessNotFound", "False ProcessNotFound"],
        ),
        (
            PodReport { state: Reported::Failed.into(), last_error: "no process".to_owned(), ..report() },
            ["False CannotRecord", "False CannotRecord", "True Available"],
        ),
        (
            PodReport { trace_attached: 0, ..report() },
            ["Unknown WaitingForAgent", "Unknown WaitingForAgent", "True Available"],
        ),
        (
            PodReport { trace_attached: 0, trace_error: error.to_owned(), ..report() },
            ["False TracepointsNotAttached", "False TracepointsNotAttached", "True Available"],
        ),
        (
            PodReport { trace_attached: 0, latency_error: error.to_owned(), ..report() },
            ["False FunctionsNotTimed", "False FunctionsNotTimed", "True Available"],
        ),
        (PodReport { trace_attached: 0, latency_functions: 2, ..report() }, ["True Available"; 3]),
        // Others are recorded.
        (
            PodReport { latency_error: error.to_owned(), ..report() },
            ["False FunctionsNotTimed", "True Available", "True Available"],
        ),
        (
            PodReport { trace_error: error.to_owned(), ..report() },
            ["False TracepointsNotAttached", "True Available", "True Available"],
        ),
    ] {
        let mut cluster = cluster(json!({}));
        cluster.report("host-1", host_status([report.clone()])).wait(2);
        let kinds = ["Ready", "Recording", "ProcessRunning"];
        let expected: Vec<_> = kinds.iter().zip(expected).map(|(kind, rest)| format!("{kind} {rest}")).collect();
        assert_eq!(conditions(&cluster, NODE), expected, "{report:?}");
        let message = &cluster.condition(NODE, "Ready").message;
        let is_error = !report.trace_error.is_empty() || !report.latency_error.is_empty();
        assert!(!is_error || message == &format!("p: {error}"), "{message}");
    }
}

#[test]
fn nothing_is_recorded_with_invalid_tracepoints() {
    let mut cluster = cluster(json!({ "tracepoints": [{ "patterns": ["net:*"], "filter": ["size>large"] }] }));
    let options = cluster.observed("host-1", "u0").unwrap().trace.clone().unwrap();
    assert!(!options.enabled && options.rules.is_empty());
    cluster.report("host-1", host_status([PodReport { trace_attached: 0, ..attached("u0", NODE) }])).wait(2);
    assert_eq!(cluster.ready(NODE), ("False", "TracepointsInvalid"));
    let message = &cluster.condition(NODE, "Ready").message;
    assert!(message.contains("size>large"), "{message}");
}

#[test]
fn a_pod_of_both_kinds_is_observed_for_both() {
    for trace_first in [true, false] {
        let mut cluster = TestCluster::new();
        cluster.reconciler.apply_pod(&key("p"), octez("u0", "host-1"));
        let (tezos, traced_by) = (node("main", 5, json!({})), trace("t", 9, json!({})));
        for input in if trace_first { [traced_by, tezos] } else { [tezos, traced_by] } {
            cluster.reconciler.apply_node(input);
            cluster.step();
        }
        let pod = cluster.observed("host-1", "u0").unwrap();
        assert_eq!((&*pod.node, pod.p2p_port), ("tezos/main", Some(9732)));
        assert!(pod.network.is_some_and(|network| network.enabled) && pod.identity.is_some());
        assert_eq!(traced(&cluster, "u0"), Some((NODE.to_owned(), 1)));
        for name in ["tezos/main", NODE] {
            assert_eq!(cluster.desired.catalog[name].hosts, ["host-1"], "{name}");
        }
        let reports = [recording("u0", "tezos/main"), attached("u0", NODE)];
        cluster.report("host-1", host_status(reports)).wait(2);
        assert_eq!((cluster.ready("tezos/main"), cluster.ready(NODE)), (("True", "Available"), ("True", "Available")));

        // Each is deleted alone.
        let mut without_trace = cluster;
        without_trace.reconciler.delete_node(&trace_key("t"));
        without_trace.step();
        assert_eq!(traced(&without_trace, "u0"), None);
        assert_eq!(without_trace.observed("host-1", "u0").unwrap().node, "tezos/main");
        without_trace.reconciler.apply_node(trace("t", 9, json!({})));
        without_trace.step();
        without_trace.reconciler.delete_node(&key("main"));
        without_trace.step();
        let pod = without_trace.observed("host-1", "u0").unwrap();
        assert_eq!((&*pod.node, pod.p2p_port), (NODE, None));
        without_trace.reconciler.delete_node(&trace_key("t"));
        without_trace.step();
        assert!(without_trace.desired.hosts.is_empty() && without_trace.desired.catalog.is_empty());
    }
}

#[test]
fn a_changed_trace_reaches_the_pod_of_a_tezos_node() {
    let mut cluster = cluster(json!({}));
    cluster.reconciler.apply_node(node("main", 0, json!({})));
    cluster.step();
    let changed = json!({ "tracepoints": [{ "patterns": ["validation:*"] }] });
    cluster.reconciler.apply_node(NodeInput { generation: 2, ..trace("t", 0, changed) });
    cluster.step();
    assert_eq!(traced(&cluster, "u0"), Some((NODE.to_owned(), 2)));
    let pod = cluster.observed("host-1", "u0").unwrap();
    assert_eq!((pod.node_generation, &*pod.trace.as_ref().unwrap().rules[0].tracepoints[0]), (1, "validation:*"));
}

#[test]
fn another_program_than_that_of_the_tezos_node_is_a_conflict() {
    let mut cluster = cluster(json!({ "process": "octez-baker" }));
    cluster.reconciler.apply_node(node("main", 0, json!({})));
    cluster.wait(2);
    assert_eq!(cluster.ready(NODE), ("False", "PodConflict"));
    let message = &cluster.condition(NODE, "Ready").message;
    assert!(message.contains("TezosNode main observes octez-node in the container octez-node"), "{message}");
    assert_eq!(traced(&cluster, "u0"), None);
    assert_eq!(cluster.desired.catalog[NODE].hosts, [""; 0]);
    assert_ne!(cluster.ready("tezos/main").1, "PodConflict");
    // A container that the pod does not have conflicts with no other resource.
    cluster.reconciler.apply_node(NodeInput { generation: 2, ..node("main", 0, json!({ "container": "other" })) });
    cluster.wait(2);
    assert_eq!(traced(&cluster, "u0"), Some((NODE.to_owned(), 1)));
    assert_eq!(cluster.observed("host-1", "u0").unwrap().process, "octez-baker");
}

#[test]
fn the_older_of_two_traces_owns_the_pod() {
    let mut cluster = cluster(json!({}));
    cluster.reconciler.apply_node(trace("young", 7, json!({})));
    cluster.wait(2);
    assert_eq!(traced(&cluster, "u0"), Some((NODE.to_owned(), 1)));
    assert_eq!(cluster.ready("tezos/trace:young"), ("False", "PodConflict"));
    let message = &cluster.condition("tezos/trace:young", "Ready").message;
    assert_eq!(message, "pod p belongs to the older NodeTrace t");
    cluster.reconciler.delete_node(&trace_key("t"));
    cluster.wait(2);
    assert_eq!(traced(&cluster, "u0"), Some(("tezos/trace:young".to_owned(), 1)));
    assert!(cluster.events.iter().any(|event| event.note == "NodeTrace deleted; recording of 1 pods stopped"));
}

#[test]
fn a_node_of_the_same_name_is_another_node() {
    let mut cluster = cluster(json!({}));
    let labels = json!({ "podSelector": { "matchLabels": { "app": "x" } } });
    cluster.reconciler.apply_node(node("t", 0, labels));
    cluster.step();
    assert_eq!(cluster.desired.catalog.keys().collect::<Vec<_>>(), ["tezos/t", NODE]);
    cluster.reconciler.delete_node(&key("t"));
    cluster.step();
    assert_eq!(cluster.desired.catalog.keys().collect::<Vec<_>>(), [NODE]);
    assert_eq!(trace_key("t").resource(), (NodeKind::NodeTrace, "t"));
}
