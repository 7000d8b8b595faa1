//! Processes that execute code at ever new addresses: what holds no pages any more is freed, and one process does not take the
//! room of another.

mod memory_common;

use std::collections::BTreeSet;

use chainscope_ebpf::memory::{Frame, Kind, MemoryOptions, MemoryProbe, NodeId, Reading, Scope, StackEnd, TargetId};

use chainscope_testing::wait;
use memory_common::{Snapshot, TestProcess, compile, drain, wait_until_counted};

/// Capacity of the call tree in these tests.
const NODES: u32 = 4096;
/// Readings until idle nodes are found, and one until they are free.
const READINGS: usize = 12;

fn probe() -> MemoryProbe {
    let options = MemoryOptions { nodes: NODES, verify_stacks: true, ..MemoryOptions::default() };
    MemoryProbe::load(&options).expect("root, and a kernel with BTF")
}

fn generated_code() -> TestProcess {
    let flags = ["-O2", "-fomit-frame-pointer", "-ldl"];
    let mut process = TestProcess::start(&compile("gcc", "generated_code.c", "generated_code", &flags), &[]);
    assert_eq!(process.call("ready"), 0);
    process
}

/// The calls that a consumer of all readings knows.
#[derive(Default)]
struct Consumer {
    nodes: BTreeSet<NodeId>,
    modules: BTreeSet<u32>,
}

impl Consumer {
    fn read(&mut self, probe: &mut MemoryProbe, scope: Scope) -> Reading {
        drain(probe);
        let reading = probe.read(scope).expect("a reading");
        for node in &reading.nodes {
            assert!(node.parent == NodeId::ROOT || self.nodes.contains(&node.parent), "{node:?} has no caller");
            assert!(self.nodes.insert(node.id) || scope == Scope::All, "{node:?} again");
        }
        self.modules.extend(reading.modules.iter().map(|module| module.id.0));
        for count in &reading.counts {
            assert!(count.node == NodeId::ROOT || self.nodes.contains(&count.node), "{count:?}");
        }
        for node in &reading.removed_nodes {
            assert!(self.nodes.remove(node), "{node:?} was not there");
        }
        for module in &reading.removed_modules {
            assert!(self.modules.remove(&module.0), "{module:?} was not there");
        }
        reading
    }

    /// Reads everything until a condition holds: pages that were unmapped may stay in per-CPU batches for a while.
    fn read_until(&mut self, probe: &mut MemoryProbe, what: &str, is_met: impl Fn(&Snapshot) -> bool) -> Snapshot {
        wait::until(what, || {
            let snapshot = Snapshot::new(self.read(probe, Scope::All));
            if !is_met(&snapshot) {
                chainscope_testing::flush_page_lists();
                return None;
            }
            Some(snapshot)
        })
    }
}

/// A stack that fits into the tree: 60 frames deep, and whole.
fn assert_complete(
    consumer: &mut Consumer,
    probe: &mut MemoryProbe,
    process: &mut TestProcess,
    target: TargetId,
    round: u32,
) {
    process.call(&format!("deep 0 20 {}", 40 + round % 20));
    let held = |snapshot: &Snapshot| snapshot.pages_in_function(target, Kind::Anonymous, process.path(), "hold_one");
    let snapshot = consumer
        .read_until(probe, &format!("20 pages in round {round}"), |snapshot| (20..=21).contains(&held(snapshot)));
    let (all, complete) = snapshot.stack_totals(target);
    assert_eq!(all, complete, "{:?}", snapshot.target(target).stacks);
    assert_eq!(snapshot.reading.health.mismatches, 0);
    process.call("unmap 0");
}

#[test]
fn generated_code_at_new_addresses_does_not_fill_the_tree() {
    const ROUNDS: u32 = 40;
    const CALLS: u32 = 150;
    let mut probe = probe();
    let (mut generated, mut neighbour) = (generated_code(), TestProcess::memory_workload());
    let target = probe.watch(generated.pid()).expect("it runs");
    let of_neighbour = probe.watch(neighbour.pid()).expect("it runs");
    // What is held all the time keeps its stack.
    generated.call("keep 1000000 30");
    neighbour.call("two 1 100");
    let mut consumer = Consumer::default();
    for round in 0..ROUNDS {
        generated.call(&format!("call {} {CALLS}", round * CALLS));
        assert_complete(&mut consumer, &mut probe, &mut neighbour, of_neighbour, round);
        consumer.read_until(&mut probe, &format!("the held pages of both in round {round}"), |snapshot| {
            let held = |target, path, function| snapshot.pages_in_function(target, Kind::Anonymous, path, function);
            held(target, generated.path(), "hold_generated") == 30
                && held(of_neighbour, neighbour.path(), "hold_two") == 100
        });
        (1..READINGS).for_each(|_| drop(consumer.read(&mut probe, Scope::Changed)));
        let health = consumer.read(&mut probe, Scope::Changed).health;
        assert!(health.nodes_used < NODES / 2, "{} nodes in round {round}", health.nodes_used);
        assert!(consumer.nodes.len() < NODES as usize / 2, "{} calls in round {round}", consumer.nodes.len());
        assert!(!health.lost.iter().any(|(reason, _)| reason.starts_with("tree_")), "{health:?}");
    }
    wait_until_counted(&mut probe, generated.pid(), |snapshot| snapshot.accounted_anon(target));
    generated.finish();
    neighbour.finish();
}

#[test]
fn calls_made_just_before_a_target_is_removed_are_freed() {
    let mut probe = probe();
    let (mut removed, mut kept) = (generated_code(), TestProcess::memory_workload());
    let of_kept = probe.watch(kept.pid()).expect("it runs");
    let mut consumer = Consumer::default();
    kept.call("two 1 100");
    let held = |snapshot: &Snapshot| snapshot.pages_in_function(of_kept, Kind::Anonymous, kept.path(), "hold_two");
    consumer.read_until(&mut probe, "the held pages", |snapshot| held(snapshot) == 100);
    let before = consumer.read(&mut probe, Scope::Changed).health.nodes_used;
    let target = probe.watch(removed.pid()).expect("it runs");
    removed.call("keep 0 300");
    consumer.read_until(&mut probe, "the first calls", |snapshot| snapshot.reading.health.nodes_used > before + 300);
    // These have not been read when the target is removed.
    removed.call("keep 300 300");
    probe.unwatch(target);
    let used = (0..3).map(|_| consumer.read(&mut probe, Scope::Changed).health.nodes_used).last();
    assert_eq!(used, Some(before));
    removed.finish();
    kept.finish();
}

#[test]
fn a_target_that_fills_its_share_leaves_room_for_others() {
    const CALLS: u32 = 5000;
    let mut probe = probe();
    let (mut greedy, mut neighbour) = (generated_code(), TestProcess::memory_workload());
    let target = probe.watch(greedy.pid()).expect("it runs");
    let of_neighbour = probe.watch(neighbour.pid()).expect("it runs");
    greedy.call(&format!("keep 0 {CALLS}"));
    let mut consumer = Consumer::default();
    for round in 0..20 {
        assert_complete(&mut consumer, &mut probe, &mut neighbour, of_neighbour, round);
    }
    // None of its pages is lost: those without a stack are below a node of their own.
    let snapshot = wait_until_counted(&mut probe, greedy.pid(), |snapshot| snapshot.accounted_anon(target));
    let health = &snapshot.reading.health;
    assert!(health.lost.iter().any(|(reason, count)| *reason == "tree_share" && *count > 1000), "{health:?}");
    assert!(!health.lost.iter().any(|(reason, _)| *reason == "tree_full"), "{health:?}");
    assert!(health.nodes_used < NODES, "{health:?}");
    let counts = snapshot.reading.counts.iter().filter(|count| count.target == target);
    let without_stack = counts.filter(|count| snapshot.stack(count.node) == [Frame::Incomplete(StackEnd::TreeFull)]);
    let pages: u64 = without_stack.map(|count| count.pages).sum();
    let held = snapshot.pages_in_function(target, Kind::Anonymous, greedy.path(), "hold_generated");
    assert!(pages > 1000 && held > 100 && pages + held >= u64::from(CALLS), "{pages} pages, {held} with a stack");
    greedy.finish();
    neighbour.finish();
}

#[test]
fn libraries_in_memory_that_are_gone_are_forgotten() {
    const ROUNDS: usize = 150;
    let mut probe = probe();
    let mut process = generated_code();
    let flags = ["-O2", "-shared", "-fPIC", "-fomit-frame-pointer"];
    let library = compile("gcc", "plugin.c", "library-in-memory.so", &flags);
    let target = probe.watch(process.pid()).expect("it runs");
    process.call("keep 0 30");
    let mut consumer = Consumer::default();
    let mut most = 0;
    for round in 0..ROUNDS {
        assert_eq!(process.call(&format!("library {}", library.display())), 0, "round {round}");
        consumer.read(&mut probe, Scope::Changed);
        most = most.max(consumer.modules.len());
    }
    assert!(most > 32, "{most} modules: the libraries were not seen");
    (0..READINGS).for_each(|_| drop(consumer.read(&mut probe, Scope::Changed)));
    let held =
        |snapshot: &Snapshot| snapshot.pages_in_function(target, Kind::Anonymous, process.path(), "hold_generated");
    let snapshot = consumer.read_until(&mut probe, "the held pages", |snapshot| held(snapshot) == 30);
    assert!(consumer.modules.len() < ROUNDS / 2 && most < ROUNDS / 3 * 2, "{} of {most}", consumer.modules.len());
    assert!(snapshot.reading.modules.len() < ROUNDS / 2, "{} modules", snapshot.reading.modules.len());
    process.finish();
}
