//! Authentication of agents over gRPC, and which nodes they may deliver: tokens, hosts, the operator's catalog.

use std::{io::Write as _, net::TcpStream, sync::Arc, time::Duration};

use chainscope_aggregator::{CatalogConfig, Config, access::AccessConfig, ingest::IngestTrust};
use chainscope_proto::v1::{
    Batch, Hello, Record, RecordReply, RecordRequest, ingest_client::IngestClient, record::Kind, record_reply::Reply,
    record_request::Request,
};
use chainscope_store::Store;
use chainscope_testing::wait::until_true;
use tempfile::TempDir;
use tokio::{runtime::Runtime, sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming, transport::Channel};

use crate::common::{
    LIMIT, Server, TIME,
    fake::{Operator, Reviews, node, token_ending_in},
    get, hello, message, open, record,
};

const ACCOUNT: &str = "system:serviceaccount:chainscope:chainscope-agent";

fn messages(count: usize) -> Vec<Record> {
    (0..count).map(|_| record(TIME, Kind::Message(message("advertise")))).collect()
}

/// The aggregator of a cluster, its operator (on another runtime) and the token reviews.
struct Cluster {
    server: Option<Server>,
    reviews: Arc<Reviews>,
    operator: Option<Operator>,
    runtime: Runtime,
    folder: TempDir,
}

impl Cluster {
    fn start(nodes: &[chainscope_proto::v1::CatalogNode]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let operator = Operator::start(&runtime, nodes);
        let reviews = Arc::new(Reviews::default());
        reviews.agent("h1-token", ACCOUNT, Some("h1"));
        let folder = tempfile::tempdir().unwrap();
        let mut cluster = Self { server: None, reviews, operator: Some(operator), runtime, folder };
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir);
        cluster.serve(dir, store, |_| {});
        cluster
    }

    fn serve(&mut self, dir: TempDir, store: Store, change: impl FnOnce(&mut Config)) {
        let token = self.folder.path().join("token");
        std::fs::write(&token, "own-token\n").unwrap();
        let operator = self.operator.as_ref().map_or("http://127.0.0.1:1".to_owned(), Operator::url);
        self.server = Some(Server::on(dir, store, |config| {
            config.ingest = Some("127.0.0.1:0".parse().unwrap());
            config.operation = Some("127.0.0.1:0".parse().unwrap());
            config.trust = Some(IngestTrust { reviewer: Arc::clone(&self.reviews) as _, account: ACCOUNT.into() });
            config.catalog = Some(CatalogConfig {
                operator,
                ca_file: None,
                token_file: Some(token),
                file: self.folder.path().join("catalog.json"),
                deleted_retention: Duration::ZERO,
            });
            config.limits.eviction_interval = Duration::from_millis(20);
            change(config);
        }));
    }

    fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    fn operator(&self) -> &Operator {
        self.operator.as_ref().unwrap()
    }

    fn ready(&self) -> u16 {
        get(self.server().running().operation_addr().unwrap(), "GET", "/readyz", &[]).status
    }

    fn agent(&self, token: Option<&str>, hello: Hello) -> Result<Agent<'_>, Status> {
        let server = self.server();
        let address = server.running().ingest_addr().unwrap();
        server.runtime.block_on(async {
            let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
            let (requests, stream) = mpsc::channel(64);
            requests.send(RecordRequest { request: Some(Request::Hello(hello)) }).await.unwrap();
            let mut call = tonic::Request::new(ReceiverStream::new(stream));
            if let Some(token) = token {
                call.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
            }
            let replies = IngestClient::new(channel).record(call).await?.into_inner();
            let mut agent = Agent { server, requests, replies };
            match agent.next().await? {
                Some(Reply::Welcome(_)) => Ok(agent),
                other => panic!("no welcome: {other:?}"),
            }
        })
    }
}

struct Agent<'a> {
    server: &'a Server,
    requests: mpsc::Sender<RecordRequest>,
    replies: Streaming<RecordReply>,
}

impl Agent<'_> {
    async fn next(&mut self) -> Result<Option<Reply>, Status> {
        let reply = timeout(LIMIT, self.replies.message()).await.expect("no reply")?;
        Ok(reply.map(|reply| reply.reply.unwrap()))
    }

    fn reply(&mut self) -> Result<Option<Reply>, Status> {
        let server = self.server;
        server.runtime.block_on(self.next())
    }

    fn batch(&self, node: &str, first_sequence: u64, count: usize) {
        let batch = Batch { node: node.into(), first_sequence, records: messages(count) };
        let request = RecordRequest { request: Some(Request::Batch(batch)) };
        // Fails if the session has ended; its last reply is the error.
        let _ = self.server.runtime.block_on(self.requests.send(request));
    }

    /// Sends a batch and returns the acknowledged sequence, or the reason of the refusal.
    fn deliver(&mut self, node: &str, first_sequence: u64, count: usize) -> Result<u64, String> {
        self.batch(node, first_sequence, count);
        match self.reply() {
            Ok(Some(Reply::Ack(ack))) if ack.node == node => Ok(ack.next_sequence),
            Ok(Some(Reply::Refused(refused))) if refused.node == node => Err(refused.reason),
            other => panic!("neither acknowledged nor refused: {other:?}"),
        }
    }
}

fn of_host(host: &str) -> Hello {
    Hello { agent: host.into(), ..hello(&[]) }
}

#[test]
fn an_agent_is_authenticated_by_the_token_of_its_host() {
    let cluster = Cluster::start(&[]);
    until_true("the catalog is known", || cluster.ready() == 200);
    let reviews = &cluster.reviews;
    reviews.agent("other-account", "system:serviceaccount:chainscope:default", Some("h1"));
    reviews.agent("unbound", ACCOUNT, None);
    reviews.user("for-the-api-server", ACCOUNT);
    let refused = |token: Option<&str>, host: &str| {
        let status = cluster.agent(token, of_host(host)).err().expect("refused");
        (status.code(), status.message().to_owned())
    };
    assert_eq!(refused(None, "h1").0, Code::Unauthenticated);
    assert_eq!(refused(Some("nobody's"), "h1").0, Code::Unauthenticated);
    assert_eq!(refused(Some("for-the-api-server"), "h1").0, Code::Unauthenticated);
    let (code, text) = refused(Some("other-account"), "h1");
    assert_eq!(code, Code::PermissionDenied);
    assert!(text.contains("chainscope:default is not the agents' account"), "{text}");
    let (code, text) = refused(Some("unbound"), "h1");
    assert_eq!(code, Code::PermissionDenied);
    assert!(text.contains("bound to a pod"), "{text}");
    let (code, text) = refused(Some("h1-token"), "h2");
    assert_eq!(code, Code::PermissionDenied);
    assert_eq!(text, "the agent h2 has a token of host h1: an agent may only deliver records of its own host");
    reviews.away(true);
    assert_eq!(refused(Some("h1-token"), "h1").0, Code::Unavailable);
    reviews.away(false);
    cluster.agent(Some("h1-token"), of_host("h1")).unwrap();
    assert_eq!(cluster.operator().authorizations.lock().unwrap()[0], "Bearer own-token");
}

#[test]
fn an_agent_logs_in_while_reviews_of_readers_are_held() {
    let mut cluster = Cluster::start(&[node("a/x", &[], &["h1"])]);
    cluster.server = None;
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let access = AccessConfig::Kubernetes(Arc::clone(&cluster.reviews) as _);
    cluster.serve(dir, store, |config| config.access = access);
    until_true("the catalog is known", || cluster.ready() == 200);
    cluster.reviews.is_holding.send_replace(true);
    let readers: Vec<TcpStream> = (0..40)
        .map(|number| {
            let mut stream = TcpStream::connect(cluster.server().http()).unwrap();
            write!(stream, "GET /nodes HTTP/1.1\r\nhost: a\r\nauthorization: Bearer held-{number}\r\n\r\n").unwrap();
            stream
        })
        .collect();
    until_true("reviews are under way", || cluster.reviews.requests() >= 4);
    let mut agent = cluster.agent(Some("h1-token"), of_host("h1")).unwrap();
    assert_eq!(agent.deliver("a/x", 0, 2), Ok(2));
    cluster.reviews.is_holding.send_replace(false);
    drop(readers);
}

#[test]
fn the_oldest_sessions_of_a_host_end_when_it_has_too_many() {
    let cluster = Cluster::start(&[node("a/x", &[], &["h1"]), node("a/y", &[], &["h2"])]);
    until_true("the catalog is known", || cluster.ready() == 200);
    cluster.reviews.agent("h2-token", ACCOUNT, Some("h2"));
    let mut other = cluster.agent(Some("h2-token"), of_host("h2")).unwrap();
    let mut agents: Vec<Agent<'_>> = (0..5).map(|_| cluster.agent(Some("h1-token"), of_host("h1")).unwrap()).collect();
    let status = agents[0].reply().unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "the host has 4 newer sessions: this one ends");
    for (sequence, agent) in (0..).zip(&mut agents[1..]) {
        assert_eq!(agent.deliver("a/x", sequence, 1), Ok(sequence + 1));
    }
    assert_eq!(other.deliver("a/y", 0, 1), Ok(1));
    let metrics = || get(cluster.server().running().operation_addr().unwrap(), "GET", "/metrics", &[]).body;
    assert!(metrics().contains("chainscope_ingest_session_errors_total 1"));
    drop((agents, other));
    until_true("the sessions have ended", || metrics().contains("chainscope_ingest_sessions 0"));
}

#[test]
fn a_host_delivers_its_nodes_and_other_streams_continue() {
    let cluster = Cluster::start(&[node("a/x", &["9732"], &["h1", "h2"]), node("a/y", &[], &["h2"])]);
    until_true("the catalog is known", || cluster.ready() == 200);
    let mut agent = cluster.agent(Some("h1-token"), of_host("h1")).unwrap();
    assert_eq!(agent.deliver("a/x", 0, 2), Ok(2));
    assert_eq!(agent.deliver("a/y", 0, 2), Err("no pod of a/y is on host h1".into()));
    assert_eq!(agent.deliver("a/z", 0, 1), Err("no pod of a/z is on host h1".into()));
    assert_eq!(agent.deliver("a/x", 2, 1), Ok(3));
    assert_eq!(cluster.server().json("/nodes").as_array().unwrap().len(), 2, "a refused name is not a node");
    assert_eq!(cluster.server().ids("/v2/p2p?node_name=9732"), [2, 1, 0]);

    // The pod of a/y moves to this host. Records that were refused before have to be sent again, from the start.
    cluster.operator().set(node("a/y", &[], &["h1", "h2"]));
    until_true("the stream is open", || match agent.deliver("a/y", 2, 1) {
        Err(reason) => reason == "batches were refused before: the stream continues at sequence 0",
        Ok(end) => panic!("acknowledged up to {end} with a hole"),
    });
    assert_eq!(agent.deliver("a/y", 0, 3), Ok(3));
    assert_eq!(agent.deliver("a/y", 3, 1), Ok(4));

    // It moves away again. The stream exists: spooled records are accepted, also in a new session.
    cluster.operator().set(node("a/y", &[], &["h2"]));
    cluster.operator().set(node("a/w", &["w"], &["h1"]));
    until_true("the change has come", || cluster.server().get("/v2/p2p?node_name=w").status == 200);
    let mut next = cluster.agent(Some("h1-token"), of_host("h1")).unwrap();
    assert_eq!(next.deliver("a/y", 4, 2), Ok(6));
    // Another epoch is another stream.
    let other = Hello { epoch: vec![9; 16], ..of_host("h1") };
    let mut other = cluster.agent(Some("h1-token"), other).unwrap();
    assert_eq!(other.deliver("a/y", 0, 1), Err("no pod of a/y is on host h1".into()));
    let text = get(cluster.server().running().operation_addr().unwrap(), "GET", "/metrics", &[]).body;
    let refused = text.lines().find_map(|line| line.strip_prefix("chainscope_ingest_refused_batches_total "));
    assert!(refused.unwrap().parse::<u64>().unwrap() >= 4, "{refused:?}");
}

#[test]
fn an_invalid_name_affects_its_own_stream_only() {
    // The longest namespace and name that Kubernetes allows.
    let long = format!("{}/{}", "n".repeat(63), "x".repeat(253));
    let longer = format!("{}/{}", "n".repeat(253), "x".repeat(254));
    let nodes = [node("a/x", &[], &["h1"]), node(&long, &["long"], &["h1"]), node(&longer, &[], &["h1"])];
    let cluster = Cluster::start(&nodes);
    until_true("the catalog is known", || cluster.ready() == 200);
    let mut agent = cluster.agent(Some("h1-token"), of_host("h1")).unwrap();
    for sequence in 0..3 {
        for bad in [longer.as_str(), "a/b/c", "a b"] {
            let reason = agent.deliver(bad, sequence, 1).unwrap_err();
            assert!(reason.contains("cannot be the name of a node"), "{reason}");
        }
        assert_eq!(agent.deliver("a/x", sequence, 1), Ok(sequence + 1));
        assert_eq!(agent.deliver(&long, sequence, 1), Ok(sequence + 1));
    }
    assert_eq!(cluster.server().ids("/v2/p2p?node_name=a/x"), [2, 1, 0]);
    assert_eq!(cluster.server().ids("/v2/p2p?node_name=long"), [2, 1, 0]);
    assert_eq!(cluster.server().ids(&format!("/v2/p2p?node_name={long}")), [2, 1, 0]);
    let text = get(cluster.server().running().operation_addr().unwrap(), "GET", "/metrics", &[]).body;
    assert!(text.contains("chainscope_ingest_refused_batches_total 9"), "{text}");
    assert!(text.contains("chainscope_ingest_session_errors_total 0"), "{text}");
}

#[test]
fn the_number_of_refused_streams_is_unlimited() {
    let mut cluster = Cluster::start(&[]);
    cluster.server.take();
    cluster.operator().set(node("a/x", &[], &["h1"]));
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    cluster.serve(dir, store, |config| config.limits.max_nodes = 2);
    until_true("the catalog is known", || cluster.ready() == 200);
    let mut agent = cluster.agent(Some("h1-token"), of_host("h1")).unwrap();
    for number in 0..5 {
        let alien = format!("b/{number}");
        assert_eq!(agent.deliver(&alien, 0, 1), Err(format!("no pod of {alien} is on host h1")));
    }
    assert_eq!(agent.deliver("a/x", 0, 2), Ok(2));
    // The dropped state of a refused stream causes no gap later.
    cluster.operator().set(node("b/0", &[], &["h1"]));
    until_true("the stream is open", || match agent.deliver("b/0", 1, 1) {
        Err(reason) => reason == "batches were refused before: the stream continues at sequence 0",
        Ok(end) => panic!("acknowledged up to {end} with a hole"),
    });
    assert_eq!(agent.deliver("b/0", 0, 2), Ok(2));
    assert_eq!(agent.deliver("a/x", 2, 1), Ok(3));
}

#[test]
fn the_catalog_is_known_after_a_restart_without_the_operator() {
    let mut cluster = Cluster::start(&[node("a/x", &["9732"], &["h1"])]);
    until_true("the catalog is known", || cluster.ready() == 200);
    cluster.agent(Some("h1-token"), of_host("h1")).unwrap().deliver("a/x", 0, 1).unwrap();
    let again = |cluster: &mut Cluster| {
        let mut server = cluster.server.take().unwrap();
        server.shutdown();
        let Server { runtime, store, dir, .. } = server;
        drop((runtime, store));
        let store = open(&dir);
        cluster.serve(dir, store, |_| {});
    };
    cluster.operator = None;
    again(&mut cluster);
    assert_eq!(cluster.ready(), 200);
    assert_eq!(cluster.server().ids("/v2/p2p?node_name=9732"), [0]);
    assert_eq!(cluster.agent(Some("h1-token"), of_host("h1")).unwrap().deliver("a/x", 1, 1), Ok(2));
    // Without a catalog the aggregator is not ready and accepts no records.
    std::fs::remove_file(cluster.folder.path().join("catalog.json")).unwrap();
    again(&mut cluster);
    assert_eq!(cluster.ready(), 503);
    let mut agent = cluster.agent(Some("h1-token"), Hello { epoch: vec![8; 16], ..of_host("h1") }).unwrap();
    assert_eq!(agent.deliver("a/x", 0, 1), Err("the operator has not sent the catalog of nodes yet".into()));
    drop(agent);
    cluster.operator = Some(Operator::start(&cluster.runtime, &[node("a/x", &[], &["h1"])]));
    again(&mut cluster);
    until_true("the catalog is known", || cluster.ready() == 200);
}

#[test]
fn records_of_a_deleted_node_are_evicted_and_its_name_is_removed() {
    let cluster = Cluster::start(&[node("a/x", &[], &["h1"]), node("a/y", &[], &["h1"])]);
    until_true("the catalog is known", || cluster.ready() == 200);
    let mut agent = cluster.agent(Some("h1-token"), of_host("h1")).unwrap();
    agent.deliver("a/x", 0, 3).unwrap();
    agent.deliver("a/y", 0, 3).unwrap();
    cluster.operator().remove("a/x");
    let server = cluster.server();
    until_true("it is gone", || server.get("/v2/p2p?node_name=a/x").status == 404);
    assert_eq!(server.json("/nodes").as_array().unwrap().len(), 1);
    assert_eq!(server.store.nodes().iter().find(|node| node.name == "a/x").unwrap().rows, 0);
    assert_eq!(server.ids("/v2/p2p"), [2, 1, 0], "the other stays");
    assert!(!get(server.running().operation_addr().unwrap(), "GET", "/metrics", &[]).body.contains("a/x"));
    // The name may be used again; ids are not reused.
    cluster.operator().set(node("a/x", &[], &["h1"]));
    until_true("it is back", || server.get("/v2/p2p?node_name=a/x").status == 200);
    assert_eq!(agent.deliver("a/x", 3, 1), Ok(4));
    assert_eq!(server.ids("/v2/p2p?node_name=a/x"), [3]);
}

#[test]
fn a_session_ends_when_its_token_expires_and_loses_nothing() {
    let cluster = Cluster::start(&[node("a/x", &[], &["h1"])]);
    until_true("the catalog is known", || cluster.ready() == 200);
    // On a busy machine a token may expire before the welcome: the next one is valid for longer.
    let mut life = Duration::from_secs(2);
    let status = loop {
        assert!(life < LIMIT, "no token lives long enough");
        let token = token_ending_in(life);
        life *= 2;
        cluster.reviews.agent(&token, ACCOUNT, Some("h1"));
        let Ok(mut agent) = cluster.agent(Some(&token), of_host("h1")) else { continue };
        agent.batch("a/x", 0, 2);
        let mut acknowledged = 0;
        let status = loop {
            match agent.reply() {
                Ok(Some(Reply::Ack(ack))) => acknowledged = ack.next_sequence,
                Ok(other) => panic!("{other:?}"),
                Err(status) => break status,
            }
        };
        if acknowledged == 2 {
            break status;
        }
    };
    assert_eq!(
        (status.code(), status.message()),
        (Code::Unauthenticated, "the token has expired: connect again with a newer one")
    );
    assert_eq!(cluster.server().ids("/v2/p2p"), [1, 0]);
    let mut next = cluster.agent(Some("h1-token"), of_host("h1")).unwrap();
    assert_eq!(next.deliver("a/x", 2, 1), Ok(3));
}
