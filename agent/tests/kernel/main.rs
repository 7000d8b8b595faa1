//! The agent on real sockets of this machine. Needs root and a kernel with BTF; fails where these are missing.
#![expect(clippy::unwrap_used, reason = "a panic shows the line of the failure")]

mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod nested;
mod operator;
mod stuck;

use std::{
    io::Write as _,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
};

use chainscope_agent::NodeConfig;
use chainscope_proto::v1::{ConnectionState, connection_event::Event, record::Kind};
use chainscope_testing::free_port;
use common::{
    Stage, TIMEOUT, check_account,
    session::{Peer as _, another_identity, identity, messages, play, steps},
    session_in, session_out,
    test_process::TestProcess,
};

const REQUEST: &[u8] = b"GET /chains/main/blocks/head/header HTTP/1.1\r\nHost: localhost\r\n\r\n";

#[test]
fn a_node_that_listens_already_is_found_by_its_port() {
    let stage = Stage::new();
    let mut node = TestProcess::start();
    let port = node.listen(0);
    let agent = stage.start(stage.on_port(port));
    stage.found(node.pid());
    session_out(&mut node);
    stage.whole_sessions("node", 1);
    agent.shutdown(TIMEOUT).unwrap();
    let delivered = stage.collector.now();
    assert_eq!(delivered.messages("node").len(), messages().len());
    assert_eq!(delivered.profiles("node").count(), 0, "its memory is not observed");
    check_account(&delivered);
}

#[test]
fn a_node_that_begins_to_listen_is_found_at_once_and_again_after_a_restart() {
    let stage = Stage::new();
    let port = free_port();
    let agent = stage.start(stage.on_port(port));
    for run in 1..=2 {
        let mut node = TestProcess::start();
        assert_eq!(node.listen(port), port);
        // Without waiting: the kernel captures before the agent has seen the process.
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
    agent.shutdown(TIMEOUT).unwrap();
    check_account(&stage.collector.now());
}

#[test]
fn accepted_connections_are_the_node_s_and_other_protocols_are_left_alone() {
    let stage = Stage::new();
    let mut node = TestProcess::start();
    let port = node.listen(0);
    let agent = stage.start(NodeConfig { pid: Some(node.pid()), ..stage.node() });
    stage.found(node.pid());
    // A node without a known port: incoming connections are captured on every port. Once the agent has recognised another
    // protocol, no more bytes of the connection are copied.
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let connection = node.accept(1);
    let mut ask = || {
        client.write_all(REQUEST).unwrap();
        node.read(connection, REQUEST.len());
        node.write(connection, &[b'x'; 10_000]);
        client.take(10_000);
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
    agent.shutdown(TIMEOUT).unwrap();
    let delivered = stage.collector.now();
    let keys: std::collections::HashSet<u64> =
        delivered.connection_events("node").iter().map(|(key, _)| *key).collect();
    assert_eq!(keys.len(), 1, "the other connection is not recorded");
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
    let mut node = TestProcess::start_as(&exe);
    stage.found(node.pid());
    session_out(&mut node);
    stage.whole_sessions("node", 1);
    node.stop();
    // By its bare name, also if it is started before the agent.
    agent.shutdown(TIMEOUT).unwrap();
    let mut node = TestProcess::start_as(&exe);
    let agent = stage.start(NodeConfig { exe: Some("octez-node".into()), ..stage.node() });
    stage.found(node.pid());
    session_out(&mut node);
    stage.whole_sessions("node", 2);
    agent.shutdown(TIMEOUT).unwrap();
}

#[test]
fn the_same_port_in_two_namespaces_is_two_nodes() {
    let stage = Stage::new();
    let port = free_port();
    let agent = stage.start(stage.on_port(port));
    let mut here = TestProcess::start();
    here.listen(port);
    stage.found(here.pid());
    let mut there = TestProcess::start_apart();
    there.listen(port);
    let name = format!("node@{}", there.netns());
    stage.collector.wait("the second node", |delivered| delivered.nodes().contains(&name.as_str()).then_some(()));
    let mut peer = TestProcess::start_beside(&there);
    let outside = peer.connect(port);
    let inside = there.accept(1);
    play(&mut there, inside, &mut (&mut peer, outside), &steps());
    stage.whole_sessions(&name, 1);
    session_in(&mut here, port);
    stage.whole_sessions("node", 1);
    agent.shutdown(TIMEOUT).unwrap();
    assert_eq!(stage.collector.now().nodes(), ["node", &name]);
}

#[test]
fn an_entry_that_names_a_namespace_takes_only_that() {
    let stage = Stage::new();
    let port = free_port();
    let mut there = TestProcess::start_apart();
    let netns = PathBuf::from(format!("/proc/{}/ns/net", there.pid()));
    let mut here = TestProcess::start();
    here.listen(port);
    let agent = stage.start(NodeConfig { netns: Some(netns), ..stage.on_port(port) });
    there.listen(port);
    stage.found(there.pid());
    session_in(&mut here, port);
    let mut peer = TestProcess::start_beside(&there);
    let outside = peer.connect(port);
    let inside = there.accept(1);
    play(&mut there, inside, &mut (&mut peer, outside), &steps());
    stage.whole_sessions("node", 1);
    agent.shutdown(TIMEOUT).unwrap();
    let delivered = stage.collector.now();
    assert_eq!(delivered.nodes(), ["node"]);
    assert_eq!(delivered.messages("node").len(), messages().len(), "nothing of the other");
}

#[test]
fn a_restarted_agent_resumes_a_live_session() {
    let stage = Stage::new();
    let mut node = TestProcess::start();
    let port = node.listen(0);
    let first = stage.start(stage.on_port(port));
    stage.found(node.pid());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connection = node.connect(listener.local_addr().unwrap().port());
    let mut peer = listener.accept().unwrap().0;
    let steps = steps();
    // A step at which both directions are between two messages: the 20th from the end.
    let cut = steps.len() - 20;
    play(&mut node, connection, &mut peer, &steps[..cut]);
    stage.collector.wait("some messages", |delivered| (delivered.messages("node").len() > 5).then_some(()));
    first.shutdown(TIMEOUT).unwrap();
    let before = stage.collector.now().messages("node").len();
    let second = stage.start(stage.on_port(port));
    stage.collector.wait("the target again", |delivered| {
        let found = delivered.target_events("node").iter().filter(|event| event.event == "found").count();
        (found == 2).then_some(())
    });
    play(&mut node, connection, &mut peer, &steps[cut..]);
    // The restart may lose at most one message per direction.
    stage.collector.wait("the rest of the session", |delivered| {
        let all = delivered.messages("node");
        let last_of = |incoming| messages().into_iter().rfind(|message| message.0 == incoming).unwrap();
        let has = |wanted: (bool, u64, Vec<u8>)| {
            all.iter().any(|(_, incoming, first, digest)| (*incoming, *first, digest.clone()) == wanted)
        };
        (all.len() > before && has(last_of(true))).then_some(())
    });
    second.shutdown(TIMEOUT).unwrap();
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
fn a_session_that_began_before_capture_is_reported_with_a_remedy() {
    let stage = Stage::new();
    let mut node = TestProcess::start();
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
    agent.shutdown(TIMEOUT).unwrap();
}

#[test]
fn an_identity_may_appear_late_be_of_another_node_and_change() {
    let stage = Stage::new();
    std::fs::remove_file(&stage.identity).unwrap();
    let mut node = TestProcess::start();
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
    agent.shutdown(TIMEOUT).unwrap();
}

fn put(path: &Path, content: &str) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, content).unwrap();
    std::fs::rename(beside, path).unwrap();
}
