//! Pages keep their function while the kernel compacts memory. In a program of its own: compaction is of the whole machine, and
//! the stack of a target of another test would be unreadable while its page is migrated.

mod memory_common;

use std::{
    fs,
    sync::{Mutex, PoisonError},
};

use chainscope_ebpf::memory::{Kind, MappingKind};
use chainscope_testing::wait;

use memory_common::{Snapshot, TestProcess, assert_exact, assert_gone, assert_near, in_mapping, probe};

/// One test at a time: the target of each is idle when memory is compacted.
static ALONE: Mutex<()> = Mutex::new(());

/// Areas that the target of `compacted_pages_keep_their_stack` has at most.
const AREAS: u64 = 4;

fn compact() {
    fs::write("/proc/sys/vm/compact_memory", "1").expect("root");
}

/// Covers pages that are freed, part of a huge page, migrated, collapsed, or shared after a fork.
#[test]
fn resident_before_attach_is_tracked_per_page() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut probe = probe();
    let mut workload = TestProcess::memory_workload();
    workload.call("heap 100 200000");
    workload.call("one 0 10000");
    workload.call("huge 1 4096");
    workload.call("drop 1 100 256");
    workload.call("one 3 5000");
    let target = probe.watch(workload.pid()).expect("the process is running");
    let snapshot = assert_exact(&mut probe, target, &workload);
    let (heap, anon) =
        (in_mapping(&snapshot, target, &MappingKind::Heap), in_mapping(&snapshot, target, &MappingKind::Anonymous));
    assert!((5468..=5600).contains(&heap), "{heap}");
    assert!((18_840..=19_200).contains(&anon), "{anon}");

    // Another function allocates in between, so that the kernel's sum alone is not sufficient.
    workload.call("two 2 3000");
    workload.call("drop 0 0 3000");
    let snapshot = assert_exact(&mut probe, target, &workload);
    assert_eq!(in_mapping(&snapshot, target, &MappingKind::Anonymous), anon - 3000);
    assert_near(snapshot.pages_in_function(target, Kind::Anonymous, workload.path(), "hold_two"), 3000);
    workload.call("drop 1 1024 300");
    let snapshot = assert_exact(&mut probe, target, &workload);
    assert_eq!(in_mapping(&snapshot, target, &MappingKind::Anonymous), anon - 3300);
    assert_eq!(workload.call("collapse 3"), 0);
    compact();
    let snapshot = assert_exact(&mut probe, target, &workload);
    assert_eq!(in_mapping(&snapshot, target, &MappingKind::Anonymous), anon - 3300);
    workload.call("unmap 1");
    workload.call("unmap 0");
    workload.call("unmap 3");
    let snapshot = assert_exact(&mut probe, target, &workload);
    assert!(in_mapping(&snapshot, target, &MappingKind::Anonymous) < 200);
    assert_eq!(in_mapping(&snapshot, target, &MappingKind::Heap), heap);
    workload.finish();
    assert_gone(&mut probe, target);
}

#[test]
fn compacted_pages_keep_their_stack() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut probe = probe();
    let mut workload = TestProcess::memory_workload();
    let target = probe.watch(workload.pid()).expect("the process is running");
    // Compaction needs free pages as migration targets; after a build the page cache holds nearly all memory.
    fs::write("/proc/sys/vm/drop_caches", "1").expect("root");
    let mut attempts = 0;
    wait::until_true("pages to move", || {
        // Single pages scattered over physical memory give compaction work to do. Pages of other processes may fill the free ones at the
        // end of the zone first, and what lies there is not moved again: so each attempt has pages of its own.
        let area = attempts % AREAS;
        if attempts >= AREAS {
            workload.call(&format!("unmap {area}"));
        }
        workload.call(&format!("one {area} 100000"));
        workload.call(&format!("thin {area}"));
        attempts += 1;
        compact();
        Snapshot::take(&mut probe).reading.health.moved > 1000
    });
    let snapshot = assert_exact(&mut probe, target, &workload);
    assert_near(
        snapshot.pages_in_function(target, Kind::Anonymous, workload.path(), "hold_one"),
        attempts.min(AREAS) * 50_000,
    );
    workload.finish();
    assert_gone(&mut probe, target);
}
