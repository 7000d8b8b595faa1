//! Updates of the config stream, in order and out of it, and whose a container is.

use chainscope_proto::v1::NetworkOptions;

use super::*;

pub(crate) const UID: &str = "8d3f2a9c-1111-2222-3333-444455556666";
pub(crate) const OTHER_UID: &str = "00000000-1111-2222-3333-444455556666";

/// A pod of node `default/octez` in one container whose id is this digit, over and over.
pub(crate) fn pod(uid: &str, digit: char) -> ObservedPod {
    ObservedPod {
        node: "default/octez".to_owned(),
        node_generation: 3,
        uid: uid.to_owned(),
        namespace: "tezos".to_owned(),
        name: "octez-0".to_owned(),
        container: "octez-node".to_owned(),
        container_ids: vec![digit.to_string().repeat(64)],
        process: "octez-node".to_owned(),
        p2p_port: Some(9732),
        identity: Some(observed_pod::Identity::IdentityPath("/data/identity.json".to_owned())),
        network: Some(NetworkOptions { enabled: true, plain_only: false }),
        memory: None,
        logs: None,
        trace: None,
    }
}

pub(crate) fn snapshot(generation: u64, pods: Vec<ObservedPod>) -> HostUpdate {
    HostUpdate { version: 1, generation, snapshot: true, pods, ..Default::default() }
}

fn change(generation: u64, pods: Vec<ObservedPod>, removed: &[&str]) -> HostUpdate {
    let removed = removed.iter().map(|uid| (*uid).to_owned()).collect();
    HostUpdate { version: 1, generation, snapshot: false, pods, removed, more: false }
}

pub(crate) fn location(digit: char, uid: Option<&str>) -> ContainerLocation {
    let container = ContainerId::parse(&digit.to_string().repeat(64)).unwrap();
    ContainerLocation { container, pod: uid.map(|uid| PodUid::parse(uid).unwrap()) }
}

fn uids(map: &PodMap) -> Vec<&str> {
    map.pods.keys().map(String::as_str).collect()
}

#[test]
fn a_snapshot_replaces_and_changes_add_and_remove() {
    let mut map = PodMap::default();
    map.apply(snapshot(5, vec![pod("a", 'a'), pod("b", 'b')]), true).unwrap();
    map.apply(change(6, vec![pod("c", 'c')], &["a", "never there"]), false).unwrap();
    assert_eq!((uids(&map), map.generation), (vec!["b", "c"], 6));
    let port = ObservedPod { p2p_port: Some(19732), ..pod("b", 'b') };
    map.apply(change(9, vec![port], &[]), false).unwrap();
    assert_eq!(map.pods["b"].assignment.p2p_port, Some(19732));
    // Another stream begins to count where it likes.
    map.apply(snapshot(1, vec![pod("d", 'd')]), true).unwrap();
    assert_eq!((uids(&map), map.generation), (vec!["d"], 1));
}

#[test]
fn an_update_out_of_order_is_refused_and_changes_nothing() {
    let mut map = PodMap::default();
    assert_eq!(map.apply(change(1, vec![pod("a", 'a')], &[]), true), Err(UpdateError::NoSnapshot));
    map.apply(snapshot(5, vec![pod("a", 'a')]), true).unwrap();
    let before = map.clone();
    assert_eq!(map.apply(change(5, vec![], &["a"]), false), Err(UpdateError::Order { known: 5, next: 5 }));
    let newer = HostUpdate { version: 2, ..change(6, vec![], &["a"]) };
    assert_eq!(map.apply(newer, false), Err(UpdateError::Version(2)));
    assert_eq!(map, before);
}

#[test]
fn an_update_may_come_in_parts() {
    let part = |update: HostUpdate| HostUpdate { more: true, ..update };
    let mut parts = Parts::default();
    assert_eq!(parts.add(part(snapshot(5, vec![pod("a", 'a')]))), Ok(None));
    assert_eq!(parts.add(part(snapshot(5, vec![pod("b", 'b')]))), Ok(None));
    let whole = parts.add(snapshot(5, vec![pod("c", 'c')])).unwrap().unwrap();
    assert_eq!(whole, snapshot(5, vec![pod("a", 'a'), pod("b", 'b'), pod("c", 'c')]));
    assert_eq!(parts.add(change(6, vec![], &["a"])).unwrap().unwrap().removed, ["a"]);
    parts.add(part(change(7, vec![], &["b"]))).unwrap();
    assert_eq!(parts.add(change(8, vec![], &["c"])), Err(UpdateError::Parts { of: 7, with: 8 }));
    let many = snapshot(9, vec![pod("a", 'a'); MAX_PODS + 1]);
    assert_eq!(parts.add(many), Err(UpdateError::TooMuch(MAX_PODS + 1)));
}

#[test]
fn what_is_wrong_with_a_pod_is_said_of_it_alone() {
    let mut map = PodMap::default();
    let wrong = vec![
        ObservedPod { node: String::new(), ..pod("node", 'a') },
        ObservedPod { node: "a\nb".to_owned(), ..pod("line", 'b') },
        ObservedPod { process: "/usr/bin/octez-node".to_owned(), ..pod("process", 'c') },
        ObservedPod { p2p_port: Some(70_000), ..pod("port", 'd') },
        ObservedPod { uid: String::new(), ..pod("", 'e') },
        ObservedPod { container_ids: vec!["short".to_owned(), "Z".repeat(64)], ..pod("ids", 'f') },
        pod("right", '1'),
    ];
    map.apply(snapshot(1, wrong), true).unwrap();
    let fault = |uid: &str| map.pods[uid].fault.clone();
    assert_eq!(fault("node").unwrap(), "\"\" is no name of a node");
    assert!(fault("line").unwrap().ends_with("is no name of a node") && !fault("line").unwrap().contains('\n'));
    assert_eq!(fault("process").unwrap(), "\"/usr/bin/octez-node\" is no file name of a program");
    assert_eq!(fault("port").unwrap(), "70000 is no port");
    assert_eq!((fault("ids"), map.pods["ids"].containers.len()), (None, 0));
    assert_eq!(fault("right"), None);
    assert_eq!(map.pods.len(), 6);
}

#[test]
fn logs_that_cannot_be_redacted_are_not_recorded() {
    let options = |redact: &[&str]| {
        let redact = redact.iter().map(|pattern| (*pattern).to_owned()).collect();
        Some(chainscope_proto::v1::LogsOptions { enabled: true, redact })
    };
    let pod = || ObservedPod { container: "node".to_owned(), ..pod("uid", 'a') };
    let right = Pod::new(ObservedPod { logs: options(&["edsk\\w+"]), ..pod() }).unwrap();
    let logs = right.assignment.observe.logs.unwrap();
    assert_eq!(logs.redact.apply(b"an edsk1".to_vec()), b"an [redacted]");
    let dir = format!("{}_{}_uid/node", right.bare.namespace, right.bare.name);
    assert_eq!((logs.pod_dir.as_deref(), right.logs_fault), (Some(dir.as_str()), None));
    for (wrong, fault) in [
        (ObservedPod { logs: options(&["a", "(b"]), ..pod() }, "no log messages are recorded: invalid pattern \"(b\""),
        (ObservedPod { logs: options(&[]), container: "../x".to_owned(), ..pod() }, "is no container of a pod"),
        (ObservedPod { logs: options(&[]), name: "a/../../b".to_owned(), ..pod() }, "is no container of a pod"),
    ] {
        let pod = Pod::new(wrong).unwrap();
        assert_eq!((pod.assignment.observe.logs.clone(), pod.fault.clone()), (None, None), "{fault}");
        assert!(pod.logs_fault.as_ref().unwrap().contains(fault), "{:?}", pod.logs_fault);
        assert!(pod.is_observed(), "the rest is");
    }
}

#[test]
fn an_identity_is_parsed_once_and_not_kept_as_text() {
    let identity = |identity| ObservedPod { identity, ..pod("a", 'a') };
    let json = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../vectors/tezos/synthetic-two-way/identity.json"));
    let source = |given| Pod::new(identity(given)).unwrap().assignment.identity;
    let given = source(Some(observed_pod::Identity::IdentityJson(json.as_bytes().to_vec())));
    assert_eq!(given, Source::Given(Arc::new(Identity::from_json(json.as_bytes()).unwrap())));
    let Source::Missing(reason) = source(Some(observed_pod::Identity::IdentityJson(b"{}".to_vec()))) else { panic!() };
    assert!(reason.starts_with("the Secret's identity: "), "{reason}");
    let missing = observed_pod::Identity::IdentityMissing("SecretNotFound".to_owned());
    assert_eq!(source(Some(missing)), Source::Missing("SecretNotFound".to_owned()));
    assert_eq!(source(None), Source::Missing("none was configured".to_owned()));
    assert_eq!(
        source(Some(observed_pod::Identity::IdentityPath("/i".to_owned()))),
        Source::InRoot(PathBuf::from("/i"))
    );
}

#[test]
fn a_pod_does_not_get_a_container_in_another_pod_s_path() {
    let mut map = PodMap::default();
    // The second one lies: it claims the first one's container.
    map.apply(snapshot(1, vec![pod(UID, 'a'), pod(OTHER_UID, 'a')]), true).unwrap();
    let at = |location: ContainerLocation| map.pod_at(&location).map(|pod| pod.uid.as_str());
    assert_eq!(at(location('a', Some(UID))), Some(UID));
    assert_eq!(at(location('a', Some(&UID.replace('-', "_")))), Some(UID));
    assert_eq!(at(location('a', Some("11111111-1111-2222-3333-444455556666"))), None);
    assert_eq!(at(location('b', Some(UID))), None, "a container that is not the pod's");
    assert_eq!(at(location('a', None)), None, "without a pod in the path it may be either's");
    map.apply(change(2, vec![], &[OTHER_UID]), false).unwrap();
    assert_eq!(map.pod_at(&location('a', None)).map(|pod| pod.uid.as_str()), Some(UID));
}
