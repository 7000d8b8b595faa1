//! Sixteen connections at once, written in pieces of 1 B to 1 MiB: what was captured is what was sent, or the loss is counted to the byte.
//! A consumer that stops for five seconds costs counted bytes, not the node's time and not the streams.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use chainscope_e2e::harness::api::{Api, id};
use chainscope_e2e::harness::demo::{Demo, address, number, text};
use chainscope_e2e::harness::program::Finished;
use chainscope_e2e::harness::recorder::Machine;
use chainscope_e2e::harness::stats::Account;
use chainscope_e2e::harness::{free_port, soak, wait};
use rustix::process::Signal;
use serde_json::Value;

const CONNECTIONS: u64 = 16;

#[test]
fn every_byte_at_the_socket_layer() {
    every_byte_is_captured_or_counted("sock");
}

#[test]
fn every_byte_at_system_calls() {
    every_byte_is_captured_or_counted("syscall");
}

/// 200 MB in all, both directions together; 2 GB in `make soak`.
fn total() -> u64 {
    if soak() { 2_000_000_000 } else { 200_000_000 }
}

fn every_byte_is_captured_or_counted(capture: &str) {
    let mut machine = Machine::new(capture);
    machine.options = "ring_buffer = \"64MiB\"\nqueue = \"256MiB\"".to_owned();
    let (port, peer) = (free_port(), free_port());
    machine.observe("node", port);
    let chainscope = machine.start();
    let api = &chainscope.api;

    let each = total() / CONNECTIONS / 2;
    let side = |seed: u64| Demo::new("raw").with(&format!("--tezos --bytes {each} --seed {seed}"));
    let remote = side(1).listen(peer).with(&format!("--exit-after {CONNECTIONS} --trusting")).start();
    let options = format!("--connections {CONNECTIONS} --close-elsewhere --trusting");
    let local =
        side(2).listen(port).peer(peer).identity(&machine.identity("node")).with(&options).start_observed(api, "node");
    let long = Duration::from_secs(if soak() { 1800 } else { 240 });
    let started = Instant::now();
    let local = local.join(long).expect_success("local side");
    remote.join(long).expect_success("remote side");
    let took = started.elapsed();

    let account = settled_and_closed(api, CONNECTIONS);
    account.assert_conserved();
    let closed = local.events("closed");
    let sum = |direction: &str| closed.iter().map(|e| number(e, &format!("{direction}.bytes"))).sum::<u64>();
    let sent = sum("sent") + sum("received");
    eprintln!("{capture}: {sent} bytes over {CONNECTIONS} connections in {took:?}: {account:?}");
    assert_eq!(account.bytes_seen, sent, "{account:?}");
    assert_eq!(account.bytes_captured + account.bytes_dropped, sent, "{account:?}");
    if account.bytes_dropped == 0 {
        assert_eq!(account.bytes_in_chunks, sent, "{account:?}");
        compare_streams(api, &local, &closed);
    } else {
        // Two busy cores: a loss is allowed, a loss that is not told is not.
        assert_eq!(told_lost(api), account.bytes_dropped, "{account:?}");
        assert!(account.gaps > 0, "{account:?}");
    }
}

/// The streams that the demo node hashed, as chunks of the API. The node's own end tells its connections apart.
fn compare_streams(api: &Api, local: &Finished, closed: &[Value]) {
    let connected = local.events("connected");
    let keys: BTreeMap<SocketAddr, String> =
        api.connections("node").into_iter().map(|c| (address(&c.value, "local_addr"), c.key)).collect();
    assert_eq!(keys.len(), closed.len());
    for event in closed {
        let number = number(event, "connection");
        let opened = connected.iter().find(|e| e["connection"] == number).expect("it was connected");
        let own = address(opened, "local");
        let key = keys.get(&own).unwrap_or_else(|| panic!("{own} is not in {keys:?}"));
        for (direction, side) in [("sent", "local"), ("received", "remote")] {
            let (bytes, hash) = api.wire("node", key, side);
            assert_eq!(bytes, self::number(event, &format!("{direction}.bytes")), "{key} {direction}");
            assert_eq!(hash, text(event, &format!("{direction}.sha256")), "{key} {direction}");
        }
    }
}

fn settled_and_closed(api: &Api, connections: u64) -> Account {
    wait::until_within(Duration::from_secs(300), "all connections to be over", || {
        let account = Account::read(api, "node");
        (account.connections >= connections && account.connections_open == 0).then_some(())
    });
    Account::settled(api, "node")
}

#[test]
fn stopped_consumer_at_the_socket_layer() {
    a_stopped_consumer_costs_counted_bytes("sock");
}

#[test]
fn stopped_consumer_at_system_calls() {
    a_stopped_consumer_costs_counted_bytes("syscall");
}

fn a_stopped_consumer_costs_counted_bytes(capture: &str) {
    let mut machine = Machine::new(capture);
    machine.options = "ring_buffer = \"1MiB\"".to_owned();
    let (port, peer) = (free_port(), free_port());
    machine.observe("node", port);
    let chainscope = machine.start();
    let api = &chainscope.api;

    // 4 connections x 2 directions x 100/s x 4 KiB: three times the ring in a second.
    let side = |seed: u64| Demo::new("load").with(&format!("--rate 100 --size 4096 --seed {seed}"));
    let remote = side(1).listen(peer).with("--exit-after 4").start();
    let transcript = machine.path("transcript");
    let local = side(2).listen(port).peer(peer).identity(&machine.identity("node")).with("--connections 4");
    let local = local.option("--transcript", &transcript).start_observed(api, "node");
    local.wait_events("established", 4);
    wait::until("traffic", || (api.count("node") >= 200).then_some(()));

    chainscope.program.signal(Signal::STOP);
    let stopped = Instant::now();
    wait::until("five seconds", || (stopped.elapsed() >= Duration::from_secs(5)).then_some(()));
    chainscope.program.signal(Signal::CONT);

    // Every stream finds itself again: new messages of each connection and direction, numbered after the hole.
    wait::until("loss to be counted", || (Account::read(api, "node").bytes_dropped > 0).then_some(()));
    let after_hole = api.count("node");
    for incoming in [false, true] {
        wait::until("new messages of every connection", || {
            let fresh = api.rows_from("node", &format!("incoming={incoming}"), after_hole);
            let with_gap = Account::read(api, "node").gaps;
            (fresh.len() >= 200 && with_gap >= 8).then_some(())
        });
    }
    let local = local.terminate().expect_success("local side");
    remote.join(wait::PATIENCE).expect_success("remote side");
    let account = settled_and_closed(api, 4);
    account.assert_conserved();
    let closed = local.events("closed");
    let sent: u64 = closed.iter().map(|e| number(e, "sent.bytes") + number(e, "received.bytes")).sum();
    eprintln!("{capture}: {sent} bytes, consumer stopped for 5 s: {account:?}");
    assert_eq!(account.bytes_seen, sent, "{account:?}");
    assert_eq!(account.bytes_captured + account.bytes_dropped, sent, "{account:?}");
    assert_eq!(told_lost(api), account.bytes_dropped, "{account:?}");
    assert_only_true_messages(api, &transcript);
}

/// Bytes that the connections say were lost.
fn told_lost(api: &Api) -> u64 {
    api.connections("node").iter().filter_map(|c| c.value["lost_bytes"].as_u64()).sum()
}

/// Nothing in the API that was not sent, nothing twice; what is missing was in the hole.
fn assert_only_true_messages(api: &Api, transcript: &std::path::Path) {
    let text = std::fs::read_to_string(transcript).expect("transcript");
    let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let mut real: BTreeMap<String, u32> = BTreeMap::new();
    for line in &lines {
        *real.entry(line["sha256"].as_str().expect("hash").to_owned()).or_default() += 1;
    }
    let rows = api.rows("node", "types=operation");
    assert!(rows.len() < lines.len(), "a hole that touched nothing: {} of {}", rows.len(), lines.len());
    for row in rows.iter().step_by(7) {
        use sha2::{Digest, Sha256};
        let hash = hex::encode(Sha256::digest(api.plain("node", id(row))));
        let left = real.get_mut(&hash).unwrap_or_else(|| panic!("never sent: {row}"));
        assert!(*left > 0, "recorded twice: {row}");
        *left -= 1;
    }
}

#[test]
fn other_protocols_are_left_alone() {
    let mut machine = Machine::new("auto");
    let (port, peer) = (free_port(), free_port());
    machine.observe("node", port);
    let chainscope = machine.start();
    let api = &chainscope.api;
    let side = |seed: u64| Demo::new("raw").with(&format!("--bytes 20000000 --seed {seed}"));
    let remote = side(1).listen(peer).with("--exit-after 4").start();
    let local = side(2).listen(port).peer(peer).with("--connections 4").start_observed(api, "node");
    let local = local.join(wait::PATIENCE).expect_success("local side");
    remote.join(wait::PATIENCE).expect_success("remote side");
    let closed = local.events("closed");
    let sent: u64 = closed.iter().map(|e| number(e, "sent.bytes") + number(e, "received.bytes")).sum();
    let account = settled_and_closed(api, 0);
    account.assert_conserved();
    assert_eq!(account.bytes_seen, sent, "{account:?}");
    assert!(account.bytes_left_alone + account.bytes_dropped + account.bytes_not_protocol == sent, "{account:?}");
    assert!(account.bytes_left_alone > sent / 2, "most was copied for nothing: {account:?}");
    assert_eq!(api.count("node"), 0);
}
