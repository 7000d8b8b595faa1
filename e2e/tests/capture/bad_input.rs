//! Peers that violate the protocol: memory stays bounded, their connection is marked, other connections are unaffected.

use std::process::Command;

use chainscope_e2e::harness::api::{Api, id};
use chainscope_e2e::harness::demo_node::DemoNode;
use chainscope_e2e::harness::program::Program;
use chainscope_e2e::harness::recorder::{Machine, Recorder};
use chainscope_e2e::harness::stats::Account;
use chainscope_e2e::harness::wait::WAIT_TIMEOUT;
use chainscope_e2e::harness::{binary, free_port, run, wait};
use serde_json::Value;

/// Limit of Chainscope's peak resident memory, with RocksDB's caches and the 64 MiB queue.
const MAX_MEMORY: u64 = 600 << 20;

struct Scene {
    chainscope: Recorder,
    node: Program,
    port: u16,
    honest: usize,
    _machine: Machine,
}

impl Scene {
    /// Starts Chainscope and an observed node that accepts every peer.
    fn new() -> Self {
        Self::with("")
    }

    /// The same with options in the configuration.
    fn with(options: &str) -> Self {
        let mut machine = Machine::new("auto");
        machine.options = options.to_owned();
        let port = free_port();
        machine.observe("node", port);
        let chainscope = machine.start();
        let node = DemoNode::new("load")
            .listen(port)
            .identity(&machine.identity("node"))
            .with("--messages 5 --keep-open")
            .start_observed(&chainscope.api, "node");
        Self { chainscope, node, port, honest: 0, _machine: machine }
    }

    fn api(&self) -> &Api {
        &self.chainscope.api
    }

    fn hostile(&self, violation: &str, options: &str) -> Program {
        DemoNode::new("hostile").peer(self.port).with(&format!("--violation {violation}")).with(options).start()
    }

    /// Runs a conforming peer and waits until all its messages are recorded.
    fn honest_peer(&mut self) {
        const MESSAGES: usize = 30;
        self.honest += 1;
        // A length of message that identifies this peer.
        let size = 5000 + self.honest;
        let before = self.api().count("node");
        let options = format!("--messages {MESSAGES} --size {size}");
        DemoNode::new("load").peer(self.port).with(&options).start().join(WAIT_TIMEOUT).expect_success("honest peer");
        wait::until("the honest peer's messages", || {
            let rows = self.api().rows_from("node", "types=operation&incoming=true", before);
            (rows.len() >= MESSAGES).then_some(())
        });
    }

    /// Waits for a connection whose JSON contains `what`.
    fn marked(&self, what: &str) -> Value {
        wait::until(&format!("a connection marked {what:?}"), || {
            let connections = self.api().connections("node");
            connections.into_iter().map(|c| c.value).find(|value| value.to_string().contains(what))
        })
    }

    fn assert_bounded(&self) {
        let pid = self.chainscope.program.pid();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("chainscope runs");
        let line = status.lines().find(|l| l.starts_with("VmHWM:")).expect("VmHWM");
        let kilobytes: u64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number");
        eprintln!("peak resident memory: {} MiB", kilobytes >> 10);
        assert!(kilobytes << 10 <= MAX_MEMORY, "{line}");
    }

    fn end(self) {
        Account::read(self.api(), "node").assert_conserved();
        self.assert_bounded();
        self.node.terminate();
        self.chainscope.program.terminate().expect_success("chainscope");
    }
}

#[test]
fn garbage_and_incomplete_messages() {
    let mut scene = Scene::new();
    let mut peers = Vec::new();
    for violation in [
        "garbage",
        "unfinished-handshake",
        "unfinished-chunk",
        "unfinished-message",
        "forged-chunk",
        "absurd-length",
        "broken-bodies",
    ] {
        let peer = scene.hostile(violation, "");
        peer.wait_events("connected", 1);
        scene.honest_peer();
        peers.push(peer);
    }
    scene.marked("does not look like a connection message");
    scene.marked("cannot decrypt");
    // Bodies that do not match their tag are rows with an error and the bytes.
    let broken = wait::until("three rows with an error", || {
        let rows = scene.api().rows("node", "incoming=true&types=operation,current_branch,get_current_branch");
        let messages = rows.into_iter().map(|row| scene.api().message("node", id(&row)));
        let broken: Vec<_> = messages.filter(|message| message["error"].is_string()).collect();
        (broken.len() >= 3).then_some(broken)
    });
    assert!(broken.iter().all(|m| m["decrypted_bytes"].as_array().is_some_and(|b| b.len() > 4)));
    drop(peers);
    scene.honest_peer();
    scene.end();
}

#[test]
fn ten_thousand_half_open_connections() {
    let mut scene = Scene::new();
    let flood = scene.hostile("half-open", "--connections 10000 --connect-timeout 60");
    flood.wait_events("connected", 10_000);
    scene.honest_peer();
    scene.assert_bounded();
    drop(flood);
    scene.honest_peer();
    scene.end();
}

#[test]
fn connection_message_of_64_kib() {
    let mut scene = Scene::new();
    let peer = scene.hostile("long-connection-message", "");
    peer.wait_events("established", 1);
    scene.honest_peer();
    // Not a connection message of any version: the connection is marked, and no message is recorded.
    let marked = scene.marked("does not look like a connection message");
    assert_eq!(marked["gaps"], 0, "{marked}");
    let rows = scene.api().rows("node", "types=connection_message&incoming=true");
    let longest = rows.iter().map(|row| scene.api().plain("node", id(row)).len()).max();
    assert!(longest.is_some_and(|length| length < 1000), "{longest:?}");
    drop(peer);
    scene.end();
}

#[test]
fn message_of_100_mib() {
    // All of it fits into the ring buffer and the queue: nothing is dropped on any machine.
    let mut scene = Scene::with("ring_buffer = \"128MiB\"\nqueue = \"512MiB\"");
    // A small send buffer makes it last seconds, as over a real link.
    let peer = scene.hostile("huge-message", "--send-buffer 8192");
    peer.wait_events("established", 1);
    // Connection message, metadata, ack, and 104,857,604 bytes in pieces of 65,517.
    let chunks = 3 + 104_857_604_u64.div_ceil(65_517);
    let all = |a: &Account| a.bytes_in_ring == 0 && a.bytes_seen > 104_857_604 + 18 * (chunks - 3);
    let account = Account::wait_for(scene.api(), "node", "an account of all bytes", all);
    account.assert_conserved();
    eprintln!("{account:?}");
    assert_eq!((account.bytes_dropped, account.gaps), (0, 0), "{account:?}");
    let rows = || scene.api().rows("node", "types=operation&incoming=true").len();
    wait::until("the message", || (rows() == 1).then_some(()));
    let key = &scene.api().connections("node")[0].key;
    let kept = (0..chunks).filter(|n| scene.api().chunk("node", key, "remote", *n).is_some()).count() as u64;
    assert_eq!(kept, chunks, "{account:?}");
    let account =
        Account::wait_for(scene.api(), "node", "an account of all chunks", |account| account.chunks >= chunks);
    assert_eq!((account.chunks_dropped, account.messages_dropped), (0, 0), "{account:?}");
    scene.honest_peer();
    drop(peer);
    scene.end();
}

#[test]
fn control_characters_reach_no_terminal() {
    let mut scene = Scene::new();
    let peer = scene.hostile("control-characters", "");
    peer.wait_events("established", 1);
    wait::until("its messages", || {
        let rows = scene.api().rows("node", "incoming=true&types=advertise,swap_request");
        (rows.len() >= 2).then_some(())
    });
    scene.honest_peer();
    let url = format!("http://127.0.0.1:{}", scene._machine.port());
    let shown = |more: &[&str]| {
        run(Command::new(binary("chainscope")).args(["messages", "--api", &url, "--last", "1000"]).args(more))
    };
    for text in [shown(&[]), shown(&["--json"])] {
        assert!(text.lines().count() >= 10, "{text}");
        // A right-to-left override and a zero-width space are no control characters.
        let bad = text.chars().find(|c| (c.is_control() && *c != '\n') || matches!(c, '\u{202e}' | '\u{200b}'));
        assert_eq!(bad, None, "in the output of `chainscope messages`");
    }
    // In JSON, metrics and logs they are escaped or absent.
    for path in ["/v2/p2p?limit=1000", "/v3/connections", "/v2/stats", "/metrics"] {
        let (_, body) = scene.api().request(path).expect("an answer");
        assert!(!body.chars().any(|c| c.is_control() && c != '\n'), "raw control characters in {path}");
    }
    let log = scene.chainscope.program.err().join("\n");
    assert!(!log.contains("\u{1b}]0;owned") && !log.contains("\u{1b}[2J"), "{log}");
    drop(peer);
    scene.end();
}
