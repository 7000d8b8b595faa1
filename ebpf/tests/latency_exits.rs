//! How functions are left: what return probes survive, exits at the entry itself, and functions of other compilers.

mod latency_common;

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;

use chainscope_ebpf::latency::{Exit, Pairing};

use chainscope_testing::wait::until_true;
use rustix::process::{Pid, Signal, kill_process};

use latency_common::{Exits, Target, Watcher, assert_agrees, compile, span, stacks, workload};

const PAIRINGS: [(Pairing, &str); 3] =
    [(Pairing::Session, "session"), (Pairing::StackFrame, "frame"), (Pairing::PerfEvents, "perf")];

#[test]
fn coroutines_that_take_turns() {
    let program = stacks("latency_turns");
    let mut target = Target::start(&program);
    let watcher =
        Watcher::attach(&program, Some(target.pid()), None, &[span(&program, "stack_turn", Exits::Instructions)]);
    target.call("turns", 20, 3000);
    let counts = watcher.counts(0);
    assert_eq!((counts.started, counts.not_ended(), counts.no_entry), (40, 0, 0));
    assert_agrees(&counts, &target.exact("turn"));
}

/// The reason why programs that switch stacks get no return probes: the kernel takes the call on the lower stack for one that was left.
#[test]
fn coroutines_under_return_probes_end_the_process() {
    for (pairing, name) in PAIRINGS {
        let program = stacks(&format!("latency_turns_{name}"));
        let mut target = Target::start(&program);
        let spans = [span(&program, "stack_turn", Exits::Returns)];
        let _watcher = Watcher::attach(&program, Some(target.pid()), Some(pairing), &spans);
        assert_eq!(target.answer("turns 1 1000"), None, "{pairing:?}");
        assert_eq!(target.wait().signal(), Some(4), "SIGILL");
    }
}

/// C leaves functions without returning as well: that harms neither the process nor the counts.
#[test]
fn jumps_and_ends_of_threads_under_return_probes() {
    for (pairing, name) in PAIRINGS {
        let program = stacks(&format!("latency_left_{name}"));
        let mut target = Target::start(&program);
        let spans = ["stack_jump", "stack_leave"].map(|pattern| span(&program, pattern, Exits::Returns));
        let watcher = Watcher::attach(&program, Some(target.pid()), Some(pairing), &spans);
        // More than the 64 that a thread may have in progress.
        target.call("jump", 100, 50);
        target.call("leave", 7, 50);
        for (index, count) in [(0, 100), (1, 7)] {
            let counts = watcher.counts(index);
            assert_eq!(
                (counts.started, counts.ended, counts.not_ended()),
                (count, 0, count),
                "{pairing:?}: {counts:?}"
            );
        }
        drop(watcher);
        assert_eq!(target.call("leave", 1, 50), 1, "it goes on");
    }
}

/// Functions whose first instruction is the last one.
fn tiny(name: &str) -> PathBuf {
    compile("gcc", "latency_tiny.c", name, &["-O2"])
}

#[test]
fn entry_and_exit_at_the_same_instruction() {
    for pairing in [Pairing::StackFrame, Pairing::PerfEvents] {
        let program = tiny(&format!("latency_tiny_{pairing:?}"));
        let mut target = Target::start(&program);
        let spans =
            ["tiny_empty", "tiny_thunk", "tiny_target"].map(|pattern| span(&program, pattern, Exits::Instructions));
        assert_eq!(spans[0].exits, [Exit::Instruction(spans[0].entries[0])]);
        assert_eq!(spans[1].exits, [Exit::TailCall(spans[1].entries[0])]);
        let watcher = Watcher::attach(&program, Some(target.pid()), Some(pairing), &spans);
        target.call("empty", 1000, 0);
        target.call("thunk", 500, 0);
        for (index, count) in [(0, 1000), (1, 500), (2, 500)] {
            let counts = watcher.counts(index);
            let all = (counts.started, counts.ended, counts.no_entry, counts.replaced);
            assert_eq!(all, (count, count, 0, 0), "{index} {pairing:?}: {counts:?}");
        }
        // Two probes of one instruction: microseconds, not the time between calls.
        assert!(watcher.counts(0).min_ns < 100_000, "{:?}", watcher.counts(0));
    }
}

#[test]
fn functions_in_rust() {
    let program =
        compile("rustc", "latency_rust.rs", "latency_rust", &["-O", "--edition", "2024", "-C", "strip=debuginfo"]);
    let mut target = Target::start(&program);
    let spans = ["work::nap", "Chain::apply", "work::fail"].map(|pattern| span(&program, pattern, Exits::Instructions));
    let watcher = Watcher::attach(&program, Some(target.pid()), None, &spans);
    target.call("nap", 40, 3000);
    target.call("apply", 40, 4000);
    target.call("panic", 5, 3001);
    target.call("panic", 30, 3000);
    assert_agrees(&watcher.counts(0), &target.exact("nap"));
    assert_agrees(&watcher.counts(1), &target.exact("apply"));
    let panics = watcher.counts(2);
    assert_eq!((panics.started, panics.not_ended()), (35, 5), "{panics:?}");
    assert_agrees(&panics, &target.exact("panic"));
}

#[test]
fn functions_that_clang_compiled() {
    let program = compile("clang++", "latency_workload.cc", "latency_clang", &["-std=c++20", "-O2", "-pthread"]);
    let mut target = Target::start(&program);
    let spans = ["work::nap", "recurse", "fail"].map(|pattern| span(&program, pattern, Exits::Instructions));
    let watcher = Watcher::attach(&program, Some(target.pid()), None, &spans);
    target.call("nap", 40, 3000);
    target.call("recurse", 2, 20);
    target.call("guard", 6, 3001);
    target.call("guard", 20, 3000);
    assert_agrees(&watcher.counts(0), &target.exact("nap"));
    assert_agrees(&watcher.counts(1), &target.exact("recurse"));
    let fail = watcher.counts(2);
    assert_eq!((fail.started, fail.not_ended()), (26, 6), "{fail:?}");
    let plain = compile("clang", "latency_plain.c", "latency_clang_c", &["-O2", "-pthread"]);
    let mut target = Target::start(&plain);
    let watcher = Watcher::attach(&plain, Some(target.pid()), None, &[span(&plain, "plain_nap", Exits::Returns)]);
    target.call("nap", 40, 3000);
    assert_agrees(&watcher.counts(0), &target.exact("nap"));
}

/// What an earlier tracer leaves behind: a call that was in progress when the probe was attached has no entry.
#[test]
fn a_call_in_progress_has_no_entry() {
    let program = workload("latency_progress");
    let mut target = Target::start(&program);
    target.send("nap 1 1500000");
    // `clock_nanosleep`
    let call = format!("/proc/{}/syscall", target.pid());
    until_true("it naps", || std::fs::read_to_string(&call).is_ok_and(|text| text.starts_with("230 ")));
    // Stopped until the probe is attached, which may take longer than the nap.
    let pid = Pid::from_raw(target.pid().cast_signed()).expect("a process");
    kill_process(pid, Signal::STOP).expect("it runs");
    let watcher =
        Watcher::attach(&program, Some(target.pid()), None, &[span(&program, "work::nap", Exits::Instructions)]);
    kill_process(pid, Signal::CONT).expect("it is stopped");
    assert_eq!(target.reply(), Some(vec![1]));
    let counts = watcher.counts(0);
    assert_eq!((counts.started, counts.ended, counts.no_entry), (0, 0, 1));
}
