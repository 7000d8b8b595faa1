//! Appends and writes while another thread syncs what was written before.

use std::{
    sync::{Arc, Barrier},
    thread,
};

use super::support::*;
use crate::{
    Error, Memory, Store,
    engine::{Batch, Engine, Snapshot, memory::MemoryEngine},
    schema::KINDS,
};

/// An engine whose sync begins and ends when the test says so.
struct SlowSync {
    engine: MemoryEngine,
    step: Barrier,
}

impl Engine for SlowSync {
    fn snapshot(&self) -> Box<dyn Snapshot + '_> {
        self.engine.snapshot()
    }

    fn write(&self, batch: &Batch) -> Result<(), Error> {
        self.engine.write(batch)
    }

    fn sync(&self) -> Result<(), Error> {
        self.step.wait();
        self.step.wait();
        Ok(())
    }

    fn free_bytes(&self) -> Result<u64, Error> {
        self.engine.free_bytes()
    }

    fn memory(&self) -> Memory {
        self.engine.memory()
    }
}

/// A store with two messages whose sync has begun, and the thread that waits for it.
fn with_slow_sync(test: impl FnOnce(&Store, &Barrier, thread::JoinHandle<()>)) {
    let engine = Arc::new(SlowSync { engine: MemoryEngine::new(u64::MAX), step: Barrier::new(2) });
    let store = Store::with_engine(Arc::clone(&engine) as Arc<dyn Engine>, options(), KINDS).unwrap();
    stage(&store, &traffic(1, 0, 2));
    store.write_appended().unwrap();
    let syncing = store.clone();
    let thread = thread::spawn(move || syncing.sync_written().unwrap());
    engine.step.wait();
    test(&store, &engine.step, thread);
}

fn seen(store: &Store) -> ((u64, u64), u64) {
    (store.visible(NODE), store.durable_high_water_mark(NODE, AGENT, EPOCH))
}

#[test]
fn a_sync_publishes_what_was_written_before_it_began() {
    with_slow_sync(|store, step, thread| {
        stage(store, &traffic(1, 2, 3));
        store.write_appended().unwrap();
        assert_eq!(seen(store), ((0, 0), 0));
        step.wait();
        thread.join().unwrap();
        assert_eq!(seen(store), ((0, 2), 4));

        thread::scope(|scope| {
            scope.spawn(|| store.sync_written().unwrap());
            step.wait();
            step.wait();
        });
        assert_eq!(seen(store), ((0, 5), 10));
        assert_sound(store);
        // Nothing is left to sync: this does not wait.
        store.sync_written().unwrap();
    });
}

#[test]
fn a_commit_beside_a_sync_publishes_everything_and_the_sync_nothing_older() {
    with_slow_sync(|store, step, thread| {
        put(store, &traffic(1, 2, 3));
        assert_eq!(seen(store), ((0, 5), 10));
        step.wait();
        thread.join().unwrap();
        assert_eq!(seen(store), ((0, 5), 10));
        assert_sound(store);
    });
}
