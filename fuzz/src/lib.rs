//! Shared by the targets: keys, a recorded session, an aggregator, and the interpretation of an input as pieces of streams
//! or as messages of the wire.
use std::{
    sync::{Arc, LazyLock},
    task::Poll,
};

use chainscope_proto::v1::{
    Batch, Chunk, ConnectionEvent, ConnectionOpened, LatencyBlock, LatencyCounts, LatencyFunction, LatencyRun,
    LatencyTransaction, LogEncoding, LogLevel, LogMessage, MemoryCounts, MemoryFrame, MemoryKind, MemoryState, Message,
    Record, RecordRequest, connection_event::Event, record::Kind, record_request::Request,
};
use chainscope_tezos::{
    Conversation, Direction, Identity, Keyring, Limits, Output, Piece, Role,
    generate::Generator,
    message::PEER_KINDS,
    seal::{Announcement, connection_chunk, session},
};
use chainscope_trace::record::{encode_attachment, encode_event};

pub mod server;
pub mod trace;

/// Limits with a small resynchronisation budget, so that inputs run fast; some inputs exhaust the budget.
pub fn low_budget() -> Limits {
    Limits {
        resync_budget: 20_000,
        resync_budget_per_byte: 0,
        resync_budget_per_second: 0,
        max_resync_counters: 2048,
        ..Limits::default()
    }
}

/// A keyring that has the identity of [`SESSION`] for every even public key.
#[derive(Default)]
pub struct Keys(());

impl Keyring for Keys {
    fn identity(&mut self, public_key: &[u8; 32]) -> Poll<Result<Arc<Identity>, String>> {
        Poll::Ready(if public_key[0] & 1 == 1 { Err("odd".to_owned()) } else { Ok(Arc::clone(&SESSION.identity)) })
    }
}

/// A session that the local node initiated.
pub struct Session {
    /// Identity of the local node. Its public key is even, so that [`Keys`] returns it.
    pub identity: Arc<Identity>,
    /// Length of the connection message of each direction.
    pub connection: [usize; 2],
    /// Length of the handshake of each direction.
    pub handshake: [usize; 2],
    /// Byte streams: sent, received.
    pub streams: [Vec<u8>; 2],
    /// SHA-256 of every message in the streams.
    pub messages: Vec<[u8; 32]>,
}

/// The session that the targets replay.
pub static SESSION: LazyLock<Session> = LazyLock::new(|| {
    let identity = (0..)
        .map(|secret| Identity::from_secret_key([secret; 32], [0; 24]))
        .find(|identity| identity.public_key()[0] & 1 == 0)
        .map(Arc::new)
        .expect("half of the keys are even");
    let remote = Identity::from_secret_key([0xaa; 32], [0; 24]);
    let announcement = |nonce| Announcement {
        port: 9732,
        message_nonce: [nonce; 24],
        chain_name: "TEZOS_MAINNET",
        distributed_db_version: 2,
        p2p_version: 1,
    };
    let mut streams = [connection_chunk(&identity, &announcement(1)), connection_chunk(&remote, &announcement(2))];
    let connection = [streams[0].len(), streams[1].len()];
    let (mut ours, _) = session(&identity, Role::Initiator, &streams[0], &streams[1]).expect("session");
    let (mut theirs, _) = session(&remote, Role::Responder, &streams[1], &streams[0]).expect("session");
    for (stream, sealer) in streams.iter_mut().zip([&mut ours, &mut theirs]) {
        stream.extend(sealer.chunk(&[0, 0]));
        stream.extend(sealer.chunk(&[0]));
    }
    let handshake = [streams[0].len(), streams[1].len()];
    let mut generator = Generator::new(1);
    for (stream, sealer) in streams.iter_mut().zip([&mut ours, &mut theirs]) {
        for _ in 0..2 {
            for (tag, _) in PEER_KINDS {
                stream.extend(sealer.message(&generator.message(tag)).concat());
            }
        }
        stream.extend(sealer.message(&generator.operation(70_000)).concat());
        stream.extend(sealer.message(&generator.message(0x20)).concat());
    }
    let mut session = Session { identity, connection, handshake, streams, messages: Vec::new() };
    session.messages = session.read();
    session
});

impl Session {
    /// The handshake of both directions; [`script`] replays the bytes after it.
    pub fn handshake(&self) -> [Piece<'_>; 4] {
        let part = |direction: Direction, from: usize, to: usize| {
            let bytes = &self.streams[direction as usize][from..to];
            Piece::whole(direction, from as u64, bytes, 1)
        };
        [
            part(Direction::Sent, 0, self.connection[0]),
            part(Direction::Received, 0, self.connection[1]),
            part(Direction::Sent, self.connection[0], self.handshake[0]),
            part(Direction::Received, self.connection[1], self.handshake[1]),
        ]
    }

    /// Interprets both streams and returns the SHA-256 of every message.
    fn read(&self) -> Vec<[u8; 32]> {
        let mut keys = Arc::clone(&self.identity);
        let mut conversation = Conversation::new(Some(Role::Initiator), Limits::default());
        let mut messages = Vec::new();
        let rest = [Direction::Sent, Direction::Received].map(|direction| {
            let from = self.handshake[direction as usize];
            Piece::whole(direction, from as u64, &self.streams[direction as usize][from..], 1)
        });
        for piece in self.handshake().into_iter().chain(rest) {
            conversation.push(piece, &mut keys, &mut |output| {
                if let Output::Message(message) = output {
                    messages.push(message.sha256);
                }
            });
        }
        assert_eq!(messages.len(), 2 * (3 + 2 * PEER_KINDS.len() + 2));
        messages
    }
}

/// Interprets an input as pieces of arbitrary bytes: flags, offset jump, length, number of missing bytes, then the
/// bytes.
pub fn pieces(mut data: &[u8], offsets: &mut [u64; 2], mut each: impl FnMut(Piece<'_>)) {
    while let [flags, jump, length, missing, rest @ ..] = data {
        let length = (usize::from(*length) << (flags >> 4 & 0x7)).min(rest.len());
        let (bytes, rest) = rest.split_at(length);
        data = rest;
        let direction = if flags & 1 == 0 { Direction::Sent } else { Direction::Received };
        let position = &mut offsets[direction as usize];
        let jump = u64::from(*jump);
        let offset = match flags >> 1 & 3 {
            0 | 1 => *position,
            2 => *position + jump,
            _ => position.saturating_sub(jump),
        };
        let covers = length as u64 + if flags & 8 == 0 { 0 } else { u64::from(*missing) };
        each(Piece { direction, offset, bytes, covers, call_start: flags & 0x80 == 0, time_ns: offset + 1 });
        *position = offset + covers;
    }
}

/// Interprets an input as a list of steps (4 bytes each: operation, length, two operands) that replay, drop, damage or
/// repeat the bytes of the session after the handshake. Returns the final stream offsets.
pub fn script(data: &[u8], mut each: impl FnMut(Piece<'_>)) -> [u64; 2] {
    let mut at = SESSION.handshake;
    for step in data.chunks_exact(4) {
        let direction = if step[0] & 1 == 0 { Direction::Sent } else { Direction::Received };
        let position = &mut at[direction as usize];
        let stream = &SESSION.streams[direction as usize];
        let length = usize::from(step[1]) << (step[0] >> 4 & 0x7);
        let end = (*position + length).min(stream.len());
        let offset = *position as u64;
        let mut bytes = stream[*position..end].to_vec();
        let covers = bytes.len() as u64;
        let call_start = step[0] & 0x80 == 0;
        match step[0] >> 1 & 7 {
            // Lost bytes, with a piece that reports them and without.
            0 => each(Piece { direction, offset, bytes: &[], covers, call_start, time_ns: offset }),
            1 => {}
            2 => {
                let half = bytes.len() / 2;
                each(Piece { direction, offset, bytes: &bytes[..half], covers, call_start, time_ns: offset });
            }
            3 => {
                let damaged = usize::from(step[2]) % bytes.len().max(1);
                if let Some(byte) = bytes.get_mut(damaged) {
                    *byte ^= step[3];
                }
                each(Piece { direction, offset, bytes: &bytes, covers, call_start, time_ns: offset });
            }
            4 => {
                // Some of the previous bytes are repeated.
                let again = usize::from(step[2]).min(*position);
                let bytes = &stream[*position - again..end];
                let offset = (*position - again) as u64;
                each(Piece { direction, offset, bytes, covers: bytes.len() as u64, call_start, time_ns: offset });
            }
            _ => each(Piece { direction, offset, bytes: &bytes, covers, call_start, time_ns: offset }),
        }
        *position = end;
    }
    at.map(|end| end as u64)
}

/// Interprets an input as messages of the wire, each after its length.
pub fn messages<T: prost::Message + Default>(mut data: &[u8]) -> impl Iterator<Item = T> {
    std::iter::from_fn(move || T::decode_length_delimited(&mut data).ok())
}

/// Interprets an input as a few short records.
pub fn records(data: &[u8]) -> Vec<Record> {
    let record = |(time_ns, bytes): (i64, &[u8])| {
        let chunk = Chunk { plain: bytes::Bytes::copy_from_slice(bytes), ..Chunk::default() };
        let target = String::from_utf8_lossy(&bytes[..1]).into_owned();
        Record { time_ns, target, kind: Some(Kind::Chunk(chunk)) }
    };
    (0..).zip(data.chunks(24)).take(8).map(record).collect()
}

/// When everything that [`recorded`] returns was observed, nanoseconds since 1970.
const TIME_NS: i64 = 1_600_000_000_000_000_000;

/// What an agent sends of a short connection, of a log message, of tracepoints, of the latency of a function and of a process's
/// memory.
pub fn recorded() -> Vec<RecordRequest> {
    let plain: bytes::Bytes = Generator::new(1).message(0x14).into();
    let mut kinds = vec![
        Kind::Connection(ConnectionEvent { connection: 5, event: Some(Event::Opened(ConnectionOpened::default())) }),
        Kind::Chunk(Chunk { connection: 5, counter: 3, plain: plain.clone(), ..Chunk::default() }),
        Kind::Message(Message {
            connection: 5,
            protocol: "tezos".to_owned(),
            category: "p2p".to_owned(),
            kind: "current_head".to_owned(),
            first_chunk: 3,
            last_chunk: 3,
            length: plain.len() as u64,
            peer_id: "idX".to_owned(),
            ..Message::default()
        }),
        Kind::LogMessage(LogMessage {
            raw: b"Nov 24 13:56:37.285 NOTICE | read identity file".to_vec(),
            encoding: LogEncoding::Plain.into(),
            level: LogLevel::Notice.into(),
            received_ns: TIME_NS,
            source: "stdout".to_owned(),
            position: None,
        }),
    ];
    let traced = trace::events();
    kinds.extend(
        traced.iter().map(|event| Kind::TraceEvent(encode_event(event, &encode_attachment(&event.attachment)))),
    );
    kinds.extend([(1, "old"), (2, "new")].into_iter().flat_map(|(id, tag)| timed(id, tag)));
    let record = |kind: Kind| Record { time_ns: TIME_NS, target: "pid 7".to_owned(), kind: Some(kind) };
    let records = kinds.into_iter().map(record).collect();
    let batch = Batch { node: "node".to_owned(), first_sequence: 0, records };
    let counts = MemoryCounts { kind: MemoryKind::Anon.into(), nodes: vec![1, 2], pages: vec![300, 400] };
    let memory = MemoryState {
        node: "node".to_owned(),
        target: "pid 7".to_owned(),
        profile: 1,
        sequence: 1,
        time_ns: TIME_NS,
        first_string: 1,
        strings: vec!["program".to_owned(), "main".to_owned()],
        first_frame: 1,
        frames: vec![MemoryFrame { offset: 16, executable: 1, function: 2, ..MemoryFrame::default() }],
        first_node: 1,
        node_parents: vec![0, 1],
        node_frames: vec![1, 1],
        counts: vec![counts],
        ..MemoryState::default()
    };
    [Request::Batch(batch), Request::Memory(memory)].map(|request| RecordRequest { request: Some(request) }).into()
}

/// What an agent sends of a run with one function and one transaction: its description, what was counted, the transaction.
fn timed(id: u8, tag: &str) -> [Kind; 3] {
    let length_ns = 30_000_000_000;
    let run = LatencyRun {
        pid: 7,
        executable: "/usr/bin/node".to_owned(),
        tags: vec![tag.to_owned()],
        host: "host".to_owned(),
        kernel: "6.18.5".to_owned(),
        start_ns: TIME_NS,
        block_ns: length_ns,
        functions: vec![LatencyFunction { name: "apply".to_owned(), ..LatencyFunction::default() }],
        ..LatencyRun::default()
    };
    let counts = LatencyCounts {
        buckets: vec![5, 9],
        counts: vec![3, 1],
        sum_ns: 24,
        min_ns: 5,
        max_ns: 9,
        ..LatencyCounts::default()
    };
    let head = LatencyBlock { run_id: vec![id; 16], ..LatencyBlock::default() };
    let described = LatencyBlock { run: Some(run), ..head.clone() };
    let counted = LatencyBlock { length_ns, functions: vec![counts], ..head };
    let transaction =
        LatencyTransaction { run_id: vec![id; 16], id: vec![id; 32], r#type: 7, result: 125, duration_ns: 9 };
    [Kind::LatencyBlock(described), Kind::LatencyBlock(counted), Kind::LatencyTransaction(transaction)]
}
