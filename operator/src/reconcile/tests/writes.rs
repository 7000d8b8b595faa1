//! When the API server is asked for something, and what a new leader makes of it all.

use serde_json::json;

use super::*;

fn world() -> World {
    let mut world = World::new();
    world.engine.apply_node(node("main", 0, json!({})));
    world.engine.apply_pod(&key("p"), octez("u0", "host-1"));
    world.step().report("host-1", says([recording("u0", "tezos/main")])).wait(3);
    world.writes = 0;
    world.told();
    world
}

#[test]
fn nothing_is_written_while_nothing_changes() {
    let mut world = world();
    let desired = Arc::clone(&world.desired);
    world.engine.apply_node(node("main", 0, json!({})));
    world.engine.apply_pod(&key("p"), octez("u0", "host-1"));
    world.wait(600);
    assert_eq!(world.writes, 0);
    assert!(world.told().is_empty());
    assert!(Arc::ptr_eq(&desired, &world.desired), "agents are told nothing new");
}

#[test]
fn counts_are_written_once_a_minute() {
    let mut world = world();
    for second in 0..600 {
        let report = PodReport { messages: 100 + second, bytes_seen: second, ..recording("u0", "tezos/main") };
        world.report("host-1", says([report])).wait(1);
    }
    assert!((9..=11).contains(&world.writes), "{} writes", world.writes);
    assert!(world.statuses["tezos/main"].messages > 600);
}

#[test]
fn an_agent_that_flaps_costs_one_write_a_second_at_most() {
    let mut world = world();
    for at in 0..100_u32 {
        let report = PodReport { pid: 5000 + at, ..recording("u0", "tezos/main") };
        world.now += SECOND / 10;
        world.report("host-1", says([report]));
    }
    assert!((8..=11).contains(&world.writes), "{} writes", world.writes);
    world.wait(2);
    assert_eq!(world.statuses["tezos/main"].pods[0].pid, 5099, "the last word is written");
}

#[test]
fn a_write_that_failed_is_tried_again() {
    let mut world = world();
    let report = PodReport { state: Reported::Failed.into(), ..recording("u0", "tezos/main") };
    world.report("host-1", says([report]));
    assert_eq!(world.writes, 1);
    world.engine.write_failed(&key("main"));
    world.wait(3);
    assert_eq!(world.writes, 2);
    world.wait(10);
    assert_eq!(world.writes, 2);
}

#[test]
fn a_new_leader_changes_nothing_of_what_is_still_true() {
    let world = world();
    let stored = world.statuses["tezos/main"].clone();
    let mut input = node("main", 0, json!({}));
    input.status = stored.clone();
    // Another replica takes over; it has read everything, but no agent has come to it yet.
    let mut next = World::new();
    next.engine.apply_node(input);
    next.engine.apply_pod(&key("p"), octez("u0", "host-1"));
    next.now = world.now + 5 * SECOND;
    next.engine.begin(next.now);
    next.step().wait(20);
    assert_eq!(next.writes, 0, "{:?}", next.statuses);
    assert!(next.told().is_empty());
    assert_eq!(next.desired.hosts, world.desired.hosts);
    // It comes, and says a little later how it goes.
    next.report("host-1", HostStatus::default()).wait(2);
    next.report("host-1", says([recording("u0", "tezos/main")])).wait(5);
    assert_eq!((next.writes, next.told().len()), (0, 0));
    // Whoever never comes is missed in the end.
    let mut alone = World::new();
    alone.engine.apply_node(NodeInput { status: stored, ..node("main", 0, json!({})) });
    alone.engine.apply_pod(&key("p"), octez("u0", "host-1"));
    alone.engine.begin(alone.now);
    alone.step().wait(40);
    assert_eq!(alone.ready("tezos/main"), ("False", "AgentMissing"));
}

#[test]
fn what_does_not_change_stays_the_same_allocation() {
    let mut world = world();
    world.engine.apply_pod(&key("q"), octez("u1", "host-2"));
    world.step();
    let before = Arc::clone(&world.desired);
    world.engine.apply_pod(&key("r"), octez("u2", "host-2"));
    world.step();
    assert!(Arc::ptr_eq(&before.hosts["host-1"], &world.desired.hosts["host-1"]));
    assert!(!Arc::ptr_eq(&before.hosts["host-2"], &world.desired.hosts["host-2"]));
    assert!(Arc::ptr_eq(&before.hosts["host-2"]["u1"], &world.desired.hosts["host-2"]["u1"]));
}

#[test]
fn a_node_made_again_under_its_name_starts_afresh() {
    let mut world = world();
    let again = NodeInput { uid: "another".to_owned(), ..node("main", 50, json!({ "container": "x" })) };
    world.engine.apply_node(again);
    world.wait(2);
    assert_eq!(world.ready("tezos/main"), ("False", "ContainerNotFound"));
    assert!(world.told().contains(&"tezos/main RecordingStopped".to_owned()));
}

#[test]
fn records_that_are_dropped_are_told_but_not_again_and_again() {
    let mut world = world();
    world.engine.apply_pod(&key("q"), octez("u1", "host-1"));
    let lost = |first, second| {
        let report = |uid, records_lost| PodReport { records_lost, ..recording(uid, "tezos/main") };
        says([report("u0", first), report("u1", second)])
    };
    world.step().report("host-1", lost(0, 0)).wait(3);
    world.told();
    world.report("host-1", lost(80, 0));
    assert_eq!(world.statuses["tezos/main"].pods[0].records_lost, 0, "counts alone are not written at once");
    let event = world.events.pop().unwrap();
    assert_eq!((&*event.reason, event.good), ("RecordsDropped", false));
    assert_eq!(event.note, "records were dropped: 80 on host host-1; /v2/stats of the node says why");
    // It goes on, and is summed up ten minutes later.
    for lost_so_far in 81..=200 {
        world.report("host-1", lost(lost_so_far, 3)).wait(2);
    }
    assert!(world.told().is_empty());
    world.wait(600);
    assert!(world.events[0].note.contains(" 123 on host host-1"), "{:?}", world.events);
    assert_eq!(world.told(), ["tezos/main RecordsDropped"]);
    // The first pod goes, and what the spool dropped is in the report of the other one. The agent begins to count anew.
    world.now += 1000 * SECOND;
    world.engine.delete_pod(&key("p"));
    world.report("host-1", says([PodReport { records_lost: 203, ..recording("u1", "tezos/main") }])).wait(3);
    world.report("host-1", says([recording("u1", "tezos/main")])).wait(3);
    assert!(!world.told().contains(&"tezos/main RecordsDropped".to_owned()));
    world.report("host-1", says([PodReport { records_lost: 1, ..recording("u1", "tezos/main") }])).wait(3);
    assert_eq!(world.told(), ["tezos/main RecordsDropped"]);
    assert_eq!(world.ready("tezos/main"), ("True", "AsConfigured"));
}
