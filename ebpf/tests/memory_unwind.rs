//! Stacks of programs without frame pointers unwind to their entry point, and frames reused from the previous stack
//! are correct.

#![expect(clippy::print_stdout, reason = "the share of complete stacks")]

mod memory_common;

use std::path::{Path, PathBuf};
use std::process::Command;

use chainscope_ebpf::memory::StackEnd;
use chainscope_testing::{flush_page_lists, wait};

use memory_common::{Snapshot, TestProcess, compile, probe, rollup};

/// Runs a program under the probe; returns the numbers of all and of complete stacks.
fn run(program: &Path, arguments: &[&str]) -> (u64, u64) {
    let mut probe = probe();
    let mut running = TestProcess::start(program, arguments);
    assert_eq!(running.read_reply(), "ready");
    let target = probe.watch(running.pid()).expect("the process is running");
    running.send_command("go");
    while !running.try_read_reply(&mut probe) {}
    let snapshot = Snapshot::take(&mut probe);
    let reading = snapshot.target(target);
    let (all, complete) = snapshot.stack_totals(target);
    let checked = snapshot.reading.health.checked;
    println!("{}: {complete} of {all} stacks complete, {:?}", program.display(), reading.stacks);
    assert!(checked > 0 && snapshot.reading.health.mismatches == 0, "{:?}", snapshot.reading.health);
    // Pages are allocated and freed while a running program is counted.
    let mut last = String::new();
    let is_counted = wait::holds_within_timeout(|| {
        let snapshot = Snapshot::take(&mut probe);
        let reading = snapshot.target(target);
        let control = rollup(running.pid(), "Anonymous");
        last = format!("{control} pages, {reading:?}, {:?}", snapshot.reading.health);
        let is_counted = (reading.attributed[0] + reading.before_attach.anon).abs_diff(control) <= control / 200;
        if !is_counted {
            flush_page_lists();
        }
        is_counted
    });
    assert!(is_counted, "not as many pages as the kernel counts: {last}");
    running.finish();
    (all, complete)
}

#[track_caller]
fn assert_nearly_all((all, complete): (u64, u64)) {
    assert!(all > 5000, "{all} stacks");
    assert!(complete * 1000 >= all * 999, "{complete} of {all}");
}

#[test]
fn varying_stack_shapes() {
    for (compiler, name) in [("gcc", "stack_shapes-gcc"), ("clang", "stack_shapes-clang")] {
        let flags = ["-O2", "-pthread", "-fomit-frame-pointer", "-Wno-unknown-attributes"];
        let program = compile(compiler, "stack_shapes.c", name, &flags);
        let (all, complete) = run(&program, &["12000"]);
        // Coroutine stacks end at makecontext's start routine, which has no unwind rule.
        assert!(all > 20_000 && complete * 10 > all * 9, "{complete} of {all}");
    }
}

#[test]
fn rust_program() {
    let flags = ["-O", "--edition", "2024", "-C", "force-frame-pointers=no"];
    assert_nearly_all(run(&compile("rustc", "churn.rs", "churn-rust", &flags), &[]));
}

#[test]
fn stripped_static_non_pie_program() {
    let flags = ["-O2", "-pthread", "-fomit-frame-pointer", "-static", "-no-pie", "-s"];
    assert_nearly_all(run(&compile("g++", "churn.cpp", "churn-static", &flags), &[]));
}

#[test]
fn cpp_program() {
    let flags = ["-O2", "-pthread", "-fomit-frame-pointer"];
    assert_nearly_all(run(&compile("g++", "churn.cpp", "churn-cpp", &flags), &[]));
}

fn go(name: &str, flags: &[&str]) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut command = Command::new("go");
    command.arg("build").args(flags).arg("-o").arg(&program).arg(source("churn.go"));
    // No module, no network; a separate cache because the home directory may be missing.
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-cache");
    command.env("GO111MODULE", "off").env("GOTOOLCHAIN", "local").env("GOCACHE", cache);
    assert!(command.status().is_ok_and(|status| status.success()), "go build");
    program
}

#[test]
fn go_program() {
    assert_nearly_all(run(&go("churn-go", &[]), &[]));
}

/// No `.debug_frame` either: only frame pointers remain.
#[test]
fn stripped_go_program() {
    assert_nearly_all(run(&go("churn-go-stripped", &["-ldflags", "-s -w"]), &[]));
}

#[test]
fn ocaml_stack_switching() {
    let program = compile("gcc", "stack_switch.c", "stack_switch", &["-O2", "-fomit-frame-pointer"]);
    // Between switching stacks and restoring the link no rule is correct.
    assert_nearly_all(run(&program, &[]));
}

/// Runs a compiler repeatedly under the probe; returns the numbers of all and of complete stacks. Stacks taken while
/// unwind tables were loading are excluded: on a busy machine they are numerous, most of them in the first run.
fn profile_compiler(mut compiler: Command) -> (u64, u64) {
    let mut probe = probe();
    let (mut all, mut complete) = (0, 0);
    for _ in 0..20 {
        let mut running = compiler.spawn().expect("a child process");
        let Ok(target) = probe.watch(running.id()) else {
            // The process exited before its unwind tables were loaded.
            running.wait().expect("a child process");
            continue;
        };
        while running.try_wait().expect("a child process").is_none() {
            probe.poll(std::time::Duration::from_millis(5)).expect("a successful poll");
        }
        let snapshot = Snapshot::take(&mut probe);
        let reading = snapshot.target(target);
        let ended = |end: StackEnd| reading.stacks.iter().find(|(of, _)| *of == end).map_or(0, |(_, count)| *count);
        println!("{compiler:?}: {:?}, {} rules", reading.stacks, snapshot.reading.health.rules);
        assert_eq!(snapshot.reading.health.mismatches, 0);
        all += snapshot.stack_totals(target).0 - ended(StackEnd::Loading);
        complete += ended(StackEnd::Complete);
        if all > 10_000 {
            break;
        }
    }
    (all, complete)
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/memory_common/programs").join(name)
}

/// Covers files of 100 MB with millions of rules, and frames of half a megabyte with stack probing (each page is
/// touched before use).
#[test]
fn rustc_stacks() {
    // Not rustup's proxy, which executes another program.
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output().expect("rustc").stdout;
    let compiler = Path::new(String::from_utf8(sysroot).expect("a path").trim()).join("bin/rustc");
    let mut rustc = Command::new(&compiler);
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("churn-rustc.o");
    rustc.args(["-O", "--edition", "2024", "--emit", "obj", "-o"]).arg(out).arg(source("churn.rs"));
    assert_nearly_all(profile_compiler(rustc));
}

/// Debian's build, stripped.
#[test]
fn debian_clang_stacks() {
    let mut clang = Command::new("clang++");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("churn-clang.o");
    clang.args(["-O2", "-c", "-o"]).arg(out).arg(source("churn.cpp"));
    assert_nearly_all(profile_compiler(clang));
}

#[test]
fn stack_end_names_are_unique() {
    let mut names: Vec<&str> = StackEnd::ALL.into_iter().map(StackEnd::name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), StackEnd::ALL.len());
}
