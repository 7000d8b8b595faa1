//! A disk that fills up. Needs root: it mounts a small file system of its own.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use super::support::*;
use crate::{Error, MessageQuery, Retention, StoreOptions};

/// Time limit of evicting and writing; long because it writes hundreds of megabytes beside other tests.
const TIMEOUT: Duration = Duration::from_secs(600);

/// A file system in memory, gone when dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new(megabytes: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let size = format!("size={megabytes}m");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(dir.path()).status().unwrap();
        assert!(mounted.success(), "mounting a tmpfs needs root");
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

fn bulky(counter: u64) -> [chainscope_proto::v1::Record; 2] {
    let mut record = chunk(1, false, counter);
    if let Some(chainscope_proto::v1::record::Kind::Chunk(chunk)) = &mut record.kind {
        use rand::{RngCore as _, SeedableRng as _};
        let mut wire = vec![0; 20_000];
        rand::rngs::SmallRng::seed_from_u64(counter).fill_bytes(&mut wire);
        chunk.wire = wire.into();
    }
    [record, message(1, false, counter, counter)]
}

fn small() -> StoreOptions {
    StoreOptions {
        write_buffer_bytes: 3 << 20,
        stage_bytes: 512 << 10,
        ballast_bytes: 8 << 20,
        min_free_bytes: 32 << 20,
        ..small_segments(50)
    }
}

/// The periodic eviction of the aggregator.
fn evict_once(store: &crate::Store) {
    let result = store.evict(0);
    match result {
        Ok(_) if !store.disk().unwrap().full => {}
        // Within the limits: the least that helps is to drop a segment more.
        Ok(_) | Err(Error::DiskFull { .. }) => drop(store.evict_for_space().unwrap()),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_full_disk_refuses_writes_answers_reads_and_recovers_by_eviction() {
    let disk = SmallDisk::new(96);
    let db = disk.path().join("db");
    let store = open(&db, small());
    assert_eq!(store.disk().unwrap().ballast_bytes, 8 << 20);
    let mut counter = 0;
    let error = loop {
        assert!(counter < 10_000, "96 MB took 200 MB");
        let mark = store.high_water_mark(NODE, AGENT, EPOCH);
        let result = store.append(NODE, AGENT, EPOCH, mark, &bulky(counter)).and_then(|_| store.sync());
        match result {
            Ok(()) => counter += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::DiskFull { .. }), "{error}");
    assert!(store.disk().unwrap().full);
    let (_, visible) = store.visible(NODE);
    assert_eq!(visible, counter);
    assert_eq!(store.messages(NODE, &MessageQuery::default()).unwrap().len(), 100);
    assert!(store.message_chunks(NODE, 0).unwrap().is_some_and(|chunks| chunks.len() == 1));

    // A limit that a quarter fits in: eviction runs on the space of the ballast.
    store.set_retention(NODE, Retention { rows: Some(counter / 4), ..Retention::default() }).unwrap();
    let evicted = store.evict(0).unwrap();
    assert!(evicted.rows > counter / 2, "{evicted:?}");
    assert_sound(&store);
    let started = Instant::now();
    while store.disk().unwrap().full {
        assert!(started.elapsed() < TIMEOUT, "the disk stays full");
        evict_once(&store);
    }

    // It goes on, as often as need be. What was refused is taken again from the mark on.
    let mark = |store: &crate::Store| store.high_water_mark(NODE, AGENT, EPOCH) / 2;
    while mark(&store) < 4 * counter {
        assert!(started.elapsed() < TIMEOUT, "eviction does not help");
        let next = mark(&store);
        let result = store.append(NODE, AGENT, EPOCH, 2 * next, &bulky(next)).and_then(|_| store.sync());
        assert!(matches!(result, Ok(()) | Err(Error::DiskFull { .. })), "{result:?}");
        if next % 20 == 0 || store.disk().unwrap().full {
            evict_once(&store);
        }
    }
    while let Err(error) = store.sync() {
        assert!(matches!(error, Error::DiskFull { .. }), "{error}");
        evict_once(&store);
    }
    assert_eq!(store.visible(NODE).1, mark(&store));
    while store.disk().unwrap().ballast_bytes == 0 {
        assert!(started.elapsed() < TIMEOUT, "the ballast is not restored");
        evict_once(&store);
    }
    assert_sound(&store);
    drop(store);
    assert_sound(&open(&db, small()));
}

#[test]
fn a_disk_filled_by_others_is_distinguished_from_one_filled_by_the_store() {
    let disk = SmallDisk::new(96);
    let store = open(&disk.path().join("db"), small());
    assert!(store.can_evict_for_space().unwrap(), "nothing is missing");
    for counter in 0..400 {
        put(&store, &bulky(counter));
    }
    let mut foreign = std::fs::File::create(disk.path().join("foreign")).unwrap();
    let zeros = vec![0; 64 << 10];
    while std::io::Write::write_all(&mut foreign, &zeros).is_ok() {}
    assert!(!store.can_evict_for_space().unwrap(), "8 MB for 24 that are missing");
    foreign.set_len(foreign.metadata().unwrap().len() - (20 << 20)).unwrap();
    assert!(store.can_evict_for_space().unwrap(), "8 MB for 4 that are missing");
}

#[test]
fn eviction_for_space_ignores_the_limits() {
    each_engine(|open| {
        let store = open(small_segments(10));
        assert_eq!(store.evict_for_space().unwrap().segments, 0);
        put(&store, &[opened(1)]);
        put(&store, &traffic(1, 0, 25));
        for (first, rows) in [(10, 10), (20, 10), (25, 5)] {
            let evicted = store.evict_for_space().unwrap();
            assert_eq!((evicted.segments, evicted.rows), (1, rows));
            assert_eq!(store.visible(NODE), (first, 25));
        }
        assert_eq!(store.evict_for_space().unwrap().segments, 0);
        assert!(store.connection(NODE, 1).unwrap().is_some());
        assert_sound(&store);
    });
}
