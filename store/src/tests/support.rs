//! Records to store, and databases to store them in.

use std::path::Path;

use bytes::Bytes;
use chainscope_proto::v1::{
    Chunk, ConnectionClosed, ConnectionEvent, ConnectionIdentified, ConnectionOpened, Initiator, Loss, Message,
    NetworkAccount, Record, SocketAddress, TargetEvent, connection_event::Event, record::Kind,
};

use crate::{Store, StoreOptions};

pub(super) const NODE: &str = "9732";
pub(super) const AGENT: &str = "host-a";
pub(super) const EPOCH: &[u8] = &[7; 16];

/// Small caches, no disk set aside, a clock that stands still.
pub(super) fn options() -> StoreOptions {
    StoreOptions {
        block_cache_bytes: 1 << 20,
        write_buffer_bytes: 1 << 20,
        ballast_bytes: 0,
        min_free_bytes: 0,
        clock: std::sync::Arc::new(|| 1_000),
        ..StoreOptions::default()
    }
}

pub(super) fn small_segments(rows: u64) -> StoreOptions {
    StoreOptions { segment_rows: rows, ..options() }
}

pub(super) fn open(dir: &Path, options: StoreOptions) -> Store {
    Store::open(dir, options).expect("opens")
}

/// Calls `test` for each engine, with a function that opens an empty store on it.
pub(super) fn each_engine(test: impl Fn(&dyn Fn(StoreOptions) -> Store)) {
    test(&|options| Store::in_memory(options).expect("opens"));
    let dirs = std::cell::RefCell::new(Vec::new());
    test(&|options| {
        let dir = tempfile::tempdir().expect("a directory");
        let store = open(dir.path(), options);
        dirs.borrow_mut().push(dir);
        store
    });
}

pub(super) fn record(time_ns: i64, kind: Kind) -> Record {
    Record { time_ns, target: "pid 1".to_owned(), kind: Some(kind) }
}

pub(super) fn chunk(connection: u64, incoming: bool, counter: u64) -> Record {
    let wire = Bytes::from(format!("wire {connection} {incoming} {counter}"));
    record(1, Kind::Chunk(Chunk { connection, incoming, counter, wire, ..Chunk::default() }))
}

/// A message of these chunks.
pub(super) fn message(connection: u64, incoming: bool, first_chunk: u64, last_chunk: u64) -> Record {
    record(
        first_chunk as i64,
        Kind::Message(Message {
            connection,
            incoming,
            kind: "operation".to_owned(),
            category: "p2p".to_owned(),
            first_chunk,
            last_chunk,
            initiator: Initiator::Local.into(),
            remote: Some(SocketAddress { ip: vec![10, 0, 0, 1], port: 9732 }),
            peer_id: "idpeer".to_owned(),
            ..Message::default()
        }),
    )
}

/// `count` pairs of a chunk and the message in it, counters from `first` on.
pub(super) fn traffic(connection: u64, first: u64, count: u64) -> Vec<Record> {
    (first..first + count)
        .flat_map(|counter| [chunk(connection, false, counter), message(connection, false, counter, counter)])
        .collect()
}

pub(super) fn event(connection: u64, time_ns: i64, event: Event) -> Record {
    record(time_ns, Kind::Connection(ConnectionEvent { connection, event: Some(event) }))
}

pub(super) fn opened(connection: u64) -> Record {
    let remote = Some(SocketAddress { ip: vec![10, 0, 0, 1], port: 9732 });
    let opened = ConnectionOpened { initiator: Initiator::Local.into(), remote, local: None };
    event(connection, connection as i64, Event::Opened(opened))
}

pub(super) fn identified(connection: u64, peer_id: &str) -> Record {
    let identified = ConnectionIdentified { peer_id: peer_id.to_owned(), ..ConnectionIdentified::default() };
    event(connection, connection as i64 + 1, Event::Identified(identified))
}

pub(super) fn closed(connection: u64) -> Record {
    event(
        connection,
        connection as i64 + 2,
        Event::Closed(ConnectionClosed { by: "remote".to_owned(), ..Default::default() }),
    )
}

pub(super) fn loss(records: u64) -> Record {
    record(3, Kind::Loss(Loss { stage: "kernel".to_owned(), records, bytes: 10 * records, ..Loss::default() }))
}

pub(super) fn target_event(text: &str) -> Record {
    record(4, Kind::TargetEvent(TargetEvent { event: text.to_owned(), ..TargetEvent::default() }))
}

pub(super) fn account(messages: u64) -> Record {
    record(5, Kind::NetworkAccount(NetworkAccount { messages, ..NetworkAccount::default() }))
}

/// Appends at the stream's high-water mark and syncs.
pub(super) fn put(store: &Store, records: &[Record]) {
    stage(store, records);
    store.sync().expect("syncs");
}

pub(super) fn stage(store: &Store, records: &[Record]) {
    let mark = store.high_water_mark(NODE, AGENT, EPOCH);
    store.append(NODE, AGENT, EPOCH, mark, records).expect("appends");
}

/// Panics with what is wrong.
pub(super) fn assert_sound(store: &Store) {
    let report = store.verify().expect("reads");
    assert!(report.is_sound(), "{:#?}", report.problems);
}
