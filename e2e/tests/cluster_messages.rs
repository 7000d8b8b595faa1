//! The whole way: the chart is installed, pods as tezos-k8s makes them talk, and their messages are served to who may read them.

use chainscope_e2e::cluster::{Cluster, Level, Setup};
use chainscope_e2e::harness::api::{Api, byte_list, id};
use chainscope_e2e::harness::{expect, programs, vectors, wait};
use chainscope_e2e::image::ours;
use serde_json::{Value, json};

/// Connection, metadata, ack and 5,472 messages of the observed side; connection, metadata, ack and one message of its peer.
const MESSAGES: u64 = 5_475 + 4;
const NODE: &str = "tezos/rolling";

fn cluster(hosts: u8) -> (Cluster, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder for images");
    let images = ours::write_all(&programs(), folder.path()).unwrap_or_else(|e| panic!("images: {e:#}"));
    (Setup::new(Level::Hosts(hosts)).audit().images(images).start(), folder)
}

fn node(cluster: &Cluster) {
    cluster.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tezos"}}).to_string());
    cluster.apply(
        &json!({
            "apiVersion": "chainscope.dev/v1alpha1", "kind": "TezosNode",
            "metadata": {"name": "rolling", "namespace": "tezos"},
            "spec": {"podSelector": {"matchLabels": {"appType": "octez-node", "node_class": "rolling-node"}}},
        })
        .to_string(),
    );
}

#[test]
fn the_messages_of_a_pod_are_served_to_who_may_read_them() {
    let (cluster, _images) = cluster(1);
    let release = cluster.install(&[]);
    node(&cluster);
    assert_eq!(release.condition("tezos", "rolling", "Ready", "False"), "NoPodsSelected");
    cluster.apply(include_str!("../manifests/octez.yaml"));

    cluster.kubectl("create serviceaccount reader --namespace tezos");
    cluster.kubectl("create serviceaccount stranger --namespace tezos");
    cluster.kubectl(
        "create rolebinding reader --clusterrole chainscope-viewer --serviceaccount tezos:reader --namespace tezos",
    );
    let door = release.door();
    let reader = door.api.with_token(&cluster.token("tezos", "reader"));
    wait::until("all messages", || {
        (reader.ask("/nodes")?.0 == 200).then(|| counted(&reader)).filter(|&n| n >= MESSAGES)
    });
    check_messages(&reader);
    for kind in ["Ready", "IdentityResolved", "Recording", "NodeProcessRunning"] {
        release.condition("tezos", "rolling", kind, "True");
    }

    // Who may not read.
    let path = format!("/v2/p2p?node_name={NODE}&limit=1");
    let status = |api: &Api| api.ask(&path).expect("an answer").0;
    assert_eq!(status(&door.api), 401);
    assert_eq!(status(&door.api.with_token("nonsense")), 401);
    let stranger = door.api.with_token(&cluster.token("tezos", "stranger"));
    assert_eq!(status(&stranger), 403);
    assert_eq!(stranger.get("/nodes"), json!([]), "a node is shown to who may not read it");
}

/// Messages so far; none while nothing is known of the node.
fn counted(api: &Api) -> u64 {
    let nodes = api.get("/nodes");
    let node = nodes.as_array().and_then(|nodes| nodes.iter().find(|node| node["name"] == NODE));
    node.and_then(|node| node["next_id"].as_u64()).unwrap_or(0)
}

/// As the single-machine test of the same conversation checks it.
fn check_messages(api: &Api) {
    let rows = api.rows(NODE, "");
    assert_eq!(rows.len() as u64, MESSAGES);
    assert!(rows.iter().enumerate().all(|(n, row)| id(row) == n as u64), "ids are not dense from 0");
    let sent = api.rows(NODE, "incoming=false");
    let expected = vectors::json_lines("carthagenet-2020/sent.expected.jsonl");
    assert_eq!(sent.len(), 1 + expected.len());
    for (row, expected) in sent.iter().skip(1).zip(&expected).step_by(7) {
        let details = api.message(NODE, id(row));
        assert_eq!(
            hex::encode(byte_list(&details["decrypted_bytes"])),
            expected["plaintext_hex"].as_str().expect("hex")
        );
        assert_eq!(details["error"], Value::Null, "{row}");
        if row["category"] == "p2p" {
            let kind = expected["type"].as_str().expect("type");
            let wanted = expect::message(kind, &expected["decoded"]);
            assert_eq!(expect::difference(&wanted, &details["message"]), None, "{row}");
        }
    }
}
