//! Identities in Secrets.

use chainscope_proto::v1::observed_pod::Identity as ProtoIdentity;
use serde_json::json;

use super::*;

const ONE: &[u8] = include_bytes!("../../../../vectors/tezos/carthagenet-2020/identity.json");
const OTHER: &[u8] = include_bytes!("../../../../vectors/tezos/synthetic-two-way/identity.json");

fn cluster() -> TestCluster {
    let mut cluster = TestCluster::new();
    cluster.reconciler.apply_node(node("main", 0, json!({ "identity": { "secretRef": { "name": "id" } } })));
    cluster.reconciler.apply_pod(&key("p"), octez("u0", "host-1"));
    cluster.step();
    cluster
}

fn identity(cluster: &TestCluster) -> &ProtoIdentity {
    cluster.observed("host-1", "u0").unwrap().identity.as_ref().unwrap()
}

fn secrets(cluster: &TestCluster) -> Vec<Key> {
    cluster.reconciler.secrets().map(|(key, _)| key.clone()).collect()
}

fn peer_id(json: &[u8]) -> String {
    chainscope_tezos::Identity::from_json(json).unwrap().peer_id().to_string()
}

#[test]
fn a_secret_is_awaited_and_its_rotation_emits_an_event() {
    let mut cluster = cluster();
    assert_eq!(secrets(&cluster), [key("id")]);
    assert!(cluster.reconciler.awaits_secrets());
    assert!(matches!(identity(&cluster), ProtoIdentity::IdentityMissing(_)));

    cluster.reconciler.set_secret(&key("id"), SecretInput::Absent);
    cluster.wait(2);
    assert!(!cluster.reconciler.awaits_secrets());
    assert_eq!(cluster.condition("tezos/main", "IdentityResolved").reason, "SecretNotFound");
    assert!(
        matches!(identity(&cluster), ProtoIdentity::IdentityMissing(message) if message.contains("tezos/id does not exist"))
    );

    // The Secret is created.
    cluster.reconciler.set_secret(&key("id"), secret("identity.json", ONE));
    cluster.step();
    assert_eq!(*identity(&cluster), ProtoIdentity::IdentityJson(ONE.to_vec()));
    cluster.take_events();
    let report = PodReport { peer_id: peer_id(ONE), ..recording("u0", "tezos/main") };
    cluster.report("host-1", host_status([report.clone()])).wait(2);
    assert_eq!(cluster.condition("tezos/main", "IdentityResolved").status, "True");
    assert_eq!(cluster.ready("tezos/main"), ("True", "Available"));
    cluster.take_events();

    // The identity is rotated: the node is not ready before the agent uses the new one.
    cluster.reconciler.set_secret(&key("id"), secret("identity.json", OTHER));
    cluster.wait(2);
    assert_eq!(*identity(&cluster), ProtoIdentity::IdentityJson(OTHER.to_vec()));
    assert!(cluster.take_events().contains(&"tezos/main IdentityRotated".to_owned()));
    assert_eq!(cluster.condition("tezos/main", "IdentityResolved").reason, "IdentityPending");
    cluster.report("host-1", host_status([PodReport { peer_id: peer_id(OTHER), ..report }])).wait(2);
    assert_eq!(cluster.ready("tezos/main"), ("True", "Available"));
}

#[test]
fn errors_of_the_secret_do_not_stop_the_recording() {
    let mut cluster = cluster();
    cluster.report("host-1", host_status([PodReport { peer_id: String::new(), ..recording("u0", "tezos/main") }]));
    for (input, reason) in [
        (secret("other.json", ONE), "SecretKeyNotFound"),
        (secret("identity.json", b"{}"), "IdentityInvalid"),
        (secret("identity.json", b""), "IdentityInvalid"),
        (secret("identity.json", &[0xff; 64]), "IdentityInvalid"),
        (SecretInput::Unreadable("forbidden".to_owned()), "SecretNotReadable"),
        (SecretInput::Absent, "SecretNotFound"),
    ] {
        cluster.reconciler.set_secret(&key("id"), input);
        cluster.wait(2);
        let resolved = cluster.condition("tezos/main", "IdentityResolved");
        assert_eq!((&*resolved.status, &*resolved.reason), ("False", reason));
        assert_eq!(cluster.ready("tezos/main"), ("False", reason));
        assert!(matches!(identity(&cluster), ProtoIdentity::IdentityMissing(_)));
        assert_eq!(cluster.condition("tezos/main", "Recording").status, "True");
    }
}

#[test]
fn secrets_of_other_namespaces_are_not_watched() {
    let mut cluster = TestCluster::new();
    let spec = json!({ "identity": { "secretRef": { "name": "id" } } });
    let input = NodeInput { key: Key::new("elsewhere", "main"), ..node("main", 0, spec) };
    cluster.reconciler.apply_node(input);
    cluster.reconciler.apply_pod(&Key::new("elsewhere", "p"), octez("u0", "host-1"));
    cluster.step();
    assert_eq!(cluster.reconciler.secrets().count(), 0);
    assert_eq!(cluster.condition("elsewhere/main", "IdentityResolved").reason, "SecretNamespaceNotAllowed");
}

#[test]
fn a_secret_without_users_is_not_watched() {
    let mut cluster = cluster();
    let mut second = node("second", 1, json!({ "identity": { "secretRef": { "name": "id" } } }));
    cluster.reconciler.apply_node(second.clone());
    cluster.step();
    cluster.reconciler.delete_node(&key("main"));
    cluster.step();
    assert_eq!(cluster.reconciler.secrets().count(), 1);
    second.generation = 2;
    second.spec = node("second", 1, json!({ "identity": { "secretRef": { "name": "id2" } } })).spec;
    cluster.reconciler.apply_node(second);
    cluster.step();
    assert_eq!(secrets(&cluster), [key("id2")]);
    cluster.reconciler.delete_node(&key("second"));
    assert_eq!(cluster.reconciler.secrets().count(), 0);
}

#[test]
fn a_secret_that_is_referenced_again_is_read_again() {
    let mut cluster = cluster();
    cluster.reconciler.set_secret(&key("id"), secret("identity.json", ONE));
    cluster.step();
    let (_, before) = cluster.reconciler.secrets().next().unwrap();
    // Deleted and created in one step, as after an interrupted watch.
    cluster.reconciler.delete_node(&key("main"));
    let again = node("main", 1, json!({ "identity": { "secretRef": { "name": "id" } } }));
    cluster.reconciler.apply_node(again);
    cluster.step();
    assert!(cluster.reconciler.awaits_secrets(), "its content was discarded");
    assert_ne!(cluster.reconciler.secrets().next().unwrap().1, before, "another reference");
}

#[test]
fn secrets_are_not_printed() {
    let mut cluster = cluster();
    cluster.reconciler.set_secret(&key("id"), secret("identity.json", ONE));
    cluster.step();
    let file: serde_json::Value = serde_json::from_slice(ONE).unwrap();
    let text = format!("{:?} {:?} {:?}", cluster.reconciler, cluster.desired, cluster.events);
    let digits = file["secret_key"].as_str().unwrap();
    assert!(!text.contains(digits));
    let bytes = format!("{:?}", &ONE[..16]);
    assert!(!text.contains(bytes.trim_matches(['[', ']'])));
}
