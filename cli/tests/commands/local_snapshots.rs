//! The output of the commands that need no server, at 80 and 200 columns, and of a server that refuses a token;
//! [`crate::snapshots`] says how the expected text is written.

use std::{fs, path::Path};

use chainscope_aggregator::access::AccessConfig;
use chainscope_testing::program::compile;

use crate::{
    chainscope,
    server::{Server, metadata},
    snapshots::{compare, transcribe_at},
    trace::{chain_recording, recording},
};

/// A transcript of commands in a directory.
struct Transcript<'a> {
    directory: &'a Path,
    text: String,
}

impl Transcript<'_> {
    /// Appends a command at a width; `None`: without a terminal.
    fn run(&mut self, columns: Option<u16>, arguments: &[&str]) {
        let mut command = chainscope(arguments);
        // Programs that a command calls are those of the system.
        command.current_dir(self.directory).env("PATH", "/usr/bin:/bin");
        self.text += &transcribe_at(columns, &mut command, arguments);
    }

    #[track_caller]
    fn check(self, name: &str) {
        let text = self.text.replace(&format!("{}/", self.directory.display()), "");
        compare(&text.replace(env!("CARGO_PKG_VERSION"), "VERSION"), name);
    }
}

#[test]
fn recordings() {
    let directory = tempfile::tempdir().expect("a directory");
    recording(&directory);
    let mut transcript = Transcript { directory: directory.path(), text: String::new() };
    for columns in [Some(80), Some(200)] {
        transcript.run(columns, &["trace", "info", "node.trace"]);
    }
    transcript.run(None, &["trace", "info", "node.trace", "--json"]);
    for view in [
        &["p2p"][..],
        &["p2p-monitor"],
        &["raw"],
        &["mempool"],
        &["connections"],
        &["relay"],
        &["any", "net:*", "--filter", "size>2"],
        &["any", "mempool:*", "--format", "{time} {fee}"],
    ] {
        let arguments = [&["trace", "replay", "node.trace"], view].concat();
        transcript.run(Some(80), &arguments);
        transcript.run(None, &[&arguments[..], &["--json"]].concat());
    }
    transcript.run(None, &["trace", "replay", "node.trace", "any", "mempool:*", "-o", "jsonl"]);
    transcript.run(None, &["trace", "replay", "node.trace", "p2p", "-o", "json"]);
    transcript.run(None, &["trace", "info", "node.trace", "-o", "json"]);
    transcript.run(Some(80), &["trace", "copy", "node.trace", "copy.trace", "--tracepoint", "net:*"]);
    transcript.run(Some(80), &["trace", "copy", "node.trace", "copy.trace"]);
    transcript.run(Some(80), &["trace", "replay", "node.trace", "blocks", "5", "0", "0"]);
    transcript.run(Some(80), &["trace", "info", "missing.trace"]);
    fs::write(directory.path().join("not.trace"), "no recording").expect("written");
    transcript.run(Some(80), &["trace", "info", "not.trace"]);
    transcript.run(Some(80), &["trace", "p2p"]);
    transcript.run(Some(80), &["trace", "p2p", "--pid", "0"]);
    transcript.run(Some(80), &["trace", "p2p", "--file", "not.trace"]);
    transcript.check("trace");
}

#[test]
fn recordings_of_blocks_coins_and_wallets() {
    let directory = tempfile::tempdir().expect("a directory");
    chain_recording(&directory);
    let mut transcript = Transcript { directory: directory.path(), text: String::new() };
    for view in [&["blocks", "0", "0", "100"][..], &["utxocache"], &["utxos"], &["coins"]] {
        let arguments = [&["trace", "replay", "chain.trace"], view].concat();
        transcript.run(Some(80), &arguments);
        transcript.run(None, &[&arguments[..], &["--json"]].concat());
    }
    fs::write(directory.path().join("not.trace"), "no recording").expect("written");
    for wrong in ["not.trace", "missing.trace"] {
        transcript.run(Some(80), &["trace", "replay", wrong, "blocks", "0", "0", "100"]);
    }
    transcript.check("trace-chain");
}

/// Of a program whose notes are written in assembly, so that they do not depend on the compiler.
#[test]
fn tracepoints() {
    let directory = tempfile::tempdir().expect("a directory");
    let note = |name: &str, arguments: &str| {
        format!(
            "990: nop\n.pushsection .note.stapsdt,\"\",\"note\"\n.balign 4\n.4byte 992f-991f, 994f-993f, 3\n\
             991: .asciz \"stapsdt\"\n992: .balign 4\n993: .8byte 990b, 0, 0\n.asciz \"mempool\"\n.asciz \"{name}\"\n\
             .asciz \"{arguments}\"\n994: .balign 4\n.popsection\n"
        )
    };
    let notes =
        [note("added", "8@%rax 8@%rbx -8@16(%rsp)"), note("removed", "8@%rax"), note("other", "4@nonsense -4@$7")];
    let source = directory.path().join("node.s");
    let start = ".globl _start\n.text\n_start:\n";
    fs::write(&source, format!("{start}{}.section .note.GNU-stack,\"\",@progbits\n", notes.concat())).expect("written");
    let _ = compile("gcc", &source, directory.path(), "node", &["-nostdlib", "-static", "-Wl,--build-id=none"]);
    let mut transcript = Transcript { directory: directory.path(), text: String::new() };
    for columns in [80, 200] {
        transcript.run(Some(columns), &["tracepoints", "node", "--contract", "tapyrus"]);
    }
    transcript.run(Some(80), &["tracepoints", "node"]);
    transcript.run(None, &["tracepoints", "node", "--contract", "tapyrus", "--json"]);
    transcript.run(Some(80), &["tracepoints", "node", "--contract", "tapyrus", "--check"]);
    for format in ["json", "jsonl"] {
        transcript.run(None, &["tracepoints", "node", "--contract", "tapyrus", "--check", "-o", format]);
    }
    transcript.run(Some(80), &["tracepoints", "node", "--provider", "nothing"]);
    transcript.run(Some(80), &["tracepoints", "node", "--contract", "unknown"]);
    transcript.run(Some(80), &["tracepoints", "missing"]);
    transcript.run(Some(80), &["tracepoints", "node.s"]);
    transcript.run(Some(80), &["tracepoints", "--pid", "0"]);
    transcript.check("tracepoints");
}

/// What cannot start says why, and what to do.
#[test]
fn programs_that_cannot_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).expect("written");
    write("unknown.toml", "unknown_key = 1\n");
    write("syntax.toml", "nodes = [\n");
    write("valid.toml", "[[nodes]]\nname = \"9732\"\np2p_port = 9732\n");
    let mut transcript = Transcript { directory: directory.path(), text: String::new() };
    for arguments in [
        &["run", "--config", "missing.toml"][..],
        &["run", "--config", "syntax.toml"],
        &["run", "--config", "unknown.toml"],
        &["run", "--check", "--config", "unknown.toml"],
        &["run", "--p2p-port", "0"],
        &["run", "--listen", "nowhere"],
        &["demo", "--messages", "none"],
        &["support-bundle", "--config", "missing.toml", "-o", "missing/bundle.tar.gz"],
        &["completions", "nushell"],
        &["man", "nothing"],
        &["man", "--out", "valid.toml"],
        &["nothing"],
        &[],
    ] {
        transcript.run(Some(80), arguments);
    }
    transcript.check("start");
}

#[test]
fn help_of_the_other_commands() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut transcript = Transcript { directory: directory.path(), text: String::new() };
    let views = [
        "p2p",
        "p2p-monitor",
        "raw",
        "blocks",
        "utxocache",
        "utxos",
        "mempool",
        "coins",
        "connections",
        "relay",
        "any",
        "replay",
        "info",
        "copy",
    ];
    for columns in [80, 200] {
        transcript.run(Some(columns), &["--help"]);
        for command in ["run", "demo", "tracepoints", "trace", "support-bundle", "completions", "man"] {
            transcript.run(Some(columns), &[command, "--help"]);
        }
        for view in views {
            transcript.run(Some(columns), &["trace", view, "--help"]);
        }
    }
    transcript.check("local-help");
}

/// Without a token, with a wrong one, and with one that may not read the node.
#[test]
fn a_refused_token() {
    let directory = tempfile::tempdir().expect("a directory");
    let tokens = directory.path().join("tokens");
    fs::write(&tokens, "5ecret alice other\n").expect("written");
    let mut server = Server::with(|config| config.access = AccessConfig::TokenFile(tokens));
    server.feed(metadata(20_001, true, 0));
    let mut transcript = Transcript { directory: directory.path(), text: String::new() };
    let url = server.url();
    for token in [&[][..], &["--token", "wrong"], &["--token", "5ecret"]] {
        for command in [&["messages", "9732"][..], &["nodes"], &["messages", "9732", "-o", "json"]] {
            transcript.run(Some(80), &[command, token, &["--api", &url]].concat());
        }
    }
    transcript.text = transcript.text.replace(&url, "http://127.0.0.1:17732");
    transcript.check("refused");
}
