//! The demo node against itself: two processes complete whole conversations, byte for byte. Needs no root.

use std::time::Duration;

use chainscope_e2e::harness::demo_node::{DemoNode, field, number, text};
use chainscope_e2e::harness::program::Finished;
use chainscope_e2e::harness::{free_port, vectors, wait};
use serde_json::Value;

const EXIT_TIMEOUT: Duration = Duration::from_secs(120);

/// Starts the accepting side, then the connecting one, and waits for both.
fn converse(responder: DemoNode, initiator: DemoNode) -> (Finished, Finished) {
    let responder = responder.start();
    let initiator = initiator.start().join(EXIT_TIMEOUT).expect_success("initiator");
    (responder.join(EXIT_TIMEOUT).expect_success("responder"), initiator)
}

/// Fails unless each side received the bytes that the other sent, connection by connection.
fn assert_same_bytes(a: &Finished, b: &Finished, connections: usize) {
    let streams = |finished: &Finished, direction: &str| {
        let mut all: Vec<(String, u64)> = finished
            .events("closed")
            .iter()
            .map(|e| (text(e, &format!("{direction}.sha256")).to_owned(), number(e, &format!("{direction}.bytes"))))
            .collect();
        all.sort();
        all
    };
    assert_eq!(a.events("closed").len(), connections);
    assert_eq!(streams(a, "sent"), streams(b, "received"));
    assert_eq!(streams(b, "sent"), streams(a, "received"));
}

fn replay(folder: &str, options: &str, local_accepts: bool) -> (Finished, Finished) {
    let (local_port, remote_port) = (free_port(), free_port());
    let side = |side: &str, port| {
        DemoNode::new("replay")
            .option("--dir", &vectors::tezos(folder))
            .with(options)
            .with(&format!("--side {side}"))
            .listen(port)
    };
    let (local, remote) = (side("local", local_port), side("remote", remote_port));
    if local_accepts {
        let (local, remote) = converse(local, remote.peer(local_port));
        (local, remote)
    } else {
        let (remote, local) = converse(remote, local.peer(remote_port));
        (local, remote)
    }
}

#[test]
fn real_conversation_is_played_byte_for_byte() {
    let (local, remote) = replay("carthagenet-2020", "", false);
    assert_same_bytes(&local, &remote, 1);
    let closed = &local.events("closed")[0];
    assert_eq!((number(closed, "sent.bytes"), number(closed, "sent.calls")), (713_756, 5_473));
}

#[test]
fn synthetic_conversations_are_played_in_both_roles() {
    for (session, accepts) in
        [("outgoing-all-messages", false), ("outgoing-nack-v1", false), ("incoming-nack-v0", true)]
    {
        let (local, remote) = replay("synthetic-two-way", &format!("--session {session}"), accepts);
        assert_same_bytes(&local, &remote, 1);
        let other = if accepts { "initiator" } else { "responder" };
        let options = format!("--session {session} --local-role {other}");
        let (swapped, remote) = replay("synthetic-two-way", &options, !accepts);
        assert_same_bytes(&swapped, &remote, 1);
        let bytes = |finished: &Finished| number(&finished.events("closed")[0], "sent.bytes");
        assert_eq!(bytes(&local), bytes(&swapped), "the same messages");
        assert_ne!(text(&local.events("closed")[0], "sent.sha256"), text(&swapped.events("closed")[0], "sent.sha256"));
    }
}

#[test]
fn a_wrong_byte_is_noticed() {
    let port = free_port();
    let side = |session: &str, side: &str| {
        let options = format!("--session {session} --side {side}");
        DemoNode::new("replay").option("--dir", &vectors::tezos("synthetic-two-way")).with(&options)
    };
    let remote = side("outgoing-nack-v1", "remote").listen(port).start();
    let local = side("outgoing-all-messages", "local").peer(port).start().join(EXIT_TIMEOUT);
    let remote = remote.join(EXIT_TIMEOUT);
    assert!(!local.status.success() && !remote.status.success());
    assert!(text(&remote.events("closed")[0], "error").contains("other bytes than recorded"));
}

#[test]
fn sessions_of_their_own_carry_every_message() {
    let port = free_port();
    let folder = tempfile::tempdir().expect("folder");
    let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
    let (responder, initiator) = converse(
        DemoNode::new("load")
            .listen(port)
            .with("--messages 300 --size mixed --exit-after 3")
            .option("--transcript", &theirs),
        DemoNode::new("load")
            .peer(port)
            .with("--messages 500 --connections 3 --close-in-thread --seed 9")
            .option("--transcript", &ours),
    );
    assert_same_bytes(&responder, &initiator, 3);
    for closed in initiator.events("closed") {
        assert_eq!(
            (number(&closed, "session.sent_messages"), number(&closed, "session.received_messages")),
            (500, 300)
        );
        assert_eq!(field(&closed, "error"), &Value::Null);
    }
    let lines = |path, sent: bool| {
        let text = std::fs::read_to_string(path).expect("transcript");
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let mut lines: Vec<_> = lines
            .filter(|l| l["sent"] == sent)
            .map(|l| (l["chunk"].as_u64(), l["kind"].to_string(), l["sha256"].to_string()))
            .collect();
        lines.sort();
        lines
    };
    assert_eq!(lines(&ours, true).len(), 1500);
    assert_eq!(lines(&ours, true), lines(&theirs, false));
    assert_eq!(lines(&theirs, true), lines(&ours, false));
}

#[test]
fn random_writes_and_short_ones_arrive_whole() {
    let port = free_port();
    let (responder, initiator) = converse(
        DemoNode::new("raw").listen(port).with("--tezos --bytes 2000000 --exit-after 4"),
        DemoNode::new("raw").peer(port).with("--tezos --bytes 3000000 --connections 4 --send-buffer 16384"),
    );
    assert_same_bytes(&responder, &initiator, 4);
    assert!(initiator.events("closed").iter().any(|e| number(e, "sent.short") > 0), "no write was short");
}

#[test]
fn traffic_waits_for_its_command() {
    let port = free_port();
    let responder = DemoNode::new("load").listen(port).with("--messages 5 --exit-after 1").start();
    let mut initiator = DemoNode::new("load").peer(port).with("--messages 5 --hold connect --hold traffic").start();
    initiator.wait_events("holding", 1);
    assert!(initiator.events("connected").is_empty());
    initiator.write_line("go");
    initiator.wait_events("established", 1);
    assert!(initiator.events("closed").is_empty());
    initiator.write_line("go");
    initiator.join(EXIT_TIMEOUT).expect_success("initiator");
    responder.join(EXIT_TIMEOUT).expect_success("responder");
}

#[test]
fn a_refusal_ends_the_session() {
    let port = free_port();
    let responder = DemoNode::new("load").listen(port).with("--nack 1 --exit-after 1").start();
    let initiator = DemoNode::new("load").peer(port).with("--messages 5").start().join(EXIT_TIMEOUT);
    assert_eq!(number(&initiator.events("closed")[0], "session.sent_messages"), 0);
    responder.join(EXIT_TIMEOUT);
}

#[test]
fn a_connection_without_an_answer_is_opened_again() {
    // The kernel discards a SYN while the backlog is full.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
    let address = listener.local_addr().expect("an address");
    let connect = || std::net::TcpStream::connect_timeout(&address, Duration::from_millis(200));
    let queued: Vec<_> = std::iter::from_fn(|| connect().ok()).collect();
    let node = DemoNode::new("load").with(&format!("--peer {address} --connect-timeout 600")).start();
    let first = wait::until("a connection that is not answered", || unanswered(node.pid(), address.port()));
    wait::until("another one", || unanswered(node.pid(), address.port()).filter(|local| *local != first));
    for _ in queued {
        listener.accept().expect("a queued connection");
    }
    node.wait_events("connected", 1);
}

/// Local address, as in `/proc/net/tcp6`, of a socket in the state SYN_SENT that connects to this port.
fn unanswered(pid: u32, remote: u16) -> Option<String> {
    let sockets = std::fs::read_to_string(format!("/proc/{pid}/net/tcp6")).expect("proc(5)");
    let mut sockets = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let suffix = format!(":{remote:04X}");
    let found = sockets.find(|fields| fields.len() > 3 && fields[3] == "02" && fields[2].ends_with(&suffix))?;
    Some(found[1].to_owned())
}
