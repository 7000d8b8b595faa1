//! Sixteen concurrent connections with writes of 1 B to 1 MiB: stored bytes equal sent bytes, or the loss is counted exactly. A consumer
//! that stops for five seconds loses counted bytes; it neither slows the node nor ends a stream.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use chainscope_e2e::harness::api::{Api, id};
use chainscope_e2e::harness::demo_node::{DemoNode, address, number, text};
use chainscope_e2e::harness::program::Finished;
use chainscope_e2e::harness::recorder::Machine;
use chainscope_e2e::harness::stats::Account;
use chainscope_e2e::harness::{free_port, soak, wait};
use rustix::process::Signal;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

const CONNECTIONS: u64 = 16;

#[test]
fn every_byte_at_the_socket_layer() {
    every_byte_is_captured_or_counted("sock");
}

#[test]
fn every_byte_at_system_calls() {
    every_byte_is_captured_or_counted("syscall");
}

/// Total bytes of both directions.
fn total() -> u64 {
    if soak() { 2_000_000_000 } else { 200_000_000 }
}

fn every_byte_is_captured_or_counted(capture: &str) {
    let _running = crate::shared();
    let mut machine = Machine::new(capture);
    // 200 MB fit into the ring buffer and, encrypted and plain, into the queue on any machine; of 2 GB some may be dropped and counted.
    machine.options = "ring_buffer = \"256MiB\"\nqueue = \"640MiB\"".to_owned();
    let (port, peer) = (free_port(), free_port());
    machine.observe("node", port);
    let chainscope = machine.start();
    let api = &chainscope.api;

    let each = total() / CONNECTIONS / 2;
    let side = |seed: u64| DemoNode::new("raw").with(&format!("--tezos --bytes {each} --seed {seed}"));
    let remote = side(1).listen(peer).with(&format!("--exit-after {CONNECTIONS} --no-verify")).start();
    let options = format!("--connections {CONNECTIONS} --close-in-thread --no-verify");
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
    } else {
        // Loss is allowed on a busy machine; unreported loss is not.
        assert_eq!(reported_lost(api), account.bytes_dropped, "{account:?}");
        assert!(account.gaps > 0, "{account:?}");
        assert!(account.bytes_dropped <= sent / 20, "{account:?}");
    }
    if !soak() {
        let dropped = (account.bytes_dropped, account.chunks_dropped, account.messages_dropped);
        assert_eq!(dropped, (0, 0, 0), "{account:?}");
    }
    compare_streams(api, &local, &closed, &account);
}

/// One direction of a connection as stored.
struct Stored {
    connection: String,
    side: &'static str,
    bytes: u64,
    digest: Sha256,
}

/// Compares the stored chunks with the hashes of the demo node; connections are identified by the node's local address.
///
/// Stored bytes are the found bytes less those that the queue dropped; a direction without loss has the hash of the sent
/// bytes, and so has each direction of a connection that reports no loss.
fn compare_streams(api: &Api, local: &Finished, closed: &[Value], account: &Account) {
    let connected = local.events("connected");
    let connections = api.connections("node");
    let keys: BTreeMap<SocketAddr, String> =
        connections.iter().map(|c| (address(&c.value, "local_addr"), c.key.clone())).collect();
    assert_eq!(keys.len(), closed.len());
    let without_loss = connections.iter().filter(|c| account.chunks_dropped == 0 && c.value["lost_bytes"] == 0);
    let without_loss: BTreeSet<&str> = without_loss.map(|c| c.key.as_str()).collect();
    let mut streams: Vec<(Stored, u64, &str)> = Vec::new();
    for event in closed {
        let number = number(event, "connection");
        let opened = connected.iter().find(|e| e["connection"] == number).expect("connected");
        let own = address(opened, "local");
        let key = keys.get(&own).unwrap_or_else(|| panic!("{own} is not in {keys:?}"));
        for (direction, side) in [("sent", "local"), ("received", "remote")] {
            let stored = Stored { connection: key.clone(), side, bytes: 0, digest: Sha256::new() };
            let sent = self::number(event, &format!("{direction}.bytes"));
            streams.push((stored, sent, text(event, &format!("{direction}.sha256"))));
        }
    }
    read_chunks(api, streams.iter_mut().map(|(stored, ..)| stored).collect(), account);

    let stored: u64 = streams.iter().map(|(stored, ..)| stored.bytes).sum();
    assert_eq!(stored, account.bytes_in_chunks - account.chunk_bytes_dropped, "{account:?}");
    assert!(account.bytes_dropped > 0 || account.chunks_dropped > 0 || without_loss.len() == closed.len());
    let mut whole = 0;
    for (Stored { connection, side, bytes, digest }, sent, hash) in streams {
        assert!(bytes <= sent, "{connection} {side}: {bytes} of {sent}");
        assert!(bytes == sent || !without_loss.contains(&*connection), "{connection} {side}: {bytes} of {sent}");
        if bytes == sent {
            assert_eq!(hex::encode(digest.finalize()), hash, "{connection} {side}");
            whole += 1;
        }
    }
    eprintln!("{whole} of {} streams are whole", 2 * closed.len());
    if account.chunks_dropped > 0 {
        let reported: u64 = queue_losses(api).iter().filter_map(|loss| loss["records"].as_u64()).sum();
        let most = account.chunks_dropped + account.messages_dropped;
        assert!((account.chunks_dropped..=most).contains(&reported), "{reported} records reported lost: {account:?}");
    } else {
        assert!(queue_losses(api).is_empty(), "{account:?}");
    }
}

/// Reads every stored chunk, all streams in turn, because the last chunk of a stream with gaps is unknown.
fn read_chunks(api: &Api, mut streams: Vec<&mut Stored>, account: &Account) {
    let mut left = account.chunks - account.chunks_dropped;
    for counter in 0..account.chunks {
        if left == 0 {
            return;
        }
        for stream in &mut streams {
            let Some(chunk) = api.chunk("node", &stream.connection, stream.side, counter) else { continue };
            let bytes = hex::decode(chunk["bytes"].as_str().expect("bytes")).expect("hex");
            stream.bytes += bytes.len() as u64;
            stream.digest.update(bytes);
            left -= 1;
        }
    }
    assert_eq!(left, 0, "chunks are missing: {account:?}");
}

/// Losses of the node's queue in `/v2/stats`.
fn queue_losses(api: &Api) -> Vec<Value> {
    let stats = api.stats();
    let nodes = stats["nodes"].as_array().expect("nodes").iter();
    let losses = nodes.filter(|n| n["name"] == "node").flat_map(|n| n["losses"].as_array().expect("losses"));
    losses.filter(|loss| loss["stage"] == "queue").cloned().collect()
}

fn settled_and_closed(api: &Api, connections: u64) -> Account {
    wait::until_within(Duration::from_secs(300), "all connections to be closed", || {
        let account = Account::read(api, "node");
        (account.connections >= connections && account.connections_open == 0).then_some(())
    });
    Account::wait_settled(api, "node")
}

#[test]
fn stopped_consumer_at_the_socket_layer() {
    a_stopped_consumer_loses_counted_bytes("sock");
}

#[test]
fn stopped_consumer_at_system_calls() {
    a_stopped_consumer_loses_counted_bytes("syscall");
}

fn a_stopped_consumer_loses_counted_bytes(capture: &str) {
    let _running = crate::shared();
    let mut machine = Machine::new(capture);
    machine.options = "ring_buffer = \"1MiB\"".to_owned();
    let (port, peer) = (free_port(), free_port());
    machine.observe("node", port);
    let chainscope = machine.start();
    let api = &chainscope.api;

    // 4 connections x 2 directions x 100/s x 4 KiB: three times the ring in a second.
    let side = |seed: u64| DemoNode::new("load").with(&format!("--rate 100 --size 4096 --seed {seed}"));
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

    // Every stream resynchronises: new messages of each connection and direction follow the gap.
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
    remote.join(wait::WAIT_TIMEOUT).expect_success("remote side");
    let account = settled_and_closed(api, 4);
    account.assert_conserved();
    let closed = local.events("closed");
    let sent: u64 = closed.iter().map(|e| number(e, "sent.bytes") + number(e, "received.bytes")).sum();
    eprintln!("{capture}: {sent} bytes, consumer stopped for 5 s: {account:?}");
    assert_eq!(account.bytes_seen, sent, "{account:?}");
    assert_eq!(account.bytes_captured + account.bytes_dropped, sent, "{account:?}");
    assert_eq!(reported_lost(api), account.bytes_dropped, "{account:?}");
    assert_only_true_messages(api, &transcript);
}

/// Lost bytes according to the connections.
fn reported_lost(api: &Api) -> u64 {
    api.connections("node").iter().filter_map(|c| c.value["lost_bytes"].as_u64()).sum()
}

/// Fails unless each row is a message that was sent, none recorded twice, and some are missing.
fn assert_only_true_messages(api: &Api, transcript: &std::path::Path) {
    let text = std::fs::read_to_string(transcript).expect("transcript");
    let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let mut real: BTreeMap<String, u32> = BTreeMap::new();
    for line in &lines {
        *real.entry(line["sha256"].as_str().expect("hash").to_owned()).or_default() += 1;
    }
    let rows = api.rows("node", "types=operation");
    assert!(rows.len() < lines.len(), "no message is missing: {} of {}", rows.len(), lines.len());
    for row in rows.iter().step_by(7) {
        let hash = hex::encode(Sha256::digest(api.plain("node", id(row))));
        let left = real.get_mut(&hash).unwrap_or_else(|| panic!("never sent: {row}"));
        assert!(*left > 0, "recorded twice: {row}");
        *left -= 1;
    }
}

#[test]
fn other_protocols_are_not_copied() {
    let _running = crate::shared();
    let mut machine = Machine::new("auto");
    let (port, peer) = (free_port(), free_port());
    machine.observe("node", port);
    let chainscope = machine.start();
    let api = &chainscope.api;
    let side = |seed: u64| DemoNode::new("raw").with(&format!("--bytes 20000000 --seed {seed}"));
    let remote = side(1).listen(peer).with("--exit-after 4").start();
    let local = side(2).listen(port).peer(peer).with("--connections 4").start_observed(api, "node");
    let local = local.join(wait::WAIT_TIMEOUT).expect_success("local side");
    remote.join(wait::WAIT_TIMEOUT).expect_success("remote side");
    let closed = local.events("closed");
    let sent: u64 = closed.iter().map(|e| number(e, "sent.bytes") + number(e, "received.bytes")).sum();
    // The newest account may be older than the end.
    let _ = Account::wait_for(api, "node", "an account of all bytes", |account| account.bytes_seen >= sent);
    let account = settled_and_closed(api, 0);
    account.assert_conserved();
    assert_eq!(account.bytes_seen, sent, "{account:?}");
    assert!(account.bytes_left_alone + account.bytes_dropped + account.bytes_not_protocol == sent, "{account:?}");
    assert!(account.bytes_left_alone > sent / 2, "most bytes were copied: {account:?}");
    assert_eq!(api.count("node"), 0);
}
