//! Every page is counted once, under the function that asked for it: against the kernel's own count while the program
//! waits.

mod memory_common;

use chainscope_ebpf::memory::{Kind, TargetId};
use chainscope_testing::wait;

use memory_common::{Answer, Program, probe, rollup};

/// What the kernel counts for an anonymous page is attributed or was there before; to the page.
fn assert_exact(answer: &Answer, target: TargetId, pid: u32) {
    let reading = answer.target(target);
    assert_eq!(reading.attributed[0] + reading.before_attach.anon, rollup(pid, "Anonymous"), "{reading:?}");
    assert_eq!(reading.unattributed, 0);
    assert_eq!(answer.reading.health.mismatches, 0, "{:?}", answer.reading.health);
}

/// A function also touches the page of its own variables.
#[track_caller]
fn assert_near(held: u64, expected: u64) {
    assert!((expected..=expected + 1).contains(&held), "{held} pages instead of {expected}");
}

#[test]
fn functions_hold_what_they_asked_for() {
    let mut probe = probe();
    let mut life = Program::life();
    let target = probe.watch(life.pid()).expect("it lives");
    life.tell("one 0 1000");
    life.tell("two 1 300");
    life.tell("heap 100 200000");
    let answer = Answer::all(&mut probe);
    assert_exact(&answer, target, life.pid());
    let held = |function: &str| answer.inside(target, Kind::Anonymous, life.path(), function);
    assert_near(held("hold_one"), 1000);
    assert_near(held("hold_two"), 300);
    // 112 bytes each with malloc's own, and the page that was there.
    assert!((5468..=5470).contains(&held("hold_heap")), "{}", held("hold_heap"));
    assert_eq!(answer.stacks(target).0, answer.stacks(target).1, "all complete");
    life.tell("drop 0 100 500");
    life.tell("unmap 1");
    let answer = Answer::all(&mut probe);
    assert_exact(&answer, target, life.pid());
    let held = |function: &str| answer.inside(target, Kind::Anonymous, life.path(), function);
    assert_near(held("hold_one"), 500);
    assert_near(held("hold_two"), 0);
    life.end();
    wait::until_true("nothing to be left", || Answer::all(&mut probe).anon(target) == 0);
}
