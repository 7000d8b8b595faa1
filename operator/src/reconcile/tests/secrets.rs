//! Identities in Secrets.

use chainscope_proto::v1::observed_pod::Identity as Wire;
use serde_json::json;

use super::*;

const ONE: &[u8] = include_bytes!("../../../../vectors/tezos/carthagenet-2020/identity.json");
const OTHER: &[u8] = include_bytes!("../../../../vectors/tezos/synthetic-two-way/identity.json");

fn world() -> World {
    let mut world = World::new();
    world.engine.apply_node(node("main", 0, json!({ "identity": { "secretRef": { "name": "id" } } })));
    world.engine.apply_pod(&key("p"), octez("u0", "host-1"));
    world.step();
    world
}

fn wire(world: &World) -> &Wire {
    world.observed("host-1", "u0").unwrap().identity.as_ref().unwrap()
}

fn peer_id(json: &[u8]) -> String {
    chainscope_tezos::Identity::from_json(json).unwrap().peer_id().to_string()
}

#[test]
fn a_secret_is_waited_for_and_its_rotation_is_told() {
    let mut world = world();
    assert_eq!(world.engine.secrets().cloned().collect::<Vec<_>>(), [key("id")]);
    assert!(world.engine.awaits_secrets());
    assert!(matches!(wire(&world), Wire::IdentityMissing(_)));

    world.engine.set_secret(&key("id"), SecretInput::Absent);
    world.wait(2);
    assert!(!world.engine.awaits_secrets());
    assert_eq!(world.condition("tezos/main", "IdentityResolved").reason, "SecretNotFound");
    assert!(matches!(wire(&world), Wire::IdentityMissing(why) if why.contains("tezos/id does not exist")));

    // It appears.
    world.engine.set_secret(&key("id"), secret("identity.json", ONE));
    world.step();
    assert_eq!(*wire(&world), Wire::IdentityJson(ONE.to_vec()));
    world.told();
    let report = PodReport { peer_id: peer_id(ONE), ..recording("u0", "tezos/main") };
    world.report("host-1", says([report.clone()])).wait(2);
    assert_eq!(world.condition("tezos/main", "IdentityResolved").status, "True");
    assert_eq!(world.ready("tezos/main"), ("True", "AsConfigured"));
    world.told();

    // It is rotated: the agent is told, and not ready before it uses the new one.
    world.engine.set_secret(&key("id"), secret("identity.json", OTHER));
    world.wait(2);
    assert_eq!(*wire(&world), Wire::IdentityJson(OTHER.to_vec()));
    assert!(world.told().contains(&"tezos/main IdentityRotated".to_owned()));
    assert_eq!(world.condition("tezos/main", "IdentityResolved").reason, "IdentityPending");
    world.report("host-1", says([PodReport { peer_id: peer_id(OTHER), ..report }])).wait(2);
    assert_eq!(world.ready("tezos/main"), ("True", "AsConfigured"));
}

#[test]
fn what_is_wrong_with_a_secret_is_said_and_chunks_are_recorded_nevertheless() {
    let mut world = world();
    world.report("host-1", says([PodReport { peer_id: String::new(), ..recording("u0", "tezos/main") }]));
    for (input, reason) in [
        (secret("other.json", ONE), "SecretKeyNotFound"),
        (secret("identity.json", b"{}"), "IdentityInvalid"),
        (secret("identity.json", b""), "IdentityInvalid"),
        (secret("identity.json", &[0xff; 64]), "IdentityInvalid"),
        (SecretInput::Unreadable("forbidden".to_owned()), "SecretNotReadable"),
        (SecretInput::Absent, "SecretNotFound"),
    ] {
        world.engine.set_secret(&key("id"), input);
        world.wait(2);
        let resolved = world.condition("tezos/main", "IdentityResolved");
        assert_eq!((&*resolved.status, &*resolved.reason), ("False", reason));
        assert_eq!(world.ready("tezos/main"), ("False", reason));
        assert!(matches!(wire(&world), Wire::IdentityMissing(_)));
        assert_eq!(world.condition("tezos/main", "Recording").status, "True");
    }
}

#[test]
fn a_secret_of_a_namespace_that_is_not_listed_is_not_even_asked_for() {
    let mut world = World::new();
    let spec = json!({ "identity": { "secretRef": { "name": "id" } } });
    let input = NodeInput { key: Key::new("elsewhere", "main"), ..node("main", 0, spec) };
    world.engine.apply_node(input);
    world.engine.apply_pod(&Key::new("elsewhere", "p"), octez("u0", "host-1"));
    world.step();
    assert_eq!(world.engine.secrets().count(), 0);
    assert_eq!(world.condition("elsewhere/main", "IdentityResolved").reason, "SecretNamespaceNotAllowed");
}

#[test]
fn a_secret_that_nobody_uses_is_let_go() {
    let mut world = world();
    let mut second = node("second", 1, json!({ "identity": { "secretRef": { "name": "id" } } }));
    world.engine.apply_node(second.clone());
    world.step();
    world.engine.delete_node(&key("main"));
    world.step();
    assert_eq!(world.engine.secrets().count(), 1);
    second.generation = 2;
    second.spec = node("second", 1, json!({ "identity": { "secretRef": { "name": "id2" } } })).spec;
    world.engine.apply_node(second);
    world.step();
    assert_eq!(world.engine.secrets().cloned().collect::<Vec<_>>(), [key("id2")]);
    world.engine.delete_node(&key("second"));
    assert_eq!(world.engine.secrets().count(), 0);
}

#[test]
fn no_secret_is_ever_printed() {
    let mut world = world();
    world.engine.set_secret(&key("id"), secret("identity.json", ONE));
    world.step();
    let file: serde_json::Value = serde_json::from_slice(ONE).unwrap();
    let text = format!("{:?} {:?} {:?}", world.engine, world.desired, world.events);
    let digits = file["secret_key"].as_str().unwrap();
    assert!(!text.contains(digits));
    let bytes = format!("{:?}", &ONE[..16]);
    assert!(!text.contains(bytes.trim_matches(['[', ']'])));
}
