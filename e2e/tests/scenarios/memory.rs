//! `chainscope memory --pid`, as seen on a terminal.

use std::process::Command;

use chainscope_e2e::harness::api::Api;
use chainscope_e2e::harness::memory_process::MemoryProcess;
use chainscope_e2e::harness::program::Program;
use chainscope_e2e::harness::wait::WAIT_TIMEOUT;
use chainscope_e2e::harness::{binary, wait};
use chainscope_testing::program;
use rustix::process::Signal;

#[test]
fn the_tree_of_a_process_that_runs_already() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut process = MemoryProcess::unobserved(&program::memory_workload(folder.path()));
    process.request("one 0 4000");
    let mut command = Command::new(binary("chainscope"));
    command.args("memory --kind anon --threshold 64 --for 1h --pid".split(' ')).arg(process.pid().to_string());
    let memory = Program::start("chainscope memory", command.env("RUST_LOG", "info"));
    memory.wait_stderr("the process to be observed", |lines| {
        lines.iter().any(|line| line.contains("profiling memory")).then_some(())
    });
    let port = memory.wait_stderr("the address of the API", |lines| {
        lines.iter().find_map(|line| line.split_once("API on http://127.0.0.1:")?.1.trim().parse().ok())
    });
    process.request("two 1 3000");
    let api = Api::new(port);
    wait::until("all of it to be reported", || {
        process
            .reported(&api)
            .filter(|shown| shown.anon >= 4 * 3000 && shown.anon + shown.before == process.anonymous())
    });
    // SIGINT shows the tree at once.
    memory.signal(Signal::INT);
    let finished = memory.join(WAIT_TIMEOUT);
    assert!(finished.status.success(), "{}", finished.err.join("\n"));

    let mebibytes = |name: &str| -> f64 {
        let line = finished.out.iter().find(|line| line.contains(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in\n{}", finished.out.join("\n")));
        let (size, _) = line.split_once(" MiB").unwrap_or_else(|| panic!("{line}"));
        size.trim().parse().unwrap_or_else(|e| panic!("{line}: {e}"))
    };
    // Within the printed precision of the kernel's count.
    let assert_shown = |name: &str, kib: i64| {
        let shown = mebibytes(name);
        assert!((shown - kib as f64 / 1024.0).abs() < 0.06, "{name}: {shown} MiB, not {kib} KiB");
    };
    let anonymous = process.anonymous();
    assert_shown("100.0 %  all", anonymous);
    assert_shown("hold_two [memory_workload]", 4 * 3000);
    assert_shown("[resident before attach]", anonymous - 4 * 3000);
    process.finish();
}
