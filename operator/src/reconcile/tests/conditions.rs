//! What conditions say.

use serde_json::json;

use super::*;

fn world() -> World {
    let mut world = World::new();
    world.engine.apply_node(node("main", 0, json!({})));
    world.engine.apply_pod(&key("p"), octez("u0", "host-1"));
    world.step();
    world
}

/// Conditions of the only node, as `type status reason`.
fn conditions(world: &World) -> Vec<String> {
    let conditions = &world.statuses["tezos/main"].conditions;
    conditions.iter().map(|one| format!("{} {} {}", one.type_, one.status, one.reason)).collect()
}

#[test]
fn all_is_well() {
    let mut world = world();
    world.report("host-1", says([recording("u0", "tezos/main")])).wait(2);
    assert_eq!(
        conditions(&world),
        [
            "Ready True AsConfigured",
            "IdentityResolved True AsConfigured",
            "Recording True AsConfigured",
            "NodeProcessRunning True AsConfigured",
        ]
    );
    let status = &world.statuses["tezos/main"];
    assert_eq!(
        (status.observed_generation, status.pod_count, status.recording_count, status.messages),
        (Some(1), 1, 1, 10)
    );
    let pod = &status.pods[0];
    assert_eq!(
        (&*pod.name, &*pod.uid, &*pod.host, pod.pid, pod.state),
        ("p", "u0", "host-1", 4711, crate::crd::PodState::Recording)
    );
}

#[test]
fn each_trouble_has_its_reason() {
    let report = || recording("u0", "tezos/main");
    let state =
        |state: Reported, pid, starts| PodReport { state: state.into(), pid, process_starts: starts, ..report() };
    for (status, expected) in [
        (
            says([state(Reported::WaitingForContainer, 0, 0)]),
            [
                "False WaitingForContainer",
                "True AsConfigured",
                "False WaitingForContainer",
                "False WaitingForContainer",
            ],
        ),
        (
            says([PodReport { peer_id: String::new(), ..state(Reported::WaitingForProcess, 0, 0) }]),
            ["False ProcessNotFound", "Unknown ProcessNotFound", "False ProcessNotFound", "False ProcessNotFound"],
        ),
        (
            says([state(Reported::WaitingForProcess, 0, 1)]),
            ["False ProcessExited", "True AsConfigured", "False ProcessExited", "False ProcessExited"],
        ),
        (
            says([state(Reported::WaitingForProcess, 0, 7)]),
            ["False RestartLoop", "True AsConfigured", "False RestartLoop", "False RestartLoop"],
        ),
        (
            says([PodReport { last_error: "no BTF".to_owned(), ..state(Reported::Failed, 9, 1) }]),
            ["False CannotRecord", "True AsConfigured", "False CannotRecord", "True AsConfigured"],
        ),
        (
            says([PodReport { peer_id: String::new(), identity_error: "not found".to_owned(), ..report() }]),
            ["False IdentityNotRead", "False IdentityNotRead", "True AsConfigured", "True AsConfigured"],
        ),
        (
            HostStatus { error: "no CAP_BPF".to_owned(), ..says([report()]) },
            [
                "False HostCannotRecord",
                "Unknown HostCannotRecord",
                "False HostCannotRecord",
                "Unknown HostCannotRecord",
            ],
        ),
        (
            says([]),
            [
                "Unknown WaitingForAgent",
                "Unknown WaitingForAgent",
                "Unknown WaitingForAgent",
                "Unknown WaitingForAgent",
            ],
        ),
        (
            says([recording("u0", "tezos/another")]),
            [
                "Unknown WaitingForAgent",
                "Unknown WaitingForAgent",
                "Unknown WaitingForAgent",
                "Unknown WaitingForAgent",
            ],
        ),
    ] {
        let mut world = world();
        world.report("host-1", status.clone()).wait(2);
        let kinds = ["Ready", "IdentityResolved", "Recording", "NodeProcessRunning"];
        let expected: Vec<_> = kinds.iter().zip(expected).map(|(kind, rest)| format!("{kind} {rest}")).collect();
        assert_eq!(conditions(&world), expected, "{status:?}");
    }
}

#[test]
fn what_is_wrong_with_a_pod_is_said_before_any_agent_speaks() {
    for (spec, input, reason, observed) in [
        (json!({ "container": "node" }), octez("u0", "host-1"), "ContainerNotFound", false),
        (json!({ "ports": { "p2p": "p2p" } }), octez("u0", "host-1"), "PortNotFound", true),
        (json!({}), pod("u0", None, &[("appType", "octez-node")]), "PodUnscheduled", false),
    ] {
        let mut world = World::new();
        world.engine.apply_node(node("main", 0, spec));
        world.engine.apply_pod(&key("p"), input);
        world.step().report("host-1", says([recording("u0", "tezos/main")])).wait(2);
        assert_eq!(world.ready("tezos/main"), ("False", reason));
        assert_eq!(world.observed("host-1", "u0").is_some(), observed, "{reason}");
        assert!(world.condition("tezos/main", "Ready").message.starts_with("p: "), "{reason}");
    }
}

#[test]
fn an_agent_that_never_comes_is_missing() {
    let mut world = world();
    assert_eq!(world.ready("tezos/main"), ("Unknown", "WaitingForAgent"));
    world.wait(29);
    assert_eq!(world.ready("tezos/main"), ("Unknown", "WaitingForAgent"));
    world.wait(5);
    assert_eq!(world.ready("tezos/main"), ("False", "AgentMissing"));
    assert!(world.condition("tezos/main", "Ready").message.contains("host-1"));
    world.report("host-1", says([recording("u0", "tezos/main")])).wait(2);
    assert_eq!(world.ready("tezos/main"), ("True", "AsConfigured"));
}

#[test]
fn an_agent_that_falls_silent_is_not_believed_any_more() {
    let mut world = world();
    world.report("host-1", says([recording("u0", "tezos/main")])).wait(60);
    assert_eq!(world.ready("tezos/main"), ("True", "AsConfigured"));
    for reported in world.reports.hosts.values_mut() {
        *reported = Arc::new(HostReported { connected: false, ..(**reported).clone() });
    }
    world.wait(30);
    assert_eq!(world.ready("tezos/main").0, "True");
    world.wait(10);
    assert_eq!(world.ready("tezos/main"), ("Unknown", "AgentSilent"));
    assert_eq!(world.statuses["tezos/main"].recording_count, 0);
}

#[test]
fn a_transition_keeps_its_time_until_the_next() {
    let mut world = world();
    world.report("host-1", says([recording("u0", "tezos/main")])).wait(2);
    let since = world.condition("tezos/main", "Ready").last_transition_time.clone();
    // Another process, a changed specification, more messages: still ready.
    let mut report = recording("u0", "tezos/main");
    report.pid = 4712;
    world.wait(50).report("host-1", says([report.clone()])).wait(70);
    assert_eq!(world.condition("tezos/main", "Ready").last_transition_time, since);
    report.state = Reported::Failed.into();
    world.report("host-1", says([report])).wait(2);
    let ready = world.condition("tezos/main", "Ready");
    assert_eq!(ready.status, "False");
    assert!(ready.last_transition_time.0 > since.0);
    // What did not change keeps its own.
    assert_eq!(world.condition("tezos/main", "NodeProcessRunning").last_transition_time, since);
}

#[test]
fn a_new_generation_is_not_ready_before_the_agent_has_it() {
    let mut world = world();
    world.report("host-1", says([recording("u0", "tezos/main")])).wait(2);
    let mut input = node("main", 0, json!({ "network": { "store": "plain" } }));
    input.generation = 2;
    world.engine.apply_node(input);
    world.wait(2);
    assert_eq!(world.statuses["tezos/main"].observed_generation, Some(2));
    assert_eq!(world.ready("tezos/main"), ("Unknown", "WaitingForAgent"));
    world.report("host-1", says([PodReport { node_generation: 2, ..recording("u0", "tezos/main") }])).wait(2);
    assert_eq!(world.ready("tezos/main"), ("True", "AsConfigured"));
    assert!(world.statuses["tezos/main"].conditions.iter().all(|one| one.observed_generation == Some(2)));
}

#[test]
fn a_process_that_ends_again_and_again_is_a_loop_until_it_settles() {
    let mut world = world();
    let mut report = recording("u0", "tezos/main");
    world.report("host-1", says([report.clone()])).wait(2);
    for _ in 0..3 {
        report.process_starts += 1;
        report.pid += 1;
        report.process_started_ns = world.now;
        world.report("host-1", says([report.clone()])).wait(20);
    }
    assert_eq!(world.ready("tezos/main"), ("False", "RestartLoop"));
    assert_eq!(world.condition("tezos/main", "Recording").status, "True");
    // Nothing more is heard but time: five minutes of life settle it.
    world.wait(301);
    assert_eq!(world.ready("tezos/main"), ("True", "AsConfigured"));
    // A restart now and then is none.
    for _ in 0..3 {
        world.wait(700);
        report.process_starts += 1;
        report.process_started_ns = world.now;
        world.report("host-1", says([report.clone()])).wait(2);
        assert_eq!(world.ready("tezos/main"), ("True", "AsConfigured"));
    }
}

#[test]
fn nothing_asked_for_is_nothing_missing() {
    let mut world = World::new();
    world.engine.apply_node(node("main", 0, json!({ "network": { "enabled": false } })));
    world.engine.apply_pod(&key("p"), octez("u0", "host-1"));
    world.step().wait(60);
    assert_eq!(world.ready("tezos/main"), ("True", "NetworkDisabled"));
    let recording = world.condition("tezos/main", "Recording");
    assert_eq!((&*recording.status, &*recording.reason), ("False", "NetworkDisabled"));
}

#[test]
fn memory_alone_needs_the_process() {
    let mut world = World::new();
    world.engine.apply_node(node("main", 0, json!({ "network": { "enabled": false }, "memory": {} })));
    world.engine.apply_pod(&key("p"), octez("u0", "host-1"));
    let waits = PodReport {
        state: Reported::WaitingForProcess.into(),
        pid: 0,
        process_starts: 0,
        ..recording("u0", "tezos/main")
    };
    world.step().report("host-1", says([waits])).wait(2);
    assert_eq!(world.ready("tezos/main"), ("False", "ProcessNotFound"));
    let profiled = PodReport { state: Reported::Profiling.into(), ..recording("u0", "tezos/main") };
    world.report("host-1", says([profiled])).wait(2);
    assert_eq!(world.ready("tezos/main"), ("True", "AsConfigured"));
    assert_eq!(world.condition("tezos/main", "Recording").reason, "NetworkDisabled");
    let status = &world.statuses["tezos/main"];
    assert_eq!((status.recording_count, status.pods[0].state), (0, crate::crd::PodState::Profiling));
}

#[test]
fn of_many_pods_the_worst_is_named_and_the_rest_counted() {
    let mut world = world();
    for at in 1..5 {
        world.engine.apply_pod(&key(&format!("p{at}")), octez(&format!("u{at}"), "host-1"));
    }
    let mut pods: Vec<_> = (0..5).map(|at| recording(&format!("u{at}"), "tezos/main")).collect();
    for at in [2, 3] {
        pods[at].state = Reported::Failed.into();
        pods[at].last_error = "no room".to_owned();
    }
    world.step().report("host-1", says(pods)).wait(2);
    let status = &world.statuses["tezos/main"];
    assert_eq!((status.pod_count, status.recording_count, status.messages), (5, 3, 50));
    assert_eq!(world.condition("tezos/main", "Recording").message, "p2: no room (and 1 more)");
}

#[test]
fn what_an_agent_says_is_shown_bounded_and_harmless() {
    let mut world = world();
    let evil = format!("\u{1b}[2J\n{}", "x".repeat(100_000));
    let report = PodReport {
        state: Reported::Failed.into(),
        last_error: evil.clone(),
        identity_error: evil.clone(),
        peer_id: evil.clone(),
        messages: u64::MAX,
        bytes_lost: u64::MAX,
        last_record_ns: i64::MAX,
        process_started_ns: i64::MIN,
        ..recording("u0", "tezos/main")
    };
    world.report("host-1", HostStatus { error: String::new(), ..says([report]) }).wait(2);
    let text = serde_json::to_string(&world.statuses["tezos/main"]).unwrap();
    assert!(text.len() < 8192 && !text.contains("\\u001b") && !text.contains("\\n"), "{} bytes", text.len());
    assert_eq!(world.statuses["tezos/main"].messages, i64::MAX);
    world.report("host-1", HostStatus { error: evil, ..says([]) }).wait(2);
    assert!(serde_json::to_string(&world.statuses["tezos/main"]).unwrap().len() < 8192);
}
