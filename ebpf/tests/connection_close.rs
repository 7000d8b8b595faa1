//! Close events: the closing side, the final offsets, and completeness under load.
#![expect(unsafe_code, reason = "the test process makes raw system calls")]

mod common;

use std::collections::HashMap;
use std::io::Write;
use std::net::TcpStream;

use aya::maps::{Map, MapData};
use chainscope_ebpf::network::{CaptureMode, ClosedBy, Role, SocketId};

use chainscope_testing::free_port;
use common::recorder::Recorder;
use common::{TestProcess, listener, pattern, responder};

both_modes!(
    half_close,
    connection_refused,
    socket_reconnected_after_disconnect,
    destruction_missed,
    reset_by_peer,
    reset_by_process,
    many_short_connections,
    many_concurrent_closes,
);

fn half_close(mode: CaptureMode) {
    let mut recorder = Recorder::new(mode);
    let mut process = TestProcess::new();
    let (out, address) = listener("127.0.0.1:0");
    recorder.probe.add_process(process.pid()).expect("map update");
    // First the process shuts down its write side, then the peer; the other side continues to send.
    for (count, by) in [(1, ClosedBy::Local), (2, ClosedBy::Remote)] {
        let fd = process.call_ok(&format!("connect {address}"));
        let (mut peer, _) = out.accept().expect("a connection");
        if by == ClosedBy::Local {
            process.call_ok(&format!("send {fd} 1 0 64 1 write"));
            process.call_ok(&format!("shutdown {fd} {}", libc::SHUT_WR));
            peer.write_all(&pattern(2, 0, 128)).expect("a successful write");
            assert_eq!(process.call_ok(&format!("receive {fd} 128 1 0 read")), 128);
        } else {
            peer.write_all(&pattern(2, 0, 128)).expect("a successful write");
            peer.shutdown(std::net::Shutdown::Write).expect("open");
            // One read consumes the last data byte and the FIN.
            assert_eq!(process.call_ok(&format!("receive {fd} 1000 1 0 read")), 128);
            assert_eq!(process.call_ok(&format!("receive {fd} 1000 1 0 read")), 0);
            process.call_ok(&format!("send {fd} 1 0 64 1 write"));
        }
        process.close(fd, peer);
        let opened = recorder.wait_opened(process.pid(), count);
        let closed = recorder.wait_closed(opened.socket);
        assert_eq!((closed.by, closed.sent_offset, closed.received_offset), (by, 64, 128));
        recorder.sent(opened.socket).verify_whole(1, 64);
        recorder.received(opened.socket).verify_whole(2, 128);
    }
    let account = recorder.account(process.pid());
    assert_eq!((account.seen, account.dropped_bytes()), (2 * (64 + 128), 0), "a FIN is not payload");
    process.finish();
}

fn connection_refused(mode: CaptureMode) {
    let mut recorder = Recorder::new(mode);
    let mut process = TestProcess::new();
    recorder.probe.add_process(process.pid()).expect("map update");
    let port = free_port();
    let refusal = process.call(&format!("connect 127.0.0.1:{port}"));
    assert_eq!(refusal, [-i64::from(libc::ECONNREFUSED)]);
    // The established connection is reported; the earlier refused one is not.
    let (_out, address) = listener("127.0.0.1:0");
    process.call_ok(&format!("connect {address}"));
    let opened = recorder.wait_opened(process.pid(), 1);
    assert_eq!(opened.remote, address);
    assert_eq!((recorder.opened.len(), recorder.closed.len()), (1, 0));
    process.finish();
}

fn socket_reconnected_after_disconnect(mode: CaptureMode) {
    let mut recorder = Recorder::new(mode);
    let mut process = TestProcess::new();
    let (out, address) = listener("127.0.0.1:0");
    recorder.probe.add_process(process.pid()).expect("map update");
    let fd = process.call_ok(&format!("connect {address}"));
    let (mut peer, _) = out.accept().expect("a connection");
    process.call_ok(&format!("send {fd} 1 0 1000 1 write"));
    peer.write_all(&pattern(2, 0, 30)).expect("a successful write");
    process.call_ok(&format!("receive {fd} 30 1 0 read"));
    process.call_ok(&format!("disconnect {fd}"));
    process.call_ok(&format!("connect_again {fd} {address}"));
    let (second, _) = out.accept().expect("a connection");
    process.call_ok(&format!("send {fd} 3 0 500 1 write"));
    process.close(fd, second);
    let first = recorder.wait_opened(process.pid(), 1);
    let again = recorder.wait_opened(process.pid(), 2);
    let closed = recorder.wait_closed(first.socket);
    assert_eq!((closed.sent_offset, closed.received_offset, closed.by), (1000, 30, ClosedBy::Local));
    recorder.sent(first.socket).verify_whole(1, 1000);
    assert_eq!(recorder.wait_closed(again.socket).sent_offset, 500);
    recorder.sent(again.socket).verify_whole(3, 500);
    assert_eq!(recorder.account(process.pid()).dropped_bytes(), 0);
    process.finish();
}

/// The memory of a socket whose destruction was missed holds another socket: here its state is moved to that of another one.
fn destruction_missed(mode: CaptureMode) {
    let mut recorder = Recorder::new(mode);
    let mut process = TestProcess::new();
    let (out, address) = listener("127.0.0.1:0");
    recorder.probe.add_process(process.pid()).expect("map update");
    let mut connect = |seed: u64, size: u64| {
        let fd = process.call_ok(&format!("connect {address}"));
        let (peer, _) = out.accept().expect("a connection");
        process.call_ok(&format!("send {fd} {seed} 0 {size} 1 write"));
        (fd, peer, recorder.wait_opened(process.pid(), seed as usize).socket)
    };
    let (first, first_peer, first_socket) = connect(1, 100);
    let (_second, _second_peer, second_socket) = connect(2, 300);
    let (disconnected, _peer, disconnected_socket) = connect(3, 500);
    process.call_ok(&format!("disconnect {disconnected}"));

    let mut states = socket_states(process.pid());
    let entries: HashMap<u64, (u64, SocketState)> =
        states.iter().map(|entry| entry.expect("an entry")).map(|(key, state)| (id(&state), (key, state))).collect();
    let (key_of, state_of) = (|socket: SocketId| entries[&socket.0].0, |socket: SocketId| entries[&socket.0].1);
    states.insert(key_of(first_socket), state_of(second_socket), 0).expect("map update");
    states.insert(key_of(disconnected_socket), state_of(first_socket), 0).expect("map update");
    states.remove(&key_of(second_socket)).expect("map update");

    // A change of the state of another connection, then the destruction of a socket without a connection.
    process.close(first, first_peer);
    assert_eq!(recorder.wait_closed(second_socket).sent_offset, 300);
    process.call_ok(&format!("close {disconnected}"));
    assert_eq!(recorder.wait_closed(first_socket).sent_offset, 100);
    let account = recorder.account(process.pid());
    assert_eq!((account.seen, account.dropped_bytes()), (900, 0), "offsets of another connection are not counted");
    process.finish();
}

/// `struct socket_state` of the probe.
type SocketState = [u8; 128];

fn id(state: &SocketState) -> u64 {
    u64::from_ne_bytes(state[..8].try_into().expect("eight bytes"))
}

fn pid(state: &SocketState) -> u32 {
    u32::from_ne_bytes(state[72..76].try_into().expect("four bytes"))
}

/// The map `sockets` of the probe that watches `process`, keyed by `struct sock *`.
fn socket_states(process: u32) -> aya::maps::HashMap<MapData, u64, SocketState> {
    aya::maps::loaded_maps()
        .filter_map(Result::ok) // tests in other threads unload theirs
        .filter(|map| map.name_as_str() == Some("sockets"))
        .filter_map(|map| MapData::from_id(map.id()).ok())
        .map(|map| aya::maps::HashMap::try_from(Map::HashMap(map)).expect("a hash map of this size"))
        .find(|states: &aya::maps::HashMap<_, u64, SocketState>| {
            states.iter().filter_map(Result::ok).any(|(_, state)| pid(&state) == process)
        })
        .expect("the process has sockets")
}

fn reset_by_peer(mode: CaptureMode) {
    reset(mode, ClosedBy::Reset, |process, fd, peer| {
        // Closing a socket with unread data sends a RST.
        drop(peer);
        assert_eq!(process.call(&format!("receive {fd} 10 1 0 read")), [-i64::from(libc::ECONNRESET)]);
        None
    });
}

fn reset_by_process(mode: CaptureMode) {
    reset(mode, ClosedBy::Local, |process, fd, peer| {
        process.call_ok(&format!("linger0 {fd}"));
        Some(peer)
    });
}

/// The process sends 100 bytes that the peer does not read, runs `first` and closes the connection. A peer returned by
/// `first` stays open until the close.
fn reset(mode: CaptureMode, by: ClosedBy, first: impl FnOnce(&mut TestProcess, i64, TcpStream) -> Option<TcpStream>) {
    let (mut recorder, mut process, listener, address) = responder(mode);
    let peer = TcpStream::connect(address).expect("a listener");
    let fd = process.call_ok(&format!("accept {listener}"));
    assert_eq!(process.call_ok(&format!("send {fd} 1 0 100 1 write")), 100);
    let _peer = first(&mut process, fd, peer);
    process.call_ok(&format!("close {fd}"));
    let opened = recorder.wait_opened(process.pid(), 1);
    let closed = recorder.wait_closed(opened.socket);
    assert_eq!((closed.by, closed.sent_offset, closed.received_offset), (by, 100, 0));
    process.finish();
}

fn many_short_connections(mode: CaptureMode) {
    let (mut recorder, mut process, listener, address) = responder(mode);
    for round in 0..200_u64 {
        let mut peer = TcpStream::connect(address).expect("a listener");
        let fd = process.call_ok(&format!("accept {listener}"));
        peer.write_all(&pattern(round, 0, 256)).expect("a successful write");
        process.call_ok(&format!("receive_all {fd} 256 100 read"));
        process.close(fd, peer);
    }
    recorder.poll_until("all close events", |r| r.closed.len() == 200);
    let sockets: Vec<_> = recorder.opened.keys().copied().collect();
    for (round, socket) in sockets.into_iter().enumerate() {
        recorder.received(socket).verify_whole(round as u64, 256);
    }
    assert_eq!(recorder.probe.counters().lost_notices, 0);
    process.finish();
}

fn many_concurrent_closes(mode: CaptureMode) {
    const THREADS: usize = 4;
    const EACH: usize = 1000;
    let (mut recorder, mut process, listener, address) = responder(mode);
    // The process owns both ends. Sockets closed in softirq interrupt the kernel and the probe at arbitrary points.
    assert_eq!(process.call(&format!("storm {listener} {address} {THREADS} {EACH}")), [0]);
    let ends = 2 * THREADS * EACH;
    recorder.poll_until("all close events", |r| r.closed.len() == ends);
    assert_eq!(recorder.opened.len(), ends);
    for opened in recorder.opened.values() {
        let (sent, received) = (recorder.sent(opened.socket), recorder.received(opened.socket));
        let (out, back) = if opened.role == Some(Role::Initiator) { (sent, received) } else { (received, sent) };
        assert_eq!((out.holes(0, 1), out.captured(), back.captured()), (0, 1, 0), "{opened:?}");
    }
    assert_eq!((recorder.account(process.pid()).dropped_bytes(), recorder.probe.counters().lost_notices), (0, 0));
    process.finish();
}
