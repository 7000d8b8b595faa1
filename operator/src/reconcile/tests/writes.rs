//! Rates of writes and Events, and changes of the leader.

use serde_json::json;

use super::*;

fn cluster() -> TestCluster {
    let mut cluster = TestCluster::new();
    cluster.reconciler.apply_node(node("main", 0, json!({})));
    cluster.reconciler.apply_pod(&key("p"), octez("u0", "host-1"));
    cluster.step().report("host-1", host_status([recording("u0", "tezos/main")])).wait(3);
    cluster.writes = 0;
    cluster.take_events();
    cluster
}

#[test]
fn nothing_is_written_without_changes() {
    let mut cluster = cluster();
    let desired = Arc::clone(&cluster.desired);
    cluster.reconciler.apply_node(node("main", 0, json!({})));
    cluster.reconciler.apply_pod(&key("p"), octez("u0", "host-1"));
    cluster.wait(600);
    assert_eq!(cluster.writes, 0);
    assert!(cluster.take_events().is_empty());
    assert!(Arc::ptr_eq(&desired, &cluster.desired), "the desired state is unchanged");
}

#[test]
fn counters_are_not_written() {
    let mut cluster = cluster();
    for second in 0..600 {
        let report = PodReport {
            messages: 100 + second,
            bytes_seen: second,
            bytes_lost: second,
            connections_open: second,
            last_record_ns: 1,
            ..recording("u0", "tezos/main")
        };
        cluster.report("host-1", host_status([report])).wait(1);
    }
    assert_eq!(cluster.writes, 0);
}

#[test]
fn a_flapping_agent_causes_at_most_one_write_per_second() {
    let mut cluster = cluster();
    for at in 0..100_u32 {
        let report = PodReport { pid: 5000 + at, ..recording("u0", "tezos/main") };
        cluster.now += SECOND / 10;
        cluster.report("host-1", host_status([report]));
    }
    assert!((8..=11).contains(&cluster.writes), "{} writes", cluster.writes);
    cluster.wait(2);
    assert_eq!(cluster.statuses["tezos/main"].pods[0].pid, 5099, "the last report is written");
}

#[test]
fn a_failed_write_is_retried() {
    let mut cluster = cluster();
    let report = PodReport { state: Reported::Failed.into(), ..recording("u0", "tezos/main") };
    cluster.report("host-1", host_status([report]));
    assert_eq!(cluster.writes, 1);
    cluster.reconciler.write_failed(&key("main"));
    cluster.wait(3);
    assert_eq!(cluster.writes, 2);
    cluster.wait(10);
    assert_eq!(cluster.writes, 2);
}

#[test]
fn a_new_leader_keeps_unchanged_statuses() {
    let cluster = cluster();
    let stored = cluster.statuses["tezos/main"].clone();
    let mut input = node("main", 0, json!({}));
    input.status = stored.clone();
    // Another replica becomes the leader; its lists are complete, but no agent has connected.
    let mut next = TestCluster::new();
    next.reconciler.apply_node(input);
    next.reconciler.apply_pod(&key("p"), octez("u0", "host-1"));
    next.now = cluster.now + 5 * SECOND;
    next.reconciler.begin(next.now);
    next.step().wait(20);
    assert_eq!(next.writes, 0, "{:?}", next.statuses);
    assert!(next.take_events().is_empty());
    assert_eq!(next.desired.hosts, cluster.desired.hosts);
    // The agent connects and reports later.
    next.report("host-1", HostStatus::default()).wait(2);
    next.report("host-1", host_status([recording("u0", "tezos/main")])).wait(5);
    assert_eq!((next.writes, next.take_events().len()), (0, 0));
    // An agent that never connects is missing after the grace period.
    let mut alone = TestCluster::new();
    alone.reconciler.apply_node(NodeInput { status: stored, ..node("main", 0, json!({})) });
    alone.reconciler.apply_pod(&key("p"), octez("u0", "host-1"));
    alone.reconciler.begin(alone.now);
    alone.step().wait(40);
    assert_eq!(alone.ready("tezos/main"), ("False", "AgentMissing"));
}

#[test]
fn unchanged_items_keep_their_allocation() {
    let mut cluster = cluster();
    cluster.reconciler.apply_pod(&key("q"), octez("u1", "host-2"));
    cluster.step();
    let before = Arc::clone(&cluster.desired);
    cluster.reconciler.apply_pod(&key("r"), octez("u2", "host-2"));
    cluster.step();
    assert!(Arc::ptr_eq(&before.hosts["host-1"], &cluster.desired.hosts["host-1"]));
    assert!(!Arc::ptr_eq(&before.hosts["host-2"], &cluster.desired.hosts["host-2"]));
    assert!(Arc::ptr_eq(&before.hosts["host-2"]["u1"], &cluster.desired.hosts["host-2"]["u1"]));
}

#[test]
fn a_recreated_node_starts_with_a_new_state() {
    let mut cluster = cluster();
    let again = NodeInput { uid: "another".to_owned(), ..node("main", 50, json!({ "container": "x" })) };
    cluster.reconciler.apply_node(again);
    cluster.wait(2);
    assert_eq!(cluster.ready("tezos/main"), ("False", "ContainerNotFound"));
    assert!(cluster.take_events().contains(&"tezos/main RecordingStopped".to_owned()));
}

#[test]
fn events_about_dropped_records_are_rate_limited() {
    let mut cluster = cluster();
    cluster.reconciler.apply_pod(&key("q"), octez("u1", "host-1"));
    let lost = |first, second| {
        let report = |uid, records_lost| PodReport { records_lost, ..recording(uid, "tezos/main") };
        host_status([report("u0", first), report("u1", second)])
    };
    cluster.step().report("host-1", lost(0, 0)).wait(3);
    cluster.take_events();
    cluster.report("host-1", lost(80, 0));
    let event = cluster.events.pop().unwrap();
    assert_eq!((&*event.reason, event.is_warning), ("RecordsDropped", true));
    assert_eq!(event.note, "records were dropped: 80 on host host-1; /v2/stats of the node lists the reasons");
    // Further drops are summed and reported ten minutes later.
    for lost_so_far in 81..=200 {
        cluster.report("host-1", lost(lost_so_far, 3)).wait(2);
    }
    assert!(cluster.take_events().is_empty());
    cluster.wait(600);
    assert!(cluster.events[0].note.contains(" 123 on host host-1"), "{:?}", cluster.events);
    assert_eq!(cluster.take_events(), ["tezos/main RecordsDropped"]);
    // The first pod is deleted; the spool's drops are in the report of the other pod. The agent's counters restart.
    cluster.now += 1000 * SECOND;
    cluster.reconciler.delete_pod(&key("p"));
    cluster.report("host-1", host_status([PodReport { records_lost: 203, ..recording("u1", "tezos/main") }])).wait(3);
    cluster.report("host-1", host_status([recording("u1", "tezos/main")])).wait(3);
    assert!(!cluster.take_events().contains(&"tezos/main RecordsDropped".to_owned()));
    cluster.report("host-1", host_status([PodReport { records_lost: 1, ..recording("u1", "tezos/main") }])).wait(3);
    assert_eq!(cluster.take_events(), ["tezos/main RecordsDropped"]);
    assert_eq!(cluster.ready("tezos/main"), ("True", "Available"));
}
