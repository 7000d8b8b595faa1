//! Property tests: the result depends on the final inputs only, not on the sequence of changes.

use proptest::prelude::*;
use serde_json::json;

use super::*;

#[derive(Debug, Clone)]
enum Action {
    ApplyNode { name: u8, created: i64, selector: u8, container: u8, generation: i64, secret: bool, deleting: bool },
    DeleteNode(u8),
    ApplyTrace { name: u8, created: i64, container: u8, generation: i64 },
    DeleteTrace(u8),
    ApplyPod { name: u8, uid: u8, host: Option<u8>, label: u8 },
    DeletePod(u8),
    Secret(u8),
    Report { host: u8, uid: u8, node: u8, state: i32, starts: u32 },
    NoReports,
    Advance(i64),
    Begin,
    Reconcile,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        (0..4_u8, 0..3_i64, 0..4_u8, 0..2_u8, 1..3_i64, any::<bool>(), prop::bool::weighted(0.1)).prop_map(
            |(name, created, selector, container, generation, secret, deleting)| Action::ApplyNode {
                name,
                created,
                selector,
                container,
                generation,
                secret,
                deleting
            }
        ),
        (0..4_u8).prop_map(Action::DeleteNode),
        (0..2_u8, 0..3_i64, 0..2_u8, 1..3_i64).prop_map(|(name, created, container, generation)| Action::ApplyTrace {
            name,
            created,
            container,
            generation
        }),
        (0..2_u8).prop_map(Action::DeleteTrace),
        (0..5_u8, 0..3_u8, prop::option::of(0..3_u8), 0..3_u8).prop_map(|(name, uid, host, label)| Action::ApplyPod {
            name,
            uid,
            host,
            label
        }),
        (0..5_u8).prop_map(Action::DeletePod),
        (0..4_u8).prop_map(Action::Secret),
        (0..3_u8, 0..15_u8, 0..4_u8, -1..6_i32, 0..9_u32).prop_map(|(host, uid, node, state, starts)| Action::Report {
            host,
            uid,
            node,
            state,
            starts
        }),
        Just(Action::NoReports),
        (0..100_i64).prop_map(Action::Advance),
        Just(Action::Begin),
        Just(Action::Reconcile),
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

fn apply(cluster: &mut TestCluster, action: &Action) {
    match action {
        Action::ApplyNode { name, created, selector, container, generation, secret, deleting } => {
            let input = input(*name, *created, *selector, *container, *secret);
            cluster.reconciler.apply_node(NodeInput { generation: *generation, deleting: *deleting, ..input });
        }
        Action::DeleteNode(name) => cluster.reconciler.delete_node(&key(&format!("n{name}"))),
        Action::ApplyTrace { name, created, container, generation } => {
            let selector = json!({ "matchLabels": { "l": name.to_string() } });
            let container = ["octez-node", "other"][usize::from(*container)];
            let spec = json!({ "podSelector": selector, "container": container });
            let input = trace(&format!("n{name}"), *created, spec);
            cluster.reconciler.apply_node(NodeInput { generation: *generation, ..input });
        }
        Action::DeleteTrace(name) => cluster.reconciler.delete_node(&trace_key(&format!("n{name}"))),
        Action::ApplyPod { name, uid, host, label } => {
            let host = host.map(|host| format!("h{host}"));
            let label = label.to_string();
            let labels = [("l", &*label), ("m", "x")];
            let input = pod(&format!("u{name}-{uid}"), host.as_deref(), &labels);
            cluster.reconciler.apply_pod(&key(&format!("p{name}")), input);
        }
        Action::DeletePod(name) => cluster.reconciler.delete_pod(&key(&format!("p{name}"))),
        Action::Secret(0) => cluster.reconciler.set_secret(&key("id"), SecretInput::Absent),
        Action::Secret(1) => cluster.reconciler.set_secret(&key("id"), secret("identity.json", b"{}")),
        Action::Secret(_) => cluster.reconciler.set_secret(&key("id"), secret("other", b"")),
        Action::Report { host, uid, node, state, starts } => {
            let report = PodReport {
                state: *state,
                process_starts: *starts,
                ..recording(&format!("u{}-{}", uid / 3, uid % 3), &format!("tezos/n{node}"))
            };
            cluster.report(&format!("h{host}"), host_status([report]));
        }
        Action::NoReports => {
            cluster.reports = Reports::default();
            cluster.reconciler.set_reports(&cluster.reports);
        }
        Action::Advance(seconds) => cluster.now += seconds * SECOND,
        Action::Begin => cluster.reconciler.begin(cluster.now),
        Action::Reconcile => {
            cluster.step();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn the_result_is_independent_of_the_sequence(actions in prop::collection::vec(action(), 1..60)) {
        let mut cluster = TestCluster::new();
        let (mut nodes, mut traces, mut pods) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for action in &actions {
            apply(&mut cluster, action);
            match action {
                Action::ApplyNode { name, .. } => drop(nodes.insert(*name, action.clone())),
                Action::DeleteNode(name) => drop(nodes.remove(name)),
                Action::ApplyTrace { name, .. } => drop(traces.insert(*name, action.clone())),
                Action::DeleteTrace(name) => drop(traces.remove(name)),
                Action::ApplyPod { name, .. } => drop(pods.insert(*name, action.clone())),
                Action::DeletePod(name) => drop(pods.remove(name)),
                _ => {}
            }
        }
        cluster.step();
        // Each pod is on one host and belongs to one node; no host is listed without a pod.
        let mut uids = std::collections::BTreeSet::new();
        for (host, pods) in &cluster.desired.hosts {
            prop_assert!(!pods.is_empty());
            for (uid, pod) in pods.iter() {
                prop_assert_eq!(uid, &pod.uid);
                prop_assert!(uids.insert(uid.clone()), "{} is on two hosts", uid);
                prop_assert!(cluster.desired.catalog[&pod.node].hosts.contains(host));
                if let Some(trace) = &pod.trace {
                    prop_assert!(cluster.desired.catalog[&trace.node].hosts.contains(host));
                }
            }
        }
        // The final inputs, applied to a new reconciler.
        let mut fresh = TestCluster::new();
        fresh.now = cluster.now;
        for action in pods.values().chain(traces.values()).chain(nodes.values()) {
            apply(&mut fresh, action);
        }
        fresh.step();
        let secrets: Vec<_> = cluster.reconciler.secrets().map(|(key, _)| key.clone()).collect();
        prop_assert_eq!(&secrets, &fresh.reconciler.secrets().map(|(key, _)| key.clone()).collect::<Vec<_>>());
        prop_assert_eq!(&cluster.desired.catalog, &fresh.desired.catalog);
        // The content of a Secret is discarded with its last user, so only the kind of the identity is compared.
        let shape = |cluster: &TestCluster| -> Vec<(String, String, String, i64, bool, _)> {
            let pods = cluster.desired.hosts.iter().flat_map(|(host, pods)| pods.values().map(move |pod| (host, pod)));
            pods.map(|(host, pod)| {
                let by_path = matches!(pod.identity, Some(chainscope_proto::v1::observed_pod::Identity::IdentityPath(_)));
                (host.clone(), pod.uid.clone(), pod.node.clone(), pod.node_generation, by_path, pod.trace.clone())
            }).collect()
        };
        prop_assert_eq!(shape(&cluster), shape(&fresh));
    }

    #[test]
    fn every_status_is_complete_and_consistent(actions in prop::collection::vec(action(), 1..60)) {
        let mut cluster = TestCluster::new();
        for action in &actions {
            apply(&mut cluster, action);
            cluster.step();
        }
        for (name, status) in &cluster.statuses {
            let kinds: Vec<_> = status.conditions.iter().map(|one| &*one.type_).collect();
            let is_trace = name.contains("trace:");
            let expected = ["Ready", "IdentityResolved", "Recording", "ProcessRunning"];
            let expected = expected.into_iter().filter(|kind| !is_trace || *kind != "IdentityResolved");
            prop_assert_eq!(kinds, expected.collect::<Vec<_>>(), "{}", name);
            prop_assert!(status.recording_count <= status.pod_count);
            prop_assert_eq!(status.pod_count, i64::try_from(status.pods.len()).unwrap());
            for one in &status.conditions {
                prop_assert!(!one.reason.is_empty() && one.observed_generation == status.observed_generation);
            }
            let is = |kind: &str, state: &str| status.conditions.iter().any(|one| one.type_ == kind && one.status == state);
            let disabled = status.conditions.iter().any(|one| one.reason == "NetworkDisabled");
            if is("Ready", "True") && !disabled {
                prop_assert!(is("Recording", "True") && is("ProcessRunning", "True"));
                prop_assert!(is_trace || is("IdentityResolved", "True"));
            }
        }
    }
}
