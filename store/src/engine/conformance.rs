//! The rules of an engine, checked on every engine against a `BTreeMap`.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{Batch, Cursor, Engine, Entry, Snapshot, memory::MemoryEngine};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Calls `test` with an empty engine of each kind.
fn with_each(mut test: impl FnMut(&dyn Engine)) {
    test(&MemoryEngine::new(1 << 30));
    #[cfg(feature = "rocksdb")]
    {
        let dir = tempfile::tempdir().unwrap();
        let options = crate::StoreOptions {
            block_cache_bytes: 1 << 20,
            write_buffer_bytes: 64 << 10,
            ..crate::StoreOptions::default()
        };
        test(&super::rocks::Rocks::open(dir.path(), &options).unwrap());
    }
}

fn collect(cursor: &mut dyn Cursor) -> Vec<Entry> {
    let mut entries = Vec::new();
    while let Some((key, value)) = cursor.entry() {
        entries.push((key.to_vec(), value.to_vec()));
        cursor.next().unwrap();
    }
    entries
}

fn range_of(model: &Model, from: &[u8], to: &[u8]) -> Vec<Entry> {
    let within = model.iter().filter(|(key, _)| from <= key.as_slice() && key.as_slice() < to);
    within.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Every read of a snapshot gives what the model has.
fn compare(snapshot: &dyn Snapshot, model: &Model, probes: &[Vec<u8>]) {
    for from in probes {
        assert_eq!(snapshot.get(from).unwrap().as_ref(), model.get(from));
        for to in probes {
            let expected = range_of(model, from, to);
            let mut cursor = snapshot.cursor(from..to);
            assert!(cursor.entry().is_none(), "a new cursor has no position");
            cursor.first().unwrap();
            assert_eq!(collect(&mut *cursor), expected);
            assert_eq!(snapshot.last(from..to).unwrap(), expected.last().cloned());
            for probe in probes {
                cursor.seek(probe).unwrap();
                assert_eq!(collect(&mut *cursor), range_of(model, from.max(probe), to), "seek within a range");
            }
        }
    }
    let mut keys = probes.to_vec();
    keys.sort();
    let expected: Vec<_> = keys.iter().map(|key| model.get(key).cloned()).collect();
    assert_eq!(snapshot.get_many(&keys).unwrap(), expected);
    assert_eq!(snapshot.get_many(&[]).unwrap(), Vec::<Option<Vec<u8>>>::new());
}

#[derive(Clone, Debug)]
enum Step {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
}

/// Short keys of few letters, so that they meet.
fn key() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop::sample::select(vec![0u8, 1, 127, 255]), 0..4)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (key(), proptest::collection::vec(any::<u8>(), 0..40)).prop_map(|(key, value)| Step::Put(key, value)),
        1 => key().prop_map(Step::Delete),
        1 => (key(), key()).prop_map(|(a, b)| Step::DeleteRange(a.clone().min(b.clone()), a.max(b))),
    ]
}

fn apply(model: &mut Model, batch: &mut Batch, step: &Step) {
    match step {
        Step::Put(key, value) => {
            batch.put(key, value);
            model.insert(key.clone(), value.clone());
        }
        Step::Delete(key) => {
            batch.delete(key);
            model.remove(key);
        }
        Step::DeleteRange(from, to) => {
            batch.delete_range(from..to);
            model.retain(|key, _| key < from || to <= key);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn an_engine_is_an_ordered_map_with_atomic_batches_and_snapshots(
        batches in proptest::collection::vec(proptest::collection::vec(step(), 1..30), 1..5),
        probes in proptest::collection::vec(key(), 1..6),
    ) {
        with_each(|engine| {
            let mut model = Model::new();
            let mut earlier = Vec::new();
            for steps in &batches {
                earlier.push((engine.snapshot(), model.clone()));
                let mut batch = Batch::default();
                steps.iter().for_each(|step| apply(&mut model, &mut batch, step));
                engine.write(&batch).unwrap();
                compare(&*engine.snapshot(), &model, &probes);
            }
            for (snapshot, model) in &earlier {
                compare(&**snapshot, model, &probes);
            }
        });
    }
}

#[test]
fn a_batch_can_be_written_again() {
    with_each(|engine| {
        let mut batch = Batch::default();
        batch.put(b"a", b"1");
        batch.delete_range(b"b"..b"c");
        batch.put(b"b", b"2");
        for _ in 0..2 {
            engine.write(&batch).unwrap();
            assert_eq!(engine.snapshot().get(b"b").unwrap().as_deref(), Some(b"2".as_slice()));
        }
        batch.clear(0);
        assert!(batch.is_empty());
        assert_eq!(batch.len(), 0);
        engine.write(&batch).unwrap();
    });
}

#[test]
fn a_snapshot_is_read_while_another_thread_writes() {
    with_each(|engine| {
        let write = |value: u32| {
            let mut batch = Batch::default();
            for key in 0..50u32 {
                batch.put(&key.to_be_bytes(), &value.to_be_bytes());
            }
            engine.write(&batch).unwrap();
        };
        write(0);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (1..=100).for_each(write));
            loop {
                let is_last = writer.is_finished();
                let snapshot = engine.snapshot();
                let mut cursor = snapshot.cursor(&[0]..&[1]);
                cursor.first().unwrap();
                let entries = collect(&mut *cursor);
                assert_eq!(entries.len(), 50);
                assert!(entries.iter().all(|(_, value)| *value == entries[0].1), "part of a batch is visible");
                if is_last {
                    break;
                }
            }
        });
    });
}

#[test]
fn free_bytes_and_memory_follow_the_contents() {
    let engine = MemoryEngine::new(10_000);
    let write = |fill: &dyn Fn(&mut Batch)| {
        let mut batch = Batch::default();
        fill(&mut batch);
        engine.write(&batch).unwrap();
        engine.memory().write_buffer_bytes
    };
    assert_eq!(engine.free_bytes().unwrap(), 10_000);
    let one = write(&|batch| batch.put(b"key", &[0; 1000]));
    assert!(one > 1000 && engine.free_bytes().unwrap() == 10_000 - one);
    assert_eq!(write(&|batch| batch.put(b"key", &[1; 1000])), one, "the old value is gone");
    let two = write(&|batch| batch.put(b"kez", &[0; 1000]));
    assert_eq!(two, 2 * one);
    assert_eq!(write(&|batch| batch.delete_range(b"a"..b"z")), 0);
    assert!(engine.disk().is_none());
}
