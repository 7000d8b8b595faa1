//! `chainscope demo`, as seen on a terminal.

use std::process::Command;

use chainscope_e2e::harness::program::Program;
use chainscope_e2e::harness::wait::WAIT_TIMEOUT;
use chainscope_e2e::harness::{binary, free_port};
use rustix::process::Signal;

#[test]
fn ctrl_c_ends_it_with_the_log_the_memory_tree_and_the_sum() {
    let mut command = Command::new(binary("chainscope"));
    let listen = format!("127.0.0.1:{}", free_port());
    command.args(["demo", "--messages", "1000000", "--listen", &listen]).arg("--demo-node");
    let demo = Program::start("chainscope", command.arg(binary("chainscope-demo-node")));
    demo.wait_stdout("messages", |lines| lines.iter().any(|line| line.contains("current_head")).then_some(()));
    demo.signal(Signal::INT);
    let finished = demo.join(WAIT_TIMEOUT);
    assert!(finished.status.success(), "{}", finished.err.join("\n"));
    let output = finished.out.join("\n");
    for part in [
        "NOTICE  connected to peer id",
        " │   peer_id = id",
        "WARNING too few connections (0)",
        "Which code holds",
        "100.0 %  all (cache",
        "[chainscope-demo-node]",
        "connections shown",
    ] {
        assert!(output.contains(part), "no {part:?} in {output}");
    }
}
