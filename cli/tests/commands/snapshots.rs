//! The output of every command that requests from a server, at 80 and 200 columns: `tests/golden` has the expected text,
//! `UPDATE_GOLDEN=1 cargo test -p chainscope-cli --test commands snapshots` writes it.

use std::{env, fs, path::Path, process::Command};

use chainscope_proto::v1::{
    ConnectionClosed, ConnectionEvent, ConnectionIdentified, ConnectionOpened, ConnectionState, ConnectionStateChanged,
    Initiator, LogLevel, Loss, MemoryMapping, NetworkAccount, ReasonCount, Record, SocketAddress, TargetEvent,
    TraceEvent, connection_event::Event, record::Kind,
};
use chainscope_testing::memory::{FrameName, Recorder};

use crate::{
    chainscope, latency_snapshots,
    server::{NODE, Server, TIME, logged, metadata, record},
};

/// Numbers of JSON that differ from run to run.
const VOLATILE: [&str; 4] = ["\"clock_skew\":", "\"free_bytes\":", "\"last\":", "\"time\":"];

fn server() -> Server {
    let mut server = Server::start();
    let records = [
        vec![record(Kind::TargetEvent(TargetEvent { event: "found".into(), pid: 4711, detail: "octez-node".into() }))],
        connection(0, 20_001, Initiator::Local, true),
        metadata(20_001, false, 0),
        metadata(20_001, true, 0),
        connection(1, 20_002, Initiator::Remote, false),
        metadata(20_002, true, 0),
        vec![
            logged(
                0,
                LogLevel::Notice,
                "Jul 14 12:02:03.456 NOTICE │ read identity file\nJul 14 12:02:03.456 NOTICE │   peer_id = idPeer",
            ),
            logged(1, LogLevel::Warning, "Jul 14 12:02:04.456   WARN │ too few connections (0)"),
            logged(
                2,
                LogLevel::Error,
                "Jul 14 12:02:05.456  ERROR │ cannot reach 10.0.0.1:9732: \u{1b}[2Jconnection refused",
            ),
            record(Kind::Loss(Loss {
                stage: "kernel".into(),
                reason: "ring full".into(),
                records: 3,
                bytes: 5000,
                from_ns: TIME,
                to_ns: TIME,
                ..Loss::default()
            })),
            record(Kind::TargetEvent(TargetEvent {
                event: "identity error".into(),
                pid: 4711,
                detail: "/data/identity.json: permission denied".into(),
            })),
            record(Kind::NetworkAccount(account())),
        ],
    ];
    server.feed_and_stay(records.concat(), memory());
    server
}

/// A connection that was opened this number of seconds after [`TIME`]; it is closed or cannot be decrypted.
fn connection(second: u64, port: u32, initiator: Initiator, is_closed: bool) -> Vec<Record> {
    let key = u64::try_from(TIME).expect("positive") + second * 1_000_000_000;
    let address = |ip: [u8; 4], port| Some(SocketAddress { ip: ip.to_vec(), port });
    let opened = ConnectionOpened {
        initiator: initiator.into(),
        remote: address([10, 0, 0, 1], port),
        local: address([10, 0, 0, 2], 9732),
    };
    let identified = ConnectionIdentified {
        peer_id: format!("idPeerAt{port}"),
        protocol: "tezos".into(),
        network: "TEZOS_MAINNET".into(),
        ..ConnectionIdentified::default()
    };
    let end = if is_closed {
        Event::Closed(ConnectionClosed { by: "remote".into(), sent_bytes: 1500, received_bytes: 3_000_000 })
    } else {
        Event::StateChanged(ConnectionStateChanged {
            state: ConnectionState::Undecryptable.into(),
            reason: "it began before it was recorded".into(),
            remedy: "restart the node, or wait until the peer reconnects".into(),
        })
    };
    let events = [Event::Opened(opened), Event::Identified(identified), end];
    events.map(|event| record(Kind::Connection(ConnectionEvent { connection: key, event: Some(event) }))).into()
}

/// An account with a counter that disagrees.
fn account() -> NetworkAccount {
    NetworkAccount {
        bytes_seen: 3_006_500,
        bytes_captured: 3_001_500,
        bytes_dropped: vec![ReasonCount { reason: "ring full".into(), count: 5000 }],
        bytes_in_chunks: 3_001_500,
        chunks: 12,
        chunks_opened: 11,
        chunks_undecryptable: 1,
        messages: 4,
        messages_sent: 3,
        connections: 2,
        connections_open: 1,
        ..NetworkAccount::default()
    }
}

fn memory() -> chainscope_proto::v1::MemoryState {
    let mut recorder = Recorder::new(NODE, 4711, 1);
    let [main, run, read] = [
        FrameName::own("main", 0x10),
        FrameName::own("storage::context::Context::commit", 0x20),
        FrameName::library("libc.so.6", Some("read"), 0x30),
    ];
    recorder.hold(&[main.clone(), run.clone()], [2000, 0, 0]);
    recorder.hold(&[main.clone(), run, read], [0, 500, 0]);
    recorder.hold(&[main, FrameName::library("librocksdb.so", None, 0x1234)], [700, 0, 0]);
    recorder.before_attach = [300, 0, 0];
    let mut state = recorder.keyframe();
    if let Some(totals) = &mut state.totals {
        totals.at_attach = vec![MemoryMapping { kind: 1, mapping: "[heap]".into(), pages: 300 }];
    }
    state
}

/// A transcript of commands against a server.
struct Transcript<'a> {
    server: &'a Server,
    text: String,
}

impl Transcript<'_> {
    /// Appends a command and its output at a width; `None`: without a terminal.
    fn run(&mut self, columns: Option<u16>, arguments: &[&str]) {
        let mut command = chainscope(arguments);
        command.args(["--api", &self.server.url()]);
        self.text += &transcribe_at(columns, &mut command, arguments);
    }

    /// Appends a command at both widths, as JSON, and its error for a node that does not exist.
    fn whole(&mut self, arguments: &[&str]) {
        for columns in [80, 200] {
            self.run(Some(columns), arguments);
        }
        for format in ["json", "jsonl"] {
            self.run(None, &[arguments, &["-o", format]].concat());
        }
    }

    /// Compares with the golden file, or writes it.
    #[track_caller]
    fn check(self, name: &str) {
        let url = self.server.url();
        let text = self.text.replace(&url, "http://127.0.0.1:17732").replace(env!("CARGO_PKG_VERSION"), "VERSION");
        compare(&text.lines().map(|line| stable(line) + "\n").collect::<String>(), name);
    }
}

/// A command line as a user types it.
pub(crate) fn command_line(arguments: &[&str]) -> String {
    let quoted = arguments
        .iter()
        .map(|argument| if argument.contains(' ') { format!("'{argument}'") } else { (*argument).to_owned() });
    format!("$ chainscope {}", quoted.collect::<Vec<_>>().join(" "))
}

/// The output of a command at a width, in a transcript; `None`: without a terminal.
pub(crate) fn transcribe_at(columns: Option<u16>, command: &mut Command, arguments: &[&str]) -> String {
    if let Some(columns) = columns {
        command.env("COLUMNS", columns.to_string());
    }
    let width = columns.map(|columns| format!("    # {columns} columns")).unwrap_or_default();
    transcribe(command, &format!("{}{width}", command_line(arguments)))
}

/// The output of a command in a transcript.
pub(crate) fn transcribe(command: &mut Command, line: &str) -> String {
    let output = command.output().expect("it starts");
    let mut text = format!("{line}\n{}", String::from_utf8(output.stdout).expect("UTF-8"));
    for line in String::from_utf8(output.stderr).expect("UTF-8").lines() {
        text += &format!("stderr: {line}\n");
    }
    if let Some(code) = output.status.code().filter(|code| *code != 0) {
        text += &format!("exit code {code}\n");
    }
    text + "\n"
}

/// Compares a transcript with the golden file, or writes it.
#[track_caller]
pub(crate) fn compare(text: &str, name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.txt"));
    if env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        fs::write(&path, text).expect("written");
    }
    let golden = fs::read_to_string(&path).unwrap_or_default();
    for (number, (new, old)) in text.lines().zip(golden.lines()).enumerate() {
        assert_eq!(
            new,
            old,
            "{name}.txt:{}: run UPDATE_GOLDEN=1 cargo test -p chainscope-cli --test commands",
            number + 1
        );
    }
    assert_eq!(text.lines().count(), golden.lines().count(), "{name}.txt is stale");
}

/// A line without what differs from run to run.
fn stable(line: &str) -> String {
    VOLATILE.iter().fold(line.to_owned(), |line, name| {
        let mut parts = line.split(name);
        let first = parts.next().unwrap_or_default().to_owned();
        let is_digit = |character: char| character == '-' || character.is_ascii_digit();
        parts.fold(first, |line, part| line + name + "0" + part.trim_start_matches(is_digit))
    })
}

#[test]
fn nodes() {
    let server = server();
    let mut transcript = Transcript { server: &server, text: String::new() };
    transcript.whole(&["nodes"]);
    transcript.run(None, &["nodes", "--color", "always"]);
    transcript.check("nodes");
}

#[test]
fn messages() {
    let server = server();
    let mut transcript = Transcript { server: &server, text: String::new() };
    transcript.whole(&["messages"]);
    transcript.run(Some(80), &["messages", "--color", "always", "--limit", "1"]);
    transcript.run(Some(80), &["messages", "--sender", "remote", "--since", "2021-07-14T12:02:03Z"]);
    for refused in [
        &["messages", "nobody"][..],
        &["messages", "--types", "nothing"],
        &["messages", "-f", "-o", "json"],
        &["messages", "--since", "yesterday"],
    ] {
        transcript.run(Some(80), refused);
    }
    transcript.check("messages");
}

#[test]
fn message() {
    let server = server();
    let mut transcript = Transcript { server: &server, text: String::new() };
    transcript.whole(&["message", "0"]);
    transcript.run(Some(60), &["message", "0"]);
    transcript.run(Some(80), &["message", "99"]);
    transcript.run(None, &["message", "99", "-o", "json"]);
    transcript.run(Some(80), &["message", "newest"]);
    transcript.check("message");
}

#[test]
fn connections() {
    let server = server();
    let mut transcript = Transcript { server: &server, text: String::new() };
    transcript.whole(&["connections"]);
    transcript.run(Some(200), &["connections", "--state", "undecryptable"]);
    transcript.run(Some(200), &["connections", "--remote", "10.0.0.1:20001"]);
    transcript.run(Some(200), &["connections", "--since", "2021-07-14T12:02:04Z", "--peer-id", "idPeerAt20002"]);
    transcript.run(Some(80), &["connections", "--peer-id", "idNobody"]);
    transcript.run(Some(80), &["connections", "nobody"]);
    transcript.run(Some(80), &["connections", "--state", "odd"]);
    transcript.check("connections");
}

#[test]
fn logs() {
    let server = server();
    let mut transcript = Transcript { server: &server, text: String::new() };
    transcript.whole(&["logs"]);
    transcript.run(Some(80), &["logs", "--color", "always", "--level", "warning,error"]);
    transcript.run(Some(80), &["logs", "--query", "\"unfinished"]);
    transcript.run(Some(80), &["logs", "--query", "(a"]);
    transcript.run(Some(80), &["logs", "nobody"]);
    transcript.check("logs");
}

#[test]
fn stats() {
    let mut server = server();
    let mut transcript = Transcript { server: &server, text: String::new() };
    transcript.whole(&["stats"]);
    transcript.run(Some(80), &["stats", "nobody"]);
    let Transcript { text, .. } = transcript;
    server.feed(latency_snapshots::runs().iter().flat_map(latency_snapshots::records).collect());
    server.feed(vec![record(Kind::TraceEvent(TraceEvent {
        provider: "mempool".into(),
        name: "added".into(),
        ..TraceEvent::default()
    }))]);
    let mut transcript = Transcript { server: &server, text };
    transcript.run(Some(80), &["stats"]);
    transcript.check("stats");
}

#[test]
fn memory_of_a_node() {
    let server = server();
    let mut transcript = Transcript { server: &server, text: String::new() };
    transcript.whole(&["memory"]);
    transcript.run(Some(80), &["memory", "--reverse"]);
    transcript.run(Some(80), &["memory", "nobody"]);
    transcript.check("memory");
}

#[test]
fn help() {
    let server = Server::start();
    let mut transcript = Transcript { server: &server, text: String::new() };
    for columns in [80, 200] {
        for command in ["nodes", "messages", "message", "connections", "logs", "memory", "stats"] {
            transcript.run(Some(columns), &[command, "--help"]);
        }
    }
    transcript.check("help");
}

#[test]
fn without_a_server() {
    let mut server = server();
    server.stop();
    let mut transcript = Transcript { server: &server, text: String::new() };
    for command in ["nodes", "messages", "connections", "logs", "stats", "memory"] {
        transcript.run(Some(80), &[command]);
    }
    transcript.run(Some(80), &["message", "1104"]);
    transcript.run(Some(80), &["messages", "-v"]);
    transcript.check("unreachable");
}
