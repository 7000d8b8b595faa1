//! `chainscope demo`, as seen on a terminal.

use std::net::TcpListener;
use std::process::Command;

use chainscope_e2e::harness::program::Program;
use chainscope_e2e::harness::wait::WAIT_TIMEOUT;
use chainscope_e2e::harness::{binary, free_port};
use rustix::process::Signal;

#[test]
fn ctrl_c_ends_it_with_the_log_the_memory_tree_and_the_sum() {
    let demo = endless(&DEFAULT_SIGNALS);
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
        "BlockCache::insert_block",
        "Mempool::add_operation",
        "BlockStore::read_block",
        "connections shown. Try next:",
    ] {
        assert!(output.contains(part), "no {part:?} in {output}");
    }
}

/// Tests in the background may have ignored signals, and programs would inherit that.
const DEFAULT_SIGNALS: [&str; 2] = ["env", "--default-signal=HUP,INT"];

/// A million messages, so that it ends by a signal only. `launcher` executes the command that follows.
fn endless(launcher: &[&str]) -> Program {
    let mut command = Command::new(launcher[0]);
    command.args(&launcher[1..]).arg(binary("chainscope"));
    let listen = format!("127.0.0.1:{}", free_port());
    command.args(["demo", "--messages", "1000000", "--listen", &listen]).arg("--demo-node");
    let demo = Program::start("chainscope demo", command.arg(binary("chainscope-demo-node")));
    demo.wait_stdout("messages", |lines| lines.iter().any(|line| line.contains("current_head")).then_some(()));
    demo
}

#[test]
fn a_hangup_ends_it_with_the_sum() {
    let demo = endless(&DEFAULT_SIGNALS);
    demo.signal(Signal::HUP);
    let finished = demo.join(WAIT_TIMEOUT);
    assert!(finished.status.success(), "{}", finished.err.join("\n"));
    let output = finished.out.join("\n");
    assert!(output.contains("connections shown. Try next:"), "{output}");
}

#[test]
fn nohup_keeps_it_after_a_hangup() {
    let demo = endless(&["nohup"]);
    let count = |lines: &[String]| lines.iter().filter(|line| line.contains("current_head")).count();
    demo.signal(Signal::HUP);
    let seen = demo.wait_stdout("lines", |lines| Some(count(lines)));
    demo.wait_stdout("messages after the hangup", |lines| (count(lines) > seen + 20).then_some(()));
    demo.signal(Signal::INT);
    assert!(demo.join(WAIT_TIMEOUT).status.success());
}

#[test]
fn a_taken_port_is_replaced_and_said() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let listen = taken.local_addr().expect("its address").to_string();
    let mut command = Command::new(binary("chainscope"));
    command.args(["demo", "--messages", "1", "--listen", &listen]).arg("--demo-node");
    let finished = Program::start("chainscope", command.arg(binary("chainscope-demo-node"))).join(WAIT_TIMEOUT);
    assert!(finished.status.success(), "{}", finished.err.join("\n"));
    let output = finished.out.join("\n");
    assert!(output.contains(&format!("Another program listens on {listen}")), "{output}");
    assert!(!output.contains(&format!("http://{listen}/")), "{output}");
}

#[test]
fn without_rights_it_says_what_is_missing() {
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(binary("chainscope")).arg("demo");
    let finished = Program::start("setpriv", &mut command).join(WAIT_TIMEOUT);
    let errors = finished.err.join("\n");
    assert_eq!(finished.status.code(), Some(2), "{errors}");
    assert!(errors.contains("the demo cannot record here:"), "{errors}");
    assert!(errors.contains("BPF"), "{errors}");
    assert!(finished.out.is_empty(), "nothing was started: {:?}", finished.out);
}
