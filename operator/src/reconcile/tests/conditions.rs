//! Conditions.

use serde_json::json;

use super::*;

fn cluster() -> TestCluster {
    let mut cluster = TestCluster::new();
    cluster.reconciler.apply_node(node("main", 0, json!({})));
    cluster.reconciler.apply_pod(&key("p"), octez("u0", "host-1"));
    cluster.step();
    cluster
}

/// Conditions of the only node, as `type status reason`.
fn conditions(cluster: &TestCluster) -> Vec<String> {
    let conditions = &cluster.statuses["tezos/main"].conditions;
    conditions.iter().map(|one| format!("{} {} {}", one.type_, one.status, one.reason)).collect()
}

#[test]
fn every_condition_is_true_for_a_recorded_pod() {
    let mut cluster = cluster();
    cluster.report("host-1", host_status([recording("u0", "tezos/main")])).wait(2);
    assert_eq!(
        conditions(&cluster),
        [
            "Ready True Available",
            "IdentityResolved True Available",
            "Recording True Available",
            "ProcessRunning True Available",
        ]
    );
    let status = &cluster.statuses["tezos/main"];
    assert_eq!((status.observed_generation, status.pod_count, status.recording_count), (Some(1), 1, 1));
    let pod = &status.pods[0];
    assert_eq!(
        (&*pod.name, &*pod.uid, &*pod.node_name, pod.pid, pod.state),
        ("p", "u0", "host-1", 4711, crate::crd::PodState::Recording)
    );
}

#[test]
fn each_failure_has_its_reason() {
    let report = || recording("u0", "tezos/main");
    let state =
        |state: Reported, pid, starts| PodReport { state: state.into(), pid, process_starts: starts, ..report() };
    for (status, expected) in [
        (
            host_status([state(Reported::WaitingForContainer, 0, 0)]),
            ["False WaitingForContainer", "True Available", "False WaitingForContainer", "False WaitingForContainer"],
        ),
        (
            host_status([PodReport { peer_id: String::new(), ..state(Reported::WaitingForProcess, 0, 0) }]),
            ["False ProcessNotFound", "Unknown ProcessNotFound", "False ProcessNotFound", "False ProcessNotFound"],
        ),
        (
            host_status([state(Reported::WaitingForProcess, 0, 1)]),
            ["False ProcessExited", "True Available", "False ProcessExited", "False ProcessExited"],
        ),
        (
            host_status([state(Reported::WaitingForProcess, 0, 7)]),
            ["False RestartLoop", "True Available", "False RestartLoop", "False RestartLoop"],
        ),
        (
            host_status([PodReport { last_error: "no BTF".to_owned(), ..state(Reported::Failed, 9, 1) }]),
            ["False CannotRecord", "True Available", "False CannotRecord", "True Available"],
        ),
        (
            host_status([PodReport { peer_id: String::new(), identity_error: "not found".to_owned(), ..report() }]),
            ["False IdentityNotRead", "False IdentityNotRead", "True Available", "True Available"],
        ),
        (
            HostStatus { error: "no CAP_BPF".to_owned(), ..host_status([report()]) },
            [
                "False HostCannotRecord",
                "Unknown HostCannotRecord",
                "False HostCannotRecord",
                "Unknown HostCannotRecord",
            ],
        ),
        (
            host_status([]),
            [
                "Unknown WaitingForAgent",
                "Unknown WaitingForAgent",
                "Unknown WaitingForAgent",
                "Unknown WaitingForAgent",
            ],
        ),
        (
            host_status([recording("u0", "tezos/another")]),
            [
                "Unknown WaitingForAgent",
                "Unknown WaitingForAgent",
                "Unknown WaitingForAgent",
                "Unknown WaitingForAgent",
            ],
        ),
    ] {
        let mut cluster = cluster();
        cluster.report("host-1", status.clone()).wait(2);
        let kinds = ["Ready", "IdentityResolved", "Recording", "ProcessRunning"];
        let expected: Vec<_> = kinds.iter().zip(expected).map(|(kind, rest)| format!("{kind} {rest}")).collect();
        assert_eq!(conditions(&cluster), expected, "{status:?}");
    }
}

#[test]
fn errors_of_the_plan_are_reported_without_an_agent() {
    for (spec, input, reason, observed) in [
        (json!({ "container": "node" }), octez("u0", "host-1"), "ContainerNotFound", false),
        (json!({ "ports": { "p2p": "p2p" } }), octez("u0", "host-1"), "PortNotFound", true),
        (json!({}), pod("u0", None, &[("appType", "octez-node")]), "PodUnscheduled", false),
    ] {
        let mut cluster = TestCluster::new();
        cluster.reconciler.apply_node(node("main", 0, spec));
        cluster.reconciler.apply_pod(&key("p"), input);
        cluster.step().report("host-1", host_status([recording("u0", "tezos/main")])).wait(2);
        assert_eq!(cluster.ready("tezos/main"), ("False", reason));
        assert_eq!(cluster.observed("host-1", "u0").is_some(), observed, "{reason}");
        assert!(cluster.condition("tezos/main", "Ready").message.starts_with("p: "), "{reason}");
    }
}

#[test]
fn an_agent_that_never_connects_is_missing() {
    let mut cluster = cluster();
    assert_eq!(cluster.ready("tezos/main"), ("Unknown", "WaitingForAgent"));
    cluster.wait(29);
    assert_eq!(cluster.ready("tezos/main"), ("Unknown", "WaitingForAgent"));
    cluster.wait(5);
    assert_eq!(cluster.ready("tezos/main"), ("False", "AgentMissing"));
    assert!(cluster.condition("tezos/main", "Ready").message.contains("host-1"));
    cluster.report("host-1", host_status([recording("u0", "tezos/main")])).wait(2);
    assert_eq!(cluster.ready("tezos/main"), ("True", "Available"));
}

#[test]
fn an_agent_without_recent_reports_is_unreachable() {
    let mut cluster = cluster();
    cluster.report("host-1", host_status([recording("u0", "tezos/main")])).wait(60);
    assert_eq!(cluster.ready("tezos/main"), ("True", "Available"));
    for reported in cluster.reports.hosts.values_mut() {
        *reported = Arc::new(AgentReport { connected: false, ..(**reported).clone() });
    }
    cluster.wait(30);
    assert_eq!(cluster.ready("tezos/main").0, "True");
    cluster.wait(10);
    assert_eq!(cluster.ready("tezos/main"), ("Unknown", "AgentUnreachable"));
    assert_eq!(cluster.statuses["tezos/main"].recording_count, 0);
}

#[test]
fn a_step_of_the_wall_clock_makes_no_agent_unreachable() {
    let mut cluster = cluster();
    cluster.report("host-1", host_status([recording("u0", "tezos/main")])).wait(2);
    assert_eq!(cluster.ready("tezos/main").0, "True");
    for offset in [3600, -3600] {
        cluster.clock_offset = offset * SECOND;
        cluster.wait(2);
        assert_eq!(cluster.ready("tezos/main").0, "True", "{offset} s");
    }
    // An agent that is gone is noticed although the wall clock goes back.
    cluster.reports.hosts.values_mut().for_each(|report| Arc::make_mut(report).connected = false);
    cluster.wait(30);
    cluster.clock_offset -= 60 * SECOND;
    cluster.wait(10);
    assert_eq!(cluster.ready("tezos/main"), ("Unknown", "AgentUnreachable"));
}

#[test]
fn last_transition_time_changes_with_the_status_only() {
    let mut cluster = cluster();
    cluster.report("host-1", host_status([recording("u0", "tezos/main")])).wait(2);
    let since = cluster.condition("tezos/main", "Ready").last_transition_time.clone();
    // Another process and more messages do not change the status.
    let mut report = recording("u0", "tezos/main");
    report.pid = 4712;
    cluster.wait(50).report("host-1", host_status([report.clone()])).wait(70);
    assert_eq!(cluster.condition("tezos/main", "Ready").last_transition_time, since);
    report.state = Reported::Failed.into();
    cluster.report("host-1", host_status([report])).wait(2);
    let ready = cluster.condition("tezos/main", "Ready");
    assert_eq!(ready.status, "False");
    assert!(ready.last_transition_time.0 > since.0);
    // An unchanged condition keeps its time.
    assert_eq!(cluster.condition("tezos/main", "ProcessRunning").last_transition_time, since);
}

#[test]
fn a_new_generation_is_not_ready_before_the_agent_applied_it() {
    let mut cluster = cluster();
    cluster.report("host-1", host_status([recording("u0", "tezos/main")])).wait(2);
    let mut input = node("main", 0, json!({ "network": { "store": "plain" } }));
    input.generation = 2;
    cluster.reconciler.apply_node(input);
    cluster.wait(2);
    assert_eq!(cluster.statuses["tezos/main"].observed_generation, Some(2));
    assert_eq!(cluster.ready("tezos/main"), ("Unknown", "WaitingForAgent"));
    cluster.report("host-1", host_status([PodReport { node_generation: 2, ..recording("u0", "tezos/main") }])).wait(2);
    assert_eq!(cluster.ready("tezos/main"), ("True", "Available"));
    assert!(cluster.statuses["tezos/main"].conditions.iter().all(|one| one.observed_generation == Some(2)));
}

#[test]
fn a_restart_loop_ends_when_the_process_is_stable() {
    let mut cluster = cluster();
    let mut report = recording("u0", "tezos/main");
    cluster.report("host-1", host_status([report.clone()])).wait(2);
    for _ in 0..3 {
        report.process_starts += 1;
        report.pid += 1;
        report.process_started_ns = cluster.now;
        cluster.report("host-1", host_status([report.clone()])).wait(20);
    }
    assert_eq!(cluster.ready("tezos/main"), ("False", "RestartLoop"));
    assert_eq!(cluster.condition("tezos/main", "Recording").status, "True");
    // Without further reports, five minutes of uptime end the loop.
    cluster.wait(301);
    assert_eq!(cluster.ready("tezos/main"), ("True", "Available"));
    // Infrequent restarts are not a loop.
    for _ in 0..3 {
        cluster.wait(700);
        report.process_starts += 1;
        report.process_started_ns = cluster.now;
        cluster.report("host-1", host_status([report.clone()])).wait(2);
        assert_eq!(cluster.ready("tezos/main"), ("True", "Available"));
    }
}

#[test]
fn a_node_with_disabled_recording_is_ready() {
    let mut cluster = TestCluster::new();
    cluster.reconciler.apply_node(node("main", 0, json!({ "network": { "enabled": false } })));
    cluster.reconciler.apply_pod(&key("p"), octez("u0", "host-1"));
    cluster.step().wait(60);
    assert_eq!(cluster.ready("tezos/main"), ("True", "NetworkDisabled"));
    let recording = cluster.condition("tezos/main", "Recording");
    assert_eq!((&*recording.status, &*recording.reason), ("False", "NetworkDisabled"));
}

#[test]
fn memory_profiling_alone_requires_the_process() {
    let mut cluster = TestCluster::new();
    cluster.reconciler.apply_node(node("main", 0, json!({ "network": { "enabled": false }, "memory": {} })));
    cluster.reconciler.apply_pod(&key("p"), octez("u0", "host-1"));
    let waiting = PodReport {
        state: Reported::WaitingForProcess.into(),
        pid: 0,
        process_starts: 0,
        ..recording("u0", "tezos/main")
    };
    cluster.step().report("host-1", host_status([waiting])).wait(2);
    assert_eq!(cluster.ready("tezos/main"), ("False", "ProcessNotFound"));
    let profiled = PodReport { state: Reported::Profiling.into(), ..recording("u0", "tezos/main") };
    cluster.report("host-1", host_status([profiled])).wait(2);
    assert_eq!(cluster.ready("tezos/main"), ("True", "Available"));
    assert_eq!(cluster.condition("tezos/main", "Recording").reason, "NetworkDisabled");
    let status = &cluster.statuses["tezos/main"];
    assert_eq!((status.recording_count, status.pods[0].state), (0, crate::crd::PodState::Profiling));
}

#[test]
fn logs_alone_require_the_process() {
    let mut cluster = TestCluster::new();
    cluster.reconciler.apply_node(node("main", 0, json!({ "network": { "enabled": false }, "logs": {} })));
    cluster.reconciler.apply_pod(&key("p"), octez("u0", "host-1"));
    let exited = PodReport { state: Reported::WaitingForProcess.into(), pid: 0, ..recording("u0", "tezos/main") };
    cluster.step().report("host-1", host_status([exited])).wait(2);
    assert_eq!(cluster.ready("tezos/main"), ("False", "ProcessExited"));
    let observed = PodReport { state: Reported::Profiling.into(), ..recording("u0", "tezos/main") };
    cluster.report("host-1", host_status([observed])).wait(2);
    assert_eq!(cluster.ready("tezos/main"), ("True", "Available"));
}

#[test]
fn an_invalid_pattern_stops_the_log_messages_and_nothing_else() {
    let mut cluster = cluster();
    let generation = |generation: i64, redact: &[&str]| NodeInput {
        generation,
        ..node("main", 0, json!({ "memory": {}, "logs": { "redact": redact } }))
    };
    let report = |generation| host_status([PodReport { node_generation: generation, ..recording("u0", "tezos/main") }]);
    let logs = |cluster: &TestCluster| cluster.observed("host-1", "u0").unwrap().logs.clone();
    for (redact, message) in [
        (&["a", "(b"], "invalid pattern \"(b\": error: unclosed group"),
        (&["a", "b*"], "the pattern \"b*\" matches empty text"),
        (&["a", "\\w{200}"], "invalid pattern \"\\\\w{200}\": Compiled regex exceeds size limit of 1048576 bytes."),
    ] {
        cluster.reconciler.apply_node(generation(2, redact));
        cluster.step().report("host-1", report(2)).wait(2);
        assert_eq!(logs(&cluster), None, "{redact:?}");
        let pod = cluster.observed("host-1", "u0").unwrap();
        assert!(pod.network.is_some_and(|network| network.enabled) && pod.memory.is_some_and(|memory| memory.enabled));
        let conditions = conditions(&cluster);
        assert_eq!(conditions[0], "Ready False LogPatternInvalid");
        assert!(conditions[1..].iter().all(|one| one.ends_with(" True Available")), "{conditions:?}");
        let expected = format!("no log messages are recorded: logs.redact: {message}");
        assert_eq!(cluster.condition("tezos/main", "Ready").message, expected);

        cluster.reconciler.apply_node(generation(3, &["a", "b"]));
        cluster.step().report("host-1", report(3)).wait(2);
        assert_eq!(logs(&cluster).unwrap().redact, ["a", "b"]);
        assert_eq!(cluster.ready("tezos/main"), ("True", "Available"));
    }
    // A pattern that is not used does no harm.
    let unused = json!({ "logs": { "enabled": false, "redact": ["("] } });
    cluster.reconciler.apply_node(NodeInput { generation: 4, ..node("main", 0, unused) });
    cluster.step().report("host-1", report(4)).wait(2);
    assert_eq!(cluster.ready("tezos/main"), ("True", "Available"));
    assert!(logs(&cluster).is_some_and(|logs| !logs.enabled));
}

#[test]
fn the_worst_pod_is_named_and_the_others_counted() {
    let mut cluster = cluster();
    for at in 1..5 {
        cluster.reconciler.apply_pod(&key(&format!("p{at}")), octez(&format!("u{at}"), "host-1"));
    }
    let mut pods: Vec<_> = (0..5).map(|at| recording(&format!("u{at}"), "tezos/main")).collect();
    for at in [2, 3] {
        pods[at].state = Reported::Failed.into();
        pods[at].last_error = "no space".to_owned();
    }
    cluster.step().report("host-1", host_status(pods)).wait(2);
    let status = &cluster.statuses["tezos/main"];
    assert_eq!((status.pod_count, status.recording_count), (5, 3));
    assert_eq!(cluster.condition("tezos/main", "Recording").message, "p2: no space (and 1 more)");
}

#[test]
fn text_of_agents_is_limited_and_without_control_characters() {
    let mut cluster = cluster();
    let hostile = format!("\u{1b}[2J\n{}", "x".repeat(100_000));
    let report = PodReport {
        state: Reported::Failed.into(),
        last_error: hostile.clone(),
        identity_error: hostile.clone(),
        peer_id: hostile.clone(),
        records_lost: u64::MAX,
        process_started_ns: i64::MIN,
        ..recording("u0", "tezos/main")
    };
    cluster.report("host-1", HostStatus { error: String::new(), ..host_status([report]) }).wait(2);
    let text = serde_json::to_string(&cluster.statuses["tezos/main"]).unwrap();
    assert!(text.len() < 8192 && !text.contains("\\u001b") && !text.contains("\\n"), "{} bytes", text.len());
    cluster.report("host-1", HostStatus { error: hostile, ..host_status([]) }).wait(2);
    assert!(serde_json::to_string(&cluster.statuses["tezos/main"]).unwrap().len() < 8192);
}
