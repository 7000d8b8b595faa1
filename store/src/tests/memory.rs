//! Snapshots of memory: stored, found by time, evicted, and bounded.

use std::time::Duration;

use chainscope_proto::v1::MemoryState;

use super::support::*;
use crate::{Error, MemorySnapshot, Retention, SnapshotLimits, StoreOptions, engine::Batch, keys};

fn head(time_ns: i64) -> MemorySnapshot {
    MemorySnapshot { time_ns, anon_kib: 7, ..MemorySnapshot::default() }
}

fn states(count: u32, mark: u64) -> Vec<MemoryState> {
    let state = |part| MemoryState { part, profile: mark, strings: vec!["x".repeat(100)], ..MemoryState::default() };
    (0..count).map(state).collect()
}

fn times(store: &crate::Store) -> Vec<i64> {
    store.memory_snapshots(NODE, i64::MIN, i64::MAX).unwrap().iter().map(|head| head.time_ns).collect()
}

#[test]
fn a_snapshot_is_found_by_its_time_and_outlives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), options());
    assert!(store.memory_at(NODE, i64::MAX).unwrap().is_none() && times(&store).is_empty());
    for time in [100, 200, 300] {
        let written = store.put_memory(NODE, head(time), &states(3, time as u64)).unwrap();
        assert_eq!(written.parts, 3);
        assert!(written.bytes > 300, "{written:?}");
    }
    // Of another node, which is not known to the store otherwise.
    store.put_memory("other", head(250), &states(1, 9)).unwrap();
    put(&store, &traffic(1, 0, 3));
    drop(store);

    let store = open(dir.path(), options());
    assert_eq!(times(&store), [100, 200, 300]);
    let found = |time: i64| store.memory_at(NODE, time).unwrap().map(|(head, states)| (head.time_ns, states));
    assert_eq!(found(99), None);
    for (time, expected) in [(100, 100), (199, 100), (200, 200), (i64::MAX, 300)] {
        assert_eq!(found(time), Some((expected, states(3, expected as u64))), "{time}");
    }
    let listed = |from, to| store.memory_snapshots(NODE, from, to).unwrap().len();
    assert_eq!((listed(100, 300), listed(101, 301), listed(301, 100), listed(i64::MIN, 100)), (2, 2, 0, 0));
    assert_eq!(store.memory_at("other", i64::MAX).unwrap().unwrap().0.time_ns, 250);
    // One of the same moment takes the place of the older one, parts included.
    store.put_memory(NODE, head(200), &states(1, 5)).unwrap();
    assert_eq!(found(200), Some((200, states(1, 5))));
    assert_eq!(times(&store), [100, 200, 300]);
    assert_sound(&store);
}

#[test]
fn age_and_size_evict_the_oldest_and_keep_the_newest() {
    each_engine(|open| {
        let store = open(options());
        let each = store.put_memory(NODE, head(100), &states(2, 1)).unwrap().bytes;
        for time in [200, 300, 400] {
            store.put_memory(NODE, head(time), &states(2, 1)).unwrap();
        }
        let evict = |age: Option<u64>, bytes: Option<u64>, now: i64| {
            let limits = SnapshotLimits { age: age.map(Duration::from_nanos), bytes };
            store.evict_memory(NODE, &limits, now).unwrap()
        };
        assert_eq!(evict(None, None, i64::MAX), 0);
        assert_eq!(evict(Some(300), None, 400), 0);
        assert_eq!(evict(Some(300), None, 401), 1);
        assert_eq!(times(&store), [200, 300, 400]);
        assert_eq!(evict(None, Some(2 * each), 401), 1);
        assert_eq!(evict(None, Some(1), 401), 1);
        assert_eq!(times(&store), [400], "however large it is");
        assert!(store.memory_at(NODE, 399).unwrap().is_none());
        assert_sound(&store);
        assert_eq!(evict(Some(1), None, 1000), 1);
        assert!(times(&store).is_empty());
        assert_eq!(store.evict_memory("unknown", &SnapshotLimits::default(), 1).unwrap(), 0);
        assert_sound(&store);
    });
}

#[test]
fn records_and_snapshots_do_not_touch_each_other() {
    each_engine(|open| {
        let store = open(small_segments(10));
        store.put_memory(NODE, head(50), &states(2, 1)).unwrap();
        put(&store, &traffic(1, 0, 100));
        // What is staged is not lost by a snapshot in between, nor acknowledged before it is durable.
        stage(&store, &traffic(1, 100, 5));
        store.put_memory(NODE, head(60), &states(2, 1)).unwrap();
        assert_eq!(store.visible(NODE).1, 105);
        store.set_retention(NODE, Retention { rows: Some(20), ..Retention::default() }).unwrap();
        assert!(store.evict(1_000).unwrap().segments > 0);
        assert_eq!(times(&store), [50, 60]);
        assert_sound(&store);
    });
}

#[test]
fn a_full_disk_takes_no_snapshot_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), StoreOptions { min_free_bytes: u64::MAX / 4, ..options() });
    let refused = store.put_memory(NODE, head(100), &states(2, 1));
    assert!(matches!(refused, Err(Error::DiskFull { .. })), "{refused:?}");
    assert!(times(&store).is_empty());
}

#[test]
fn a_part_without_a_head_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), options());
    store.put_memory(NODE, head(100), &states(2, 1)).unwrap();
    drop(store);
    let engine = crate::store::open_engine(dir.path(), &options()).unwrap();
    let mut batch = Batch::default();
    batch.delete(&keys::table(1, 1, 96));
    crate::engine::Engine::write(&engine, &batch).unwrap();
    drop(engine);
    let report = open(dir.path(), options()).verify().unwrap();
    assert_eq!(report.problems, ["9732: 2 parts of memory snapshots are without a head"]);
}
