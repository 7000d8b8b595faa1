//! Threads, forks, and processes that start and exit: pages are neither counted twice nor left behind.
#![expect(unsafe_code, reason = "a signal handler and pthread_kill")]

mod memory_common;

use std::path::{Path, PathBuf};
use std::time::Duration;

use chainscope_ebpf::memory::{Kind, MemoryEvent, MemoryOptions, MemoryProbe, Scope, StackEnd};
use chainscope_testing::wait;

use memory_common::{Snapshot, TestProcess, compile, drain, probe, wait_until_counted, wait_until_freed};

/// Address spaces that the probe tracks concurrently.
const MAX_ADDRESS_SPACES: usize = 16_384;

#[test]
fn eight_forking_threads() {
    let mut probe = probe();
    let mut forking = TestProcess::start(&compile("gcc", "fork_threads.c", "fork_threads", &["-O2", "-pthread"]), &[]);
    assert_eq!(forking.read_reply(), "ready");
    let target = probe.watch(forking.pid()).expect("the process is running");
    forking.send_command("go");
    while !forking.try_read_reply(&mut probe) {}
    wait::until_true("the children to exit", || {
        Snapshot::take(&mut probe).reading.targets.iter().all(|reading| reading.alive == (reading.target == target))
    });
    // Pages of the parent that only a child still maps are freed when the child exits.
    let snapshot = wait_until_counted(&mut probe, forking.pid(), |snapshot| {
        let attributed: u64 = snapshot.reading.targets.iter().map(|reading| reading.attributed[0]).sum();
        attributed + snapshot.target(target).before_attach.anon
    });
    let reading = snapshot.target(target);
    assert!(snapshot.reading.targets.len() > 60, "{} processes", snapshot.reading.targets.len());
    assert!(snapshot.reading.health.mismatches == 0, "{:?}", snapshot.reading.health);
    let (all, complete) = snapshot.stack_totals(target);
    assert!(complete * 1000 >= all * 999, "{:?}", reading.stacks);
    forking.send_command("end");
    forking.finish();
    wait_until_freed(&mut probe, "all pages to be released", |snapshot| {
        snapshot.reading.targets.iter().all(|reading| !reading.alive && reading.attributed[0] == 0)
    });
}

/// A signal aborts the BPF verifier (`EAGAIN`); the load is retried.
#[test]
fn load_is_retried_after_signals() {
    const SIGNALS: u32 = 8;
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing; both threads live until the scope ends.
    let loading = unsafe {
        let handler: extern "C" fn(libc::c_int) = nothing;
        assert_ne!(libc::signal(libc::SIGUSR1, handler as libc::sighandler_t), libc::SIG_ERR);
        libc::pthread_self()
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..SIGNALS {
                std::thread::park_timeout(Duration::from_millis(100));
                // SAFETY: as above.
                assert_eq!(unsafe { libc::pthread_kill(loading, libc::SIGUSR1) }, 0);
            }
        });
        probe();
    });
}

#[test]
fn unwatched_targets_free_their_nodes() {
    let options = MemoryOptions { nodes: 1024, verify_stacks: true, ..MemoryOptions::default() };
    let mut probe = MemoryProbe::load(&options).expect("root");
    let mut workload = TestProcess::memory_workload();
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("forgotten");
    for round in 0..40 {
        let target = probe.watch(workload.pid()).expect("the process is running");
        workload.call(&format!("deep 0 20 {}", 60 + round % 7));
        // Pages left in the page cache would have no owner after the target is unwatched.
        std::fs::write(&file, vec![1; 20 * 4096]).expect("a successful write");
        memory_common::drop_from_cache(&file);
        workload.call(&format!("read {}", file.display()));
        let snapshot = Snapshot::take(&mut probe);
        let held = snapshot.pages_in_function(target, Kind::Anonymous, workload.path(), "hold_one");
        assert!((20..=21).contains(&held), "{held} in round {round}, {:?}", snapshot.reading.health);
        assert_eq!(snapshot.reading.health.mismatches, 0);
        assert!(snapshot.reading.health.nodes_used < 300, "{:?}", snapshot.reading.health);
        workload.call("unmap 0");
        probe.unwatch(target);
        for _ in 0..3 {
            drain(&mut probe);
            let reading = probe.read(Scope::All).expect("a reading");
            assert!(reading.targets.is_empty() && reading.counts.is_empty());
        }
    }
    workload.finish();
}

#[test]
fn more_children_than_concurrent_address_spaces() {
    const BATCH: usize = 500;
    let mut probe = MemoryProbe::load(&MemoryOptions::default()).expect("root");
    let mut workload = TestProcess::memory_workload();
    let target = probe.watch(workload.pid()).expect("the process is running");
    workload.call("one 0 50");
    let mut children = 0;
    while children < MAX_ADDRESS_SPACES + 2 * BATCH {
        workload.call(&format!("children {BATCH}"));
        wait::until_true("the children to exit", || {
            for event in drain(&mut probe) {
                if let MemoryEvent::Exited { target: child, .. } = event {
                    probe.unwatch(child);
                    children += 1;
                }
            }
            children % BATCH == 0
        });
        // The nodes of exited children are freed between readings.
        (0..3).for_each(|_| drop(Snapshot::take(&mut probe)));
    }
    // The first write to a page that the children shared may copy it.
    workload.call("two 1 1");
    let first = Snapshot::take(&mut probe);
    workload.call("two 2 70");
    let snapshot = Snapshot::take(&mut probe);
    let held =
        |snapshot: &Snapshot, function| snapshot.pages_in_function(target, Kind::Anonymous, workload.path(), function);
    let more = held(&snapshot, "hold_two") - held(&first, "hold_two");
    assert_eq!((held(&snapshot, "hold_one"), more), (50, 70), "{:?}", snapshot.reading.health);
    let (all, complete) = snapshot.stack_totals(target);
    assert_eq!(all, complete, "{:?}", snapshot.target(target).stacks);
    workload.finish();
}

#[test]
fn explicitly_watched_child_is_tracked_once() {
    let mut probe = MemoryProbe::load(&MemoryOptions::default()).expect("root");
    let mut workload = TestProcess::memory_workload();
    let target = probe.watch(workload.pid()).expect("the process is running");
    workload.call("one 0 50");
    // The fork event has not been polled yet.
    let child = u32::try_from(workload.call("fork 0 10")).expect("a process");
    let of_child = probe.watch(child).expect("the process is running");
    let forked = drain(&mut probe);
    assert!(
        forked.iter().any(
            |event| matches!(event, MemoryEvent::Forked { target: to, pid, .. } if (*to, *pid) == (of_child, child))
        ),
        "{forked:?}"
    );
    let snapshot = Snapshot::take(&mut probe);
    let targets: Vec<_> = snapshot.reading.targets.iter().map(|reading| (reading.target, reading.alive)).collect();
    assert_eq!(targets, [(target, true), (of_child, true)]);
    workload.call("reap");
    workload.finish();
}

#[test]
fn full_node_table_is_reported() {
    let options = MemoryOptions { nodes: 1024, verify_stacks: false, ..MemoryOptions::default() };
    let mut probe = MemoryProbe::load(&options).expect("root");
    let program = compile("gcc", "stack_shapes.c", "stack_shapes-full", &["-O2", "-pthread", "-fomit-frame-pointer"]);
    let mut shapes = TestProcess::start(&program, &["3000"]);
    assert_eq!(shapes.read_reply(), "ready");
    let target = probe.watch(shapes.pid()).expect("the process is running");
    shapes.send_command("go");
    while !shapes.try_read_reply(&mut probe) {}
    // Its share of the table, in which pages without a node of their own are attributed to one for all of them.
    let snapshot = wait_until_counted(&mut probe, shapes.pid(), |snapshot| snapshot.accounted_anon(target));
    let health = &snapshot.reading.health;
    assert!(health.lost.iter().any(|(reason, count)| reason.starts_with("tree_") && *count > 100), "{health:?}");
    let cut = snapshot.target(target).stacks.iter().find(|(end, _)| *end == StackEnd::TreeFull);
    assert!(cut.is_some_and(|(_, count)| *count > 100), "{:?}", snapshot.target(target).stacks);
    shapes.finish();
    wait_until_freed(&mut probe, "all pages to be released", |snapshot| snapshot.anon(target) == 0);
}

/// A number in a file that is at least so large, restored when this is dropped, after a panic, too.
struct RaisedLimit {
    file: PathBuf,
    before: String,
}

impl RaisedLimit {
    fn at_least(file: &Path, count: u64) -> Self {
        let before = std::fs::read_to_string(file).expect("there is a limit");
        let limit: u64 = before.trim().parse().expect("a number");
        std::fs::write(file, limit.max(count).to_string()).expect("root");
        Self { file: file.to_owned(), before }
    }
}

impl Drop for RaisedLimit {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(&self.file, &self.before) {
            eprintln!("{} remains raised: {error}", self.file.display());
        }
    }
}

#[test]
fn a_raised_limit_is_restored_after_a_panic() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("limit");
    std::fs::write(&file, "65530\n").expect("a file");
    let failed = std::panic::catch_unwind(|| {
        let _limit = RaisedLimit::at_least(&file, 300_000);
        panic!("the limit is {}", std::fs::read_to_string(&file).expect("a limit"));
    });
    assert_eq!(failed.expect_err("it panics").downcast_ref::<String>().expect("a message"), "the limit is 300000");
    assert_eq!(std::fs::read_to_string(&file).expect("a limit"), "65530\n");
}

#[test]
fn hundred_thousand_mappings() {
    let _limit = RaisedLimit::at_least(Path::new("/proc/sys/vm/max_map_count"), 300_000);
    let mut probe = probe();
    let program = compile("gcc", "mappings.c", "mappings", &["-O2", "-fomit-frame-pointer"]);
    let mut mappings = TestProcess::start(&program, &["100000", "2000"]);
    assert_eq!(mappings.read_reply(), "ready");
    let target = probe.watch(mappings.pid()).expect("the process is running");
    mappings.send_command("go");
    assert_eq!(mappings.read_reply(), "done");
    let snapshot = wait_until_counted(&mut probe, mappings.pid(), |snapshot| snapshot.accounted_anon(target));
    let reading = snapshot.target(target);
    let (all, complete) = snapshot.stack_totals(target);
    assert!(all > 9000 && all == complete, "{:?}", reading.stacks);
    assert_eq!(snapshot.reading.health.mismatches, 0);
    mappings.finish();
}
