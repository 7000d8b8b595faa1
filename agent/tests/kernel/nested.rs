//! Hosts that are containers themselves (kind, k3d, minikube): tests of this program in two pid namespaces on one kernel at the
//! same time, each with a `/proc` and a network namespace of its own. Both use the same process ids and ports.

use std::process::{Command, Stdio};

/// Discovery by port, before and after the start of the agent, and by executable; sessions in both directions.
const TESTS: [&str; 4] = [
    "a_node_that_listens_already_is_found_by_its_port",
    "a_node_that_begins_to_listen_is_found_at_once_and_again_after_a_restart",
    "accepted_connections_are_the_node_s_and_other_protocols_are_left_alone",
    "a_program_is_found_by_its_executable",
];

#[test]
fn two_hosts_in_nested_pid_namespaces() {
    let exe = std::env::current_exe().unwrap();
    let start = |_| {
        let mut host = Command::new("unshare");
        host.args(["--pid", "--fork", "--kill-child", "--mount-proc", "--net"]);
        host.args(["sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]).arg(&exe);
        host.args(TESTS).args(["--exact", "--test-threads=1"]);
        host.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for host in [0, 1].map(start) {
        let output = host.wait_with_output().unwrap();
        let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{text}\n{errors}");
        assert!(text.contains(&format!("{} passed", TESTS.len())), "{text}");
    }
}

/// What `chainscope-agent --check` prints about the pid namespace in a nested one, and whether it passes.
fn check(script: &str) -> (String, bool) {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "sh", "-c", script, env!("CARGO_BIN_EXE_chainscope-agent")]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.contains("pid namespace: ")).unwrap_or_else(|| panic!("{output:?}"));
    (line.to_owned(), output.status.success())
}

#[test]
fn the_self_check_names_the_pid_namespace() {
    let (line, ok) = check("\"$0\" --check && exit 0; exit 1");
    assert!(ok && line.starts_with("ok      pid namespace: pid:["), "{line}");
    assert!(line.ends_with("], a nested one, process ids are translated"), "{line}");
    let (line, ok) = check("exec \"$0\" --check");
    assert!(ok && line.starts_with("limited pid namespace: pid:[") && line.contains("hostPID"), "{line}");
    let (line, ok) = check("\"$0\" --check --host-proc /sys && exit 0; exit 1");
    assert!(!ok, "{line}");
    assert_eq!(line, "MISSING pid namespace: the process ids of /sys cannot be used: it is not a proc file system");
}
