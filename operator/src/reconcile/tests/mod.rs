//! Tests of the reconciler with an in-memory cluster.

mod conditions;
mod ownership;
mod properties;
mod scale;
mod secrets;
mod traces;
mod writes;

use std::{collections::BTreeMap, sync::Arc};

use chainscope_proto::v1::{HostStatus, LogRetention, LogsOptions, ObservedPod, PodReport, PodState as Reported};
use k8s_openapi::{
    ByteString,
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta},
};
use serde_json::{Value, json};

use super::*;
use crate::{
    clock::Moment,
    crd::TezosNodeStatus,
    desired::{AgentReport, Desired, Reports},
};

/// The current time at the start of a test.
const START: i64 = 1_800_000_000_000_000_000;
const SECOND: i64 = 1_000_000_000;

/// A reconciler with its accumulated results.
struct TestCluster {
    reconciler: Reconciler,
    now: i64,
    /// Difference of the wall clock to `now`, which is the monotonic clock.
    clock_offset: i64,
    desired: Arc<Desired>,
    /// The last written status of each node.
    statuses: BTreeMap<String, TezosNodeStatus>,
    /// Number of status writes since it was last reset.
    writes: usize,
    events: Vec<EventRecord>,
    reports: Reports,
}

impl TestCluster {
    fn new() -> Self {
        let mut reconciler = Reconciler::new(["tezos".to_owned()]);
        reconciler.begin(START);
        Self {
            reconciler,
            now: START,
            clock_offset: 0,
            desired: Arc::default(),
            statuses: BTreeMap::new(),
            writes: 0,
            events: Vec::new(),
            reports: Reports::default(),
        }
    }

    fn step(&mut self) -> &mut Self {
        let outcome =
            self.reconciler.reconcile(Moment { monotonic_ns: self.now, unix_ns: self.now + self.clock_offset });
        if let Some(desired) = outcome.desired {
            self.desired = desired;
        }
        self.writes += outcome.statuses.len();
        for write in outcome.statuses {
            self.statuses.insert(write.key.to_string(), write.status);
        }
        self.events.extend(outcome.events);
        self
    }

    /// Advances the time second by second; connected agents keep reporting.
    fn wait(&mut self, seconds: i64) -> &mut Self {
        for _ in 0..seconds {
            self.now += SECOND;
            for reported in self.reports.hosts.values_mut().filter(|reported| reported.connected) {
                let mut again = (**reported).clone();
                again.last_report_ns = self.now;
                *reported = Arc::new(again);
            }
            self.reconciler.set_reports(&self.reports);
            self.step();
        }
        self
    }

    fn report(&mut self, host: &str, status: HostStatus) -> &mut Self {
        let reported = AgentReport { connected: true, last_report_ns: self.now, status };
        self.reports.hosts.insert(host.to_owned(), Arc::new(reported));
        self.reconciler.set_reports(&self.reports);
        self.step()
    }

    fn observed(&self, host: &str, uid: &str) -> Option<&ObservedPod> {
        self.desired.hosts.get(host)?.get(uid).map(|pod| &**pod)
    }

    fn condition(&self, node: &str, kind: &str) -> &Condition {
        let conditions = &self.statuses[node].conditions;
        conditions.iter().find(|condition| condition.type_ == kind).unwrap()
    }

    fn ready(&self, node: &str) -> (&str, &str) {
        let ready = self.condition(node, "Ready");
        (&ready.status, &ready.reason)
    }

    /// Nodes and reasons of the Events since the last call.
    fn take_events(&mut self) -> Vec<String> {
        self.events.drain(..).map(|event| format!("{} {}", event.node, event.reason)).collect()
    }
}

fn node(name: &str, created: i64, spec: Value) -> NodeInput {
    NodeInput {
        key: Key::new("tezos", name),
        uid: format!("uid-{name}-{created}"),
        generation: 1,
        created_ns: START + created * SECOND,
        deleting: false,
        spec: serde_json::from_value(spec)
            .map(|spec| NodeSpec::Tezos(Arc::new(spec)))
            .map_err(|error| error.to_string()),
        status: TezosNodeStatus::default(),
    }
}

/// A `NodeTrace` of every pod with the label `appType=octez-node`; `spec` has further fields.
fn trace(name: &str, created: i64, spec: Value) -> NodeInput {
    let mut whole = json!({
        "podSelector": { "matchLabels": { "appType": "octez-node" } }, "container": "octez-node",
        "process": "octez-node", "tracepoints": [{ "patterns": ["net:*"] }],
    });
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let spec = serde_json::from_value(whole).map(|spec| NodeSpec::Trace(Arc::new(spec)));
    let key = trace_key(name);
    NodeInput { key, spec: spec.map_err(|error| error.to_string()), ..node(name, created, json!({})) }
}

fn trace_key(name: &str) -> Key {
    let name = Some(name.to_owned());
    Key::of_node(
        NodeKind::NodeTrace,
        &ObjectMeta { name, namespace: Some("tezos".to_owned()), ..ObjectMeta::default() },
    )
}

fn pod(uid: &str, host: Option<&str>, labels: &[(&str, &str)]) -> PodInput {
    let mut labels: Vec<(Box<str>, Box<str>)> =
        labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    labels.sort();
    PodInput {
        uid: uid.into(),
        host: host.map(Into::into),
        labels: labels.into(),
        containers: [ContainerInput {
            name: "octez-node".into(),
            ports: [("tezos-net".into(), 9732), ("tezos-rpc".into(), 8732)].into(),
            ids: ["a".repeat(64).into_boxed_str()].into(),
        }]
        .into(),
    }
}

fn octez(uid: &str, host: &str) -> PodInput {
    pod(uid, Some(host), &[("appType", "octez-node")])
}

fn key(name: &str) -> Key {
    Key::new("tezos", name)
}

/// The report on a recorded pod.
fn recording(uid: &str, node: &str) -> PodReport {
    PodReport {
        uid: uid.to_owned(),
        node: node.to_owned(),
        node_generation: 1,
        state: Reported::Recording.into(),
        pid: 4711,
        peer_id: "idtPeer".to_owned(),
        messages: 10,
        process_starts: 1,
        process_started_ns: START - 3600 * SECOND,
        ..PodReport::default()
    }
}

/// The report on a pod whose tracepoints are recorded.
fn attached(uid: &str, node: &str) -> PodReport {
    PodReport {
        state: Reported::Profiling.into(),
        peer_id: String::new(),
        trace_attached: 3,
        trace_events: 10,
        ..recording(uid, node)
    }
}

fn host_status(pods: impl IntoIterator<Item = PodReport>) -> HostStatus {
    HostStatus { generation: 1, pods: pods.into_iter().collect(), ..HostStatus::default() }
}

fn secret(key: &str, value: &[u8]) -> SecretInput {
    SecretInput::Present(Arc::new(BTreeMap::from([(key.to_owned(), ByteString(value.to_vec()))])))
}

#[test]
fn a_node_and_its_pod_appear_in_the_desired_state() {
    let mut cluster = TestCluster::new();
    cluster.reconciler.apply_pod(&key("rolling-node-0"), octez("u0", "host-1"));
    let spec = json!({
        "retention": { "rows": 5, "bytes": "1GiB", "age": "2d" }, "aliases": ["9732"], "network": { "store": "plain" },
        "logs": { "redact": ["edsk\\w+"], "retention": { "rows": 7, "bytes": "2GiB", "age": "1d" } },
    });
    cluster.reconciler.apply_node(node("main", 0, spec));
    cluster.step();
    let pod = cluster.observed("host-1", "u0").unwrap();
    assert_eq!(
        (&*pod.node, pod.node_generation, &*pod.namespace, &*pod.name),
        ("tezos/main", 1, "tezos", "rolling-node-0")
    );
    assert_eq!((&*pod.container, &*pod.process, pod.p2p_port), ("octez-node", "octez-node", Some(9732)));
    assert_eq!(pod.container_ids, ["a".repeat(64)]);
    assert_eq!(
        pod.identity,
        Some(chainscope_proto::v1::observed_pod::Identity::IdentityPath(
            "/var/tezos/node/data/identity.json".to_owned()
        ))
    );
    assert!(pod.network.is_some_and(|network| network.enabled && network.plain_only));
    assert_eq!(pod.logs, Some(LogsOptions { enabled: true, redact: vec!["edsk\\w+".to_owned()] }));
    let catalog = &cluster.desired.catalog["tezos/main"];
    assert_eq!((catalog.keep_rows, catalog.keep_bytes, catalog.keep_seconds), (Some(5), Some(1 << 30), Some(172_800)));
    assert_eq!((&catalog.aliases[..], &catalog.hosts[..]), (&["9732".to_owned()][..], &["host-1".to_owned()][..]));
    let limits = LogRetention { keep_rows: Some(7), keep_bytes: Some(2 << 30), keep_seconds: Some(86_400) };
    assert_eq!(catalog.log_retention, Some(limits));
}

#[test]
fn log_messages_are_recorded_as_the_specification_says() {
    let five_gibibytes = LogRetention { keep_bytes: Some(5 << 30), ..LogRetention::default() };
    let options = |enabled| Some(LogsOptions { enabled, redact: Vec::new() });
    for (spec, logs, retention) in [
        (json!({}), None, None),
        (json!({ "logs": {} }), options(true), Some(five_gibibytes)),
        (json!({ "logs": { "enabled": false } }), options(false), Some(five_gibibytes)),
        (json!({ "logs": { "retention": {} } }), options(true), Some(LogRetention::default())),
    ] {
        let mut cluster = TestCluster::new();
        cluster.reconciler.apply_pod(&key("p"), octez("u0", "host-1"));
        cluster.reconciler.apply_node(node("main", 0, spec.clone()));
        cluster.step();
        assert_eq!(cluster.observed("host-1", "u0").unwrap().logs, logs, "{spec}");
        assert_eq!(cluster.desired.catalog["tezos/main"].log_retention, retention, "{spec}");
    }
}

#[test]
fn container_ids_have_sixty_four_digits() {
    let id = "0123456789abcdef".repeat(4);
    for reported in [format!("containerd://{id}"), format!("cri-o://{id}"), format!("docker://{id}"), id.clone()] {
        assert_eq!(container_id(&reported), Some(&*id));
    }
    for reported in
        ["", "containerd://", "containerd://abc", &id[1..], &format!("{id}0"), &id.to_uppercase(), "../../x"]
    {
        assert_eq!(container_id(reported), None, "{reported}");
    }
}
