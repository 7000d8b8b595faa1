//! Every page is counted exactly once, under the function that allocated it. The totals are compared with the kernel's
//! counters while the workload is idle.

mod memory_common;

use std::path::PathBuf;

use chainscope_ebpf::memory::{Frame, Kind, MappingKind, StackEnd};
use chainscope_testing::wait;

use memory_common::{
    Snapshot, TestProcess, assert_exact, assert_gone, assert_near, compile, hold_huge_pages, in_mapping, probe, rollup,
    wait_until_counted, wait_until_freed,
};

#[test]
fn pages_are_attributed_to_allocating_functions() {
    let mut probe = probe();
    let mut workload = TestProcess::memory_workload();
    let target = probe.watch(workload.pid()).expect("the process is running");
    workload.call("one 0 1000");
    workload.call("two 1 300");
    workload.call("heap 100 200000");
    let snapshot = assert_exact(&mut probe, target, &workload);
    let anon = |snapshot: &Snapshot, function: &str| {
        snapshot.pages_in_function(target, Kind::Anonymous, workload.path(), function)
    };
    assert_near(anon(&snapshot, "hold_one"), 1000);
    assert_near(anon(&snapshot, "hold_two"), 300);
    // 112 bytes each, including malloc's header.
    assert!((5468..=5470).contains(&anon(&snapshot, "hold_heap")), "{}", anon(&snapshot, "hold_heap"));
    workload.call("drop 0 100 500");
    workload.call("unmap 1");
    let snapshot = assert_exact(&mut probe, target, &workload);
    let anon = |snapshot: &Snapshot, function: &str| {
        snapshot.pages_in_function(target, Kind::Anonymous, workload.path(), function)
    };
    assert_near(anon(&snapshot, "hold_one"), 500);
    assert_near(anon(&snapshot, "hold_two"), 0);
    workload.finish();
    assert_gone(&mut probe, target);
}

#[test]
fn resident_before_attach_shrinks_on_free() {
    let mut probe = probe();
    let mut workload = TestProcess::memory_workload();
    workload.call("one 0 2000");
    workload.call("huge 1 1024");
    let target = probe.watch(workload.pid()).expect("the process is running");
    let before = assert_exact(&mut probe, target, &workload).target(target).before_attach.anon;
    assert!(before > 3000, "{before}");
    workload.call("two 2 500");
    let snapshot = assert_exact(&mut probe, target, &workload);
    assert_eq!(snapshot.target(target).before_attach.anon, before);
    assert_near(snapshot.pages_in_function(target, Kind::Anonymous, workload.path(), "hold_two"), 500);
    let at_attach: u64 = snapshot.target(target).at_attach.iter().map(|share| share.anon).sum();
    assert_eq!(at_attach, before);
    assert_eq!(in_mapping(&snapshot, target, &MappingKind::Anonymous), {
        let shares = &snapshot.target(target).at_attach;
        shares.iter().find(|share| share.mapping == MappingKind::Anonymous).map_or(0, |share| share.anon)
    });
    workload.call("drop 0 0 1500");
    let snapshot = assert_exact(&mut probe, target, &workload);
    assert_eq!(snapshot.target(target).before_attach.anon, before - 1500);
    workload.call("unmap 1");
    let snapshot = assert_exact(&mut probe, target, &workload);
    assert_eq!(snapshot.target(target).before_attach.anon, before - 1500 - 1024);
    workload.finish();
    assert_gone(&mut probe, target);
}

/// Pages that two processes share at the attach have no single owner, so only the kernel's sum is used.
#[test]
fn pages_shared_before_attach_are_tracked_as_a_sum() {
    let mut probe = probe();
    let mut workload = TestProcess::memory_workload();
    workload.call("one 0 5000");
    let child = u32::try_from(workload.call("fork 0 1000")).expect("a process");
    let target = probe.watch(workload.pid()).expect("the process is running");
    let copy = probe.watch(child).expect("the process is running");
    let snapshot = Snapshot::take(&mut probe);
    assert!(snapshot.target(target).before_exact.is_some());
    let reading = snapshot.target(copy);
    assert_eq!((reading.before_exact.as_ref(), reading.before_attach.anon), (None, rollup(child, "Anonymous")));
    assert_eq!(workload.call("reap"), 0);
    assert_exact(&mut probe, target, &workload);
    workload.finish();
}

#[test]
fn huge_pages_freed_in_whole_and_in_part() {
    let mut probe = probe();
    let mut workload = TestProcess::memory_workload();
    let target = probe.watch(workload.pid()).expect("the process is running");
    hold_huge_pages(&mut workload, 0, 4096);
    let snapshot = assert_exact(&mut probe, target, &workload);
    assert_near(snapshot.pages_in_function(target, Kind::Anonymous, workload.path(), "hold_huge"), 4096);
    // The kernel retains the freed part of a huge page without charging a process for it.
    workload.call("drop 0 100 256");
    let snapshot = assert_exact(&mut probe, target, &workload);
    assert_near(snapshot.pages_in_function(target, Kind::Anonymous, workload.path(), "hold_huge"), 4096 - 256);
    workload.call("drop 0 512 512");
    workload.call("drop 0 1024 300");
    assert_exact(&mut probe, target, &workload);
    workload.call("unmap 0");
    let snapshot = assert_exact(&mut probe, target, &workload);
    assert_near(snapshot.pages_in_function(target, Kind::Anonymous, workload.path(), "hold_huge"), 0);
    workload.finish();
    assert_gone(&mut probe, target);
}

/// Number of runs of the program that inspects large folios, by the id of the program.
fn inspections() -> std::collections::BTreeMap<u32, u64> {
    let programs = aya::programs::loaded_programs().filter_map(Result::ok);
    let inspecting = programs.filter(|program| program.name() == b"inspect_folios");
    inspecting.map(|program| (program.id(), program.run_count())).collect()
}

/// More large folios than one run of the program inspects, as a run is not preempted.
#[test]
fn many_huge_pages_freed_in_part() {
    const HUGE_PAGE: u64 = 512;
    const HUGE_PAGES: u64 = 200;
    let mut probe = probe();
    let mut workload = TestProcess::memory_workload();
    let target = probe.watch(workload.pid()).expect("the process is running");
    hold_huge_pages(&mut workload, 0, HUGE_PAGES * HUGE_PAGE);
    for huge_page in 0..HUGE_PAGES {
        workload.call(&format!("drop 0 {} 100", huge_page * HUGE_PAGE + 50));
    }
    let snapshot = assert_exact(&mut probe, target, &workload);
    let expected = HUGE_PAGES * (HUGE_PAGE - 100);
    assert_near(snapshot.pages_in_function(target, Kind::Anonymous, workload.path(), "hold_huge"), expected);
    let _counting = aya::sys::enable_stats(aya::sys::Stats::RunTime).expect("root");
    let before = inspections();
    Snapshot::take(&mut probe);
    // Of the probes of tests that run at the same time this one has the most folios.
    let runs = inspections().into_iter().filter_map(|(id, runs)| Some(runs - before.get(&id)?)).max();
    assert!(runs >= Some(HUGE_PAGES / 64), "{runs:?} runs for {HUGE_PAGES} folios");
    workload.finish();
    assert_gone(&mut probe, target);
}

#[test]
fn collapsed_pages_keep_their_stack() {
    let mut probe = probe();
    let mut workload = TestProcess::memory_workload();
    let target = probe.watch(workload.pid()).expect("the process is running");
    workload.call("one 0 10000");
    assert_eq!(workload.call("collapse 0"), 0);
    assert!(rollup(workload.pid(), "AnonHugePages") >= 9000, "it collapsed");
    let snapshot = assert_exact(&mut probe, target, &workload);
    assert_near(snapshot.pages_in_function(target, Kind::Anonymous, workload.path(), "hold_one"), 10_000);
    assert!(snapshot.reading.health.moved >= 9000, "{:?}", snapshot.reading.health);
    workload.call("unmap 0");
    assert_exact(&mut probe, target, &workload);
    workload.finish();
}

/// The kernel collapses the parts of a split huge page again; the pages that fill the hole are attributed to no
/// function.
#[test]
fn recollapsed_huge_pages_keep_their_stack() {
    let mut probe = probe();
    let mut workload = TestProcess::memory_workload();
    workload.call("huge 0 4096");
    workload.call("drop 0 100 256");
    let target = probe.watch(workload.pid()).expect("the process is running");
    let anon = in_mapping(&assert_exact(&mut probe, target, &workload), target, &MappingKind::Anonymous);
    workload.call("huge 1 4096");
    workload.call("drop 1 100 256");
    for area in ["collapse 0", "collapse 1"] {
        assert_eq!(workload.call(area), 0);
    }
    assert!(rollup(workload.pid(), "AnonHugePages") >= 8192, "they collapsed");
    let snapshot = assert_exact(&mut probe, target, &workload);
    assert_near(snapshot.pages_in_function(target, Kind::Anonymous, workload.path(), "hold_huge"), 4096 - 256);
    assert_eq!(in_mapping(&snapshot, target, &MappingKind::Anonymous), anon);
    workload.call("unmap 0");
    workload.call("unmap 1");
    let snapshot = assert_exact(&mut probe, target, &workload);
    assert_near(snapshot.pages_in_function(target, Kind::Anonymous, workload.path(), "hold_huge"), 0);
    workload.finish();
    assert_gone(&mut probe, target);
}

#[test]
fn fork_does_not_double_count() {
    let mut probe = probe();
    let mut workload = TestProcess::memory_workload();
    let target = probe.watch(workload.pid()).expect("the process is running");
    workload.call("one 0 5000");
    workload.call("huge 1 2048");
    let child = u32::try_from(workload.call("fork 0 3000")).expect("a process");
    workload.call("touch 0 2000 2500");
    workload.call("touch 1 0 700");
    let snapshot = Snapshot::take(&mut probe);
    let targets = &snapshot.reading.targets;
    assert_eq!(targets.iter().map(|reading| reading.pid).collect::<Vec<_>>(), [workload.pid(), child]);
    assert_eq!((targets[1].parent, targets[1].shares_pages), (Some(target), true));
    let mut last = String::new();
    let is_counted = wait::holds_within_timeout(|| {
        let snapshot = Snapshot::take(&mut probe);
        let sum: u64 = snapshot.reading.targets.iter().map(|reading| snapshot.accounted_anon(reading.target)).sum();
        // The kernel rounds each process's share of shared pages down.
        let control = rollup(workload.pid(), "Pss_Anon") + rollup(child, "Pss_Anon");
        last = format!("{sum} instead of {control}: {:?}", snapshot.reading.targets);
        sum.abs_diff(control) <= 2
    });
    assert!(is_counted, "{last}");
    assert_eq!(workload.call("reap"), 0);
    assert_gone(&mut probe, targets[1].target);
    assert_exact(&mut probe, target, &workload);
    workload.finish();
    assert_gone(&mut probe, target);
}

#[test]
fn exec_in_watched_process() {
    let mut probe = probe();
    let mut workload = TestProcess::memory_workload();
    let target = probe.watch(workload.pid()).expect("the process is running");
    workload.call("one 0 1000");
    workload.send_command("exec");
    wait::until_true("the new program's unwind tables", || {
        memory_common::drain(&mut probe)
            .iter()
            .any(|event| matches!(event, chainscope_ebpf::memory::MemoryEvent::Executed { .. }))
    });
    assert_eq!(workload.call("one 0 700"), 0);
    let snapshot = wait_until_counted(&mut probe, workload.pid(), |snapshot| snapshot.anon(target));
    assert_near(snapshot.pages_in_function(target, Kind::Anonymous, workload.path(), "hold_one"), 700);
    workload.finish();
    assert_gone(&mut probe, target);
}

#[test]
fn page_cache_and_shared_memory() {
    let mut probe = probe();
    let mut workload = TestProcess::memory_workload();
    let target = probe.watch(workload.pid()).expect("the process is running");
    let file: PathBuf = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cold-{}", std::process::id()));
    std::fs::write(&file, vec![7; 1000 * 4096]).expect("a successful write");
    // Other tests compact all memory and drop the page cache, and a migrated page of an unmapped file loses its owner.
    let (held, in_cache) = wait::until("an interval without page migration", || {
        let moved = memory_common::moved_by_kernel();
        memory_common::drop_from_cache(&file);
        assert_eq!(workload.call(&format!("read {}", file.display())), 1000 * 4096);
        let snapshot = assert_exact(&mut probe, target, &workload);
        let held = snapshot.pages_in_function(target, Kind::Cache, workload.path(), "read_file");
        let in_cache = memory_common::in_cache(&file);
        (moved == memory_common::moved_by_kernel() && in_cache >= 1000).then_some((held, in_cache))
    });
    assert_eq!(held, in_cache);
    assert!(in_cache >= 1000, "{in_cache}");
    std::fs::remove_file(&file).expect("it is there");
    workload.call("share 1 400");
    let snapshot = assert_exact(&mut probe, target, &workload);
    assert_eq!(
        snapshot.pages_in_function(target, Kind::Cache, workload.path(), "read_file"),
        0,
        "the pages are freed with the file"
    );
    assert_near(snapshot.pages_in_function(target, Kind::Cache, workload.path(), "share"), 400);
    workload.finish();
    assert_gone(&mut probe, target);
}

/// Page tables are kernel memory that the kernel also counts for each process (`VmPTE`).
#[test]
fn page_tables_are_attributed_to_faulting_function() {
    let mut probe = probe();
    let mut workload = TestProcess::memory_workload();
    let target = probe.watch(workload.pid()).expect("the process is running");
    let before = memory_common::page_tables(workload.pid());
    workload.call("sparse 0 1000");
    let snapshot = assert_exact(&mut probe, target, &workload);
    let tables = memory_common::page_tables(workload.pid()) - before;
    assert!(tables >= 1000, "{tables}");
    let program = workload.path().to_owned();
    let held = |snapshot: &Snapshot, kind: Kind| snapshot.pages_in_function(target, kind, &program, "hold_sparse");
    assert_near(held(&snapshot, Kind::Anonymous), 1000);
    assert_eq!(held(&snapshot, Kind::Kernel), tables);
    workload.call("unmap 0");
    wait_until_freed(&mut probe, "the page tables to be freed", |snapshot| held(snapshot, Kind::Kernel) == 0);
    workload.finish();
    assert_gone(&mut probe, target);
}

#[test]
fn deep_recursion_is_truncated() {
    let mut probe = probe();
    let mut workload = TestProcess::memory_workload();
    let target = probe.watch(workload.pid()).expect("the process is running");
    workload.call("deep 0 200 200");
    let snapshot = assert_exact(&mut probe, target, &workload);
    assert_near(snapshot.pages_in_function(target, Kind::Anonymous, workload.path(), "hold_one"), 200);
    workload.call("deep 1 150 5000");
    let snapshot = wait_until_counted(&mut probe, workload.pid(), |snapshot| snapshot.accounted_anon(target));
    let deepest = snapshot.reading.counts.iter().map(|count| snapshot.stack(count.node)).max_by_key(Vec::len);
    let deepest = deepest.expect("a stack");
    assert!(deepest.len() > 255, "{}", deepest.len());
    assert_eq!(deepest.last(), Some(&Frame::Incomplete(StackEnd::Truncated)));
    assert_near(snapshot.pages_in_function(target, Kind::Anonymous, workload.path(), "hold_one"), 350);
    workload.finish();
    assert_gone(&mut probe, target);
}

#[test]
fn libraries_loaded_and_unloaded() {
    let mut probe = probe();
    let mut workload = TestProcess::memory_workload();
    let target = probe.watch(workload.pid()).expect("the process is running");
    let flags = ["-O2", "-fomit-frame-pointer", "-shared", "-fPIC"];
    for (name, pad) in [("plugin.so", "-UPAD"), ("plugin-pad.so", "-DPAD")] {
        let library = compile("gcc", "plugin.c", name, &[&flags[..], &[pad]].concat());
        // The first stack may precede the unwind tables, so the library is loaded twice.
        assert_eq!(workload.call(&format!("load 0 10 {}", library.display())), 0);
        memory_common::drain(&mut probe);
        assert_eq!(workload.call(&format!("load 1 500 {}", library.display())), 0);
        let snapshot = Snapshot::take(&mut probe);
        assert!(
            snapshot.pages_in_function(target, Kind::Anonymous, &library, "hold_plugin") >= 500,
            "{:?}",
            snapshot.target(target)
        );
        assert_eq!(snapshot.reading.health.mismatches, 0);
        workload.call("unmap 0");
        workload.call("unmap 1");
        assert_eq!(workload.call("unload") | workload.call("unload"), 0);
    }
    let snapshot = Snapshot::take(&mut probe);
    let (all, complete) = snapshot.stack_totals(target);
    assert!(all - complete <= 40, "{:?}", snapshot.target(target).stacks);
    workload.finish();
}
