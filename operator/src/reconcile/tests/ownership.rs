//! Which node has a pod.

use serde_json::json;

use super::*;

#[test]
fn a_node_that_selects_nothing_says_so() {
    let mut world = World::new();
    world.engine.apply_pod(&key("other"), pod("u0", Some("host-1"), &[("app", "web")]));
    world.engine.apply_node(node("main", 0, json!({})));
    world.step();
    assert_eq!(world.ready("tezos/main"), ("False", "NoPodsSelected"));
    assert!(world.desired.hosts.is_empty());
    assert!(world.desired.catalog.contains_key("tezos/main"));
    assert_eq!(world.told(), ["tezos/main NoPodsSelected"]);
}

#[test]
fn of_two_nodes_the_older_has_the_pod_whatever_came_first() {
    for younger_first in [true, false] {
        let mut world = World::new();
        let (old, young) = (node("zzz", 1, json!({})), node("aaa", 2, json!({})));
        world.engine.apply_pod(&key("p"), octez("u0", "host-1"));
        for input in if younger_first { [young, old] } else { [old, young] } {
            world.engine.apply_node(input);
            world.step();
        }
        world.wait(2);
        assert_eq!(world.observed("host-1", "u0").map(|pod| &*pod.node), Some("tezos/zzz"));
        assert_eq!(world.ready("tezos/aaa"), ("False", "PodTaken"));
        let message = &world.condition("tezos/aaa", "Ready").message;
        assert!(message.contains("pod p") && message.contains("zzz"), "{message}");
        assert_eq!(world.desired.catalog["tezos/aaa"].hosts, [""; 0]);
        // The older one goes: the younger takes over.
        world.engine.delete_node(&key("zzz"));
        world.wait(2);
        assert_eq!(world.observed("host-1", "u0").map(|pod| &*pod.node), Some("tezos/aaa"));
        assert_ne!(world.ready("tezos/aaa").1, "PodTaken");
        assert!(!world.desired.catalog.contains_key("tezos/zzz"));
    }
}

#[test]
fn of_two_nodes_of_one_second_the_name_decides() {
    let mut world = World::new();
    world.engine.apply_node(node("b", 1, json!({})));
    world.engine.apply_node(node("a", 1, json!({})));
    world.engine.apply_pod(&key("p"), octez("u0", "host-1"));
    world.step();
    assert_eq!(world.observed("host-1", "u0").map(|pod| &*pod.node), Some("tezos/a"));
}

#[test]
fn a_node_that_has_some_pods_and_lost_others_records_its_own() {
    let mut world = World::new();
    world.engine.apply_node(node("old", 1, json!({ "podSelector": { "matchLabels": { "app": "x" } } })));
    world.engine.apply_node(node("young", 2, json!({})));
    world.engine.apply_pod(&key("both"), pod("u0", Some("host-1"), &[("app", "x"), ("appType", "octez-node")]));
    world.engine.apply_pod(&key("own"), octez("u1", "host-1"));
    world.step().report("host-1", says([recording("u0", "tezos/old"), recording("u1", "tezos/young")]));
    world.wait(2);
    assert_eq!(world.observed("host-1", "u1").map(|pod| &*pod.node), Some("tezos/young"));
    assert_eq!(world.ready("tezos/young"), ("False", "PodTaken"));
    assert_eq!(world.condition("tezos/young", "Recording").status, "True");
    assert_eq!(world.ready("tezos/old"), ("True", "AsConfigured"));
}

#[test]
fn a_changed_selector_lets_go_and_takes() {
    let mut world = World::new();
    let mut input = node("main", 0, json!({}));
    world.engine.apply_node(input.clone());
    world.engine.apply_pod(&key("a"), octez("u0", "host-1"));
    world.engine.apply_pod(&key("b"), pod("u1", Some("host-2"), &[("app", "x")]));
    world.step();
    assert!(world.observed("host-1", "u0").is_some());
    let other = node(
        "main",
        0,
        json!({ "podSelector": { "matchExpressions": [{ "key": "app", "operator": "In", "values": ["x"] }] } }),
    );
    input.spec = other.spec;
    input.generation = 2;
    world.engine.apply_node(input);
    world.step();
    assert!(!world.desired.hosts.contains_key("host-1"));
    assert_eq!(world.observed("host-2", "u1").map(|pod| pod.node_generation), Some(2));
    assert_eq!(world.desired.catalog["tezos/main"].hosts, ["host-2"]);
}

#[test]
fn a_pod_whose_labels_change_changes_hands() {
    let mut world = World::new();
    world.engine.apply_node(node("a", 0, json!({ "podSelector": { "matchLabels": { "app": "a" } } })));
    world.engine.apply_node(node("b", 0, json!({ "podSelector": { "matchLabels": { "app": "b" } } })));
    world.engine.apply_pod(&key("p"), pod("u0", Some("host-1"), &[("app", "a")]));
    world.step();
    assert_eq!(world.observed("host-1", "u0").map(|pod| &*pod.node), Some("tezos/a"));
    world.engine.apply_pod(&key("p"), pod("u0", Some("host-1"), &[("app", "b")]));
    world.step();
    assert_eq!(world.observed("host-1", "u0").map(|pod| &*pod.node), Some("tezos/b"));
}

#[test]
fn a_pod_that_was_made_again_is_another_pod() {
    let mut world = World::new();
    world.engine.apply_node(node("main", 0, json!({})));
    world.engine.apply_pod(&key("p"), octez("u0", "host-1"));
    world.step();
    world.engine.apply_pod(&key("p"), octez("u1", "host-2"));
    world.step();
    assert!(!world.desired.hosts.contains_key("host-1"));
    assert!(world.observed("host-2", "u1").is_some());
    world.engine.delete_pod(&key("p"));
    world.step();
    assert!(world.desired.hosts.is_empty());
}

#[test]
fn a_node_that_is_deleted_while_recording_ends_with_an_event() {
    let mut world = World::new();
    let mut input = node("main", 0, json!({}));
    world.engine.apply_node(input.clone());
    world.engine.apply_pod(&key("p"), octez("u0", "host-1"));
    world.step().report("host-1", says([recording("u0", "tezos/main")]));
    world.told();
    // Somebody else's finalizer holds it: it is not observed any more all the same.
    input.deleting = true;
    input.generation = 2;
    world.engine.apply_node(input);
    world.step();
    assert!(world.desired.hosts.is_empty() && world.desired.catalog.is_empty());
    assert_eq!(world.told(), ["tezos/main RecordingStopped"]);
    world.engine.delete_node(&key("main"));
    world.step();
    assert!(world.told().is_empty());
}

#[test]
fn a_namespace_is_a_world_of_its_own() {
    let mut world = World::new();
    world.engine.apply_node(node("main", 0, json!({})));
    world.engine.apply_pod(&Key::new("tezos2", "p"), octez("u0", "host-1"));
    world.engine.apply_pod(&Key::new("tezo", "p"), octez("u1", "host-1"));
    world.step();
    assert!(world.desired.hosts.is_empty());
}

#[test]
fn a_specification_that_cannot_be_read_keeps_its_records() {
    let mut world = World::new();
    let input = node("main", 0, json!({ "aliases": ["a"] }));
    world.engine.apply_node(input.clone());
    world.engine.apply_pod(&key("p"), octez("u0", "host-1"));
    world.step();
    let unreadable = NodeInput { spec: Err("unknown variant `quantum`".to_owned()), generation: 2, ..input };
    world.engine.apply_node(unreadable);
    world.wait(2);
    assert_eq!(world.ready("tezos/main"), ("False", "SpecInvalid"));
    assert!(world.condition("tezos/main", "Ready").message.contains("quantum"));
    assert_eq!(world.desired.catalog["tezos/main"].aliases, ["a"]);
    assert!(world.desired.hosts.is_empty());
}
