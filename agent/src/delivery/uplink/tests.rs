//! The uplink against an aggregator of channels, and one behind gRPC, that come and go.

use std::{collections::BTreeMap, pin::Pin, sync::Arc};

use chainscope_proto::v1::{
    Ack, Batch, LaneMark, MemoryAck, Record, RecordReply, RecordRequest, Refused, TargetEvent, Welcome,
    ingest_server::{Ingest, IngestServer},
    record::Kind,
    record_reply::Reply,
    record_request::Request,
};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_stream::{
    Stream, StreamExt as _,
    wrappers::{ReceiverStream, TcpListenerStream},
};
use tonic::{Response, Status, Streaming};

use super::*;
use crate::folder::Folder;

/// What an aggregator has made durable, by lane.
#[derive(Clone, Default)]
struct Durable(Arc<Mutex<BTreeMap<String, Vec<Record>>>>);

/// Of an agent that profiles nothing.
fn board() -> Board {
    let board = Board::default();
    board.close();
    board
}

impl Durable {
    fn welcome(&self, nodes: &[String]) -> RecordReply {
        let lanes = self.0.lock();
        let mark =
            |node: &String| LaneMark { node: node.clone(), next_sequence: lanes.get(node).map_or(0, Vec::len) as u64 };
        let marks = nodes.iter().map(mark).collect();
        let welcome = Welcome { version: 1, build: "test".to_owned(), marks, ..Default::default() };
        RecordReply { reply: Some(Reply::Welcome(welcome)) }
    }

    fn take(&self, batch: Batch) -> RecordReply {
        let mut lanes = self.0.lock();
        let lane = lanes.entry(batch.node.clone()).or_default();
        let first = usize::try_from(batch.first_sequence).unwrap();
        assert!(first <= lane.len(), "a hole before {first}");
        let known = lane.len() - first;
        lane.extend(batch.records.into_iter().skip(known));
        let next_sequence = lane.len() as u64;
        RecordReply { reply: Some(Reply::Ack(Ack { node: batch.node, next_sequence })) }
    }

    fn ids(&self, node: &str) -> Vec<i64> {
        self.0.lock().get(node).map_or_else(Vec::new, |lane| lane.iter().map(|record| record.time_ns).collect())
    }

    /// Serves one stream; after `limit` batches it is cut before the last is acknowledged.
    async fn serve(
        self,
        mut requests: mpsc::Receiver<RecordRequest>,
        replies: mpsc::Sender<RecordReply>,
        limit: usize,
    ) {
        let mut batches = 0;
        while let Some(RecordRequest { request: Some(request) }) = requests.recv().await {
            let reply = match request {
                Request::Hello(hello) => self.welcome(&hello.nodes),
                Request::Batch(batch) => {
                    let reply = self.take(batch);
                    batches += 1;
                    if batches == limit {
                        return;
                    }
                    reply
                }
                Request::Memory(state) => {
                    let ack = MemoryAck {
                        node: state.node,
                        profile: state.profile,
                        sequence: state.sequence,
                        ..Default::default()
                    };
                    RecordReply { reply: Some(Reply::Memory(ack)) }
                }
            };
            if replies.send(reply).await.is_err() {
                return;
            }
        }
    }

    /// A link whose every stream is cut after `limit` batches.
    fn link(&self, limit: usize) -> Link {
        let durable = self.clone();
        Link::Reopen(Box::new(move || {
            let (requests, incoming) = mpsc::channel(2);
            let (outgoing, replies) = mpsc::channel(2);
            tokio::spawn(durable.clone().serve(incoming, outgoing, limit));
            Some(Uplink { requests, replies })
        }))
    }
}

fn fact(id: i64, size: usize) -> Record {
    let event = TargetEvent { event: "x".repeat(size), pid: 0, detail: String::new() };
    Record { time_ns: id, target: String::new(), kind: Some(Kind::TargetEvent(event)) }
}

fn lanes(dir: &tempfile::TempDir) -> SharedLanes {
    SharedLanes::open(&Folder::open(dir.path()).unwrap(), 64 << 20, None, ["n"]).unwrap()
}

#[tokio::test(start_paused = true)]
async fn every_fact_arrives_once_although_each_stream_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let lanes = lanes(&dir);
    for id in 0..200 {
        // Four of them fill a batch.
        assert!(lanes.push("n", fact(id, 250_000)));
    }
    lanes.close();
    let durable = Durable::default();
    run(lanes.clone(), board(), durable.link(3), "host".to_owned()).await;
    assert_eq!(durable.ids("n"), (0..200).collect::<Vec<_>>());
    assert!(lanes.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_new_process_goes_on_where_the_aggregator_stands() {
    let dir = tempfile::tempdir().unwrap();
    let durable = Durable::default();
    for run_of in 0..3 {
        let lanes = lanes(&dir);
        assert!(lanes.push("n", fact(run_of, 1)));
        lanes.close();
        run(lanes, board(), durable.link(usize::MAX), "host".to_owned()).await;
    }
    assert_eq!(durable.ids("n"), [0, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_appears_during_a_stream_gets_a_lane() {
    let dir = tempfile::tempdir().unwrap();
    let durable = Durable::default();
    let lanes = lanes(&dir);
    assert!(lanes.push("n", fact(1, 1)));
    let running = tokio::spawn(run(lanes.clone(), board(), durable.link(usize::MAX), "host".to_owned()));
    while durable.ids("n").is_empty() {
        tokio::task::yield_now().await;
    }
    lanes.open_lane("n@5").unwrap();
    assert!(lanes.push("n@5", fact(2, 1)));
    lanes.close();
    running.await.unwrap();
    assert_eq!(durable.ids("n@5"), [2]);
}

#[tokio::test(start_paused = true)]
async fn an_aggregator_that_cannot_be_understood_ends_the_stream_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let lanes = lanes(&dir);
    let mut pause = PAUSES.0;
    let answers = [
        (Some(Reply::Welcome(Welcome { version: 9, ..Default::default() })), "version 9"),
        (Some(Reply::Ack(Ack::default())), "no welcome"),
        (None, "no welcome"),
    ];
    for (reply, expected) in answers {
        let (requests, _incoming) = mpsc::channel(2);
        let (outgoing, replies) = mpsc::channel(2);
        outgoing.send(RecordReply { reply }).await.unwrap();
        let error =
            stream(&lanes, &board(), Uplink { requests, replies }, "h", &mut pause).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let (requests, _incoming) = mpsc::channel(2);
    let (_outgoing, replies) = mpsc::channel(2);
    let error = stream(&lanes, &board(), Uplink { requests, replies }, "h", &mut pause).await.unwrap_err();
    assert!(matches!(error, StreamError::Silent(_)), "{error}");
}

/// A stream to a test that plays the aggregator itself, welcomed.
async fn play(lanes: &SharedLanes) -> (mpsc::Receiver<RecordRequest>, mpsc::Sender<RecordReply>) {
    let (requests, mut incoming) = mpsc::channel(2);
    let (outgoing, replies) = mpsc::channel(2);
    let lanes = lanes.clone();
    tokio::spawn(
        async move { stream(&lanes, &board(), Uplink { requests, replies }, "h", &mut PAUSES.0.clone()).await },
    );
    let Some(RecordRequest { request: Some(Request::Hello(hello)) }) = incoming.recv().await else {
        panic!("no hello")
    };
    outgoing.send(Durable::default().welcome(&hello.nodes)).await.unwrap();
    (incoming, outgoing)
}

async fn batch(incoming: &mut mpsc::Receiver<RecordRequest>) -> Batch {
    match incoming.recv().await.unwrap().request {
        Some(Request::Batch(batch)) => batch,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_lane_is_set_aside_and_tried_again_while_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::open(dir.path()).unwrap();
    let lanes = SharedLanes::open(&folder, 64 << 20, None, ["alien", "own"]).unwrap();
    assert!(lanes.push("alien", fact(1, 1)));
    let (mut incoming, outgoing) = play(&lanes).await;
    let first = batch(&mut incoming).await;
    assert_eq!((first.node.as_str(), first.first_sequence), ("alien", 0));
    let refused = Refused { node: "alien".to_owned(), reason: "not of this host".to_owned() };
    outgoing.send(RecordReply { reply: Some(Reply::Refused(refused)) }).await.unwrap();
    while !lanes.is_aside("alien") {
        // The stream may be gathering: its clock must go on.
        tokio::time::sleep(GATHER).await;
    }
    let before = tokio::time::Instant::now();
    assert!(lanes.push("alien", fact(2, 1)));
    assert!(lanes.push("own", fact(3, 1)));
    assert_eq!(batch(&mut incoming).await.node, "own");
    // Half a minute later all of it is sent, under the same numbers.
    let again = batch(&mut incoming).await;
    assert!(before.elapsed() > ASIDE / 2, "{:?}", before.elapsed());
    assert_eq!((again.node.as_str(), again.first_sequence, again.records.len()), ("alien", 0, 2));
    assert_eq!(again.records.first(), first.records.first());
}

#[tokio::test(start_paused = true)]
async fn records_go_through_the_spool_and_outlive_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let durable = Durable::default();
    let open = || SharedLanes::open(&Folder::open(dir.path()).unwrap(), 64 << 20, Some(64 << 20), ["n"]).unwrap();
    // No aggregator: what was pushed is on disk when the lanes are closed.
    let lanes = open();
    for id in 0..40 {
        assert!(lanes.push("n", fact(id, 200_000)));
    }
    lanes.close();
    assert!(!lanes.is_empty());
    drop(lanes);
    // The next process sends it, cut again and again.
    let lanes = open();
    for id in 40..50 {
        assert!(lanes.push("n", fact(id, 1)));
    }
    lanes.close();
    run(lanes.clone(), board(), durable.link(3), "host".to_owned()).await;
    assert_eq!(durable.ids("n"), (0..50).collect::<Vec<_>>());
    assert!(lanes.is_empty());
}

struct Service(Durable);

#[tonic::async_trait]
impl Ingest for Service {
    type RecordStream = Pin<Box<dyn Stream<Item = Result<RecordReply, Status>> + Send>>;

    async fn record(
        &self,
        request: tonic::Request<Streaming<RecordRequest>>,
    ) -> Result<Response<Self::RecordStream>, Status> {
        let (requests, incoming) = mpsc::channel(2);
        let (outgoing, replies) = mpsc::channel(2);
        let mut stream = request.into_inner();
        // As an aggregator may do: nothing is answered before the hello was read.
        let hello = stream.message().await?.ok_or_else(|| Status::invalid_argument("no hello"))?;
        tokio::spawn(self.0.clone().serve(incoming, outgoing, usize::MAX));
        tokio::spawn(async move {
            let mut next = Some(hello);
            while let Some(request) = next {
                if requests.send(request).await.is_err() {
                    return;
                }
                next = stream.message().await.ok().flatten();
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(replies).map(Ok))))
    }
}

#[tokio::test]
async fn records_reach_an_aggregator_over_grpc() {
    let dir = tempfile::tempdir().unwrap();
    let durable = Durable::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}", listener.local_addr().unwrap());
    let server = tonic::transport::Server::builder()
        .add_service(IngestServer::new(Service(durable.clone())))
        .serve_with_incoming(TcpListenerStream::new(listener));
    tokio::spawn(server);
    let lanes = lanes(&dir);
    for id in 0..50 {
        assert!(lanes.push("n", fact(id, 200_000)));
    }
    lanes.close();
    run(lanes, board(), Remote::new(&uri).unwrap().into(), "host".to_owned()).await;
    assert_eq!(durable.ids("n"), (0..50).collect::<Vec<_>>());
}

#[test]
fn an_address_that_is_none_is_refused() {
    for uri in ["", "aggregator:17733", "ftp://x", "https://x", "http://"] {
        let error = Remote::new(uri).unwrap_err().to_string();
        assert!(error.starts_with(&format!("aggregator address {uri:?}: ")), "{error}");
    }
}
