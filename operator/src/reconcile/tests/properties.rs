//! Whatever happens in whatever order: what the engine says by and by is what it would say of the end alone.

use proptest::prelude::*;
use serde_json::json;

use super::*;

#[derive(Debug, Clone)]
enum Happens {
    Node { name: u8, created: i64, selector: u8, container: u8, generation: i64, secret: bool, deleting: bool },
    NoNode(u8),
    Pod { name: u8, uid: u8, host: Option<u8>, label: u8 },
    NoPod(u8),
    Secret(u8),
    Report { host: u8, uid: u8, node: u8, state: i32, starts: u32 },
    Silence,
    Time(i64),
    Begin,
    Step,
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        (0..4_u8, 0..3_i64, 0..4_u8, 0..2_u8, 1..3_i64, any::<bool>(), prop::bool::weighted(0.1)).prop_map(
            |(name, created, selector, container, generation, secret, deleting)| Happens::Node {
                name,
                created,
                selector,
                container,
                generation,
                secret,
                deleting
            }
        ),
        (0..4_u8).prop_map(Happens::NoNode),
        (0..5_u8, 0..3_u8, prop::option::of(0..3_u8), 0..3_u8).prop_map(|(name, uid, host, label)| Happens::Pod {
            name,
            uid,
            host,
            label
        }),
        (0..5_u8).prop_map(Happens::NoPod),
        (0..4_u8).prop_map(Happens::Secret),
        (0..3_u8, 0..15_u8, 0..4_u8, -1..6_i32, 0..9_u32)
            .prop_map(|(host, uid, node, state, starts)| Happens::Report { host, uid, node, state, starts }),
        Just(Happens::Silence),
        (0..100_i64).prop_map(Happens::Time),
        Just(Happens::Begin),
        Just(Happens::Step),
    ]
}

fn input(name: u8, created: i64, selector: u8, container: u8, secret: bool) -> NodeInput {
    let selector = match selector {
        0 => json!({ "matchLabels": { "l": "0" } }),
        1 => json!({ "matchLabels": { "l": "1" } }),
        2 => json!({ "matchExpressions": [{ "key": "l", "operator": "Exists" }] }),
        _ => json!({ "matchLabels": { "l": "0", "m": "x" } }),
    };
    let container = ["octez-node", "other"][usize::from(container)];
    let identity = if secret { json!({ "secretRef": { "name": "id" } }) } else { json!({}) };
    node(&format!("n{name}"), created, json!({ "podSelector": selector, "container": container, "identity": identity }))
}

fn apply(world: &mut World, happens: &Happens) {
    match happens {
        Happens::Node { name, created, selector, container, generation, secret, deleting } => {
            let input = input(*name, *created, *selector, *container, *secret);
            world.engine.apply_node(NodeInput { generation: *generation, deleting: *deleting, ..input });
        }
        Happens::NoNode(name) => world.engine.delete_node(&key(&format!("n{name}"))),
        Happens::Pod { name, uid, host, label } => {
            let host = host.map(|host| format!("h{host}"));
            let label = label.to_string();
            let labels = [("l", &*label), ("m", "x")];
            let input = pod(&format!("u{name}-{uid}"), host.as_deref(), &labels);
            world.engine.apply_pod(&key(&format!("p{name}")), input);
        }
        Happens::NoPod(name) => world.engine.delete_pod(&key(&format!("p{name}"))),
        Happens::Secret(0) => world.engine.set_secret(&key("id"), SecretInput::Absent),
        Happens::Secret(1) => world.engine.set_secret(&key("id"), secret("identity.json", b"{}")),
        Happens::Secret(_) => world.engine.set_secret(&key("id"), secret("other", b"")),
        Happens::Report { host, uid, node, state, starts } => {
            let report = PodReport {
                state: *state,
                process_starts: *starts,
                ..recording(&format!("u{}-{}", uid / 3, uid % 3), &format!("tezos/n{node}"))
            };
            world.report(&format!("h{host}"), says([report]));
        }
        Happens::Silence => {
            world.reports = Reports::default();
            world.engine.set_reports(&world.reports);
        }
        Happens::Time(seconds) => world.now += seconds * SECOND,
        Happens::Begin => world.engine.begin(world.now),
        Happens::Step => {
            world.step();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn the_way_does_not_matter(story in prop::collection::vec(happens(), 1..60)) {
        let mut world = World::new();
        let (mut nodes, mut pods, mut last_secret) = (BTreeMap::new(), BTreeMap::new(), None);
        for happens in &story {
            apply(&mut world, happens);
            match happens {
                Happens::Node { name, .. } => drop(nodes.insert(*name, happens.clone())),
                Happens::NoNode(name) => drop(nodes.remove(name)),
                Happens::Pod { name, .. } => drop(pods.insert(*name, happens.clone())),
                Happens::NoPod(name) => drop(pods.remove(name)),
                Happens::Secret(_) => last_secret = Some(happens.clone()),
                _ => {}
            }
        }
        world.step();
        // Each pod is on one host, of one node, and nobody is listed without a pod.
        let mut uids = std::collections::BTreeSet::new();
        for (host, pods) in &world.desired.hosts {
            prop_assert!(!pods.is_empty());
            for (uid, pod) in pods.iter() {
                prop_assert_eq!(uid, &pod.uid);
                prop_assert!(uids.insert(uid.clone()), "{} is on two hosts", uid);
                prop_assert!(world.desired.catalog[&pod.node].hosts.contains(host));
            }
        }
        // The same, told at once to somebody who knew nothing.
        let mut fresh = World::new();
        fresh.now = world.now;
        for happens in pods.values().chain(nodes.values()) {
            apply(&mut fresh, happens);
        }
        fresh.step();
        let secrets: Vec<_> = world.engine.secrets().cloned().collect();
        prop_assert_eq!(&secrets, &fresh.engine.secrets().cloned().collect::<Vec<_>>());
        prop_assert_eq!(&world.desired.catalog, &fresh.desired.catalog);
        // What a Secret held is forgotten with its last user, so the identities are compared by their absence.
        let _ = last_secret;
        let shape = |world: &World| -> Vec<(String, String, String, i64, bool)> {
            let pods = world.desired.hosts.iter().flat_map(|(host, pods)| pods.values().map(move |pod| (host, pod)));
            pods.map(|(host, pod)| {
                let by_path = matches!(pod.identity, Some(chainscope_proto::v1::observed_pod::Identity::IdentityPath(_)));
                (host.clone(), pod.uid.clone(), pod.node.clone(), pod.node_generation, by_path)
            }).collect()
        };
        prop_assert_eq!(shape(&world), shape(&fresh));
    }

    #[test]
    fn every_status_is_whole(story in prop::collection::vec(happens(), 1..60)) {
        let mut world = World::new();
        for happens in &story {
            apply(&mut world, happens);
            world.step();
        }
        for (name, status) in &world.statuses {
            let kinds: Vec<_> = status.conditions.iter().map(|one| &*one.type_).collect();
            prop_assert_eq!(kinds, ["Ready", "IdentityResolved", "Recording", "NodeProcessRunning"], "{}", name);
            prop_assert!(status.recording_count <= status.pod_count);
            prop_assert_eq!(status.pod_count, i64::try_from(status.pods.len()).unwrap());
            for one in &status.conditions {
                prop_assert!(!one.reason.is_empty() && one.observed_generation == status.observed_generation);
            }
            let is = |kind: &str, state: &str| status.conditions.iter().any(|one| one.type_ == kind && one.status == state);
            let disabled = status.conditions.iter().any(|one| one.reason == "NetworkDisabled");
            if is("Ready", "True") && !disabled {
                prop_assert!(is("Recording", "True") && is("NodeProcessRunning", "True") && is("IdentityResolved", "True"));
            }
        }
    }
}
