//! A full disk, filled by the aggregator or by another program. Needs root: it mounts a small file system.

use std::{
    fs::{self, File},
    io::Write as _,
    ops::ControlFlow,
    path::Path,
    process::Command,
    sync::mpsc,
    thread,
};

use chainscope_proto::v1::Record;
use chainscope_store::{MessageQuery, Store, StoreOptions};
use chainscope_testing::wait::until_true;
use rand::{RngCore as _, SeedableRng as _, rngs::SmallRng};

use crate::common::{Server, message, with_chunks};

const MB: u64 = 1 << 20;

/// Bytes that the store leaves free, and the bytes of its ballast.
const MIN_FREE: u64 = 32 * MB;
const RESERVE: u64 = 8 * MB;
/// Polls after which the engine is idle, of 20 ms: all without free space that changes; one without a compaction counts as 20.
const IDLE_POLLS: u32 = 100;

/// A file system in memory, unmounted when dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=96m", "tmpfs"]).arg(dir.path()).status();
        assert!(mounted.unwrap().success(), "mounting a tmpfs needs root");
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn serve(&self, segment_rows: u64) -> Server {
        let options = StoreOptions {
            write_buffer_bytes: 3 << 20,
            stage_bytes: 512 << 10,
            ballast_bytes: RESERVE,
            min_free_bytes: MIN_FREE,
            segment_rows,
            ..StoreOptions::default()
        };
        let store = Store::open(self.path().join("db"), options).unwrap();
        Server::on(tempfile::tempdir().unwrap(), store, |_| {})
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()) || thread::panicking());
    }
}

/// Messages of 20 kB that cannot be compressed, 40 kB with their chunks; two records each.
fn bulky(first: u64, count: u64) -> Vec<Record> {
    let of = |counter| {
        let mut plain = vec![0; 20_000];
        SmallRng::seed_from_u64(counter).fill_bytes(&mut plain);
        with_chunks(message("operation"), &plain, counter, 32_000)
    };
    (first..first + count).flat_map(of).collect()
}

/// Stores `count` messages of node "n", from the first on.
fn feed(server: &Server, count: u64) {
    let mut agent = server.agent(&["n"]);
    for first in (0..count).step_by(20) {
        agent.batch("n", 2 * first, bulky(first, 20));
        agent.wait_for("n", 2 * (first + 20));
    }
}

/// Writes a file of another program, so large that only `left` bytes stay free, also after compactions that are running,
/// which take space and free it.
fn fill(server: &Server, disk: &SmallDisk, left: u64) {
    let mut file = File::create(disk.path().join("foreign")).unwrap();
    let zeros = vec![0; 64 << 10];
    let (mut idle, mut last) = (0, 0);
    until_true("the disk to be filled and the engine to be idle", || {
        while server.store.disk().unwrap().free_bytes > left && file.write_all(&zeros).is_ok() {
            idle = 0;
        }
        // A compaction that fails for want of space is tried again and again: it takes none.
        let disk = server.store.disk().unwrap();
        idle = match (disk.compacting, disk.free_bytes == last) {
            (false, _) => idle + IDLE_POLLS / 5,
            (true, true) => idle + 1,
            (true, false) => 0,
        };
        last = disk.free_bytes;
        idle >= IDLE_POLLS
    });
}

/// Delivers messages `next` to `next` + 20 while the disk is full: they are stored once the other program's file is removed.
fn deliver_when_it_is_gone(server: &Server, disk: &SmallDisk, next: u64) {
    let mut agent = server.agent(&["n"]);
    agent.batch("n", 2 * next, bulky(next, 20));
    until_true("it is said that nothing helps", || server.get("/readyz").body.contains("does not help"));
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("chainscope_store_disk_full 1"), "{metrics}");
    // The first eviction may have written a part.
    assert!(server.store.visible("n").1 < next + 20, "it is not written");
    fs::remove_file(disk.path().join("foreign")).unwrap();
    agent.wait_for("n", 2 * (next + 20));
    assert_eq!(server.get("/readyz").body, "ok\n");
    assert_eq!(server.store.visible("n").1, next + 20);
    assert!(server.store.verify().unwrap().is_sound());
}

#[test]
fn on_a_disk_filled_by_the_store_the_oldest_records_are_evicted() {
    let disk = SmallDisk::new();
    let server = disk.serve(100);
    let mut agent = server.agent(&["n"]);
    let (mut next, mut end) = (0, 5_000);
    while next < end {
        agent.batch("n", 2 * next, bulky(next, 20));
        next += 20;
        agent.wait_for("n", 2 * next);
        if server.store.visible("n").0 > 0 {
            end = end.min(next + 400);
        }
    }
    let (first, visible) = server.store.visible("n");
    assert_eq!(visible, next);
    assert!(next < 5_000 && first < next / 2, "of {next} the first {first} are gone");
    assert!(server.store.verify().unwrap().is_sound());
}

#[test]
fn on_a_disk_filled_by_another_program_records_are_kept_if_evicting_does_not_help() {
    let disk = SmallDisk::new();
    let server = disk.serve(10);
    feed(&server, 400);
    // Evicting everything would not free enough space.
    fill(&server, &disk, 0);
    deliver_when_it_is_gone(&server, &disk, 400);
    assert_eq!(server.store.visible("n").0, 0, "everything is there");
}

#[test]
fn eviction_stops_when_it_frees_no_space() {
    let disk = SmallDisk::new();
    let server = disk.serve(10);
    feed(&server, 600);
    // Few bytes are missing, so that evicting seems to help also while a compaction takes space.
    fill(&server, &disk, MIN_FREE - RESERVE - 4 * MB);
    // While a reader is open, no file is deleted.
    let (reading, has_begun) = mpsc::sync_channel(1);
    let (release, released) = mpsc::sync_channel::<()>(1);
    let store = server.store.clone();
    let reader = thread::spawn(move || {
        store.each_message("n", &MessageQuery::default(), &mut |_, _| {
            let _ = reading.send(());
            let _ = released.recv();
            ControlFlow::Break(())
        })
    });
    has_begun.recv().unwrap();
    deliver_when_it_is_gone(&server, &disk, 600);
    let (first, _) = server.store.visible("n");
    assert!((10..=30).contains(&first), "three segments at most: {first}");
    drop(release);
    reader.join().unwrap().unwrap();
}
