//! What peers and agents cause stays bounded: connections kept in memory, searches of chunks, writes.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use super::support::*;
use crate::{
    Error, Memory, Retention, Store, StoreOptions,
    engine::{Batch, Engine, Snapshot, memory::MemoryEngine},
    load::load,
    network::{ChunkRange, ChunkRuns, MAX_LIVE, MAX_REMEMBERED},
    schema::KINDS,
};

/// An engine in memory that counts what is asked of it.
struct CountingEngine {
    engine: MemoryEngine,
    writes: AtomicUsize,
    snapshots: AtomicUsize,
}

impl CountingEngine {
    fn new() -> Self {
        Self { engine: MemoryEngine::new(u64::MAX), writes: AtomicUsize::new(0), snapshots: AtomicUsize::new(0) }
    }

    /// Writes and snapshots since the last call.
    fn take_counts(&self) -> (usize, usize) {
        (self.writes.swap(0, Ordering::Relaxed), self.snapshots.swap(0, Ordering::Relaxed))
    }
}

impl Engine for CountingEngine {
    fn snapshot(&self) -> Box<dyn Snapshot + '_> {
        self.snapshots.fetch_add(1, Ordering::Relaxed);
        self.engine.snapshot()
    }

    fn write(&self, batch: &Batch) -> Result<(), Error> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.engine.write(batch)
    }

    fn free_bytes(&self) -> Result<u64, Error> {
        self.engine.free_bytes()
    }

    fn memory(&self) -> Memory {
        self.engine.memory()
    }
}

fn store_on(engine: &Arc<impl Engine + 'static>, options: StoreOptions) -> Store {
    Store::with_engine(Arc::clone(engine) as Arc<dyn Engine>, options, KINDS).unwrap()
}

/// Segments of one message, or of many.
fn set_short_segments(store: &Store, are_short: bool) {
    let rows = are_short.then_some(Retention::PARTS);
    store.set_retention(NODE, Retention { rows, ..Retention::default() }).unwrap();
}

/// The keys of the live connections after the database was opened again.
fn live_after_reopening(engine: &MemoryEngine) -> Vec<u64> {
    let (nodes, _) = load(&*engine.snapshot(), KINDS).unwrap();
    nodes[0].live.keys()
}

#[test]
fn short_connections_do_not_push_out_a_long_one() {
    let engine = Arc::new(MemoryEngine::new(u64::MAX));
    let store = store_on(&engine, small_segments(1));
    put(&store, &[opened(1), identified(1, "idlong")]);
    let before = store.connection(NODE, 1).unwrap().unwrap();
    for connection in 2..70_002 {
        stage(&store, &[opened(connection), closed(connection)]);
    }
    store.sync().unwrap();
    let live = live_after_reopening(&engine);
    assert!(live == [1], "{} live connections", live.len());

    put(&store, &traffic(1, 0, 2));
    store.set_retention(NODE, Retention { rows: Some(1), ..Retention::default() }).unwrap();
    assert_eq!(store.evict(0).unwrap().segments, 1);
    assert_eq!(store.connection(NODE, 2).unwrap(), None);
    assert_eq!(store.connection(NODE, 1).unwrap(), Some(before));
    assert_eq!(live_after_reopening(&engine), [1]);
}

#[test]
fn an_open_segment_of_more_connections_than_are_kept_live_can_be_opened_again() {
    const CONNECTIONS: u64 = MAX_LIVE as u64 + 1_000;
    let engine = Arc::new(MemoryEngine::new(u64::MAX));
    let store = store_on(&engine, options());
    for connection in 0..CONNECTIONS {
        stage(&store, &[opened(connection)]);
    }
    store.sync().unwrap();
    // The times of their events are their keys.
    let newest: Vec<u64> = (1_000..CONNECTIONS).collect();
    assert!(live_after_reopening(&engine) == newest);
}

#[test]
fn messages_without_chunks_cause_neither_writes_nor_further_searches() {
    const MESSAGES: u64 = 10_000;
    let engine = Arc::new(CountingEngine::new());
    let store = store_on(&engine, StoreOptions { stage_bytes: 256 << 20, ..options() });
    set_short_segments(&store, true);
    put(&store, &traffic(1, 50, 1));
    put(&store, &[chunk(1, false, 51)]);
    set_short_segments(&store, false);
    engine.take_counts();

    for counter in 0..MESSAGES / 2 {
        // Chunks of the same connection arrive meanwhile, and the ranges differ.
        let chunk = chunk(1, false, 100 + counter);
        stage(&store, &[message(1, false, 10, 10), chunk, message(1, false, 0, 0)]);
    }
    let (writes, snapshots) = engine.take_counts();
    assert_eq!(writes, 0);
    assert!(snapshots < 10, "{snapshots} snapshots");
    store.sync().unwrap();
    assert_eq!(store.visible(NODE), (0, MESSAGES + 1));
    assert_sound(&store);
}

#[test]
fn chunks_in_the_engine_and_in_the_staged_batch_are_found_without_a_write() {
    let engine = Arc::new(CountingEngine::new());
    let store = store_on(&engine, options());
    set_short_segments(&store, true);
    put(&store, &traffic(2, 0, 1)[1..]);
    put(&store, &[chunk(1, false, 0), message(2, false, 1, 1)]);
    set_short_segments(&store, false);
    engine.take_counts();
    // The first chunk is in the engine, in an older segment; the second one is staged.
    set_short_segments(&store, true);
    stage(&store, &[chunk(1, false, 1)]);
    set_short_segments(&store, false);
    stage(&store, &[message(1, false, 0, 1), message(1, false, 0, 1)]);
    assert_eq!(engine.take_counts().0, 0);
    store.sync().unwrap();

    let ids = store.visible(NODE);
    assert_eq!(ids.1, 4);
    let both = [chunk(1, false, 0), chunk(1, false, 1)];
    assert_eq!(store.message_chunks(NODE, 2).unwrap().unwrap(), both);
    store.set_retention(NODE, Retention { rows: Some(2), ..Retention::default() }).unwrap();
    assert!(store.evict(0).unwrap().segments > 0);
    assert_eq!(store.visible(NODE), (2, 4));
    assert_eq!(store.message_chunks(NODE, 3).unwrap().unwrap(), both);
    assert_sound(&store);
}

#[test]
fn a_segment_that_closes_before_its_chunks_are_committed_is_committed_once() {
    let engine = Arc::new(CountingEngine::new());
    let store = store_on(&engine, StoreOptions { stage_bytes: 256 << 20, ..options() });
    set_short_segments(&store, true);
    stage(&store, &traffic(1, 5, 1));
    stage(&store, &[chunk(1, false, 6)]);
    set_short_segments(&store, false);
    engine.take_counts();
    for _ in 0..1_000 {
        stage(&store, &[message(1, false, 5, 6), message(1, false, 0, 5), message(1, false, 3, 3)]);
    }
    let (writes, snapshots) = engine.take_counts();
    assert_eq!(writes, 1);
    assert!(snapshots < 10, "{snapshots} snapshots");
    store.sync().unwrap();
    assert_eq!(store.message_chunks(NODE, 1).unwrap().unwrap(), [chunk(1, false, 5), chunk(1, false, 6)]);
    assert_sound(&store);
}

#[test]
fn remembered_runs_of_chunks_are_merged_and_bounded() {
    let range = |connection, agent, first, last| match message(connection, true, first, last).kind {
        Some(chainscope_proto::v1::record::Kind::Message(message)) => ChunkRange::of_message(&message, agent).unwrap(),
        other => panic!("{other:?}"),
    };
    let mut runs = ChunkRuns::default();
    for (first, last) in [(10, 12), (20, 22), (0, 3), (13, 15), (2, 8), (u64::MAX, u64::MAX)] {
        runs.add_known(range(1, 7, first, last));
    }
    for (first, last, unknown) in [
        (0, 8, None),
        (3, 5, None),
        (10, 15, None),
        (0, 9, Some((9, 9))),
        (9, 9, Some((9, 9))),
        (9, 12, Some((9, 9))),
        (15, 16, Some((16, 16))),
        (15, 21, Some((16, 19))),
        // What is known in between is searched with the rest.
        (5, 30, Some((9, 30))),
        (20, 22, None),
        (u64::MAX, u64::MAX, None),
        (0, u64::MAX, Some((9, u64::MAX - 1))),
    ] {
        let unknown = unknown.map(|(first, last)| range(1, 7, first, last));
        assert_eq!(runs.unknown_of(range(1, 7, first, last)), unknown, "{first} to {last}");
        let of_another_agent = range(1, 8, first, last);
        assert_eq!(runs.unknown_of(of_another_agent), Some(of_another_agent));
    }
    runs.add_known(range(1, 7, 0, u64::MAX));
    assert_eq!(runs.remembered(), 1);
    runs.end(1, 7);
    assert_eq!(runs.remembered(), 0);

    for counter in 0..MAX_REMEMBERED as u64 + 10 {
        runs.add_known(range(1, 7, 2 * counter, 2 * counter));
        assert!(runs.remembered() <= MAX_REMEMBERED);
    }
    for connection in 0..MAX_REMEMBERED as u64 + 10 {
        assert!(!runs.may_be_older(range(connection, 7, 0, 0), || Ok(None)).unwrap());
        assert!(runs.remembered() <= 2 * MAX_REMEMBERED);
    }
}
