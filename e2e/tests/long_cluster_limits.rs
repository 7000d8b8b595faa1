//! The programs in the default limits of the chart, under the worst input of each: none is killed, and the node beside it is
//! recorded whole.

mod grpc;

use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chainscope_e2e::cluster::release::{RELEASE, pods_of};
use chainscope_e2e::cluster::scene::{HANDSHAKE, NODE, Scene};
use chainscope_e2e::cluster::{Level, Setup};
use chainscope_e2e::harness::transcript::Missing;
use chainscope_e2e::harness::wait::{self, WAIT_TIMEOUT};
use chainscope_e2e::image;
use chainscope_proto::v1::ingest_client::IngestClient;
use chainscope_proto::v1::{Batch, Chunk, Hello, MemoryState, Message, Record, RecordRequest, record, record_request};
use chainscope_testing::program::hostile_code;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use tokio_stream::wrappers::ReceiverStream;

/// Messages per second and side of the node that is recorded whole.
const RATE: u64 = 20;
const MESSAGES: u64 = 150 * RATE;
/// Processes named `octez-node` that no TezosNode selects.
const PROCESSES: usize = 1024;
/// Connections that send the beginning of a message of 100 MiB: together more than a node's budget of 64 MiB.
const INCOMPLETE: usize = 1500;
/// Damaged ELF files whose code a node executes.
const DAMAGED_FILES: usize = 1000;
/// Clients that request the largest response and do not read it.
const SLOW_READERS: usize = 1024;
/// Batches of junk, about 8 MiB each.
const BATCHES: u64 = 50;
/// Unfinished memory states, which would take 4 GiB.
const STATES: u64 = 40;
/// Time limit for filling the spool of 1 GiB, and for emptying it.
const SPOOL_TIMEOUT: Duration = Duration::from_secs(900);
/// No message is missing.
const COMPLETE: Missing = Missing { run: 0, tail: 0 };

#[tokio::test(flavor = "multi_thread")]
async fn no_program_exceeds_its_memory_limit_and_the_node_beside_is_recorded_whole() {
    let scene = tokio::task::spawn_blocking(scene_with_damaged_code).await.expect("scene");
    tokio::task::block_in_place(|| {
        the_agent_knows_its_limit(&scene);
        damaged_code_is_profiled(&scene);
        scene.cluster.scale_aggregator(0);
        scene.play_load(MESSAGES, RATE);
        processes_that_nobody_configured(&scene);
        a_neighbour_fills_the_spool(&scene);
        let spooled = spool_files(&scene);
        scene.cluster.kill("agent");
        eprintln!("the agent started with {} MiB of spool", spooled >> 20);
        scene.cluster.scale_aggregator(1);
        let all = 2 * MESSAGES + HANDSHAKE;
        wait::until_within(SPOOL_TIMEOUT, "every message", || (scene.count() >= all).then_some(()));
        assert_eq!(scene.missing(), [COMPLETE, COMPLETE]);
        assert_eq!(scene.count(), all);
        clients_that_do_not_read(&scene);
    });
    an_agent_that_sends_junk(&scene).await;
    tokio::task::block_in_place(|| {
        for (component, restarts) in [("agent", 1), ("aggregator", 0), ("operator", 0)] {
            assert_within_limit(&scene, component, restarts);
        }
        assert_eq!(scene.missing(), [COMPLETE, COMPLETE]);
    });
    tokio::task::spawn_blocking(move || drop(scene)).await.expect("the end");
}

/// The agent divides the memory limit of its container.
fn the_agent_knows_its_limit(scene: &Scene) {
    let selector = "app.kubernetes.io/component=agent";
    let log =
        scene.cluster.try_kubectl_output(&["logs", "--namespace", RELEASE, "--selector", selector, "--tail", "-1"]);
    let log = log.expect("the agent's log");
    let line = log.lines().find(|line| line.contains("memory limit")).expect("it says its limit");
    assert!(line.contains(&(1_u64 << 30).to_string()), "{line}");
}

/// A cluster that has the image of the node whose code is damaged.
fn scene_with_damaged_code() -> Scene {
    let folder = tempfile::tempdir().expect("a folder");
    let program = hostile_code(folder.path(), "octez-node");
    let archive = folder.path().join("hostile.tar");
    image::hostile_node(&program).write(&archive).unwrap_or_else(|e| panic!("image: {e:#}"));
    Scene::on(Setup::new(Level::Hosts(1)).images([archive]), &[], |_| {})
}

/// A node of which the memory is profiled, until the end of the test.
fn damaged_code_is_profiled(scene: &Scene) {
    let node = json!({
        "apiVersion": "chainscope.dev/v1alpha1", "kind": "TezosNode",
        "metadata": {"name": "damaged", "namespace": "tezos"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "damaged"}}, "container": "damaged",
            "network": {"enabled": false}, "memory": {},
        },
    });
    scene.cluster.apply(&node.to_string());
    let files = DAMAGED_FILES.to_string();
    let mut pod = pod("damaged", &["/usr/local/bin/octez-node", &files, "/tmp"]);
    pod["metadata"]["labels"] = json!({"app": "damaged"});
    pod["spec"]["containers"][0]["image"] = json!(image::HOSTILE);
    scene.cluster.apply(&pod.to_string());
    wait::until_within(WAIT_TIMEOUT * 5, "memory in calls of damaged code", || {
        let (status, tree) = scene.reader.request("/nodes/tezos/damaged/v1/tree?threshold=0&reverse=true")?;
        (status == 200 && tree.contains("copy-")).then_some(())
    });
}

/// They listen and talk to each other; only some are held until it is known that they are no node.
fn processes_that_nobody_configured(scene: &Scene) {
    let script = format!(
        "i=0; while [ $i -lt {PROCESSES} ]; do \
         /usr/local/bin/octez-node load --rate 0.1 --connect-timeout 600 --exit-after 1000000 \
         --listen 127.0.0.1:$((10000 + i)) --peer 127.0.0.1:$((10000 + (i + 1) % {PROCESSES})) & \
         i=$((i + 1)); done; wait"
    );
    scene.cluster.apply(&pod("crowd", &["/bin/sh", "-c", &script]).to_string());
    wait::until_within(WAIT_TIMEOUT * 5, "the processes to talk", || {
        let log = scene.cluster.try_kubectl_output(&["logs", "crowd", "--namespace", "tezos"])?;
        let talking = log.lines().filter(|line| line.contains(r#""event":"established""#)).count();
        (talking >= PROCESSES).then_some(())
    });
    let refused = wait::until("processes that are not held", || {
        scene.cluster.metric("agent", "chainscope_agent_refused_processes_total").filter(|refused| *refused > 0.0)
    });
    eprintln!("{PROCESSES} processes of a pod: {refused} not held");
    scene.cluster.kubectl("delete pod crowd --namespace tezos --grace-period 0 --force");
}

/// A configured node with incomplete messages and far more than its share of the spool, while the aggregator is away.
fn a_neighbour_fills_the_spool(scene: &Scene) {
    let load = "load --rate 25 --size 200000 --keep-open --connect-timeout 600 --exit-after 1000000";
    scene.play_neighbour("noisy", load, load);
    scene.cluster.condition("tezos", "noisy", "Recording", "True");
    let address = scene.cluster.until("the neighbour's address", "pod noisy-node-0 --namespace tezos", |found| {
        found["status"]["podIP"].as_str().map(str::to_owned)
    });
    let (peer, connections) = (format!("{address}:9732"), INCOMPLETE.to_string());
    let command = ["/usr/local/bin/octez-node", "hostile", "--violation", "unfinished-message", "--peer", &peer];
    let command = [&command[..], &["--connections", &connections, "--connect-timeout", "600"]].concat();
    scene.cluster.apply(&pod("incomplete", &command).to_string());
    wait::until_within(SPOOL_TIMEOUT, "the node's budget to be used up", || {
        scene.cluster.metric("agent", "chainscope_agent_session_memory_exceeded_total").filter(|bytes| *bytes > 0.0)
    });
    wait::until_within(SPOOL_TIMEOUT, "the spool to be full", || {
        let dropped = scene.cluster.metric("agent", "chainscope_agent_spool_dropped_records_total")?;
        (dropped > 0.0).then_some(())
    });
    for resource in ["deployment/noisy-peer", "pod/incomplete"] {
        scene.cluster.kubectl(&format!("delete {resource} --namespace tezos --grace-period 0 --force"));
    }
    let is_sent = || (scene.transcript().len() as u64 >= 2 * MESSAGES).then_some(());
    wait::until_within(SPOOL_TIMEOUT, "the conversation to end", is_sent);
    // Records in memory are written to the spool within a second; periodic records keep the count growing slowly.
    let mut since = (0.0, Instant::now());
    wait::until("the node's records to be in the spool", || {
        let now = scene.cluster.metric("agent", &format!("chainscope_agent_spool_records{{node=\"{NODE}\"}}"))?;
        if (now - since.0).abs() > 5.0 {
            since = (now, Instant::now());
        }
        (since.1.elapsed() > Duration::from_secs(3)).then_some(())
    });
}

/// Bytes of the files of the agent.
fn spool_files(scene: &Scene) -> u64 {
    let files = chainscope_e2e::harness::files_below(&scene.host_folder(0, "lib/chainscope"));
    files.iter().filter_map(|file| fs::metadata(file).ok()).map(|file| file.len()).sum()
}

/// Another reader gets its pages meanwhile.
fn clients_that_do_not_read(scene: &Scene) {
    let files = Rlimit { current: Some(8192), maximum: Some(8192) };
    setrlimit(Resource::Nofile, files).expect("the limit of open files");
    let (bundle, _) = scene.cluster.service("aggregator", 17_732);
    let service = format!("service {RELEASE}-aggregator --namespace {RELEASE}");
    let service = scene.cluster.find(&service).expect("the Service");
    let address: IpAddr = service["spec"]["clusterIP"].as_str().and_then(|ip| ip.parse().ok()).expect("its address");
    let token = scene.cluster.token("tezos", "reader");
    let network = scene.cluster.hosts().first().expect("a host").network();
    let clients = std::thread::spawn(move || slow_clients(&network, SocketAddr::new(address, 17_732), &bundle, &token))
        .join()
        .expect("the clients");
    eprintln!("{} clients that do not read", clients.len());
    assert!(clients.len() >= SLOW_READERS / 2, "only {} clients are connected", clients.len());
    for page in 0..20 {
        let rows = scene.reader.page(NODE, &format!("limit=100&direction=forward&cursor={}", page * 100));
        assert_eq!(rows.len(), 100, "page {page}");
    }
}

fn slow_clients(network: &Path, address: SocketAddr, bundle: &str, token: &str) -> Vec<impl Send + use<>> {
    let network = fs::File::open(network).expect("a network namespace");
    move_into_link_name_space(std::os::fd::AsFd::as_fd(&network), Some(LinkNameSpaceType::Network)).expect("setns");
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.expect("a certificate")).expect("a CA");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
    let tls = Arc::new(tls.with_root_certificates(roots).with_no_client_auth());
    let host = format!("{RELEASE}-aggregator.{RELEASE}.svc");
    let request = format!(
        "GET /v3/chunks?node_name=tezos/noisy&limit=1000 HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    // A server that refuses some of them is as good.
    let client = |_| {
        let socket = TcpStream::connect_timeout(&address, WAIT_TIMEOUT).ok()?;
        let name = ServerName::try_from(host.clone()).expect("a name");
        let connection = ClientConnection::new(tls.clone(), name).expect("a client");
        let mut stream = StreamOwned::new(connection, socket);
        stream.write_all(request.as_bytes()).ok()?;
        stream.flush().ok()?;
        Some(stream)
    };
    (0..SLOW_READERS).filter_map(client).collect()
}

/// With the token of an agent: records that are as large as a batch may be, and untrue.
async fn an_agent_that_sends_junk(scene: &Scene) {
    let cluster = &scene.cluster;
    let token = tokio::task::block_in_place(|| grpc::agent_token(cluster, "host1"));
    let (channel, _open) = grpc::channel(cluster, "aggregator", grpc::INGEST).await;
    let (requests, stream) = tokio::sync::mpsc::channel(1);
    let request = |request| RecordRequest { request: Some(request) };
    let hello = Hello {
        least_version: 1,
        greatest_version: 1,
        build: "test".to_owned(),
        agent: "host1".to_owned(),
        epoch: vec![7; 16],
        ..Hello::default()
    };
    requests.send(request(record_request::Request::Hello(hello))).await.expect("open");
    let mut client = IngestClient::new(channel);
    let mut replies =
        client.record(grpc::with_token(ReceiverStream::new(stream), &token)).await.expect("accepted").into_inner();
    let replies = tokio::spawn(async move { while let Ok(Some(_)) = replies.message().await {} });
    for profile in 1..=STATES {
        // The aggregator refuses all but some.
        requests.send(request(record_request::Request::Memory(unfinished_state(profile)))).await.expect("open");
    }
    for batch in 0..BATCHES {
        let records = junk();
        let first_sequence = batch * records.len() as u64;
        let batch = Batch { node: "tezos/noisy".to_owned(), first_sequence, records };
        // The aggregator may end the session.
        if requests.send(request(record_request::Request::Batch(batch))).await.is_err() {
            break;
        }
    }
    drop(requests);
    tokio::time::timeout(SPOOL_TIMEOUT, replies).await.expect("the session ends").expect("replies");
    tokio::task::block_in_place(|| {
        let invalid = cluster.metric("aggregator", "chainscope_ingest_invalid_records_total").expect("metric");
        let refused = cluster.metric("aggregator", "chainscope_ingest_refused_batches_total").expect("metric");
        let states = cluster.metric("aggregator", "chainscope_ingest_refused_memory_states_total").expect("metric");
        eprintln!("junk: {invalid} records invalid, {refused} batches and {states} memory states refused");
        assert!(invalid + refused > 0.0);
        assert!(states >= STATES as f64 / 2.0, "only {states} states are refused");
    });
}

/// The first part of a state that goes on: 7 MiB on the wire, 16 times as much when it is merged.
fn unfinished_state(profile: u64) -> MemoryState {
    let nodes = 7 << 19;
    MemoryState {
        node: "tezos/damaged".to_owned(),
        profile,
        sequence: 1,
        more: true,
        first_node: 1,
        node_parents: vec![0; nodes],
        node_frames: vec![0; nodes],
        ..MemoryState::default()
    }
}

fn junk() -> Vec<Record> {
    let record = |kind| Record { time_ns: 1, kind: Some(kind), ..Record::default() };
    let chunks =
        (0..4).map(|_| record(record::Kind::Chunk(Chunk { wire: vec![0; 1 << 20].into(), ..Chunk::default() })));
    let messages = (0..3).map(|_| {
        let text = "x".repeat(1 << 20);
        record(record::Kind::Message(Message { preview: Some(text), last_chunk: u64::MAX, ..Message::default() }))
    });
    chunks.chain(messages).collect()
}

/// No container of the component was killed by the kernel, and none restarted but by the test. Prints the peak of its memory.
fn assert_within_limit(scene: &Scene, component: &str, restarts: u64) {
    let pods = scene.cluster.find(&pods_of(component)).expect("pods");
    for pod in pods["items"].as_array().expect("a list") {
        let status = &pod["status"]["containerStatuses"][0];
        assert_eq!(status["restartCount"], restarts, "{component}: {status}");
        assert_ne!(status["lastState"]["terminated"]["reason"], "OOMKilled", "{component}: {status}");
        let uid = pod["metadata"]["uid"].as_str().expect("its uid");
        eprintln!(
            "{component}: peak of {} MiB, limit {}",
            peak(uid) >> 20,
            pod["spec"]["containers"][0]["resources"]["limits"]
        );
    }
}

/// The largest resident memory of a pod's program so far, in bytes. (The peak of its cgroup includes the page cache.)
fn peak(uid: &str) -> u64 {
    let uids = [uid.to_owned(), uid.replace('-', "_")];
    let processes = fs::read_dir("/proc").expect("/proc").map(|entry| entry.expect("an entry").path());
    let peak_of = |process: &Path| {
        let read = |file: &str| fs::read_to_string(process.join(file)).unwrap_or_default();
        let is_program = read("comm").starts_with("chainscope-") && uids.iter().any(|uid| read("cgroup").contains(uid));
        let status = is_program.then(|| read("status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    processes.filter_map(|process| peak_of(&process)).max().expect("the program runs") << 10
}

/// A pod of one container that no TezosNode selects.
fn pod(name: &str, command: &[&str]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "tezos"},
        "spec": {
            "terminationGracePeriodSeconds": 2, "restartPolicy": "Never",
            "containers": [{"name": name, "image": "localhost/chainscope/octez:1", "imagePullPolicy": "Never", "command": command}],
        },
    })
}
