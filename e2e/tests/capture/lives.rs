//! Restarts of nodes and of Chainscope: two nodes on one port in two network namespaces, a restarted node, a node that was started
//! before Chainscope, and Chainscope killed and restarted during a session.

use chainscope_e2e::harness::api::{Api, id};
use chainscope_e2e::harness::demo_node::{DemoNode, number};
use chainscope_e2e::harness::namespace::{Namespace, NestedHost};
use chainscope_e2e::harness::program::Program;
use chainscope_e2e::harness::recorder::Machine;
use chainscope_e2e::harness::stats::Account;
use chainscope_e2e::harness::transcript;
use chainscope_e2e::harness::wait::WAIT_TIMEOUT;
use chainscope_e2e::harness::{free_port, wait};
use serde_json::Value;

/// Waits until the node has `count` rows and returns all of them.
fn rows(api: &Api, node: &str, count: usize) -> Vec<Value> {
    wait::until(&format!("{count} rows of {node}"), || (api.count(node) >= count as u64).then_some(()));
    api.rows(node, "")
}

#[test]
fn two_nodes_on_one_port_in_two_namespaces() {
    let mut machine = Machine::new("auto");
    let names = ["left", "right"];
    let namespaces = names.map(|_| Namespace::new());
    let port = 9732;
    for (name, namespace) in names.iter().zip(&namespaces) {
        machine.observe_in_namespace(name, port, namespace);
    }
    let chainscope = machine.start();
    let api = &chainscope.api;
    let messages = [40, 70];
    let mut nodes = Vec::new();
    for ((name, namespace), count) in names.iter().zip(&namespaces).zip(messages) {
        let node = DemoNode::in_namespace(namespace, "load").listen(port).identity(&machine.identity(name));
        let node = node.with(&format!("--messages {count} --exit-after 1")).start_observed(api, name);
        let peer = DemoNode::in_namespace(namespace, "load").peer(port).with(&format!("--messages {count}")).start();
        nodes.push((node, peer));
    }
    for (node, peer) in nodes {
        peer.join(WAIT_TIMEOUT).expect_success("peer");
        node.join(WAIT_TIMEOUT).expect_success("node");
    }
    for (name, count) in names.iter().zip(messages) {
        let rows = rows(api, name, 6 + 2 * count);
        assert_eq!(rows.len(), 6 + 2 * count, "{name}");
        assert!(rows.iter().all(|row| row["source_type"] == "remote"), "{name}");
        let account = Account::wait_settled(api, name);
        account.assert_conserved();
        assert_eq!((account.gaps, account.connections, account.bytes_dropped), (0, 1, 0), "{name}: {account:?}");
    }
}

#[test]
fn a_node_that_restarts_is_followed() {
    let mut machine = Machine::new("auto");
    let port = free_port();
    machine.observe("node", port);
    let chainscope = machine.start();
    let api = &chainscope.api;
    let mut total = 0;
    for restart in 0..3 {
        let node = DemoNode::new("load").listen(port).identity(&machine.identity("node")).with("--messages 20").start();
        DemoNode::new("load").peer(port).with("--messages 20").start().join(WAIT_TIMEOUT).expect_success("peer");
        total += 46;
        let rows = rows(api, "node", total);
        assert_eq!(rows.len(), total, "restart {restart}");
        // Killed, so that no connection is closed by the protocol.
        node.kill();
    }
    let connections = api.connections("node");
    assert_eq!(connections.len(), 3, "{connections:?}");
    let all = api.rows("node", "");
    assert!(all.iter().enumerate().all(|(n, row)| id(row) == n as u64), "ids are dense over the restarts");
}

#[test]
fn a_node_that_was_there_first_is_found() {
    let mut machine = Machine::new("auto");
    let (port, peer_port) = (free_port(), free_port());
    let peer = DemoNode::new("load").listen(peer_port).with("--rate 50").start();
    let mut node = DemoNode::new("load")
        .listen(port)
        .peer(peer_port)
        .identity(&machine.identity("node"))
        .with("--rate 50")
        .start();
    node.wait_events("established", 1);

    machine.observe("node", port);
    let chainscope = machine.start();
    let api = &chainscope.api;
    // The old session is shown as undecryptable, with the reason.
    wait::until("the old session", || {
        let connections = api.connections("node");
        connections.iter().any(|c| c.value["reason"].to_string().contains("started before capture")).then_some(())
    });
    assert_eq!(api.count("node"), 0, "messages of a session without its handshake");
    // A new session is decoded.
    node.write_line("connect");
    wait::until("messages of the new session", || (api.count("node") >= 60).then_some(()));
    let rows = api.rows("node", "");
    assert_eq!(rows[0]["category"], "connection");
    assert!(api.connections("node").len() >= 2);
    node.terminate();
    peer.terminate();
}

#[test]
fn live_session_survives_chainscope_at_the_socket_layer() {
    a_live_session_survives_chainscope("sock");
}

#[test]
fn live_session_survives_chainscope_at_system_calls() {
    a_live_session_survives_chainscope("syscall");
}

fn a_live_session_survives_chainscope(capture: &str) {
    let mut machine = Machine::new(capture);
    let (port, peer_port) = (free_port(), free_port());
    machine.observe("node", port);
    let chainscope = machine.start();
    let peer = DemoNode::new("load").listen(peer_port).with("--rate 100 --seed 3").start();
    let transcript = machine.path("transcript");
    let node =
        DemoNode::new("load").listen(port).peer(peer_port).identity(&machine.identity("node")).with("--rate 100");
    let node = node.option("--transcript", &transcript).start_observed(&chainscope.api, "node");
    // Longer than the one-second interval of the session journal.
    wait::until("messages", || (chainscope.api.count("node") >= 400).then_some(()));

    let listed_at_kill = lines(&transcript).len();
    chainscope.program.kill();
    let chainscope = machine.start();
    let away = lines(&transcript).len() - listed_at_kill;
    let api = &chainscope.api;
    let before = api.count("node");
    assert!(before >= 400, "{before} messages remain of 400 that were served");
    wait::until("messages after the restart, both ways", || {
        api.counts_from("node", before).iter().all(|count| *count >= 200).then_some(())
    });
    let connections = api.connections("node");
    assert_eq!(connections.len(), 1, "one session is one connection: {connections:?}");

    let node = node.terminate().expect_success("node");
    peer.terminate();
    let closed = node.events("closed");
    let all = number(&closed[0], "session.sent_messages") + number(&closed[0], "session.received_messages") + 6;
    let rows = wait_until_quiet(api);
    assert!((rows.len() as u64) < all, "the time between kill and restart cannot have been recorded");
    let missing = transcript::missing(api, "node", &rows, &lines(&transcript));
    eprintln!("{missing:?}; {away} messages were sent without Chainscope");
    // And those since the last write of the journal, and until the session is resumed.
    assert!(missing.iter().map(|missing| missing.run).sum::<usize>() <= away + 2 * 100 * 3, "{missing:?}, {away}");
    assert!(missing.iter().all(|missing| missing.tail == 0), "{missing:?}");
    // The interval without an agent is reported.
    assert!(api.stats().to_string().contains("agent restarted"), "{}", api.stats());
}

fn wait_until_quiet(api: &Api) -> Vec<Value> {
    wait::until("the connection's end", || (Account::read(api, "node").connections_open == 0).then_some(()));
    let _ = Account::wait_settled(api, "node");
    api.rows("node", "")
}

/// The complete lines of a transcript.
fn lines(transcript: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(transcript).expect("transcript");
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn the_identity_may_come_late_or_be_wrong() {
    let mut machine = Machine::new("auto");
    let port = free_port();
    machine.observe("node", port);
    let chainscope = machine.start();
    let api = &chainscope.api;
    let right = machine.path("right.json");
    let mut node = DemoNode::new("load").listen(port).identity(&right).with("--rate 50").start_observed(api, "node");
    let session = || -> Program { DemoNode::new("load").peer(port).with("--rate 50").start() };

    let invalid = [
        ("missing", None),
        ("malformed", Some("{\"public_key\": \"zz".to_owned())),
        (
            "of another node",
            Some(
                std::fs::read_to_string(chainscope_e2e::harness::vectors::tezos("carthagenet-2020/identity.json"))
                    .expect("identity"),
            ),
        ),
    ];
    for (nth, (case, content)) in invalid.into_iter().enumerate() {
        if let Some(content) = content {
            std::fs::write(machine.identity("node"), content).expect("written");
        }
        let peer = session();
        wait::until(&format!("the connection to report an identity that is {case}"), || {
            let connections = api.connections("node");
            let is_reported = connections.get(nth).is_some_and(|c| c.value.to_string().contains("identity"));
            is_reported.then_some(())
        });
        // Raw chunks are still recorded.
        let key = api.connections("node")[nth].key.clone();
        wait::until("raw chunks", || api.chunk("node", &key, "remote", 5));
        assert_eq!(api.rows("node", "types=metadata").len(), 0, "{case}");
        peer.terminate();
    }
    assert!(api.stats().to_string().contains("identity"), "{}", api.stats());
    std::fs::copy(&right, machine.identity("node")).expect("copied");
    let peer = session();
    wait::until("messages with the right identity", || (api.rows("node", "types=metadata").len() == 2).then_some(()));
    peer.terminate();
    node.write_line("stop");
}

#[test]
fn two_hosts_in_nested_pid_namespaces_on_one_kernel() {
    let mut machines = [Machine::new("auto"), Machine::new("auto")];
    let hosts = [NestedHost::new(), NestedHost::new()];
    for (machine, name) in machines.iter_mut().zip(["left", "right"]) {
        // The network namespace of the host; Chainscope itself stays in that of the test, which requests from it.
        machine.observe_with(name, 9732, "netns = \"/proc/1/ns/net\"");
    }
    let running = machines.iter().zip(&hosts).map(|(machine, host)| machine.start_in(host)).collect::<Vec<_>>();
    let messages = [40, 70];
    let mut nodes = Vec::new();
    for (number, (name, count)) in ["left", "right"].into_iter().zip(messages).enumerate() {
        let (machine, host, api) = (&machines[number], &hosts[number], &running[number].api);
        let node = DemoNode::in_host(host, "load").listen(9732).identity(&machine.identity(name));
        nodes.push(node.with(&format!("--messages {count} --exit-after 1")).start());
        // Its process id is that of the host's namespace.
        wait::until(&format!("{name} to be observed"), || {
            let nodes = api.get("/nodes");
            let node = nodes.as_array()?.iter().find(|node| node["name"] == name)?;
            (!node["targets"].as_array()?.is_empty()).then_some(())
        });
        nodes.push(DemoNode::in_host(host, "load").peer(9732).with(&format!("--messages {count}")).start());
    }
    for node in nodes {
        node.join(WAIT_TIMEOUT).expect_success("node or peer");
    }
    for ((chainscope, name), count) in running.iter().zip(["left", "right"]).zip(messages) {
        let api = &chainscope.api;
        assert_eq!(rows(api, name, 6 + 2 * count).len(), 6 + 2 * count, "{name}");
        let account = Account::wait_settled(api, name);
        account.assert_conserved();
        assert_eq!((account.gaps, account.connections, account.bytes_dropped), (0, 1, 0), "{name}: {account:?}");
        let log = chainscope.program.err().join("\n");
        assert!(log.contains("a nested one, process ids are translated"), "{log}");
    }
}
