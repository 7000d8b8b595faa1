//! A cluster with Chainscope, a TezosNode, its pod and the pod's peer: what most scenarios begin with.

use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::release::Door;
use super::{Cluster, Level, Setup};
use crate::harness::api::Api;
use crate::harness::transcript::{self, Missing};
use crate::harness::{programs, wait};
use crate::image::ours;

/// The pods: as tezos-k8s makes them.
const PODS: &str = include_str!("../../manifests/octez.yaml");
/// A node goes on after its conversation, and waits for its peer as long as it takes.
const FOREVER: &str = "--exit-after 1000000 --connect-timeout 600";
/// The node's name in the API.
pub const NODE: &str = "tezos/rolling";
/// Messages that every connection begins with, both ways: connection, metadata, ack.
pub const HANDSHAKE: u64 = 6;

/// The scene.
pub struct Scene {
    /// The API with the token of who may read the node.
    pub reader: Api,
    /// The API without a token.
    pub door: Door,
    /// The cluster.
    pub cluster: Cluster,
    _images: TempDir,
}

impl Scene {
    /// Chainscope is installed with these values; a TezosNode selects pods that are not there yet.
    ///
    /// # Panics
    /// If something does not become ready.
    #[must_use]
    pub fn new(hosts: u8, values: &[&str]) -> Self {
        Self::prepared(hosts, values, |_| {})
    }

    /// As [`Scene::new`]; in the namespaces of Chainscope and of the nodes something is made before.
    ///
    /// # Panics
    /// If something does not become ready.
    #[must_use]
    pub fn prepared(hosts: u8, values: &[&str], prepare: impl FnOnce(&Cluster)) -> Self {
        let images = tempfile::tempdir().expect("a folder for images");
        let archives = ours::write_all(&programs(), images.path()).unwrap_or_else(|e| panic!("images: {e:#}"));
        let cluster = Setup::new(Level::Hosts(hosts)).audit().images(archives).start();
        cluster.kubectl("create namespace tezos");
        cluster.make_namespace();
        prepare(&cluster);
        cluster.install(values);
        cluster.apply(
            &json!({
                "apiVersion": "chainscope.dev/v1alpha1", "kind": "TezosNode",
                "metadata": {"name": "rolling", "namespace": "tezos"},
                "spec": {"podSelector": {"matchLabels": {"appType": "octez-node", "node_class": "rolling-node"}}},
            })
            .to_string(),
        );
        for account in ["reader", "stranger"] {
            cluster.kubectl(&format!("create serviceaccount {account} --namespace tezos"));
        }
        cluster.kubectl(
            "create rolebinding reader --clusterrole chainscope-viewer --serviceaccount tezos:reader --namespace tezos",
        );
        let door = cluster.door();
        let reader = door.api.with_token(&cluster.token("tezos", "reader"));
        Self { reader, door, cluster, _images: images }
    }

    /// The pods play the conversation of 2020.
    pub fn play_recorded(&self) {
        self.cluster.apply(PODS);
    }

    /// The pods play a session of the synthetic vectors.
    ///
    /// # Panics
    /// If the manifest is not the expected one.
    pub fn play_session(&self, session: &str) {
        let replay =
            |side| format!("replay --dir /vectors/synthetic-two-way --session {session} --side {side} {FOREVER}");
        self.play(&replay("local"), &replay("remote"));
    }

    /// The pods say `messages` each at that rate a second, and then nothing more; the node notes what it said and heard.
    ///
    /// # Panics
    /// If the manifest is not the expected one.
    pub fn play_load(&self, messages: u64, rate: u64) {
        let load = format!("load --rate {rate} --messages {messages} --keep-open");
        self.play(&format!("{load} --connect-timeout 600 --transcript /var/persistent/transcript"), &load);
    }

    /// The pods do this instead of what the manifest says.
    fn play(&self, node: &str, peer: &str) {
        let recorded = format!("value: replay --dir /vectors/carthagenet-2020 --side local {FOREVER}");
        let other = "[replay, --dir, /vectors/carthagenet-2020, --side, remote, --listen, \"[::]:9732\", --exit-after, \"1000000\"]";
        assert!(PODS.contains(&recorded) && PODS.contains(other), "the manifest is another one");
        let words: Vec<_> = peer.split(' ').chain(["--listen", "[::]:9732"]).collect();
        let pods = PODS
            .replace(&recorded, &format!("value: {node}"))
            .replace(other, &serde_json::to_string(&words).expect("JSON"));
        self.cluster.apply(&pods);
    }

    /// Messages of the node so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        let Some((200, body)) = self.reader.request("/nodes") else { return 0 };
        let nodes: Value = serde_json::from_str(&body).unwrap_or_default();
        let node = nodes.as_array().and_then(|nodes| nodes.iter().find(|node| node["name"] == NODE));
        node.and_then(|node| node["next_id"].as_u64()).unwrap_or(0)
    }

    /// Waits for that many messages.
    ///
    /// # Panics
    /// If they do not come.
    pub fn until_count(&self, count: u64) {
        wait::until_within(wait::WAIT_TIMEOUT * 3, &format!("{count} messages"), || {
            (self.count() >= count).then_some(())
        });
    }

    /// Lines of the node's own notes: each is a message that it sent or received.
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

    /// What is missing of the messages that the node noted, [as compared](transcript::missing), in each direction.
    ///
    /// # Panics
    /// If something is recorded that was never said, twice or out of order, or if more than one run is missing.
    #[must_use]
    pub fn missing(&self) -> [Missing; 2] {
        let rows = self.reader.rows(NODE, "");
        transcript::missing(&self.reader, NODE, &rows, &self.transcript())
    }

    /// Connections of the node that could not be opened.
    #[must_use]
    pub fn undecryptable(&self) -> Vec<Value> {
        let connections = self.reader.connections(NODE).into_iter().map(|connection| connection.value);
        connections.filter(|connection| connection["state"] == "undecryptable").collect()
    }

    /// Bytes that are searched for secrets: folders of a host.
    #[must_use]
    pub fn host_folder(&self, host: usize, name: &str) -> std::path::PathBuf {
        let host = self.cluster.hosts().get(host).unwrap_or_else(|| panic!("no host {host}"));
        host.path(Path::new(name).to_str().unwrap_or_default())
    }
}
