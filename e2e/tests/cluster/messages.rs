//! The whole path: the chart is installed, pods as of tezos-k8s communicate, and their messages are served to authorized readers.

use std::collections::BTreeSet;

use chainscope_e2e::cluster::Cluster;
use chainscope_e2e::cluster::release::RELEASE;
use chainscope_e2e::cluster::scene::{self, NODE, Scene};
use chainscope_e2e::harness::api::{Api, byte_list, id};
use chainscope_e2e::harness::{expect, vectors};
use serde_json::{Value, json};

/// Connection, metadata, ack and 5,472 messages of the observed side; connection, metadata, ack and one message of its peer.
const MESSAGES: u64 = 5_475 + 4;

#[test]
fn the_messages_of_a_pod_are_served_to_authorized_readers() {
    let scene = Scene::new(1, &[]);
    let cluster = &scene.cluster;
    assert_eq!(cluster.condition("tezos", "rolling", "Ready", "False"), "NoPodsSelected");
    // The operator uses its permissions for NodeTraces as well.
    cluster.apply(&scene::node_trace("tezos", "unused", &json!({"app": "nothing"}), &["net:*"]).to_string());
    scene.play_recorded();
    scene.until_count(MESSAGES);
    check_messages(&scene.reader);
    for kind in ["Ready", "IdentityResolved", "Recording", "ProcessRunning"] {
        cluster.condition("tezos", "rolling", kind, "True");
    }

    // Unauthenticated and unauthorized requests.
    let path = format!("/v2/p2p?node_name={NODE}&limit=1");
    let status = |api: &Api| api.request(&path).expect("response").0;
    assert_eq!(status(&scene.client.api), 401);
    assert_eq!(status(&scene.client.api.with_token("nonsense")), 401);
    let stranger = scene.client.api.with_token(&cluster.token("tezos", "stranger"));
    assert_eq!(status(&stranger), 403);
    assert_eq!(stranger.get("/nodes"), json!([]), "a node is listed for an unauthorized reader");
    cluster.assert_permissions_are_used();
    check_pod_security(cluster);

    cluster.test_release();
    // Some queries are about memory.
    cluster.kubectl(r#"patch tezosnode rolling --namespace tezos --type merge --patch {"spec":{"memory":{}}}"#);
    cluster.test_queries();
    cluster.check_command_line(NODE, "tezos/reader", "tezos/stranger");
}

/// The checks of the single-machine test of the same conversation; bytes of every seventh message only, to save time.
fn check_messages(api: &Api) {
    let rows = api.rows(NODE, "");
    assert_eq!(rows.len() as u64, MESSAGES);
    assert!(rows.iter().enumerate().all(|(n, row)| id(row) == n as u64), "ids are not dense from 0");
    let sent = api.rows(NODE, "incoming=false");
    let expected = vectors::json_lines("carthagenet-2020/sent.expected.jsonl");
    assert_eq!(sent.len(), 1 + expected.len());
    for (row, expected) in sent.iter().skip(1).zip(&expected).step_by(7) {
        let details = api.message(NODE, id(row));
        let plain = hex::encode(byte_list(&details["decrypted_bytes"]));
        assert_eq!(plain, expected["plaintext_hex"].as_str().expect("hex"));
        assert_eq!(details["error"], Value::Null, "{row}");
        if row["category"] == "p2p" {
            let kind = expected["type"].as_str().expect("type");
            let wanted = expect::message(kind, &expected["decoded"]);
            assert_eq!(expect::difference(&wanted, &details["message"]), None, "{row}");
        }
    }
}

/// Only the agent violates the `restricted` Pod Security Standard, for these reasons only.
fn check_pod_security(cluster: &Cluster) {
    let mut command = cluster.program("kubectl");
    command.args(["label", "namespace", RELEASE, "--overwrite", "--dry-run=server"]);
    let output = command.arg("pod-security.kubernetes.io/enforce=restricted").output().expect("kubectl");
    let warnings = String::from_utf8_lossy(&output.stderr);
    let mut offenders = warnings.lines().filter_map(|line| line.strip_prefix("Warning: ")?.strip_prefix(RELEASE));
    let agent = offenders.next().unwrap_or_else(|| panic!("no warning about the agent: {warnings}"));
    assert_eq!(offenders.next(), None, "{warnings}");
    let (name, reasons) = agent.split_once(": ").expect("a pod and its reasons");
    assert!(name.starts_with("-agent-"), "{warnings}");
    let reasons: BTreeSet<_> = reasons.split(", ").collect();
    let expected = ["host namespaces", "restricted volume types", "runAsNonRoot != true", "runAsUser=0"];
    let more = reasons.difference(&BTreeSet::from(expected)).filter(|reason| !reason.contains("capabilities")).count();
    assert_eq!(more, 0, "{warnings}");
}
