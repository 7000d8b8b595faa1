//! Authorization of agents by their token: an agent subscribes to, and sends records of, its own host only.

use std::time::Duration;

use chainscope_e2e::cluster::Cluster;
use chainscope_e2e::cluster::release::{RELEASE, find_condition};
use chainscope_e2e::cluster::scene::{NODE, Scene};
use chainscope_e2e::harness::wait;
use chainscope_proto::v1::configuration_client::ConfigurationClient;
use chainscope_proto::v1::ingest_client::IngestClient;
use chainscope_proto::v1::{
    CatalogRequest, Hello, HostHello, HostReport, HostUpdate, ObservedPod, RecordRequest, host_report, observed_pod,
    record_request,
};
use serde_json::json;
use tonic::{Code, Status};

use crate::grpc::{INGEST, agent_token, channel, with_token};

/// Messages of a node before it is said to be recorded.
const RECORDED: u64 = 100;
/// Port of the operator's configuration stream.
const CONFIG: u16 = 17_734;
/// Time limit for the first message of a stream.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_gets_its_own_hosts_configuration_and_no_others() {
    let scene =
        tokio::task::spawn_blocking(|| Scene::new(2, &["operator.secretNamespaces={tezos}"])).await.expect("scene");
    let cluster = &scene.cluster;
    // Both nodes are on the first host; the second one's identity is in a Secret.
    tokio::task::block_in_place(|| {
        cluster.kubectl("cordon host2");
        scene.play_load(1_000_000, 10);
        let vectors = "vectors/tezos/synthetic-two-way/identity.json";
        cluster.kubectl(&format!("create secret generic keys --namespace tezos --from-file identity.json={vectors}"));
        cluster.apply(
            &json!({
                "apiVersion": "chainscope.dev/v1alpha1", "kind": "TezosNode",
                "metadata": {"name": "other", "namespace": "tezos"},
                "spec": {"podSelector": {"matchLabels": {"app": "peer"}}, "container": "peer",
                         "ports": {"p2p": "p2p"}, "identity": {"secretRef": {"name": "keys", "key": "identity.json"}}},
            })
            .to_string(),
        );
        cluster.condition("tezos", "rolling", "Recording", "True");
        // The identity does not belong to this node: its status reports it.
        cluster.until("the identity to be a wrong one", "tezosnode other --namespace tezos", |found| {
            let condition = find_condition(found, "IdentityResolved")?;
            let message = condition["message"].as_str()?;
            (condition["reason"] == "IdentityNotRead" && message.contains("of another node")).then_some(())
        });
    });

    let (mine, foreign) =
        tokio::task::block_in_place(|| (agent_token(cluster, "host1"), agent_token(cluster, "host2")));
    let pods = configuration(cluster, &mine).await.expect("the first host's configuration").pods;
    let nodes: Vec<_> = pods.iter().map(|pod| pod.node.as_str()).collect();
    assert!(nodes.contains(&NODE) && nodes.contains(&"tezos/other"), "{nodes:?}");
    assert!(pods.iter().any(has_identity), "the identity of the Secret is for the agent of its pod's host");

    // The same request with the other host's token: a request has no field for the host.
    let pods = configuration(cluster, &foreign).await.expect("the second host's configuration").pods;
    assert!(pods.is_empty(), "the second host receives pods of the first: {pods:?}");

    // Tokens without a host, for another audience, or of another account.
    let tokens = tokio::task::block_in_place(|| {
        let token = |account: &str, options: &str| {
            cluster.kubectl(&format!("create token {account} --namespace {RELEASE} {options}")).trim().to_owned()
        };
        [
            (token(&format!("{RELEASE}-agent"), "--audience chainscope"), Code::PermissionDenied),
            (token(&format!("{RELEASE}-agent"), ""), Code::Unauthenticated),
            (token(&format!("{RELEASE}-aggregator"), "--audience chainscope"), Code::PermissionDenied),
            ("nonsense".to_owned(), Code::Unauthenticated),
        ]
    });
    for (number, (token, code)) in tokens.iter().enumerate() {
        let refused = configuration(cluster, token).await.expect_err("refused");
        assert_eq!(refused.code(), *code, "token {number}: {refused:?}");
    }
    let refused = catalog(cluster, &mine).await.expect_err("refused");
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");

    // The aggregator refuses records in the name of another host.
    let refused = hello(cluster, &foreign, "host1").await.expect_err("refused");
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused:?}");
    hello(cluster, &foreign, "host2").await.expect("accepted");
    tokio::task::block_in_place(|| a_node_in_a_nested_pid_namespace_is_recorded(&scene));
    tokio::task::spawn_blocking(move || drop(scene)).await.expect("the end");
}

/// The second host has a PID namespace of its own, as the hosts of kind have.
fn a_node_in_a_nested_pid_namespace_is_recorded(scene: &Scene) {
    scene.cluster.kubectl("uncordon host2");
    scene.cluster.kubectl("cordon host1");
    let load = "load --rate 10 --keep-open --connect-timeout 600 --exit-after 1000000";
    scene.play_neighbour("nested", load, load);
    scene.cluster.condition("tezos", "nested", "Recording", "True");
    let host = scene.cluster.find("pod nested-node-0 --namespace tezos").expect("the pod")["spec"]["nodeName"].clone();
    assert_eq!(host, "host2");
    scene.cluster.until("the peer to be ready", "deployment nested-peer --namespace tezos", |found| {
        (found["status"]["readyReplicas"] == 1).then_some(())
    });
    let is_recorded = wait::holds_within_timeout(|| scene.reader.count("tezos/nested") >= RECORDED);
    let opened = scene.reader.connections("tezos/nested");
    assert!(is_recorded, "{} messages, {opened:?}", scene.reader.count("tezos/nested"));
    assert!(opened.iter().any(|connection| connection.value["state"] == "decoding"), "{opened:?}");
}

fn has_identity(pod: &ObservedPod) -> bool {
    matches!(pod.identity, Some(observed_pod::Identity::IdentityJson(_)))
}

async fn configuration(cluster: &Cluster, token: &str) -> Result<HostUpdate, Status> {
    let (channel, _open) = channel(cluster, "operator", CONFIG).await;
    let hello = HostHello { least_version: 1, greatest_version: 1, build: "test".to_owned() };
    let hello = HostReport { report: Some(host_report::Report::Hello(hello)) };
    // The stream stays open: its end would end the session.
    let reports = tokio_stream::StreamExt::chain(tokio_stream::once(hello), tokio_stream::pending());
    let mut updates = ConfigurationClient::new(channel).host(with_token(reports, token)).await?.into_inner();
    let first = tokio::time::timeout(RESPONSE_TIMEOUT, updates.message()).await.expect("a response in time")?;
    Ok(first.expect("a snapshot"))
}

async fn catalog(cluster: &Cluster, token: &str) -> Result<(), Status> {
    let (channel, _open) = channel(cluster, "operator", CONFIG).await;
    let request = CatalogRequest { least_version: 1, greatest_version: 1, build: "test".to_owned() };
    let mut updates = ConfigurationClient::new(channel).catalog(with_token(request, token)).await?.into_inner();
    tokio::time::timeout(RESPONSE_TIMEOUT, updates.message()).await.expect("a response in time").map(|_| ())
}

async fn hello(cluster: &Cluster, token: &str, host: &str) -> Result<(), Status> {
    let (channel, _open) = channel(cluster, "aggregator", INGEST).await;
    let hello = Hello {
        least_version: 1,
        greatest_version: 1,
        build: "test".to_owned(),
        agent: host.to_owned(),
        epoch: vec![7; 16],
        ..Hello::default()
    };
    let hello = RecordRequest { request: Some(record_request::Request::Hello(hello)) };
    let requests = tokio_stream::StreamExt::chain(tokio_stream::once(hello), tokio_stream::pending());
    let mut replies = IngestClient::new(channel).record(with_token(requests, token)).await?.into_inner();
    tokio::time::timeout(RESPONSE_TIMEOUT, replies.message()).await.expect("a response in time").map(|_| ())
}
