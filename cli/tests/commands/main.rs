//! The commands that request from an aggregator, as a user runs them.

mod connections;
mod db;
mod fake;
mod kube;
mod latency;
mod latency_snapshots;
mod live;
mod local_snapshots;
mod logs;
mod messages;
mod server;
mod snapshots;
mod support_bundle;
mod tls;
mod tmux;
mod trace;
mod trace_screens;

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
    refusal_with(1, arguments)
}

/// Standard error of a command that fails with this code and prints nothing.
fn refusal_with(code: i32, arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = chainscope(arguments).output().expect("it starts");
    let error = String::from_utf8(stderr).expect("UTF-8");
    assert_eq!((status.code(), stdout.as_slice()), (Some(code), &b""[..]), "{arguments:?}: {error}");
    error
}

#[test]
fn an_error_does_not_control_the_terminal() {
    let name = "no\u{1b}]0;title\u{7}\u{202e}.db";
    let error = refusal_with(2, &["latency", "--db", name, "list"]);
    assert!(
        error.starts_with("chainscope: no\\u{1b}]0;title\\u{7}\\u{202e}.db: no such file of runs\nhint: "),
        "{error}"
    );
    assert!(error.lines().all(|line| line.chars().all(chainscope_hygiene::is_printable)), "{error:?}");
}

#[test]
fn manual_pages_and_completions_describe_the_commands() {
    assert!(stdout(&["man"]).contains("chainscope\\-logs(1)"));
    let page = stdout(&["man", "logs"]);
    assert!(
        page.contains("chainscope\\-logs") && page.contains("\\-\\-follow") && page.contains("\\-\\-ca\\-file"),
        "{page}"
    );
    assert!(refusal_with(2, &["man", "nothing"]).contains("\"nothing\""));
    let folder = tempfile::tempdir().expect("a directory");
    stdout(&["man", "--out", folder.path().to_str().expect("UTF-8")]);
    let mut pages: Vec<_> = std::fs::read_dir(folder.path())
        .expect("written")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    pages.sort();
    for name in ["", "-connections", "-logs", "-man", "-message", "-messages", "-nodes", "-run", "-stats"] {
        assert!(pages.contains(&format!("chainscope{name}.1")), "{name}: {pages:?}");
    }
    assert!(!pages.iter().any(|page| page.contains("exec-with-parent")), "{pages:?}");
    for shell in ["bash", "zsh", "fish"] {
        let completions = stdout(&["completions", shell]);
        assert!(completions.contains("logs") && completions.contains("live"), "{shell}");
    }
}
