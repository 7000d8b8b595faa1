//! The uplink against an aggregator of channels, and one behind gRPC, that come and go.

use std::{collections::BTreeMap, pin::Pin, sync::Arc};

use chainscope_proto::v1::{
    Ack, Batch, HighWaterMark, MemoryAck, Record, RecordReply, RecordRequest, Refused, TargetEvent, Welcome,
    ingest_server::{Ingest, IngestServer},
    record::Kind,
    record_reply::Reply,
    record_request::Request,
};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::{
    Stream, StreamExt as _,
    wrappers::{ReceiverStream, TcpListenerStream},
};
use tonic::{Response, Status, Streaming};

use super::*;
use crate::folder::Folder;

/// What an aggregator has made durable, by stream.
#[derive(Clone, Default)]
struct Durable(Arc<Mutex<BTreeMap<String, Vec<Record>>>>);

/// Profile store of an agent that profiles no process.
fn closed_profiles() -> ProfileStore {
    let profiles = ProfileStore::default();
    profiles.close();
    profiles
}

impl Durable {
    fn welcome(&self, nodes: &[String]) -> RecordReply {
        let streams = self.0.lock();
        let mark = |node: &String| HighWaterMark {
            node: node.clone(),
            next_sequence: streams.get(node).map_or(0, Vec::len) as u64,
        };
        let marks = nodes.iter().map(mark).collect();
        let welcome = Welcome { version: 1, build: "test".to_owned(), high_water_marks: marks, ..Default::default() };
        RecordReply { reply: Some(Reply::Welcome(welcome)) }
    }

    fn take(&self, batch: Batch) -> RecordReply {
        let mut streams = self.0.lock();
        let stream = streams.entry(batch.node.clone()).or_default();
        let first = usize::try_from(batch.first_sequence).unwrap();
        assert!(first <= stream.len(), "a hole before {first}");
        let known = stream.len() - first;
        stream.extend(batch.records.into_iter().skip(known));
        let next_sequence = stream.len() as u64;
        RecordReply { reply: Some(Reply::Ack(Ack { node: batch.node, next_sequence })) }
    }

    fn ids(&self, node: &str) -> Vec<i64> {
        self.0.lock().get(node).map_or_else(Vec::new, |stream| stream.iter().map(|record| record.time_ns).collect())
    }

    /// Serves one session; after `limit` batches it is cut before the last is acknowledged.
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

    /// A link whose every session is cut after `limit` batches.
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

fn streams(dir: &tempfile::TempDir) -> RecordStreams {
    RecordStreams::open(&Folder::open(dir.path()).unwrap(), 64 << 20, None, ["n"]).unwrap()
}

#[tokio::test(start_paused = true)]
async fn every_fact_arrives_once_although_each_session_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let streams = streams(&dir);
    for id in 0..200 {
        // Four of them fill a batch.
        assert!(streams.push("n", fact(id, 250_000)));
    }
    streams.close();
    let durable = Durable::default();
    run(streams.clone(), closed_profiles(), durable.link(3), "host".to_owned()).await;
    assert_eq!(durable.ids("n"), (0..200).collect::<Vec<_>>());
    assert!(streams.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_continues_at_the_high_water_mark() {
    let dir = tempfile::tempdir().unwrap();
    let durable = Durable::default();
    for run_of in 0..3 {
        let streams = streams(&dir);
        assert!(streams.push("n", fact(run_of, 1)));
        streams.close();
        run(streams, closed_profiles(), durable.link(usize::MAX), "host".to_owned()).await;
    }
    assert_eq!(durable.ids("n"), [0, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_appears_during_a_session_gets_a_stream() {
    let dir = tempfile::tempdir().unwrap();
    let durable = Durable::default();
    let streams = streams(&dir);
    assert!(streams.push("n", fact(1, 1)));
    let running = tokio::spawn(run(streams.clone(), closed_profiles(), durable.link(usize::MAX), "host".to_owned()));
    while durable.ids("n").is_empty() {
        tokio::task::yield_now().await;
    }
    streams.open_stream("n@5").unwrap();
    assert!(streams.push("n@5", fact(2, 1)));
    streams.close();
    running.await.unwrap();
    assert_eq!(durable.ids("n@5"), [2]);
}

#[tokio::test(start_paused = true)]
async fn an_unexpected_welcome_ends_the_session_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let streams = streams(&dir);
    let mut backoff = BACKOFF.0;
    let answers = [
        (Some(Reply::Welcome(Welcome { version: 9, ..Default::default() })), "version 9"),
        (Some(Reply::Ack(Ack::default())), "not a welcome"),
        (None, "not a welcome"),
    ];
    for (reply, expected) in answers {
        let (requests, _incoming) = mpsc::channel(2);
        let (outgoing, replies) = mpsc::channel(2);
        outgoing.send(RecordReply { reply }).await.unwrap();
        let error = session(&streams, &closed_profiles(), Uplink { requests, replies }, "h", &mut backoff)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
    let (requests, _incoming) = mpsc::channel(2);
    let (_outgoing, replies) = mpsc::channel(2);
    let error =
        session(&streams, &closed_profiles(), Uplink { requests, replies }, "h", &mut backoff).await.unwrap_err();
    assert!(matches!(error, SessionError::WelcomeTimeout(_)), "{error}");
}

/// A session to a test that plays the aggregator itself, welcomed.
async fn play(streams: &RecordStreams) -> (mpsc::Receiver<RecordRequest>, mpsc::Sender<RecordReply>) {
    let (requests, mut incoming) = mpsc::channel(2);
    let (outgoing, replies) = mpsc::channel(2);
    let streams = streams.clone();
    tokio::spawn(async move {
        session(&streams, &closed_profiles(), Uplink { requests, replies }, "h", &mut BACKOFF.0.clone()).await
    });
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
async fn a_refused_stream_is_suspended_and_resumed_while_others_continue() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::open(dir.path()).unwrap();
    let streams = RecordStreams::open(&folder, 64 << 20, None, ["alien", "own"]).unwrap();
    assert!(streams.push("alien", fact(1, 1)));
    let (mut incoming, outgoing) = play(&streams).await;
    let first = batch(&mut incoming).await;
    assert_eq!((first.node.as_str(), first.first_sequence), ("alien", 0));
    let refused = Refused { node: "alien".to_owned(), reason: "not of this host".to_owned() };
    outgoing.send(RecordReply { reply: Some(Reply::Refused(refused)) }).await.unwrap();
    while !streams.is_suspended("alien") {
        // The session may be gathering: its clock must go on.
        tokio::time::sleep(LINGER).await;
    }
    let before = tokio::time::Instant::now();
    assert!(streams.push("alien", fact(2, 1)));
    assert!(streams.push("own", fact(3, 1)));
    assert_eq!(batch(&mut incoming).await.node, "own");
    // Half a minute later all of it is sent, under the same numbers.
    let again = batch(&mut incoming).await;
    assert!(before.elapsed() > RESUME_INTERVAL / 2, "{:?}", before.elapsed());
    assert_eq!((again.node.as_str(), again.first_sequence, again.records.len()), ("alien", 0, 2));
    assert_eq!(again.records.first(), first.records.first());
}

#[tokio::test(start_paused = true)]
async fn records_go_through_the_spool_and_outlive_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let durable = Durable::default();
    let open = || RecordStreams::open(&Folder::open(dir.path()).unwrap(), 64 << 20, Some(64 << 20), ["n"]).unwrap();
    // No aggregator: what was pushed is on disk when the streams are closed.
    let streams = open();
    for id in 0..40 {
        assert!(streams.push("n", fact(id, 200_000)));
    }
    streams.close();
    assert!(!streams.is_empty());
    drop(streams);
    // The next process sends it, cut again and again.
    let streams = open();
    for id in 40..50 {
        assert!(streams.push("n", fact(id, 1)));
    }
    streams.close();
    run(streams.clone(), closed_profiles(), durable.link(3), "host".to_owned()).await;
    assert_eq!(durable.ids("n"), (0..50).collect::<Vec<_>>());
    assert!(streams.is_empty());
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
        let mut session = request.into_inner();
        // As an aggregator may do: nothing is answered before the hello was read.
        let hello = session.message().await?.ok_or_else(|| Status::invalid_argument("no hello"))?;
        tokio::spawn(self.0.clone().serve(incoming, outgoing, usize::MAX));
        tokio::spawn(async move {
            let mut next = Some(hello);
            while let Some(request) = next {
                if requests.send(request).await.is_err() {
                    return;
                }
                next = session.message().await.ok().flatten();
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
    let streams = streams(&dir);
    for id in 0..50 {
        assert!(streams.push("n", fact(id, 200_000)));
    }
    streams.close();
    run(streams, closed_profiles(), Remote::new(&uri).unwrap().into(), "host".to_owned()).await;
    assert_eq!(durable.ids("n"), (0..50).collect::<Vec<_>>());
}

#[test]
fn an_invalid_address_is_refused() {
    for uri in ["", "aggregator:17733", "ftp://x", "https://x", "http://"] {
        let error = Remote::new(uri).unwrap_err().to_string();
        assert!(error.starts_with(&format!("aggregator address {uri:?}: ")), "{error}");
    }
}

/// The replies of earlier aggregators, as recorded in `vectors/wire`.
#[tokio::test(start_paused = true)]
async fn replies_of_earlier_aggregators_are_understood() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../vectors/wire");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = files.filter(|path| path.extension().is_some_and(|extension| extension == "json")).collect();
    assert!(!files.is_empty(), "there is no recording");
    for file in files {
        let recording: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let frames =
            recording["aggregator"].as_array().unwrap().iter().map(|frame| hex::decode(frame.as_str().unwrap()));
        let mut frames = frames.map(|frame| RecordReply::decode(&*frame.unwrap()).unwrap());
        let records = recording["records"].as_i64().unwrap();

        let dir = tempfile::tempdir().unwrap();
        let streams = RecordStreams::open(&Folder::open(dir.path()).unwrap(), 64 << 20, None, ["9732"]).unwrap();
        for id in 0..records {
            assert!(streams.push("9732", fact(id, 1)));
        }
        streams.close();
        let (requests, mut incoming) = mpsc::channel(2);
        let (outgoing, replies) = mpsc::channel(2);
        let session_of = streams.clone();
        let running = tokio::spawn(async move {
            let uplink = Uplink { requests, replies };
            session(&session_of, &closed_profiles(), uplink, "host-1", &mut BACKOFF.0.clone()).await
        });
        assert!(matches!(incoming.recv().await.unwrap().request, Some(Request::Hello(_))));
        outgoing.send(frames.next().unwrap()).await.unwrap();
        let mut received = 0;
        while received < records {
            if let Some(Request::Batch(batch)) = incoming.recv().await.unwrap().request {
                received += batch.records.len() as i64;
            }
        }
        assert!(!streams.is_empty(), "nothing is acknowledged yet");
        for frame in frames {
            // The session ends with the last acknowledgement.
            let _ = outgoing.send(frame).await;
        }
        drop(outgoing);
        running.await.unwrap().unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        assert!(streams.is_empty(), "{}", file.display());
    }
}
