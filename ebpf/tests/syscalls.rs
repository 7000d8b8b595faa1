//! Captured bytes equal transferred bytes for every socket send and receive system call, address family and size class.
#![expect(unsafe_code, reason = "the test process makes raw system calls")]

mod common;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};

use chainscope_ebpf::network::{CaptureMode, ClosedBy, Direction, MissingReason, Role};

use common::recorder::Recorder;
use common::{TestProcess, listener, pattern};

both_modes!(
    sends_on_ipv4,
    sends_on_ipv6,
    sends_on_mapped_addresses,
    receives_on_ipv4,
    receives_on_ipv6,
    receives_on_mapped_addresses,
    write_of_64_mib,
    writev_of_64_mib_in_many_iovecs,
    partial_writes_on_nonblocking_socket,
    short_reads_and_eagain,
    msg_peek_is_not_counted,
    msg_errqueue_is_not_counted,
    msg_trunc_bytes_are_counted_as_discarded,
    sendmmsg_and_recvmmsg,
);

const SENDS: [&str; 6] = ["write", "writev", "pwritev2", "sendto", "sendmsg", "sendmmsg"];
const RECEIVES: [&str; 6] = ["read", "readv", "preadv2", "recvfrom", "recvmsg", "recvmmsg"];
const SIZES: [usize; 9] = [1, 100, 4096, 4097, 8193, 20_000, 32_768, 70_000, 300_000];

/// Listens on `listen` and connects the test process to the address that `target` builds from the listener's port.
///
/// The ring buffer is large because most of these tests read it only at the end.
fn connected(
    mode: CaptureMode,
    listen: &str,
    target: fn(u16) -> SocketAddr,
) -> (Recorder, TestProcess, i64, TcpStream) {
    let mut recorder = large_ring(mode);
    let mut process = TestProcess::new();
    let (listener, address) = listener(listen);
    recorder.probe.add_process(process.pid()).expect("map update");
    let fd = process.call_ok(&format!("connect {}", target(address.port())));
    let (peer, _) = listener.accept().expect("a connection");
    (recorder, process, fd, peer)
}

fn v4(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn v6(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V6(std::net::Ipv6Addr::LOCALHOST), port)
}

fn mapped(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V6(std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped()), port)
}

fn sends_on_ipv4(mode: CaptureMode) {
    sends(mode, "127.0.0.1:0", v4);
}

fn sends_on_ipv6(mode: CaptureMode) {
    sends(mode, "[::1]:0", v6);
}

fn sends_on_mapped_addresses(mode: CaptureMode) {
    sends(mode, "127.0.0.1:0", mapped);
}

fn sends(mode: CaptureMode, listen: &str, target: fn(u16) -> SocketAddr) {
    let (mut recorder, mut process, fd, mut peer) = connected(mode, listen, target);
    let (mut sent, mut calls) = (0_u64, Vec::new());
    let mut bytes = Vec::new();
    for call in SENDS {
        for size in SIZES {
            let parts = if size < 100 { 1 } else { 5 };
            process.send_command(&format!("send {fd} 1 {sent} {size} {parts} {call}"));
            bytes.resize(size, 0);
            peer.read_exact(&mut bytes).expect("all bytes");
            assert_eq!(process.read_reply(), [size as i64], "{call} of {size}");
            assert!(bytes == pattern(1, sent, size), "{call} of {size}: the test itself is wrong");
            calls.push((sent, call));
            sent += size as u64;
        }
    }
    let ports = ports(&peer);
    process.close(fd, peer);

    let opened = recorder.wait_opened(process.pid(), 1);
    let closed = recorder.wait_closed(opened.socket);
    assert_eq!(opened.role, Some(Role::Initiator));
    assert_eq!(opened.remote, target(opened.remote.port()));
    assert_eq!((opened.remote.port(), opened.local.port()), ports);
    assert_eq!((opened.sent_offset, opened.received_offset), (0, 0));
    assert_eq!((closed.by, closed.sent_offset, closed.received_offset), (ClosedBy::Local, sent, 0));
    let stream = recorder.sent(opened.socket);
    stream.verify_whole(1, sent);
    for (offset, call) in calls {
        let first =
            stream.pieces.iter().find(|piece| piece.header.offset == offset).expect("a piece at the call's start");
        assert!(first.header.call_start, "{call} at {offset}");
        assert_eq!(first.header.socket_call, call.starts_with("send"), "{call}");
    }
    let account = recorder.account(process.pid());
    assert_eq!((account.seen, account.captured, account.dropped_bytes()), (sent, sent, 0));
    process.finish();
}

/// The peer's local and remote port.
fn ports(peer: &TcpStream) -> (u16, u16) {
    (peer.local_addr().expect("an address").port(), peer.peer_addr().expect("an address").port())
}

fn receives_on_ipv4(mode: CaptureMode) {
    receives(mode, "127.0.0.1:0", v4);
}

fn receives_on_ipv6(mode: CaptureMode) {
    receives(mode, "[::1]:0", v6);
}

fn receives_on_mapped_addresses(mode: CaptureMode) {
    receives(mode, "127.0.0.1:0", mapped);
}

fn receives(mode: CaptureMode, listen: &str, target: fn(u16) -> SocketAddr) {
    let (mut recorder, mut process, fd, mut peer) = connected(mode, listen, target);
    let mut received = 0_u64;
    for call in RECEIVES {
        for size in SIZES {
            peer.write_all(&pattern(2, received, size)).expect("a successful write");
            let mut left = size;
            while left > 0 {
                let parts = if left < 100 { 1 } else { 3 };
                let n = process.call_ok(&format!("receive {fd} {left} {parts} 0 {call}"));
                assert!(n > 0, "{call} of {left}");
                left -= n as usize;
            }
            received += size as u64;
        }
    }
    drop(peer);
    assert_eq!(process.call_ok(&format!("receive {fd} 10 1 0 read")), 0, "the end");
    process.call_ok(&format!("close {fd}"));

    let opened = recorder.wait_opened(process.pid(), 1);
    let closed = recorder.wait_closed(opened.socket);
    assert_eq!((closed.by, closed.sent_offset, closed.received_offset), (ClosedBy::Remote, 0, received));
    recorder.received(opened.socket).verify_whole(2, received);
    let account = recorder.account(process.pid());
    assert_eq!((account.seen, account.captured, account.dropped_bytes()), (received, received, 0));
    process.finish();
}

const BIG: usize = 64 << 20;

fn large_ring(mode: CaptureMode) -> Recorder {
    Recorder::with(chainscope_ebpf::network::NetworkOptions {
        mode: Some(mode),
        ring_bytes: 128 << 20,
        ..Default::default()
    })
}

fn write_of_64_mib(mode: CaptureMode) {
    single_large_send(mode, "write", 1);
}

fn writev_of_64_mib_in_many_iovecs(mode: CaptureMode) {
    // The test process adds an empty iovec before each buffer: 1024 in total, the limit of one call (UIO_MAXIOV).
    single_large_send(mode, "writev", 512);
}

fn single_large_send(mode: CaptureMode, call: &str, parts: usize) {
    let mut recorder = large_ring(mode);
    let mut process = TestProcess::new();
    let (listener, address) = listener("127.0.0.1:0");
    recorder.probe.add_process(process.pid()).expect("map update");
    let fd = process.call_ok(&format!("connect {address}"));
    let (mut peer, _) = listener.accept().expect("a connection");
    process.send_command(&format!("send {fd} 3 0 {BIG} {parts} {call}"));
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0; 1 << 20];
        let mut total = 0;
        while total < BIG {
            let n = peer.read(&mut bytes).expect("a connection");
            assert!(n > 0, "ends at {total}");
            total += n;
        }
        peer
    });
    assert_eq!(process.read_reply(), [BIG as i64]);
    let peer = reader.join().expect("all bytes");
    let opened = recorder.wait_opened(process.pid(), 1);
    recorder.wait_covered(opened.socket, Direction::Sent, BIG as u64);
    let stream = recorder.sent(opened.socket);
    stream.verify_whole(3, BIG as u64);
    assert_eq!(stream.calls(), 1);
    assert_eq!(recorder.account(process.pid()).captured, BIG as u64);
    drop(peer);
    process.finish();
}

fn partial_writes_on_nonblocking_socket(mode: CaptureMode) {
    let (mut recorder, mut process, fd, mut peer) = connected(mode, "127.0.0.1:0", v4);
    process.call_ok(&format!("nonblocking {fd}"));
    let mut sent = 0_u64;
    let mut partial = 0;
    for call in SENDS {
        // Full socket buffers cause a partial write, then EAGAIN.
        let before = sent;
        loop {
            let n = process.call(&format!("send {fd} 4 {sent} 1000000 3 {call}"))[0];
            if n == -i64::from(libc::EAGAIN) {
                break;
            }
            assert!(n > 0, "{call}: {n}");
            partial += usize::from(n < 1_000_000);
            sent += n as u64;
        }
        let mut bytes = vec![0; (sent - before) as usize];
        peer.read_exact(&mut bytes).expect("all bytes");
        assert!(bytes == pattern(4, before, bytes.len()), "{call}: the test itself is wrong");
    }
    assert!(partial > 0, "no partial write happened");
    process.close(fd, peer);
    let opened = recorder.wait_opened(process.pid(), 1);
    assert_eq!(recorder.wait_closed(opened.socket).sent_offset, sent);
    let stream = recorder.sent(opened.socket);
    // A partial sendmmsg may leave the message boundary ambiguous; no bytes may be missing or wrong.
    stream.verify(4);
    assert_eq!(stream.holes(0, sent), 0);
    assert_eq!(stream.captured(), sent);
    process.finish();
}

fn short_reads_and_eagain(mode: CaptureMode) {
    let (mut recorder, mut process, fd, mut peer) = connected(mode, "127.0.0.1:0", v4);
    process.call_ok(&format!("nonblocking {fd}"));
    let mut received = 0_u64;
    for call in RECEIVES {
        for _ in 0..3 {
            let n = process.call(&format!("receive {fd} 5000 2 0 {call}"))[0];
            assert_eq!(n, -i64::from(libc::EAGAIN), "{call}");
            peer.write_all(&pattern(5, received, 77)).expect("a successful write");
            // The request exceeds the available bytes; loopback delivers data within the peer's write.
            assert_eq!(process.call_ok(&format!("receive {fd} 5000 2 0 {call}")), 77, "{call}");
            received += 77;
        }
    }
    process.close(fd, peer);
    let opened = recorder.wait_opened(process.pid(), 1);
    assert_eq!(recorder.wait_closed(opened.socket).received_offset, received);
    recorder.received(opened.socket).verify_whole(5, received);
    process.finish();
}

fn msg_peek_is_not_counted(mode: CaptureMode) {
    let (mut recorder, mut process, fd, mut peer) = connected(mode, "127.0.0.1:0", v4);
    peer.write_all(&pattern(6, 0, 1000)).expect("a successful write");
    let peek = libc::MSG_PEEK;
    for call in ["recvfrom", "recvmsg", "recvmmsg"] {
        assert_eq!(process.call_ok(&format!("receive {fd} 1000 1 {peek} {call}")), 1000, "{call}");
    }
    for call in ["recvfrom", "recvmsg", "recvmmsg"] {
        assert_eq!(process.call_ok(&format!("receive {fd} 300 1 0 {call}")), 300, "{call}");
    }
    process.close(fd, peer);
    let opened = recorder.wait_opened(process.pid(), 1);
    // The process has read 900 bytes; the kernel resets the connection because 100 bytes are unread.
    assert_eq!(recorder.wait_closed(opened.socket).received_offset, 900);
    let stream = recorder.received(opened.socket);
    stream.verify_whole(6, 900);
    assert_eq!(stream.calls(), 3);
    assert_eq!(recorder.account(process.pid()).seen, 900);
    process.finish();
}

fn msg_errqueue_is_not_counted(mode: CaptureMode) {
    let (mut recorder, mut process, fd, mut peer) = connected(mode, "127.0.0.1:0", v4);
    peer.write_all(&pattern(7, 0, 50)).expect("a successful write");
    assert_eq!(process.call(&format!("error_queue {fd}")), [-i64::from(libc::EAGAIN)]);
    assert_eq!(process.call_ok(&format!("receive {fd} 50 1 0 recvmsg")), 50);
    process.close(fd, peer);
    let opened = recorder.wait_opened(process.pid(), 1);
    recorder.wait_closed(opened.socket);
    recorder.received(opened.socket).verify_whole(7, 50);
    process.finish();
}

fn msg_trunc_bytes_are_counted_as_discarded(mode: CaptureMode) {
    let (mut recorder, mut process, fd, mut peer) = connected(mode, "127.0.0.1:0", v4);
    peer.write_all(&pattern(8, 0, 3000)).expect("a successful write");
    assert_eq!(process.call_ok(&format!("receive {fd} 1000 1 0 read")), 1000);
    assert_eq!(process.call_ok(&format!("receive {fd} 1000 1 {} recvfrom", libc::MSG_TRUNC)), 1000);
    assert_eq!(process.call_ok(&format!("receive {fd} 1000 1 0 read")), 1000);
    process.close(fd, peer);
    let opened = recorder.wait_opened(process.pid(), 1);
    recorder.wait_closed(opened.socket);
    let stream = recorder.received(opened.socket);
    stream.verify(8);
    assert_eq!((stream.captured(), stream.missing(MissingReason::Discarded), stream.holes(0, 3000)), (2000, 1000, 0));
    assert_eq!(recorder.account(process.pid()).dropped_for(MissingReason::Discarded), 1000);
    process.finish();
}

fn sendmmsg_and_recvmmsg(mode: CaptureMode) {
    let (mut recorder, mut process, fd, mut peer) = connected(mode, "127.0.0.1:0", v4);
    // Equal messages in every vector: only the index in the vector distinguishes them.
    for round in 0..20_u64 {
        process.send_command(&format!("send {fd} 9 {} 4000 8 sendmmsg", round * 4000));
        let mut bytes = vec![0; 4000];
        peer.read_exact(&mut bytes).expect("all bytes");
        assert_eq!(process.read_reply(), [4000]);
    }
    for round in 0..20_u64 {
        peer.write_all(&pattern(10, round * 4000, 4000)).expect("a successful write");
        assert_eq!(process.call_ok(&format!("receive {fd} 4000 8 0 recvmmsg")), 4000);
    }
    peer.write_all(&pattern(10, 80_000, 4000)).expect("a successful write");
    assert_eq!(process.call_ok(&format!("receive {fd} 4000 8 0 recvmmsg_timeout")), 4000);
    process.close(fd, peer);
    let opened = recorder.wait_opened(process.pid(), 1);
    recorder.wait_closed(opened.socket);
    let sent = recorder.sent(opened.socket);
    sent.verify_whole(9, 80_000);
    assert_eq!(sent.calls(), 160, "one call start for each message");
    let received = recorder.received(opened.socket);
    received.verify(10);
    assert_eq!(received.holes(0, 84_000), 0);
    // With a timeout recvmmsg may return after any message; in sock mode only the first message is unambiguous.
    let uncertain = if mode == CaptureMode::Sock { 3500 } else { 0 };
    assert_eq!(received.missing(MissingReason::Ambiguous), uncertain);
    assert_eq!(received.captured(), 84_000 - uncertain);
    process.finish();
}
