//! The fixture of most scenarios: a cluster with Chainscope, a TezosNode, its pod and the pod's peer.

use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::release::ApiClient;
use super::{Cluster, Level, Setup};
use crate::harness::api::Api;
use crate::harness::transcript::{self, Missing};
use crate::harness::{programs, wait};
use crate::image;

/// The pods, as tezos-k8s creates them.
const PODS: &str = include_str!("../../manifests/octez.yaml");
/// The demo node keeps running after its conversation, and waits for its peer.
const KEEP_RUNNING: &str = "--exit-after 1000000 --connect-timeout 600";
/// The node's name in the API.
pub const NODE: &str = "tezos/rolling";
/// Messages of the handshake in both directions: connection, metadata, ack.
pub const HANDSHAKE: u64 = 6;

/// The fixture.
pub struct Scene {
    /// The API with the token of an account that may read the node.
    pub reader: Api,
    /// The API without a token.
    pub client: ApiClient,
    /// The cluster.
    pub cluster: Cluster,
    _images: TempDir,
}

impl Scene {
    /// Installs Chainscope with these values and creates a TezosNode that selects pods which do not exist yet.
    ///
    /// # Panics
    /// If something does not become ready in time.
    #[must_use]
    pub fn new(hosts: u8, values: &[&str]) -> Self {
        Self::prepared(hosts, values, |_| {})
    }

    /// As [`Scene::new`]; `prepare` runs before the installation, when both namespaces exist.
    ///
    /// # Panics
    /// If something does not become ready in time.
    #[must_use]
    pub fn prepared(hosts: u8, values: &[&str], prepare: impl FnOnce(&Cluster)) -> Self {
        Self::on(Setup::new(Level::Hosts(hosts)), values, prepare)
    }

    /// As [`Scene::prepared`], on a cluster with these options.
    ///
    /// # Panics
    /// If something does not become ready in time.
    #[must_use]
    pub fn on(setup: Setup, values: &[&str], prepare: impl FnOnce(&Cluster)) -> Self {
        Self::installed(setup, |cluster| {
            prepare(cluster);
            cluster.install(values);
        })
    }

    /// As [`Scene::on`]; `install` installs Chainscope, when both namespaces exist.
    ///
    /// # Panics
    /// If something does not become ready in time.
    #[must_use]
    pub fn installed(setup: Setup, install: impl FnOnce(&Cluster)) -> Self {
        let images = tempfile::tempdir().expect("a folder for images");
        let archives = image::write_all(&programs(), images.path()).unwrap_or_else(|e| panic!("images: {e:#}"));
        let cluster = setup.audit().images(archives).start();
        cluster.kubectl("create namespace tezos");
        cluster.make_namespace();
        install(&cluster);
        let labels = json!({"appType": "octez-node", "node_class": "rolling-node"});
        cluster.apply(&tezos_node("rolling", &labels).to_string());
        for account in ["reader", "stranger"] {
            cluster.kubectl(&format!("create serviceaccount {account} --namespace tezos"));
        }
        cluster.kubectl(
            "create rolebinding reader --clusterrole chainscope-viewer --serviceaccount tezos:reader --namespace tezos",
        );
        let client = cluster.api_client();
        let reader = client.api.with_token(&cluster.token("tezos", "reader"));
        Self { reader, client, cluster, _images: images }
    }

    /// Starts the pods with the recorded conversation of 2020.
    pub fn play_recorded(&self) {
        self.cluster.apply(PODS);
    }

    /// Starts the pods with a session of the synthetic vectors.
    ///
    /// # Panics
    /// If the manifest has changed.
    pub fn play_session(&self, session: &str) {
        let replay =
            |side| format!("replay --dir /vectors/synthetic-two-way --session {session} --side {side} {KEEP_RUNNING}");
        self.play(&replay("local"), &replay("remote"));
    }

    /// Starts the pods with `messages` messages from each side at `rate` per second; the node writes a transcript of both directions.
    ///
    /// # Panics
    /// If the manifest has changed.
    pub fn play_load(&self, messages: u64, rate: u64) {
        let load = format!("load --rate {rate} --messages {messages} --keep-open");
        self.play(&format!("{load} --connect-timeout 600 --transcript /var/persistent/transcript"), &load);
    }

    /// Starts the pods of another node, `NAME-node-0` and its peer `NAME-peer`, with these commands of the demo node; a TezosNode
    /// `NAME` selects it.
    ///
    /// # Panics
    /// If the manifest has changed.
    pub fn play_neighbour(&self, name: &str, node: &str, peer: &str) {
        let class = format!("{name}-node");
        self.cluster.apply(&tezos_node(name, &json!({"node_class": class})).to_string());
        let pods = pods(node, peer).replace("rolling-node", &class);
        self.cluster.apply(
            &pods.replace("peer:9732", &format!("{name}-peer:9732")).replace(": peer", &format!(": {name}-peer")),
        );
    }

    /// Starts the pods with these commands of the demo node.
    fn play(&self, node: &str, peer: &str) {
        self.cluster.apply(&pods(node, peer));
    }

    /// The number of messages of the node so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        let Some((200, body)) = self.reader.request("/nodes") else { return 0 };
        let nodes: Value = serde_json::from_str(&body).unwrap_or_default();
        let node = nodes.as_array().and_then(|nodes| nodes.iter().find(|node| node["name"] == NODE));
        node.and_then(|node| node["next_id"].as_u64()).unwrap_or(0)
    }

    /// Waits until the node has `count` messages.
    ///
    /// # Panics
    /// After a timeout.
    pub fn until_count(&self, count: u64) {
        wait::until_within(wait::WAIT_TIMEOUT * 3, &format!("{count} messages"), || {
            (self.count() >= count).then_some(())
        });
    }

    /// Waits until this many messages of each direction follow the first `before`.
    ///
    /// # Panics
    /// After a timeout.
    pub fn until_more_both_ways(&self, before: u64, more: u64) {
        wait::until_within(wait::WAIT_TIMEOUT * 3, &format!("{more} further messages, both ways"), || {
            self.reader.counts_from(NODE, before).iter().all(|count| *count >= more).then_some(())
        });
    }

    /// The transcript of the node: the messages that it sent and received.
    #[must_use]
    pub fn transcript(&self) -> Vec<Value> {
        let text = self.cluster.try_kubectl_output(&[
            "exec",
            "rolling-node-0",
            "--namespace",
            "tezos",
            "--",
            "cat",
            "/var/persistent/transcript",
        ]);
        text.unwrap_or_default().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The messages of the transcript that are [not recorded](transcript::missing), in each direction.
    ///
    /// # Panics
    /// If a row was never sent, is recorded twice or is out of order, or if more than one run is missing.
    #[must_use]
    pub fn missing(&self) -> [Missing; 2] {
        let rows = self.reader.rows(NODE, "");
        transcript::missing(&self.reader, NODE, &rows, &self.transcript())
    }

    /// Connections of the node that could not be decrypted.
    #[must_use]
    pub fn undecryptable(&self) -> Vec<Value> {
        let connections = self.reader.connections(NODE).into_iter().map(|connection| connection.value);
        connections.filter(|connection| connection["state"] == "undecryptable").collect()
    }

    /// A directory of a host.
    #[must_use]
    pub fn host_folder(&self, host: usize, name: &str) -> std::path::PathBuf {
        let host = self.cluster.hosts().get(host).unwrap_or_else(|| panic!("no host {host}"));
        host.path(Path::new(name).to_str().unwrap_or_default())
    }
}

/// A TezosNode that selects pods with these labels.
fn tezos_node(name: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "chainscope.dev/v1alpha1", "kind": "TezosNode",
        "metadata": {"name": name, "namespace": "tezos"},
        "spec": {"podSelector": {"matchLabels": labels}},
    })
}

/// A NodeTrace that records these tracepoints of the fake node in pods with these labels.
#[must_use]
pub fn node_trace(namespace: &str, name: &str, labels: &Value, patterns: &[&str]) -> Value {
    json!({
        "apiVersion": "chainscope.dev/v1alpha1", "kind": "NodeTrace",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "podSelector": {"matchLabels": labels}, "container": "node", "process": "bitcoind",
            "tracepoints": [{"patterns": patterns}],
        },
    })
}

/// The manifest of the pods with these commands of the demo node.
fn pods(node: &str, peer: &str) -> String {
    let recorded = format!("value: replay --dir /vectors/carthagenet-2020 --side local {KEEP_RUNNING}");
    let other = "[replay, --dir, /vectors/carthagenet-2020, --side, remote, --listen, \"[::]:9732\", --exit-after, \"1000000\"]";
    assert!(PODS.contains(&recorded) && PODS.contains(other), "the manifest has changed");
    let arguments: Vec<_> = peer.split(' ').chain(["--listen", "[::]:9732"]).collect();
    PODS.replace(&recorded, &format!("value: {node}")).replace(other, &serde_json::to_string(&arguments).expect("JSON"))
}
