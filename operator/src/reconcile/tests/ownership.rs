//! Ownership of pods.

use serde_json::json;

use super::*;

#[test]
fn a_node_without_pods_is_not_ready() {
    let mut cluster = TestCluster::new();
    cluster.reconciler.apply_pod(&key("other"), pod("u0", Some("host-1"), &[("app", "web")]));
    cluster.reconciler.apply_node(node("main", 0, json!({})));
    cluster.step();
    assert_eq!(cluster.ready("tezos/main"), ("False", "NoPodsSelected"));
    assert!(cluster.desired.hosts.is_empty());
    assert!(cluster.desired.catalog.contains_key("tezos/main"));
    assert_eq!(cluster.take_events(), ["tezos/main NoPodsSelected"]);
}

#[test]
fn the_oldest_node_owns_the_pod_in_any_order_of_arrival() {
    for younger_first in [true, false] {
        let mut cluster = TestCluster::new();
        let (old, young) = (node("zzz", 1, json!({})), node("aaa", 2, json!({})));
        cluster.reconciler.apply_pod(&key("p"), octez("u0", "host-1"));
        for input in if younger_first { [young, old] } else { [old, young] } {
            cluster.reconciler.apply_node(input);
            cluster.step();
        }
        cluster.wait(2);
        assert_eq!(cluster.observed("host-1", "u0").map(|pod| &*pod.node), Some("tezos/zzz"));
        assert_eq!(cluster.ready("tezos/aaa"), ("False", "PodConflict"));
        let message = &cluster.condition("tezos/aaa", "Ready").message;
        assert!(message.contains("pod p") && message.contains("zzz"), "{message}");
        assert_eq!(cluster.desired.catalog["tezos/aaa"].hosts, [""; 0]);
        // After the deletion of the older node the younger one owns the pod.
        cluster.reconciler.delete_node(&key("zzz"));
        cluster.wait(2);
        assert_eq!(cluster.observed("host-1", "u0").map(|pod| &*pod.node), Some("tezos/aaa"));
        assert_ne!(cluster.ready("tezos/aaa").1, "PodConflict");
        assert!(!cluster.desired.catalog.contains_key("tezos/zzz"));
    }
}

#[test]
fn the_name_decides_between_nodes_of_the_same_second() {
    let mut cluster = TestCluster::new();
    cluster.reconciler.apply_node(node("b", 1, json!({})));
    cluster.reconciler.apply_node(node("a", 1, json!({})));
    cluster.reconciler.apply_pod(&key("p"), octez("u0", "host-1"));
    cluster.step();
    assert_eq!(cluster.observed("host-1", "u0").map(|pod| &*pod.node), Some("tezos/a"));
}

#[test]
fn a_node_with_a_conflict_records_its_other_pods() {
    let mut cluster = TestCluster::new();
    cluster.reconciler.apply_node(node("old", 1, json!({ "podSelector": { "matchLabels": { "app": "x" } } })));
    cluster.reconciler.apply_node(node("young", 2, json!({})));
    cluster.reconciler.apply_pod(&key("both"), pod("u0", Some("host-1"), &[("app", "x"), ("appType", "octez-node")]));
    cluster.reconciler.apply_pod(&key("own"), octez("u1", "host-1"));
    cluster.step().report("host-1", host_status([recording("u0", "tezos/old"), recording("u1", "tezos/young")]));
    cluster.wait(2);
    assert_eq!(cluster.observed("host-1", "u1").map(|pod| &*pod.node), Some("tezos/young"));
    assert_eq!(cluster.ready("tezos/young"), ("False", "PodConflict"));
    assert_eq!(cluster.condition("tezos/young", "Recording").status, "True");
    assert_eq!(cluster.ready("tezos/old"), ("True", "Available"));
}

#[test]
fn a_changed_selector_changes_the_observed_pods() {
    let mut cluster = TestCluster::new();
    let mut input = node("main", 0, json!({}));
    cluster.reconciler.apply_node(input.clone());
    cluster.reconciler.apply_pod(&key("a"), octez("u0", "host-1"));
    cluster.reconciler.apply_pod(&key("b"), pod("u1", Some("host-2"), &[("app", "x")]));
    cluster.step();
    assert!(cluster.observed("host-1", "u0").is_some());
    let other = node(
        "main",
        0,
        json!({ "podSelector": { "matchExpressions": [{ "key": "app", "operator": "In", "values": ["x"] }] } }),
    );
    input.spec = other.spec;
    input.generation = 2;
    cluster.reconciler.apply_node(input);
    cluster.step();
    assert!(!cluster.desired.hosts.contains_key("host-1"));
    assert_eq!(cluster.observed("host-2", "u1").map(|pod| pod.node_generation), Some(2));
    assert_eq!(cluster.desired.catalog["tezos/main"].hosts, ["host-2"]);
}

#[test]
fn a_pod_with_changed_labels_changes_its_owner() {
    let mut cluster = TestCluster::new();
    cluster.reconciler.apply_node(node("a", 0, json!({ "podSelector": { "matchLabels": { "app": "a" } } })));
    cluster.reconciler.apply_node(node("b", 0, json!({ "podSelector": { "matchLabels": { "app": "b" } } })));
    cluster.reconciler.apply_pod(&key("p"), pod("u0", Some("host-1"), &[("app", "a")]));
    cluster.step();
    assert_eq!(cluster.observed("host-1", "u0").map(|pod| &*pod.node), Some("tezos/a"));
    cluster.reconciler.apply_pod(&key("p"), pod("u0", Some("host-1"), &[("app", "b")]));
    cluster.step();
    assert_eq!(cluster.observed("host-1", "u0").map(|pod| &*pod.node), Some("tezos/b"));
}

#[test]
fn a_recreated_pod_is_another_pod() {
    let mut cluster = TestCluster::new();
    cluster.reconciler.apply_node(node("main", 0, json!({})));
    cluster.reconciler.apply_pod(&key("p"), octez("u0", "host-1"));
    cluster.step();
    cluster.reconciler.apply_pod(&key("p"), octez("u1", "host-2"));
    cluster.step();
    assert!(!cluster.desired.hosts.contains_key("host-1"));
    assert!(cluster.observed("host-2", "u1").is_some());
    cluster.reconciler.delete_pod(&key("p"));
    cluster.step();
    assert!(cluster.desired.hosts.is_empty());
}

#[test]
fn deleting_a_recorded_node_emits_an_event() {
    let mut cluster = TestCluster::new();
    let mut input = node("main", 0, json!({}));
    cluster.reconciler.apply_node(input.clone());
    cluster.reconciler.apply_pod(&key("p"), octez("u0", "host-1"));
    cluster.step().report("host-1", host_status([recording("u0", "tezos/main")]));
    cluster.take_events();
    // A finalizer of another controller delays the deletion; recording stops nevertheless.
    input.deleting = true;
    input.generation = 2;
    cluster.reconciler.apply_node(input);
    cluster.step();
    assert!(cluster.desired.hosts.is_empty() && cluster.desired.catalog.is_empty());
    assert_eq!(cluster.take_events(), ["tezos/main RecordingStopped"]);
    cluster.reconciler.delete_node(&key("main"));
    cluster.step();
    assert!(cluster.take_events().is_empty());
}

#[test]
fn pods_of_other_namespaces_are_not_selected() {
    let mut cluster = TestCluster::new();
    cluster.reconciler.apply_node(node("main", 0, json!({})));
    cluster.reconciler.apply_pod(&Key::new("tezos2", "p"), octez("u0", "host-1"));
    cluster.reconciler.apply_pod(&Key::new("tezo", "p"), octez("u1", "host-1"));
    cluster.step();
    assert!(cluster.desired.hosts.is_empty());
}

#[test]
fn an_unparsable_specification_keeps_the_catalog_entry() {
    let mut cluster = TestCluster::new();
    let input = node("main", 0, json!({ "aliases": ["a"] }));
    cluster.reconciler.apply_node(input.clone());
    cluster.reconciler.apply_pod(&key("p"), octez("u0", "host-1"));
    cluster.step();
    let unreadable = NodeInput { spec: Err("unknown variant `quantum`".to_owned()), generation: 2, ..input };
    cluster.reconciler.apply_node(unreadable);
    cluster.wait(2);
    assert_eq!(cluster.ready("tezos/main"), ("False", "SpecInvalid"));
    assert!(cluster.condition("tezos/main", "Ready").message.contains("quantum"));
    assert_eq!(cluster.desired.catalog["tezos/main"].aliases, ["a"]);
    assert!(cluster.desired.hosts.is_empty());
}
