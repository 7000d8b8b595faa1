//! The agent on real sockets of this machine. Needs root and a kernel with BTF; fails where these are missing.
//!
//! `CHAINSCOPE_CAPTURE=sock` or `syscall` chooses how bytes are taken; else the best that the kernel has.
#![allow(clippy::unwrap_used)] // a test shows the line at which it fails

mod cluster;
mod collector;
mod operator;
mod puppet;
mod session;

use std::{
    io::Write as _,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    time::Duration,
};

use chainscope_agent::{Agent, CaptureMode, Config, NodeConfig, Running};
use chainscope_proto::v1::{ConnectionState, connection_event::Event, record::Kind};
use chainscope_testing::free_port;
use collector::{Collector, Delivered};
use puppet::Puppet;
use session::{another_identity, identity, messages, play, steps};

const REQUEST: &[u8] = b"GET /chains/main/blocks/head/header HTTP/1.1\r\nHost: localhost\r\n\r\n";
const PATIENCE: Duration = Duration::from_secs(60);

fn capture() -> Option<CaptureMode> {
    match std::env::var("CHAINSCOPE_CAPTURE").as_deref() {
        Ok("sock") => Some(CaptureMode::Sock),
        Ok("syscall") => Some(CaptureMode::Syscall),
        Ok(other) => panic!("CHAINSCOPE_CAPTURE: {other}"),
        Err(_) => None,
    }
}

struct Stage {
    dir: tempfile::TempDir,
    identity: PathBuf,
    collector: Collector,
}

impl Stage {
    fn new() -> Self {
        // What an agent says is shown when a test fails.
        let _ = tracing_subscriber::fmt().with_test_writer().with_env_filter("info").try_init();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("identity.json");
        std::fs::write(&path, identity()).unwrap();
        Self { identity: path, collector: Collector::default(), dir }
    }

    fn node(&self) -> NodeConfig {
        NodeConfig { name: "node".to_owned(), identity: Some(self.identity.clone()), ..NodeConfig::default() }
    }

    fn on_port(&self, port: u16) -> NodeConfig {
        NodeConfig { p2p_port: Some(port), ..self.node() }
    }

    fn start(&self, node: NodeConfig) -> Running {
        let config =
            Config { capture: capture(), ring_bytes: 8 << 20, ..Config::new(self.dir.path().join("data"), vec![node]) };
        Agent::start(config, self.collector.link()).unwrap()
    }

    fn found(&self, pid: u32) {
        self.collector.wait("the target", |delivered| {
            let events = delivered.target_events("node");
            events
                .iter()
                .any(|event| event.pid == pid && matches!(event.event.as_str(), "found" | "started"))
                .then_some(())
        });
    }

    /// Waits for so many whole sessions of the node.
    fn whole_sessions(&self, node: &str, count: usize) {
        self.collector.wait("whole sessions", |delivered| (sessions(delivered, node) == count).then_some(()));
    }
}

/// Connections whose messages are those of the session, neither more nor less.
fn sessions(delivered: &Delivered, node: &str) -> usize {
    let all = delivered.messages(node);
    let mut keys: Vec<u64> = all.iter().map(|message| message.0).collect();
    keys.dedup();
    keys.into_iter().filter(|key| of_connection(delivered, node, *key) == messages()).count()
}

fn of_connection(delivered: &Delivered, node: &str, key: u64) -> Vec<(bool, u64, Vec<u8>)> {
    let of = delivered.messages(node).into_iter().filter(|message| message.0 == key);
    of.map(|(_, incoming, first, digest)| (incoming, first, digest)).collect()
}

/// The node connects to this process, and the session is played.
fn session_out(node: &mut Puppet) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connection = node.connect(listener.local_addr().unwrap().port());
    let mut peer = listener.accept().unwrap().0;
    play(node, connection, &mut peer, &steps());
}

/// This process connects to the node, and the session is played.
fn session_in(node: &mut Puppet, port: u16) {
    let mut peer = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let connection = node.accept(1);
    play(node, connection, &mut peer, &steps());
}

fn check_account(delivered: &Delivered) {
    let account = delivered.account("node").unwrap();
    let dropped: u64 = account.bytes_dropped.iter().map(|reason| reason.count).sum();
    assert_eq!(
        account.bytes_seen,
        account.bytes_captured + account.bytes_left_alone + dropped + account.bytes_in_ring,
        "{account:?}"
    );
    assert_eq!((dropped, account.bytes_in_ring), (0, 0), "{account:?}");
}

#[test]
fn a_node_that_listens_already_is_found_by_its_port() {
    let stage = Stage::new();
    let mut node = Puppet::start();
    let port = node.listen(0);
    let agent = stage.start(stage.on_port(port));
    stage.found(node.pid());
    session_out(&mut node);
    stage.whole_sessions("node", 1);
    agent.shutdown(PATIENCE).unwrap();
    let delivered = stage.collector.now();
    assert_eq!(delivered.messages("node").len(), messages().len());
    assert_eq!(delivered.profiles("node").count(), 0, "its memory is not asked for");
    check_account(&delivered);
}

#[test]
fn a_node_that_begins_to_listen_is_found_at_once_and_again_after_a_restart() {
    let stage = Stage::new();
    let port = free_port();
    let agent = stage.start(stage.on_port(port));
    for run in 1..=2 {
        let mut node = Puppet::start();
        assert_eq!(node.listen(port), port);
        // Without waiting: the kernel captures before the agent knows.
        session_out(&mut node);
        stage.whole_sessions("node", run);
        let pid = node.pid();
        node.stop();
        stage.collector.wait("the end of the process", |delivered| {
            let events = delivered.target_events("node");
            events.iter().any(|event| event.pid == pid && event.event == "exited").then_some(())
        });
        let delivered = stage.collector.now();
        let closed =
            delivered.connection_events("node").into_iter().filter(|(_, event)| matches!(event, Event::Closed(_)));
        assert_eq!(closed.count(), run);
    }
    agent.shutdown(PATIENCE).unwrap();
    check_account(&stage.collector.now());
}

#[test]
fn accepted_connections_are_the_node_s_and_other_protocols_are_left_alone() {
    let stage = Stage::new();
    let mut node = Puppet::start();
    let port = node.listen(0);
    let agent = stage.start(NodeConfig { pid: Some(node.pid()), ..stage.node() });
    stage.found(node.pid());
    // A node without a known port: what comes in is looked at, wherever. How long that takes is the agent's affair;
    // once it knows the protocol, nothing more of the connection is copied.
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let connection = node.accept(1);
    let mut ask = || {
        client.write_all(REQUEST).unwrap();
        node.read(connection, REQUEST.len());
        node.write(connection, &[b'x'; 10_000]);
        session::Peer::take(&mut client, 10_000);
    };
    let left_alone = stage.collector.wait("the connection to be left alone", |delivered| {
        let left_alone = delivered.account("node").map_or(0, |account| account.bytes_left_alone);
        if left_alone == 0 {
            ask();
        }
        (left_alone > 0).then_some(left_alone)
    });
    for _ in 0..100 {
        ask();
    }
    session_in(&mut node, port);
    stage.whole_sessions("node", 1);
    agent.shutdown(PATIENCE).unwrap();
    let delivered = stage.collector.now();
    let keys: std::collections::HashSet<u64> =
        delivered.connection_events("node").iter().map(|(key, _)| *key).collect();
    assert_eq!(keys.len(), 1, "the other connection is not told of");
    let account = delivered.account("node").unwrap();
    let whole = 100 * (REQUEST.len() as u64 + 10_000);
    assert!(account.bytes_left_alone >= left_alone + whole, "{account:?}");
    check_account(&delivered);
}

#[test]
fn a_program_is_found_by_its_executable() {
    let stage = Stage::new();
    let exe = stage.dir.path().join("octez-node");
    let agent = stage.start(NodeConfig { exe: Some(exe.clone()), ..stage.node() });
    let mut node = Puppet::start_as(&exe);
    stage.found(node.pid());
    session_out(&mut node);
    stage.whole_sessions("node", 1);
    node.stop();
    // By its bare name, and when it runs before the agent does.
    agent.shutdown(PATIENCE).unwrap();
    let mut node = Puppet::start_as(&exe);
    let agent = stage.start(NodeConfig { exe: Some("octez-node".into()), ..stage.node() });
    stage.found(node.pid());
    session_out(&mut node);
    stage.whole_sessions("node", 2);
    agent.shutdown(PATIENCE).unwrap();
}

#[test]
fn the_same_port_in_two_namespaces_is_two_nodes() {
    let stage = Stage::new();
    let port = free_port();
    let agent = stage.start(stage.on_port(port));
    let mut here = Puppet::start();
    here.listen(port);
    stage.found(here.pid());
    let mut there = Puppet::start_apart();
    there.listen(port);
    let name = format!("node@{}", there.netns());
    stage.collector.wait("the second node", |delivered| delivered.nodes().contains(&name.as_str()).then_some(()));
    let mut peer = Puppet::start_beside(&there);
    let outside = peer.connect(port);
    let inside = there.accept(1);
    play(&mut there, inside, &mut (&mut peer, outside), &steps());
    stage.whole_sessions(&name, 1);
    session_in(&mut here, port);
    stage.whole_sessions("node", 1);
    agent.shutdown(PATIENCE).unwrap();
    assert_eq!(stage.collector.now().nodes(), ["node", &name]);
}

#[test]
fn an_entry_that_names_a_namespace_takes_only_that() {
    let stage = Stage::new();
    let port = free_port();
    let mut there = Puppet::start_apart();
    let netns = PathBuf::from(format!("/proc/{}/ns/net", there.pid()));
    let mut here = Puppet::start();
    here.listen(port);
    let agent = stage.start(NodeConfig { netns: Some(netns), ..stage.on_port(port) });
    there.listen(port);
    stage.found(there.pid());
    session_in(&mut here, port);
    let mut peer = Puppet::start_beside(&there);
    let outside = peer.connect(port);
    let inside = there.accept(1);
    play(&mut there, inside, &mut (&mut peer, outside), &steps());
    stage.whole_sessions("node", 1);
    agent.shutdown(PATIENCE).unwrap();
    let delivered = stage.collector.now();
    assert_eq!(delivered.nodes(), ["node"]);
    assert_eq!(delivered.messages("node").len(), messages().len(), "nothing of the other");
}

#[test]
fn a_restart_of_the_agent_goes_on_with_a_live_session() {
    let stage = Stage::new();
    let mut node = Puppet::start();
    let port = node.listen(0);
    let first = stage.start(stage.on_port(port));
    stage.found(node.pid());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connection = node.connect(listener.local_addr().unwrap().port());
    let mut peer = listener.accept().unwrap().0;
    let steps = steps();
    // Where both directions are between two messages: the 20th step from the end on.
    let cut = steps.len() - 20;
    play(&mut node, connection, &mut peer, &steps[..cut]);
    stage.collector.wait("some messages", |delivered| (delivered.messages("node").len() > 5).then_some(()));
    first.shutdown(PATIENCE).unwrap();
    let before = stage.collector.now().messages("node").len();
    let second = stage.start(stage.on_port(port));
    stage.collector.wait("the target again", |delivered| {
        let found = delivered.target_events("node").iter().filter(|event| event.event == "found").count();
        (found == 2).then_some(())
    });
    play(&mut node, connection, &mut peer, &steps[cut..]);
    // What the restart cut may be missing: in each direction at most one message.
    stage.collector.wait("the rest of the session", |delivered| {
        let all = delivered.messages("node");
        let last_of = |incoming| messages().into_iter().rfind(|message| message.0 == incoming).unwrap();
        let has = |wanted: (bool, u64, Vec<u8>)| {
            all.iter().any(|(_, incoming, first, digest)| (*incoming, *first, digest.clone()) == wanted)
        };
        (all.len() > before && has(last_of(true))).then_some(())
    });
    second.shutdown(PATIENCE).unwrap();
    let delivered = stage.collector.now();
    let keys: std::collections::HashSet<u64> = delivered.messages("node").iter().map(|message| message.0).collect();
    assert_eq!(keys.len(), 1, "the connection keeps its key");
    let missing = messages().len() - delivered.messages("node").len();
    assert!(missing <= 2, "{missing}");
    let opened = delivered.connection_events("node").into_iter().filter(|(_, event)| matches!(event, Event::Opened(_)));
    assert_eq!(opened.count(), 1);
    let losses: Vec<_> = delivered
        .kinds("node")
        .filter_map(|kind| if let Kind::Loss(loss) = kind { Some(loss) } else { None })
        .collect();
    assert_eq!(losses.len(), 1, "{losses:?}");
    assert_eq!((losses[0].stage.as_str(), losses[0].reason.as_str()), ("agent", "agent restarted"));
    assert!(losses[0].amount_unknown && losses[0].from_ns > 0 && losses[0].from_ns <= losses[0].to_ns);
}

#[test]
fn a_session_that_began_before_capture_is_told_with_a_remedy() {
    let stage = Stage::new();
    let mut node = Puppet::start();
    let port = node.listen(0);
    let mut peer = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let connection = node.accept(1);
    let steps = steps();
    play(&mut node, connection, &mut peer, &steps[..40]);
    let agent = stage.start(stage.on_port(port));
    stage.found(node.pid());
    play(&mut node, connection, &mut peer, &steps[40..]);
    stage.collector.wait("the state", |delivered| {
        delivered.connection_events("node").iter().find_map(|(_, event)| match event {
            Event::StateChanged(changed) if changed.state() == ConnectionState::Undecryptable => {
                assert_eq!(changed.reason, "started before capture");
                assert_ne!(changed.remedy, "");
                Some(())
            }
            _ => None,
        })
    });
    agent.shutdown(PATIENCE).unwrap();
}

#[test]
fn an_identity_may_appear_late_be_of_another_node_and_change() {
    let stage = Stage::new();
    std::fs::remove_file(&stage.identity).unwrap();
    let mut node = Puppet::start();
    let port = node.listen(0);
    let agent = stage.start(stage.on_port(port));
    stage.found(node.pid());
    let troubled = |expected: &str| {
        stage.collector.wait(expected, |delivered| {
            let is_told = delivered
                .target_events("node")
                .iter()
                .any(|event| event.event == "identity error" && event.detail.contains(expected));
            let is_on_connection = delivered
                .connection_events("node")
                .iter()
                .any(|(_, event)| matches!(event, Event::StateChanged(changed) if changed.reason.contains(expected)));
            (is_told && is_on_connection).then_some(())
        });
    };
    session_in(&mut node, port);
    troubled("not found at");
    put(&stage.identity, &another_identity());
    session_in(&mut node, port);
    troubled("is of another node");
    let secret = serde_json::from_str::<serde_json::Value>(&identity()).unwrap()["secret_key"].clone();
    put(&stage.identity, &format!("{{\"secret_key\": {secret}"));
    session_in(&mut node, port);
    troubled("is not valid JSON");
    put(&stage.identity, &identity());
    session_in(&mut node, port);
    stage.whole_sessions("node", 1);
    agent.shutdown(PATIENCE).unwrap();
}

fn put(path: &Path, content: &str) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, content).unwrap();
    std::fs::rename(beside, path).unwrap();
}

#[test]
fn ten_thousand_half_open_connections_take_bounded_memory() {
    let stage = Stage::new();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let limit = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let mut node = Puppet::start();
    let port = node.listen(0);
    let agent = stage.start(stage.on_port(port));
    stage.found(node.pid());
    let before = resident_bytes();
    // The half of a connection message, and then silence.
    let opening: Vec<u8> = [&[0x00, 0x67][..], &[7; 60]].concat();
    let mut half_open = Vec::new();
    for _ in 0..10_000 {
        let mut peer = TcpStream::connect(("127.0.0.1", port)).unwrap();
        peer.write_all(&opening).unwrap();
        let connection = node.accept(1);
        node.read(connection, opening.len());
        half_open.push(peer);
    }
    session_in(&mut node, port);
    stage.whole_sessions("node", 1);
    stage
        .collector
        .wait("the account of all", |delivered| (delivered.account("node")?.connections == 10_001).then_some(()));
    let grown = resident_bytes().saturating_sub(before);
    println!("10,000 half-open connections: {} KiB more", grown >> 10);
    assert!(grown < 64 << 20, "{grown} bytes more");
    agent.shutdown(PATIENCE).unwrap();
    drop(half_open);
    check_account(&stage.collector.now());
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}
