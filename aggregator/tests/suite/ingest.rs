//! Sessions with agents: in-process and over gRPC.

use std::time::Duration;

use chainscope_proto::v1::{
    Batch, Chunk, ConnectionSummary, Hello, Message, Record, RecordReply, RecordRequest, SocketAddress, TraceEvent,
    TraceValue, connection_event::Event, ingest_client::IngestClient, record::Kind, record_reply::Reply,
    record_request::Request,
};
use prost::{Message as _, encoding};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming, transport::Channel};

use crate::common::{CONNECTION, LIMIT, Server, TIME, event, hello, message, open, record, with_chunks};

fn messages(count: i64) -> Vec<Record> {
    (0..count).map(|n| record(TIME + n, Kind::Message(message("advertise")))).collect()
}

fn grpc() -> Server {
    Server::with(|config| config.ingest = Some("127.0.0.1:0".parse().unwrap()))
}

/// An agent that is connected over gRPC.
struct Remote<'a> {
    server: &'a Server,
    requests: mpsc::Sender<RecordRequest>,
    replies: Streaming<RecordReply>,
}

impl<'a> Remote<'a> {
    fn connect(server: &'a Server, hello: Hello) -> Result<Self, tonic::Status> {
        let address = server.running().ingest_addr().unwrap();
        server.runtime.block_on(async {
            let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
            let (requests, stream) = mpsc::channel(16);
            requests.send(RecordRequest { request: Some(Request::Hello(hello)) }).await.unwrap();
            let mut client = IngestClient::new(channel).max_encoding_message_size(64 << 20);
            let replies = client.record(ReceiverStream::new(stream)).await?.into_inner();
            Ok(Self { server, requests, replies })
        })
    }

    fn batch(&self, node: &str, first_sequence: u64, records: Vec<Record>) {
        let batch = Batch { node: node.into(), first_sequence, records };
        let request = RecordRequest { request: Some(Request::Batch(batch)) };
        self.server.runtime.block_on(self.requests.send(request)).unwrap();
    }

    fn reply(&mut self) -> Result<Option<Reply>, tonic::Status> {
        let reply = async { tokio::time::timeout(LIMIT, self.replies.message()).await.expect("no reply") };
        Ok(self.server.runtime.block_on(reply)?.map(|reply| reply.reply.unwrap()))
    }

    /// High-water mark in the welcome.
    fn mark(&mut self) -> u64 {
        match self.reply() {
            Ok(Some(Reply::Welcome(welcome))) => welcome.high_water_marks[0].next_sequence,
            other => panic!("no welcome: {other:?}"),
        }
    }

    fn wait_for(&mut self, next_sequence: u64) {
        loop {
            match self.reply() {
                Ok(Some(Reply::Ack(ack))) if ack.next_sequence == next_sequence => return,
                Ok(Some(Reply::Ack(ack))) => assert!(ack.next_sequence < next_sequence, "{ack:?}"),
                other => panic!("no acknowledgement: {other:?}"),
            }
        }
    }
}

#[test]
fn acknowledged_records_are_served_and_a_resend_is_recognised() {
    let server = Server::with(|_| {});
    let mut agent = server.agent(&["a/b"]);
    agent.batch("a/b", 0, messages(3));
    agent.wait_for("a/b", 3);
    assert_eq!(server.ids("/v2/p2p"), [2, 1, 0]);
    // Batches that are wholly and partly before the high-water mark.
    agent.batch("a/b", 0, messages(3));
    agent.wait_for("a/b", 3);
    agent.batch("a/b", 1, messages(4));
    agent.wait_for("a/b", 5);
    assert_eq!(server.ids("/v2/p2p"), [4, 3, 2, 1, 0]);
    let stats = server.json("/v2/stats");
    assert_eq!(stats["nodes"][0]["totals"]["duplicates"], 5);
    assert_eq!(stats["ingest"]["records"], 10);
    // The stream of another node begins at 0, that of another epoch too.
    agent.batch("c", 0, messages(1));
    agent.wait_for("c", 1);
}

#[test]
fn many_batches_share_acknowledgements_and_keep_their_order() {
    let server = Server::with(|_| {});
    let mut agent = server.agent(&["n"]);
    let records = messages(2_000);
    // More than the limit in flight: the sender waits for capacity, not for each acknowledgement.
    for (index, piece) in records.chunks(10).enumerate() {
        agent.batch("n", index as u64 * 10, piece.to_vec());
    }
    let mut acknowledged = 0;
    while acknowledged < 2_000 {
        let reply = agent.reply();
        let Some(Reply::Ack(ack)) = reply else { panic!("no acknowledgement: {reply:?}") };
        assert!(ack.next_sequence > acknowledged, "{ack:?} after {acknowledged}");
        acknowledged = ack.next_sequence;
    }
    agent.end();
    assert_eq!(agent.reply(), None, "one acknowledgement of the last batches");
    assert_eq!(server.ids("/v2/p2p?limit=2000&direction=forward"), (0..2_000).collect::<Vec<_>>());
}

#[test]
fn a_gap_ends_the_session_and_the_next_one_continues() {
    let server = Server::with(|_| {});
    let mut agent = server.agent(&["n"]);
    agent.batch("n", 0, messages(2));
    agent.wait_for("n", 2);
    agent.batch("n", 3, messages(1));
    assert_eq!(agent.reply(), None);
    let mut next = server.agent(&[]);
    next.batch("n", 2, messages(1));
    next.wait_for("n", 3);
    assert_eq!(server.json("/v2/stats")["ingest"]["session_errors"], 1);
}

#[test]
fn a_valid_hello_is_the_first_request_and_only_that() {
    let server = Server::with(|_| {});
    let first = |request| {
        let (requests, mut replies) = server.running().connect();
        server.runtime.block_on(requests.send(RecordRequest { request })).unwrap();
        server.runtime.block_on(replies.recv())
    };
    assert_eq!(first(Some(Request::Batch(Batch::default()))), None);
    assert_eq!(first(None), None);
    for bad in [
        Hello { agent: String::new(), ..hello(&[]) },
        Hello { agent: "a\nb".into(), ..hello(&[]) },
        Hello { epoch: vec![1; 15], ..hello(&[]) },
        Hello { least_version: 2, greatest_version: 9, ..hello(&[]) },
    ] {
        assert_eq!(first(Some(Request::Hello(bad))), None);
    }
    let mut agent = server.agent(&[]);
    agent.send(Request::Hello(hello(&[])));
    assert_eq!(agent.reply(), None);
    let mut agent = server.agent(&[]);
    agent.batch("n", u64::MAX, messages(1));
    assert_eq!(agent.reply(), None);
    assert_eq!(server.json("/nodes").as_array().unwrap().len(), 1, "only names that a node may have are known");
}

#[test]
fn an_invalid_node_name_is_refused_and_other_streams_continue() {
    let server = Server::with(|config| config.limits.max_nodes = 1);
    let mut agent = server.agent(&["n"]);
    let longer = "x".repeat(508);
    let bad = ["", "a/b/c", "a b", "..", "a\u{1b}", &longer];
    for (sequence, bad) in bad.into_iter().enumerate() {
        agent.batch(bad, 0, messages(1));
        match agent.reply() {
            Some(Reply::Refused(refused)) => {
                assert_eq!(refused.node, bad);
                assert!(refused.reason.contains("cannot be the name of a node"), "{}", refused.reason);
            }
            other => panic!("{bad:?}: {other:?}"),
        }
        agent.batch("n", sequence as u64, messages(1));
        agent.wait_for("n", sequence as u64 + 1);
    }
    // One more than the limit.
    agent.batch("m", 0, messages(1));
    match agent.reply() {
        Some(Reply::Refused(refused)) => {
            assert_eq!(refused.reason, "node m would be one more than the 1 nodes that this aggregator accepts");
        }
        other => panic!("{other:?}"),
    }
    agent.batch("n", 6, messages(1));
    agent.wait_for("n", 7);
    assert_eq!(server.ids("/v2/p2p"), [6, 5, 4, 3, 2, 1, 0]);
    let ingest = &server.json("/v2/stats")["ingest"];
    assert_eq!(ingest["session_errors"], 0);
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("chainscope_ingest_refused_batches_total 7"), "{metrics}");
}

#[test]
fn an_agent_that_lies_is_counted_and_others_go_on() {
    let server = Server::with(|_| {});
    let mut honest = server.agent(&["good"]);
    let (requests, mut replies) = {
        let _inside = server.runtime.enter();
        server.running().connect()
    };
    let send = |request| {
        server.runtime.block_on(requests.send(RecordRequest { request: Some(request) })).unwrap();
    };
    send(Request::Hello(Hello { agent: "liar".into(), ..hello(&[]) }));

    let of = |change: fn(&mut Message)| {
        let mut message = message("advertise");
        change(&mut message);
        record(TIME, Kind::Message(message))
    };
    let chunk = Chunk { connection: CONNECTION, wire: vec![0; 1 << 20].into(), ..Chunk::default() };
    let mut lies = vec![
        of(|message| message.last_chunk = u64::MAX),
        of(|message| (message.first_chunk, message.last_chunk) = (9, 3)),
        of(|message| message.length = u64::MAX),
        of(|message| message.preview = Some("x".repeat(2 << 20))),
        of(|message| message.error = "x".repeat(1 << 20)),
        of(|message| message.remote = Some(SocketAddress { ip: vec![1; 5], port: 70_000 })),
        record(TIME, Kind::Chunk(chunk)),
        event(CONNECTION, Event::Summary(ConnectionSummary::default())),
        Record { target: "x".repeat(1 << 20), ..messages(1).remove(0) },
    ];
    // Each refers to as many chunks as a message may have, and none was sent.
    lies.extend((0..100).map(|_| of(|message| message.last_chunk = 65_535)));
    lies.push(messages(1).remove(0));
    let end = lies.len() as u64;
    send(Request::Batch(Batch { node: "bad".into(), first_sequence: 0, records: lies }));
    honest.batch("good", 0, messages(50));
    honest.wait_for("good", 50);
    let mut reply = || server.runtime.block_on(replies.recv()).unwrap().reply.unwrap();
    assert!(matches!(reply(), Reply::Welcome(_)));
    match reply() {
        Reply::Ack(ack) => assert_eq!(ack.next_sequence, end, "the session goes on"),
        other => panic!("no acknowledgement: {other:?}"),
    }
    assert_eq!(server.ids("/v2/p2p?node_name=good").len(), 50);
    assert_eq!(server.ids("/v2/p2p?node_name=bad"), [1, 0], "one message of many chunks, and the last one");
    let stats = server.json("/v2/stats?node_name=bad");
    let losses = stats["nodes"][0]["losses"].as_array().unwrap();
    assert!(losses.iter().all(|loss| loss["stage"] == "ingest"), "{losses:?}");
    assert_eq!(losses.iter().map(|loss| loss["records"].as_u64().unwrap()).sum::<u64>(), end - 2);
    let metrics = server.get("/metrics").body;
    for (reason, count) in [("chunk range", 2), ("preview", 1), ("chunk size", 1), ("chunks that were not sent", 99)] {
        let line = format!("chainscope_ingest_invalid_records_total{{reason=\"{reason}\"}} {count}");
        assert!(metrics.contains(&line), "no {line} in\n{metrics}");
    }
}

#[test]
fn kinds_of_a_later_version_are_acknowledged_and_counted() {
    let server = Server::with(|_| {});
    // A record of a later version: a time, and a kind with the unknown field number 99.
    let mut bytes = Record { time_ns: TIME, ..Record::default() }.encode_to_vec();
    encoding::encode_key(99, encoding::WireType::LengthDelimited, &mut bytes);
    encoding::encode_varint(3, &mut bytes);
    bytes.extend_from_slice(b"new");
    let future = Record::decode(&*bytes).unwrap();
    server.feed("n", vec![future, messages(1).remove(0)]);
    assert_eq!(server.ids("/v2/p2p"), [0]);
    let stats = server.json("/v2/stats");
    assert_eq!(stats["ingest"]["unknown_kinds"], 1);
    assert_eq!(stats["nodes"][0]["totals"]["unknown_kinds"], 1);
}

#[test]
fn over_grpc_a_session_continues_at_the_high_water_mark() {
    let server = grpc();
    let mut first = Remote::connect(&server, hello(&["n"])).unwrap();
    assert_eq!(first.mark(), 0);
    first.batch("n", 0, messages(5));
    first.wait_for(5);
    first.batch("n", 5, messages(3));
    drop(first);
    let mut second = Remote::connect(&server, hello(&["n"])).unwrap();
    let mark = second.mark();
    assert!(mark == 5 || mark == 8, "{mark}");
    // The agent has no acknowledgement of the last batch, and sends it again.
    second.batch("n", 5, messages(5));
    second.wait_for(10);
    assert_eq!(server.ids("/v2/p2p?limit=100&direction=forward"), (0..10).collect::<Vec<_>>());
    let stats = server.json("/v2/stats");
    let agent = &stats["agents"][0];
    assert_eq!((&agent["name"], &agent["build"]), (&"host-1".into(), &"test".into()));
    // The clock in the hello is of 2021: the skew is years.
    assert!(agent["clock_skew"].as_i64().unwrap() > 100_000_000_000_000_000, "{agent}");
}

#[test]
fn a_session_without_a_hello_ends() {
    let server = Server::with(|config| {
        config.ingest = Some("127.0.0.1:0".parse().unwrap());
        config.limits.client_timeout = Duration::from_millis(50);
    });
    let address = server.running().ingest_addr().unwrap();
    let ended = server.runtime.block_on(async {
        let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        let (_requests, stream) = mpsc::channel::<RecordRequest>(1);
        let mut replies = IngestClient::new(channel).record(ReceiverStream::new(stream)).await.unwrap().into_inner();
        tokio::time::timeout(LIMIT, replies.message()).await.expect("the session goes on").unwrap_err()
    });
    assert_eq!(ended.code(), Code::DeadlineExceeded, "{ended}");
}

#[test]
fn over_grpc_errors_are_returned_as_status() {
    let server = grpc();
    let refused = |hello| match Remote::connect(&server, hello) {
        Err(status) => status,
        Ok(mut remote) => remote.reply().unwrap_err(),
    };
    let status = refused(Hello { least_version: 2, greatest_version: 3, build: "9.9".into(), ..hello(&[]) });
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("agent host-1 (build 9.9) supports 2 to 3"), "{}", status.message());
    let mut agent = Remote::connect(&server, hello(&["n"])).unwrap();
    assert_eq!(agent.mark(), 0);
    agent.batch("n", 7, messages(1));
    let status = agent.reply().unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange);
    assert!(status.message().contains("node n: sequence 0 should come next, the batch begins with 7"));
}

#[test]
fn over_grpc_a_batch_of_8_mib_is_received_and_a_larger_one_is_not() {
    let server = grpc();
    let mut agent = Remote::connect(&server, hello(&["n"])).unwrap();
    agent.mark();
    let large = |bytes| record(TIME, Kind::Message(Message { error: "x".repeat(bytes), ..message("unknown") }));
    agent.batch("n", 0, vec![large(8 << 20)]);
    agent.wait_for(1);
    agent.batch("n", 1, vec![large(9 << 20)]);
    assert!(matches!(agent.reply(), Ok(None) | Err(_)), "the session ends");
    let mut agent = Remote::connect(&server, hello(&["n"])).unwrap();
    assert_eq!(agent.mark(), 1);
}

#[test]
fn over_grpc_a_request_of_too_many_elements_is_refused_and_other_agents_go_on() {
    let server = grpc();
    let mut honest = Remote::connect(&server, hello(&["n"])).unwrap();
    honest.mark();
    let mut agent = Remote::connect(&server, Hello { agent: "host-2".into(), ..hello(&["m"]) }).unwrap();
    agent.mark();
    agent.batch("m", 0, vec![Record::default(); 1 << 16]);
    agent.wait_for(1 << 16);
    agent.batch("m", 1 << 16, vec![Record::default(); 1_000_000]);
    let status = agent.reply().unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "a request has more than 65536 records, which no agent sends");
    let mut agent = Remote::connect(&server, Hello { agent: "host-2".into(), ..hello(&["m"]) }).unwrap();
    agent.mark();
    let event = TraceEvent { arguments: vec![TraceValue::default(); 1_000_000], ..TraceEvent::default() };
    agent.batch("m", 1 << 16, vec![record(TIME, Kind::TraceEvent(event))]);
    let status = agent.reply().unwrap_err();
    assert_eq!(status.message(), "a request has more than 262144 elements, which no agent sends");
    honest.batch("n", 0, messages(5));
    honest.wait_for(5);
    assert_eq!(server.ids("/v2/p2p?node_name=n").len(), 5);
    let ingest = &server.json("/v2/stats")["ingest"];
    assert_eq!((&ingest["session_errors"], &ingest["records"]), (&2.into(), &((1 << 16) + 5).into()));
}

#[test]
fn a_shutdown_stores_all_received_records_and_a_restart_serves_them() {
    let mut server = Server::with(|_| {});
    let agent = server.agent(&["n"]);
    agent.batch("n", 0, with_chunks(message("metadata"), &[0, 0xff], 1, 10));
    agent.batch("n", 2, messages(4));
    drop(agent);
    server.shutdown();
    let Server { runtime, store, dir, .. } = server;
    drop((runtime, store));
    let store = open(&dir);
    let server = Server::on(dir, store, |_| {});
    assert_eq!(server.ids("/v2/p2p"), [4, 3, 2, 1, 0]);
    assert_eq!(server.json("/v2/p2p/0")["message"]["private_node"], true);
    let (requests, mut replies) = server.running().connect();
    server.runtime.block_on(requests.send(RecordRequest { request: Some(Request::Hello(hello(&["n"]))) })).unwrap();
    match server.runtime.block_on(replies.recv()).unwrap().reply {
        Some(Reply::Welcome(welcome)) => assert_eq!(welcome.high_water_marks[0].next_sequence, 6),
        other => panic!("no welcome: {other:?}"),
    }
    assert_eq!(server.json("/nodes")[0]["state"], "silent");
}

#[test]
fn an_agent_may_connect_from_a_thread_without_a_runtime() {
    let server = Server::with(|_| {});
    let ingest = server.running().ingest().clone();
    let reply = std::thread::spawn(move || {
        let (requests, mut replies) = ingest.connect();
        requests.blocking_send(RecordRequest { request: Some(Request::Hello(hello(&["n"]))) }).unwrap();
        replies.blocking_recv()
    });
    assert!(matches!(reply.join().unwrap().unwrap().reply, Some(Reply::Welcome(_))));
}
