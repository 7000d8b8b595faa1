//! Invalid configurations and environments fail at once, with one error message and a nonzero exit code.

use std::net::TcpListener;
use std::process::Command;

use chainscope_e2e::harness::program::{Finished, Program};
use chainscope_e2e::harness::recorder::Machine;
use chainscope_e2e::harness::wait::WAIT_TIMEOUT;
use chainscope_e2e::harness::{binary, free_port};
use chainscope_testing::program;

/// Fails unless the process failed with an error message and its output contains all of `words`.
fn assert_refused(finished: &Finished, words: &[&str]) {
    assert!(!finished.status.success(), "it should have failed");
    let error = finished.err.iter().find(|line| line.starts_with("chainscope: "));
    let error = error.unwrap_or_else(|| panic!("no error message: {}", finished.err.join("\n")));
    let output = finished.err.join("\n");
    assert!(words.iter().all(|word| output.contains(word)), "{error:?} lacks one of {words:?}");
    assert!(!output.contains("panicked"), "{output}");
}

fn machine() -> Machine {
    let mut machine = Machine::new("auto");
    machine.observe("node", free_port());
    machine
}

#[test]
fn without_a_configuration_a_minimal_one_is_shown() {
    let folder = tempfile::tempdir().expect("folder");
    let mut command = Command::new(binary("chainscope"));
    let finished = Program::start("chainscope", command.arg("run").current_dir(&folder)).join(WAIT_TIMEOUT);
    assert!(!finished.status.success());
    let output = finished.err.join("\n");
    assert!(output.contains("[[nodes]]") && output.contains("p2p_port = 9732"), "{output}");
    assert!(output.contains("\nhint: ") && output.contains("sudo chainscope run --p2p-port 9732"), "{output}");
}

#[test]
fn an_unknown_key_is_named_with_its_line() {
    let mut machine = machine();
    machine.options = "colour = \"blue\"".to_owned();
    assert_refused(&machine.launch().join(WAIT_TIMEOUT), &["colour", "line 4"]);
}

#[test]
fn a_port_that_is_taken_is_named() {
    let machine = machine();
    let taken = TcpListener::bind(("127.0.0.1", machine.port())).expect("the port is free");
    let port = machine.port().to_string();
    let words = [port.as_str(), "in use", "hint: stop the program that listens there", "--listen"];
    assert_refused(&machine.launch().join(WAIT_TIMEOUT), &words);
    drop(taken);
}

#[test]
fn a_ring_that_the_kernel_refuses_is_named() {
    let mut machine = machine();
    machine.options = "ring_buffer = \"100KB\"".to_owned();
    assert_refused(&machine.launch().join(WAIT_TIMEOUT), &["ring"]);
}

#[test]
fn missing_capabilities_are_named() {
    let machine = machine();
    // Written by root, executed by the user `nobody`.
    let folder = tempfile::Builder::new().prefix("chainscope-nobody-").tempdir().expect("folder");
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("chmod");
    let program = folder.path().join("chainscope");
    program::copy(&binary("chainscope"), &program);
    let file = folder.path().join("chainscope.toml");
    let configuration = machine
        .configuration()
        .replace(&machine.data_dir().display().to_string(), &folder.path().join("data").display().to_string());
    std::fs::write(&file, configuration).expect("written");
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"])
        .arg(program)
        .arg("run")
        .arg("--config")
        .arg(file);
    let finished = Program::start("chainscope as nobody", &mut command).join(WAIT_TIMEOUT);
    assert_refused(&finished, &["BPF", "hint: run it as root", "chainscope run --check"]);
    assert_eq!(finished.status.code(), Some(2), "{}", finished.err.join("\n"));
}

#[test]
fn a_database_in_use_is_named() {
    let machine = machine();
    let first = machine.start();
    let mut second = Machine::new("auto");
    second.observe("node", free_port());
    let configuration = second
        .configuration()
        .replace(&second.data_dir().display().to_string(), &machine.data_dir().display().to_string());
    let file = second.path("second.toml");
    std::fs::write(&file, configuration).expect("written");
    let mut command = Command::new(binary("chainscope"));
    let finished = Program::start("second chainscope", command.arg("run").arg("--config").arg(file)).join(WAIT_TIMEOUT);
    let data_dir = machine.data_dir().display().to_string();
    assert_refused(&finished, &[data_dir.as_str(), "hint: stop the other process", "--data-dir"]);
    assert!(first.api.request("/v2/version").is_some_and(|(status, _)| status == 200), "the first one keeps running");
}
