//! The commands that request from an aggregator, as a user runs them.

mod live;
mod logs;
mod messages;
mod server;
mod tmux;
mod trace;

use std::process::{Command, Output};

/// The program without an environment of its own.
fn chainscope(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chainscope"));
    command.args(arguments).env_clear();
    command
}

/// Standard output of a command that succeeds.
fn stdout(arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = chainscope(arguments).output().expect("it starts");
    assert!(status.success(), "{arguments:?}: {status}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).expect("UTF-8")
}

/// Standard error of a command that fails with code 1 and prints nothing.
fn refusal(arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = chainscope(arguments).output().expect("it starts");
    assert_eq!((status.code(), stdout.as_slice()), (Some(1), &b""[..]), "{arguments:?}");
    String::from_utf8(stderr).expect("UTF-8")
}

#[test]
fn manual_pages_and_completions_describe_the_commands() {
    assert!(stdout(&["man"]).contains("chainscope\\-logs(1)"));
    let page = stdout(&["man", "logs"]);
    assert!(
        page.contains("chainscope\\-logs") && page.contains("\\-\\-follow") && page.contains("\\-\\-ca\\-file"),
        "{page}"
    );
    assert!(refusal(&["man", "nothing"]).contains("\"nothing\""));
    for shell in ["bash", "zsh", "fish"] {
        let completions = stdout(&["completions", shell]);
        assert!(completions.contains("logs") && completions.contains("live"), "{shell}");
    }
}
