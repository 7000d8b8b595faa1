//! Agents of earlier versions: what one of them sent, as recorded in `vectors/wire`, is stored and served as it was then.
//!
//! A recording is a conversation, frame by frame as on the wire, and what the API served of it. Fields that were added since are
//! not in it; one that was removed, or got another number or type, is lost from it, which shows. `RECORD_WIRE=name` adds a
//! recording of this version: recordings are never changed.

use std::{collections::BTreeMap, env, fs, path::PathBuf};

use chainscope_proto::v1::{
    Batch, ChunkState, ConnectionClosed, ConnectionIdentified, ConnectionOpened, ConnectionState,
    ConnectionStateChanged, Gap, Hello, Initiator, LogEncoding, LogLevel, LogMessage, LogPosition, Loss, Message,
    NetworkAccount, ReasonCount, Record, RecordReply, RecordRequest, TargetEvent, connection_event::Event,
    record::Kind, record_reply::Reply, record_request::Request,
};
use chainscope_store::MessageQuery;
use prost::Message as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    common::{Agent, Server, TIME, address, event, record, with_chunks},
    memory::example,
};

const NODE: &str = "9732";
/// A name that no node can have.
const REFUSED: &str = "a/b/c";

/// Paths of the API, and the parts of their responses that depend on the records alone.
const SERVED: [(&str, &[&str]); 10] = [
    ("/v3/messages?limit=100", &[""]),
    ("/v2/p2p/0", &[""]),
    ("/v2/p2p/1", &[""]),
    ("/v3/connections", &[""]),
    ("/v3/chunks", &[""]),
    ("/v2/log", &[""]),
    ("/v1/tree?threshold=0&kind=all", &[""]),
    ("/v1/tree?short=true", &[""]),
    ("/v1/targets", &["/0/pid", "/0/target"]),
    (
        "/v2/stats",
        &[
            "/agents/0/name",
            "/agents/0/build",
            "/agents/0/epoch",
            "/agents/0/nodes",
            "/nodes/0/totals",
            "/nodes/0/accounts",
            "/nodes/0/losses",
        ],
    ),
];

#[derive(Serialize, Deserialize)]
struct Recording {
    /// Where the recording comes from.
    origin: String,
    /// Records of the stream of node 9732, all of which are acknowledged at the end.
    records: u64,
    /// Frames of the agent, in hexadecimal digits.
    agent: Vec<String>,
    /// Those of the aggregator.
    aggregator: Vec<String>,
    /// Parts of responses, by `path#pointer`.
    served: BTreeMap<String, Value>,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../vectors/wire")
}

/// A record of every kind, with a value in every field that an agent sets.
fn records() -> Vec<Record> {
    let connection = TIME as u64;
    let counts = |reason: &str, count| vec![ReasonCount { reason: reason.into(), count }];
    let of = |kind: &str, category: &str, incoming, preview: Option<&str>| Message {
        connection,
        incoming,
        protocol: "tezos".into(),
        category: category.into(),
        kind: kind.into(),
        preview: preview.map(str::to_owned),
        error: if preview.is_none() { "too short".into() } else { String::new() },
        initiator: Initiator::Remote.into(),
        remote: Some(address("[2001:db8::7]:9733")),
        peer_id: "idssJHDL1z8fkryZaYVF9fQRMktoWg".into(),
        ..Message::default()
    };
    let opened = ConnectionOpened {
        initiator: Initiator::Remote.into(),
        remote: Some(address("[2001:db8::7]:9733")),
        local: Some(address("10.0.0.1:9732")),
    };
    let identified = ConnectionIdentified {
        peer_id: "idssJHDL1z8fkryZaYVF9fQRMktoWg".into(),
        protocol: "tezos".into(),
        network: "TEZOS_MAINNET".into(),
        initiator: Initiator::Remote.into(),
    };
    let changed = ConnectionStateChanged {
        state: ConnectionState::Undecryptable.into(),
        reason: "the handshake was missed".into(),
        remedy: "restart the node".into(),
    };
    let gap = Gap {
        incoming: true,
        lost_bytes: 11,
        skipped_bytes: 12,
        first_chunk: 13,
        missed_chunks: 14,
        recovered: true,
        reason: "ring full".into(),
    };
    let mut records = vec![event(connection, Event::Opened(opened)), event(connection, Event::Identified(identified))];
    let preview = "{\"disable_mempool\":false,\"private_node\":true}";
    records.extend(with_chunks(of("metadata", "meta", false, Some(preview)), &[0, 255], 3, 100));
    records.extend(with_chunks(of("operation", "p2p", true, None), &[0, 0, 0, 3, 0, 8, 1], 7, 3));
    for record in &mut records {
        if let Some(Kind::Chunk(chunk)) = &mut record.kind {
            (chunk.net, chunk.state) = (true, ChunkState::Opened.into());
        }
    }
    let account = NetworkAccount {
        bytes_seen: 101,
        bytes_captured: 102,
        bytes_dropped: counts("ring full", 103),
        bytes_left_alone: 104,
        bytes_in_ring: 105,
        bytes_in_chunks: 106,
        bytes_not_protocol: 107,
        bytes_skipped: 108,
        bytes_pending: 109,
        chunks: 110,
        chunks_opened: 111,
        chunks_undecryptable: 112,
        messages: 113,
        messages_sent: 114,
        messages_dropped: counts("no memory", 115),
        gaps: 116,
        connections: 117,
        connections_open: 118,
        chunks_dropped: 119,
        chunk_bytes_dropped: 120,
        bytes_residual: -121,
    };
    let loss = Loss {
        stage: "spool".into(),
        reason: "full".into(),
        records: 21,
        bytes: 22,
        from_ns: TIME - 2,
        to_ns: TIME - 1,
        amount_unknown: true,
    };
    let logged = LogMessage {
        raw: b"Jul 14 12:02:03.456 WARN peer left".to_vec(),
        encoding: LogEncoding::Plain.into(),
        level: LogLevel::Warning.into(),
        received_ns: TIME + 5,
        source: "file".into(),
        position: Some(LogPosition { file: 31, end: 32 }),
    };
    let closed = ConnectionClosed { by: "reset".into(), sent_bytes: 41, received_bytes: 42 };
    let target = TargetEvent { event: "identity error".into(), pid: 4711, detail: "no such file".into() };
    records.extend([
        event(connection, Event::Comment("the proof of work is too easy".into())),
        event(connection, Event::Gap(gap)),
        event(connection, Event::StateChanged(changed)),
        event(connection, Event::Closed(closed)),
        record(TIME, Kind::NetworkAccount(account)),
        record(TIME, Kind::Loss(loss)),
        record(TIME, Kind::LogMessage(logged)),
        record(TIME, Kind::TargetEvent(target)),
    ]);
    records
}

/// What an agent sends.
fn requests() -> Vec<Request> {
    let hello = Hello {
        least_version: 1,
        greatest_version: 1,
        build: "0.1.0".into(),
        agent: "host-1".into(),
        epoch: (0..16).collect(),
        realtime_ns: TIME,
        nodes: vec![NODE.into()],
    };
    let batch =
        |node: &str, first_sequence, records| Request::Batch(Batch { node: node.into(), first_sequence, records });
    let mut records = records();
    let rest = records.split_off(5);
    vec![
        Request::Hello(hello),
        batch(NODE, 0, records),
        batch(NODE, 5, rest),
        batch(REFUSED, 0, vec![record(TIME, Kind::TargetEvent(TargetEvent::default()))]),
        Request::Memory(example().keyframe()),
    ]
}

/// Sends frames of an agent, and returns the replies, once everything is acknowledged.
fn play(server: &Server, frames: &[Vec<u8>]) -> Vec<RecordReply> {
    let requests = frames.iter().map(|frame| {
        let request = RecordRequest::decode(&**frame).unwrap();
        // Fields that are not known are not written again.
        assert_eq!(hex::encode(request.encode_to_vec()), hex::encode(frame), "a field is not known: {request:?}");
        request.request.expect("a known request")
    });
    let mut agent = server.raw_agent();
    let (mut open, mut end, mut replies) = (0, 0, Vec::new());
    for request in requests {
        if let Request::Batch(batch) = &request
            && batch.node == NODE
        {
            end = batch.first_sequence + batch.records.len() as u64;
        }
        open += usize::from(matches!(&request, Request::Hello(_) | Request::Memory(_)))
            + usize::from(matches!(&request, Request::Batch(batch) if batch.node == REFUSED));
        agent.send(request);
    }
    let mut acknowledged = 0;
    while open > 0 || acknowledged < end {
        let reply = next(&mut agent);
        match &reply {
            Reply::Ack(ack) if ack.node == NODE => acknowledged = ack.next_sequence,
            Reply::Ack(ack) => panic!("{ack:?}"),
            Reply::Welcome(_) | Reply::Refused(_) | Reply::Memory(_) => open -= 1,
        }
        replies.push(RecordReply { reply: Some(reply) });
    }
    assert_eq!(acknowledged, end);
    replies
}

fn next(agent: &mut Agent<'_>) -> Reply {
    agent.reply().expect("the session ended")
}

fn served(server: &Server) -> BTreeMap<String, Value> {
    let parts = |(path, pointers): (&str, &[&str])| {
        let whole = server.json(path);
        let part = |pointer: &&str| {
            let value = whole.pointer(pointer).unwrap_or_else(|| panic!("{path}: {pointer} is not there: {whole:#}"));
            (format!("{path}#{pointer}"), value.clone())
        };
        pointers.iter().map(part).collect::<Vec<_>>()
    };
    SERVED.into_iter().flat_map(parts).collect()
}

fn record_this_version(name: &str) {
    let server = Server::start();
    let agent: Vec<_> =
        requests().into_iter().map(|request| RecordRequest { request: Some(request) }.encode_to_vec()).collect();
    let replies = play(&server, &agent);
    let recording = Recording {
        origin: format!(
            "protobuf messages of commit {name}, with a value in every field, and the replies of its aggregator"
        ),
        records: records().len() as u64,
        agent: agent.iter().map(hex::encode).collect(),
        aggregator: replies.iter().map(|reply| hex::encode(reply.encode_to_vec())).collect(),
        served: served(&server),
    };
    let file = folder().join(format!("{name}.json"));
    fs::write(file, serde_json::to_string_pretty(&recording).unwrap() + "\n").unwrap();
}

/// That everything that was expected is there, with the same value.
fn check(expected: &Value, found: &Value, at: &str) {
    match (expected, found) {
        (Value::Object(expected), Value::Object(found)) => {
            for (name, value) in expected {
                let member = found.get(name).unwrap_or_else(|| panic!("{at}/{name} is not served any more"));
                check(value, member, &format!("{at}/{name}"));
            }
        }
        (Value::Array(expected), Value::Array(found)) if expected.len() == found.len() => {
            expected
                .iter()
                .zip(found)
                .enumerate()
                .for_each(|(at_, (one, other))| check(one, other, &format!("{at}/{at_}")));
        }
        _ => assert_eq!(expected, found, "{at}"),
    }
}

#[test]
fn records_of_earlier_agents_are_served_as_they_were() {
    if let Ok(name) = env::var("RECORD_WIRE") {
        record_this_version(&name);
    }
    let files: Vec<_> = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!files.is_empty(), "there is no recording");
    for file in files {
        let recording: Recording = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        let frames: Vec<_> = recording.agent.iter().map(|frame| hex::decode(frame).unwrap()).collect();
        let server = Server::start();
        let replies = play(&server, &frames);
        let end = replies.iter().filter_map(|reply| match &reply.reply {
            Some(Reply::Ack(ack)) => Some(ack.next_sequence),
            _ => None,
        });
        assert_eq!(end.max(), Some(recording.records), "{}", file.display());
        for frame in &recording.aggregator {
            let recorded = RecordReply::decode(&*hex::decode(frame).unwrap()).unwrap();
            assert_eq!(&hex::encode(recorded.encode_to_vec()), frame, "a field is not known: {recorded:?}");
            // The times and builds of a welcome differ.
            let is_same = |reply: &RecordReply| match (&recorded.reply, &reply.reply) {
                (Some(Reply::Welcome(one)), Some(Reply::Welcome(other))) => {
                    (one.version, &one.high_water_marks, one.memory)
                        == (other.version, &other.high_water_marks, other.memory)
                }
                (Some(Reply::Ack(one)), Some(Reply::Ack(other))) => one.node == other.node,
                (one, other) => one.is_some() && one == other,
            };
            assert!(replies.iter().any(is_same), "{}: {recorded:?} is not among {replies:?}", file.display());
        }
        let sent = frames.iter().flat_map(|frame| match RecordRequest::decode(&**frame).unwrap().request {
            Some(Request::Batch(batch)) => batch.records,
            _ => Vec::new(),
        });
        let sent: Vec<Record> = sent.collect();
        let stored = server.store.messages(NODE, &MessageQuery::default()).unwrap();
        assert!(stored.len() == 2 && stored.iter().all(|(_, record)| sent.contains(record)), "{stored:?}");
        let served = served(&server);
        for (part, expected) in &recording.served {
            check(expected, &served[part], part);
        }
    }
}
