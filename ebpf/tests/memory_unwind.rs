//! Stacks reach their entry point, in every way a stack can look and without frame pointers; and what is reused of the
//! one before is right.

#![allow(clippy::print_stdout)] // the share of complete stacks

mod memory_common;

use std::path::{Path, PathBuf};
use std::process::Command;

use chainscope_ebpf::memory::StackEnd;
use chainscope_testing::{flush_page_lists, wait};

use memory_common::{Snapshot, TestProcess, compile, probe, rollup};

/// Lets a program do its work under the probe, and returns its stacks by how they ended.
fn run(program: &Path, arguments: &[&str]) -> (u64, u64) {
    let mut probe = probe();
    let mut running = TestProcess::start(program, arguments);
    assert_eq!(running.read_reply(), "ready");
    let target = probe.watch(running.pid()).expect("it lives");
    running.send_command("go");
    while !running.try_read_reply(&mut probe) {}
    let snapshot = Snapshot::take(&mut probe);
    let reading = snapshot.target(target);
    let (all, complete) = snapshot.stack_totals(target);
    let checked = snapshot.reading.health.checked;
    println!("{}: {complete} of {all} stacks complete, {:?}", program.display(), reading.stacks);
    assert!(checked > 0 && snapshot.reading.health.mismatches == 0, "{:?}", snapshot.reading.health);
    // Pages come and go while a running program is counted.
    let mut last = String::new();
    let is_counted = wait::until_or(|| {
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
        // Coroutines end where makecontext began them, which has no rule.
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
    // No module, no network; a cache of its own where there is no home.
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-cache");
    command.env("GO111MODULE", "off").env("GOTOOLCHAIN", "local").env("GOCACHE", cache);
    assert!(command.status().is_ok_and(|status| status.success()), "go build");
    program
}

#[test]
fn go_program() {
    assert_nearly_all(run(&go("churn-go", &[]), &[]));
}

/// Without `.debug_frame` too: by frame pointer only.
#[test]
fn stripped_go_program() {
    assert_nearly_all(run(&go("churn-go-stripped", &["-ldflags", "-s -w"]), &[]));
}

#[test]
fn ocaml_stack_switching() {
    let program = compile("gcc", "stack_switch.c", "stack_switch", &["-O2", "-fomit-frame-pointer"]);
    // Between the instruction that switches and the one that leaves the link, no rule is right.
    assert_nearly_all(run(&program, &[]));
}

/// Runs a compiler again and again under the probe, and returns its stacks by how they ended; without those that were
/// taken while tables were made: on a busy machine those are many, the first time most.
fn profile_compiler(mut compiler: Command) -> (u64, u64) {
    let mut probe = probe();
    let (mut all, mut complete) = (0, 0);
    for _ in 0..20 {
        let mut running = compiler.spawn().expect("it starts");
        let Ok(target) = probe.watch(running.id()) else {
            // It was faster than its tables.
            running.wait().expect("our child");
            continue;
        };
        while running.try_wait().expect("our child").is_none() {
            probe.poll(std::time::Duration::from_millis(5)).expect("it is polled");
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

/// Files of a hundred megabytes and millions of rules, frames of half a megabyte whose pages are touched one by one
/// before they are used.
#[test]
fn rustc_stacks() {
    // Not rustup's: that one executes another.
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output().expect("rustc").stdout;
    let compiler = Path::new(String::from_utf8(sysroot).expect("a path").trim()).join("bin/rustc");
    let mut rustc = Command::new(&compiler);
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("churn-rustc.o");
    rustc.args(["-O", "--edition", "2024", "--emit", "obj", "-o"]).arg(out).arg(source("churn.rs"));
    assert_nearly_all(profile_compiler(rustc));
}

/// As Debian built it, stripped.
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
