//! A writer that is faster than compaction.

use std::{path::Path, sync::Arc, thread};

use chainscope_proto::v1::record::Kind;
use rand::{RngCore as _, SeedableRng as _, rngs::SmallRng};

use super::support::*;
use crate::{
    MessageQuery, Store, StoreOptions,
    engine::{Engine, LocalDisk as _, rocks::Rocks},
    schema::KINDS,
    store::MAX_LEVEL0_FILES,
};

/// Stores a message whose chunk fills a write buffer, and so becomes a file.
fn put_file(store: &Store, counter: u64) {
    let mut record = chunk(1, false, counter);
    if let Some(Kind::Chunk(chunk)) = &mut record.kind {
        let mut wire = vec![0; 64 << 10];
        SmallRng::seed_from_u64(counter).fill_bytes(&mut wire);
        chunk.wire = wire.into();
    }
    put(store, &[record, message(1, false, counter, counter)]);
}

/// Waits as the aggregator does before a write, with compaction only meanwhile; whether it waited.
fn compact_while_waiting(rocks: &Rocks, store: &Store, mut check: impl FnMut()) -> bool {
    let mut is_waiting = false;
    let pause = |interval| {
        if !std::mem::replace(&mut is_waiting, true) {
            rocks.set_auto_compaction(true);
        }
        check();
        thread::park_timeout(interval);
        false
    };
    store.wait_for_compaction(pause).unwrap();
    if is_waiting {
        rocks.set_auto_compaction(false);
    }
    is_waiting
}

/// A store with small write buffers whose engine compacts nothing by itself.
fn open_without_compaction(dir: &Path) -> (Arc<Rocks>, Store) {
    let options = StoreOptions { write_buffer_bytes: 192 << 10, ..options() };
    let rocks = Arc::new(Rocks::open(dir, &options).unwrap());
    rocks.set_auto_compaction(false);
    let store = Store::with_engine(Arc::clone(&rocks) as Arc<dyn Engine>, options, KINDS).unwrap();
    (rocks, store)
}

#[test]
fn a_writer_that_outruns_compaction_waits_and_readers_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let (rocks, store) = open_without_compaction(dir.path());
    let (mut greatest, mut waits) = (0, 0);
    for counter in 0..100 {
        let newest = || store.messages(NODE, &MessageQuery::default()).unwrap()[0].0;
        let has_waited = compact_while_waiting(&rocks, &store, || assert_eq!(newest(), counter - 1));
        waits += u64::from(has_waited);
        put_file(&store, counter);
        greatest = greatest.max(store.disk().unwrap().level0_files);
    }
    // What is in the write buffers is flushed beyond it.
    assert!(greatest <= MAX_LEVEL0_FILES + 3, "{greatest} files");
    assert!(waits > 1);
    assert_sound(&store);
}

#[test]
fn a_compaction_does_not_become_larger_the_longer_the_writer_outruns_it() {
    let dir = tempfile::tempdir().unwrap();
    let (rocks, store) = open_without_compaction(dir.path());
    let mut greatest = 0;
    for counter in 0..800 {
        compact_while_waiting(&rocks, &store, || ());
        put_file(&store, counter);
        greatest = greatest.max(rocks.base_level_files());
    }
    // It takes those of level 0 before it is compacted in turn.
    assert!(greatest <= 2 * MAX_LEVEL0_FILES, "{greatest} files");
    assert_sound(&store);
}

#[test]
fn a_writer_does_not_wait_without_end_for_a_compaction_that_does_not_run() {
    let dir = tempfile::tempdir().unwrap();
    let (rocks, store) = open_without_compaction(dir.path());
    for counter in 0..100 {
        put_file(&store, counter);
    }
    assert!(rocks.level0_files() > MAX_LEVEL0_FILES);
    let mut pauses = 0;
    store
        .wait_for_compaction(|_| {
            pauses += 1;
            assert!(pauses < 1000, "it waits without end");
            false
        })
        .unwrap();
    assert!(pauses > 1);
    let mut pauses = 0;
    store
        .wait_for_compaction(|_| {
            pauses += 1;
            true
        })
        .unwrap();
    assert_eq!(pauses, 1, "it stops when it is asked to");
}
