//! Spans of functions that record their own times: durations, counts, recursion, and calls that do not return.

mod latency_common;

use std::os::unix::process::ExitStatusExt as _;

use chainscope_ebpf::latency::{LatencyOptions, LatencyProbe, Pairing, Scope};

use latency_common::{Exits, Target, Watcher, assert_agrees, between, plain, span, workload};

#[test]
fn durations_of_a_process_that_runs() {
    let program = workload("latency_runs");
    let mut target = Target::start(&program);
    target.call("nap", 3, 100);
    let spans = ["work::nap", "work::spin"].map(|pattern| span(&program, pattern, Exits::Instructions));
    let watcher = Watcher::attach(&program, Some(target.pid()), None, &spans);
    let mut other = Target::start(&program);
    other.call("nap", 5, 100);
    target.call("spin", 60, 4000);
    let counts = watcher.counts(1);
    assert_agrees(&counts, &target.exact("spin"));
    assert_eq!((counts.started, counts.not_ended(), counts.no_entry), (60, 0, 0));
    assert_eq!(watcher.counts(0).started, 0, "neither before it was attached, nor in another process");
}

#[test]
fn durations_of_processes_that_start_later() {
    let program = workload("latency_later");
    let watcher = Watcher::attach(&program, None, None, &[span(&program, "nap", Exits::Instructions)]);
    let mut target = Target::start(&program);
    target.call("nap", 100, 5000);
    assert_agrees(&watcher.counts(0), &target.exact("nap"));
}

#[test]
fn recursion() {
    let program = workload("latency_recursion");
    let mut target = Target::start(&program);
    let watcher = Watcher::attach(&program, None, None, &[span(&program, "recurse", Exits::Instructions)]);
    target.call("recurse", 2, 20);
    assert_agrees(&watcher.counts(0), &target.exact("recurse"));
}

/// Each way in which the kernel can follow calls, and its limit: 64 return probes of a thread at once.
#[test]
fn return_probes() {
    for (pairing, name) in [
        (Pairing::Session, "latency_session"),
        (Pairing::StackFrame, "latency_frame"),
        (Pairing::PerfEvents, "latency_perf"),
    ] {
        let program = plain(name);
        let mut target = Target::start(&program);
        let spans = ["plain_nap", "plain_recurse", "plain_code"].map(|pattern| span(&program, pattern, Exits::Returns));
        let watcher = Watcher::attach(&program, Some(target.pid()), Some(pairing), &spans);
        assert_eq!(watcher.probe.pairing(), pairing);
        target.call("nap", 40, 5000);
        assert_agrees(&watcher.counts(0), &target.exact("nap"));
        target.call("recurse", 3, 60);
        let counts = watcher.counts(1);
        assert_eq!((counts.started, counts.ended, counts.replaced), (180, 180, 0), "{pairing:?}");
        target.call("recurse", 1, 100);
        let counts = watcher.counts(1);
        assert_eq!((counts.started, counts.ended, counts.not_ended()), (280, 244, 36), "{pairing:?}");
        target.call("code", 7, -3);
        target.call("code", 2, 128);
        assert_eq!(watcher.returns(2), [(-3, 7), (128, 2)], "{pairing:?}");
    }
    let probe = LatencyProbe::load(&LatencyOptions::default()).expect("root");
    assert_eq!(probe.pairing(), Pairing::Session);
}

/// Deeper than return probes can follow.
#[test]
fn exit_instructions_have_no_depth() {
    let program = plain("latency_depth");
    let mut target = Target::start(&program);
    let watcher = Watcher::attach(&program, None, None, &[span(&program, "plain_recurse", Exits::Instructions)]);
    target.call("recurse", 2, 300);
    let counts = watcher.counts(0);
    assert_eq!((counts.started, counts.ended, counts.not_ended()), (600, 600, 0));
}

#[test]
fn exceptions() {
    let program = workload("latency_exceptions");
    let mut target = Target::start(&program);
    let spans = ["fail", "guard"].map(|pattern| span(&program, pattern, Exits::Instructions));
    let watcher = Watcher::attach(&program, None, None, &spans);
    target.call("guard", 6, 2001);
    target.call("guard", 30, 4000);
    let (fail, guard) = (watcher.counts(0), watcher.counts(1));
    assert_eq!((fail.started, fail.ended, fail.not_ended()), (36, 30, 6), "six were left by an exception");
    assert_eq!(fail.replaced, 6, "the frame is used again");
    assert_eq!((guard.started, guard.ended, guard.not_ended()), (36, 36, 0));
    assert_agrees(&fail, &target.exact("fail"));
}

/// The reason why exits of programs with exceptions are probed by their instructions.
#[test]
fn an_exception_through_a_return_probe_ends_the_process() {
    let program = workload("latency_abort");
    let mut target = Target::start(&program);
    let _watcher = Watcher::attach(&program, None, None, &[span(&program, "fail", Exits::Returns)]);
    target.call("guard", 3, 2000);
    assert_eq!(target.answer("guard 1 2001"), None);
    assert_eq!(target.wait().signal(), Some(6), "std::terminate");
}

#[test]
fn calls_that_do_not_return() {
    let program = workload("latency_jumps");
    let mut target = Target::start(&program);
    let spans = ["jump", "leave"].map(|pattern| span(&program, pattern, Exits::Instructions));
    let watcher = Watcher::attach(&program, None, None, &spans);
    target.call("jump", 5, 100);
    target.call("leave", 4, 100);
    for index in [0, 1] {
        let counts = watcher.counts(index);
        assert_eq!((counts.ended, counts.not_ended()), (0, [5, 4][index]), "{counts:?}");
        assert_eq!((counts.min_ns, counts.max_ns, counts.buckets.len()), (0, 0, 0));
    }
}

#[test]
fn a_tail_call_ends_a_span() {
    let program = workload("latency_tail");
    let mut target = Target::start(&program);
    let spans = ["chain", "landing"].map(|pattern| span(&program, pattern, Exits::Instructions));
    assert_eq!(spans[0].exits.len(), 1);
    let watcher = Watcher::attach(&program, None, None, &spans);
    target.call("chain", 40, 4000);
    assert_agrees(&watcher.counts(0), &target.exact("chain"));
    assert_eq!((watcher.counts(1).ended, watcher.counts(1).not_ended()), (40, 0));
    assert_eq!((watcher.returns(0), watcher.returns(1)), (vec![], vec![(4000, 40)]), "a jump returns nothing");
}

#[test]
fn coroutines() {
    let program = workload("latency_coroutines");
    let mut target = Target::start(&program);
    let spans = ["migrate", "work::steps", "*steps*actor*"].map(|pattern| span(&program, pattern, Exits::Instructions));
    let watcher = Watcher::attach(&program, None, None, &spans);
    // On a stack of its own, resumed by another thread.
    target.call("migrate", 15, 0);
    assert_agrees(&watcher.counts(0), &target.exact("migrate"));
    // The function returns at the first suspension; its body is entered for each of the 4 steps, and
    // to destroy it.
    target.call("steps", 10, 100);
    assert_eq!((watcher.counts(1).ended, watcher.counts(1).not_ended()), (10, 0));
    assert_eq!((watcher.counts(2).ended, watcher.counts(2).not_ended()), (50, 0));
}

/// From the entry of one function to the exit of another.
#[test]
fn spans_of_two_functions() {
    let program = workload("latency_between");
    let mut target = Target::start(&program);
    let span = between(&program, "preflight", "apply", Exits::Instructions, Scope::Thread);
    let watcher = Watcher::attach(&program, None, None, &[span]);
    target.call("refuse", 7, 1000);
    target.call("submit", 30, 4001);
    let counts = watcher.counts(0);
    assert_agrees(&counts, &target.exact("submit"));
    assert_eq!((counts.started, counts.not_ended(), counts.replaced), (37, 7, 7));
    target.call("submit", 6, 3000);
    assert_eq!(watcher.returns(0), [(0, 30), (104, 6)]);
}

#[test]
fn too_many_return_codes_are_counted() {
    let program = plain("latency_codes");
    let mut target = Target::start(&program);
    let watcher = Watcher::attach(&program, None, None, &[span(&program, "plain_code", Exits::Returns)]);
    for code in 0..4100 {
        target.call("code", 1, code);
    }
    let (counts, returns) = (watcher.counts(0), watcher.returns(0));
    assert_eq!((counts.ended, counts.no_return_room, returns.len()), (4100, 4, 4096));
}
