//! Every memory tree satisfies its invariants while a process allocates, frees, forks and reads files at random on eight
//! threads, and equals the kernel's counters whenever the process pauses: 30 seconds in `make test`, 10 minutes in
//! `make soak`.

use std::time::{Duration, Instant};

use chainscope_e2e::harness::api::Api;
use chainscope_e2e::harness::memory_process::MemoryProcess;
use chainscope_e2e::harness::recorder::Machine;
use chainscope_e2e::harness::{soak, wait};
use chainscope_testing::{flush_page_lists, program, tree};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

/// Milliseconds of churn before a pause.
const WORK: u64 = 2_000;

#[test]
fn every_answer_on_live_data_keeps_the_invariants() {
    let _running = crate::exclusive();
    let time = Duration::from_secs(if soak() { 600 } else { 30 });
    let seed: u32 = rand::random();
    eprintln!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed.into());
    let mut machine = Machine::new("auto");
    let exe = program::memory_workload(machine.directory());
    machine.observe_memory("workload", &exe);
    let chainscope = machine.start();
    let api = &chainscope.api;
    let file = machine.path("read");
    std::fs::write(&file, vec![1; 3 << 20]).expect("write");
    let mut process = MemoryProcess::start(&exe, api);

    let (began, mut answers, mut nodes, mut pauses) = (Instant::now(), 0, 0, 0);
    while began.elapsed() < time {
        process.send(&format!("churn {WORK} {} 0 {}", random.random_range(0..1 << 20), file.display()));
        while !process.is_idle() {
            nodes += query(api, &mut random);
            answers += 1;
        }
        assert_counted(&process, api);
        pauses += 1;
    }
    eprintln!("{answers} answers of {} nodes on average, {pauses} pauses", nodes / answers);
    assert!(nodes / answers > 20, "{nodes} nodes in {answers} answers");
    process.request("settle");
    assert_counted(&process, api);
    process.finish();
    wait::until("an empty tree", || {
        let left = api.get("/v1/tree?kind=anon&threshold=0");
        tree::check(&left, 0, false);
        (left["value"] == 0).then_some(())
    });
}

/// Waits until the reported memory equals the kernel's count.
fn assert_counted(process: &MemoryProcess, api: &Api) {
    let (mut last, mut attempts) = (None, 0);
    let is_counted = wait::holds_within_timeout(|| {
        last = process.reported(api);
        let is_counted = last.is_some_and(|shown| shown.anon + shown.before == process.anonymous());
        attempts += 1;
        // Reports are read once a second.
        if !is_counted && attempts % 150 == 0 {
            flush_page_lists();
        }
        is_counted
    });
    assert!(is_counted, "{last:?}, but the kernel counts {}", process.anonymous());
}

/// Requests a tree with random parameters and returns the number of its nodes.
fn query(api: &Api, random: &mut StdRng) -> usize {
    let threshold = [0, 0, 4, 256, 5_000][random.random_range(0..5)];
    let kind = ["", "&kind=anon", "&kind=cache", "&kind=kernel", "&kind=all"][random.random_range(0..5)];
    let mut path = format!("/v1/tree?threshold={threshold}&reverse={}{kind}", random.random::<bool>());
    let snapshots = api.get("/v1/snapshots");
    let snapshots = snapshots.as_array().expect("a list");
    let mut is_difference = false;
    if !snapshots.is_empty() && random.random_bool(0.4) {
        is_difference = random.random();
        let time = &snapshots[random.random_range(0..snapshots.len())]["time"];
        path += &format!("&{}={time}", if is_difference { "since" } else { "at" });
    }
    tree::check(&api.get(&path), threshold, is_difference)
}
