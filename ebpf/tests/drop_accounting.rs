//! Bytes that cannot be captured are counted exactly and appear as a hole of the same length in the stream.
#![expect(unsafe_code, reason = "the test process makes raw system calls")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;

use chainscope_ebpf::network::{CaptureMode, Direction, KernelAccount, MissingReason, NetworkOptions, SocketId};

use common::recorder::Recorder;
use common::{TestProcess, listener, pattern};

both_modes!(
    sendfile_and_splice_to_a_socket,
    splice_from_a_socket,
    splice_until_close,
    io_uring_sends,
    io_uring_receives,
    io_uring_interleaved_with_reads,
    int80_write,
    partially_mapped_send_buffer,
    send_buffer_unmapped_during_write,
    vectors_replaced_during_sendmsg,
    stopped_reader_is_not_woken,
    two_threads_on_one_socket,
    full_ring,
    open_and_close_events_with_full_ring,
);

fn connected(options: NetworkOptions) -> (Recorder, TestProcess, i64, TcpStream) {
    let mut recorder = Recorder::with(options);
    let mut process = TestProcess::new();
    let (listener, address) = listener("127.0.0.1:0");
    recorder.probe.add_process(process.pid()).expect("map update");
    let fd = process.call_ok(&format!("connect {address}"));
    let (peer, _) = listener.accept().expect("a connection");
    (recorder, process, fd, peer)
}

fn in_mode(mode: CaptureMode) -> NetworkOptions {
    NetworkOptions { mode: Some(mode), ..NetworkOptions::default() }
}

/// The reason reported in each mode: sock mode has an event for such bytes, syscall mode infers them from the stream
/// position.
fn reason(mode: CaptureMode, at_the_socket: MissingReason) -> MissingReason {
    if mode == CaptureMode::Sock { at_the_socket } else { MissingReason::Bypassed }
}

/// Closes the connection and reads its events up to the close.
fn close_and_collect(
    recorder: &mut Recorder,
    process: &mut TestProcess,
    fd: i64,
    peer: TcpStream,
) -> (SocketId, KernelAccount) {
    process.close(fd, peer);
    let opened = recorder.wait_opened(process.pid(), 1);
    recorder.wait_closed(opened.socket);
    (opened.socket, recorder.account(process.pid()))
}

fn sendfile_and_splice_to_a_socket(mode: CaptureMode) {
    let (mut recorder, mut process, fd, mut peer) = connected(in_mode(mode));
    assert_eq!(process.call_ok(&format!("send {fd} 1 0 100 1 write")), 100);
    process.send_command(&format!("sendfile {fd} 500000"));
    peer.read_exact(&mut vec![0; 500_100]).expect("all bytes");
    assert_eq!(process.read_reply(), [500_000]);
    assert_eq!(process.call_ok(&format!("send {fd} 1 500100 100 1 write")), 100);
    assert_eq!(process.call_ok(&format!("splice_in {fd} 3000")), 3000);
    assert_eq!(process.call_ok(&format!("send {fd} 1 503200 100 1 write")), 100);
    peer.read_exact(&mut vec![0; 3200]).expect("all bytes");
    let (socket, account) = close_and_collect(&mut recorder, &mut process, fd, peer);
    let stream = recorder.sent(socket);
    stream.verify(1);
    assert_eq!(stream.captured(), 300);
    assert_eq!(stream.holes(0, 503_300) + stream.missing(MissingReason::NoUserBuffer), 503_000);
    assert_eq!(account.dropped, [(reason(mode, MissingReason::NoUserBuffer).name(), 503_000)]);
    assert_eq!(recorder.closed[&socket].sent_offset, 503_300);
    process.finish();
}

fn splice_from_a_socket(mode: CaptureMode) {
    let (mut recorder, mut process, fd, mut peer) = connected(in_mode(mode));
    peer.write_all(&pattern(2, 0, 5000)).expect("a successful write");
    assert_eq!(process.call_ok(&format!("receive {fd} 1000 1 0 read")), 1000);
    assert_eq!(process.call_ok(&format!("splice_out {fd} 3000")), 3000);
    assert_eq!(process.call_ok(&format!("receive {fd} 1000 1 0 read")), 1000);
    let (socket, account) = close_and_collect(&mut recorder, &mut process, fd, peer);
    let stream = recorder.received(socket);
    stream.verify(2);
    assert_eq!((stream.captured(), stream.holes(0, 5000)), (2000, 3000));
    assert_eq!(account.dropped, [("bypassed", 3000)]);
    process.finish();
}

fn splice_until_close(mode: CaptureMode) {
    let (mut recorder, mut process, fd, mut peer) = connected(in_mode(mode));
    peer.write_all(&pattern(2, 0, 3000)).expect("a successful write");
    peer.shutdown(std::net::Shutdown::Write).expect("open");
    assert_eq!(process.call_ok(&format!("receive {fd} 1000 1 0 read")), 1000);
    assert_eq!(process.call_ok(&format!("splice_out {fd} 2000")), 2000);
    let (socket, account) = close_and_collect(&mut recorder, &mut process, fd, peer);
    // No call follows the splice: only the close event has the offset.
    assert_eq!(recorder.closed[&socket].received_offset, 3000);
    assert_eq!((account.seen, account.dropped_for(MissingReason::Bypassed)), (3000, 2000));
    process.finish();
}

fn io_uring_sends(mode: CaptureMode) {
    for worker in [0, 1] {
        let (mut recorder, mut process, fd, mut peer) = connected(in_mode(mode));
        assert_eq!(process.call_ok(&format!("send {fd} 3 0 100 1 write")), 100);
        assert_eq!(process.call_ok(&format!("uring_send {fd} 3 100 5000 {worker}")), 5000);
        assert_eq!(process.call_ok(&format!("send {fd} 3 5100 100 1 write")), 100);
        peer.read_exact(&mut [0; 5200]).expect("all bytes");
        let (socket, account) = close_and_collect(&mut recorder, &mut process, fd, peer);
        let stream = recorder.sent(socket);
        stream.verify(3);
        assert_eq!(stream.captured(), 200);
        assert_eq!(stream.holes(0, 5200) + stream.missing(MissingReason::IoUring), 5000);
        assert_eq!(account.dropped, [(reason(mode, MissingReason::IoUring).name(), 5000)], "worker: {worker}");
        process.finish();
    }
}

fn io_uring_receives(mode: CaptureMode) {
    for worker in [0, 1] {
        let (mut recorder, mut process, fd, mut peer) = connected(in_mode(mode));
        peer.write_all(&pattern(4, 0, 1200)).expect("a successful write");
        assert_eq!(process.call_ok(&format!("receive {fd} 100 1 0 read")), 100);
        assert_eq!(process.call_ok(&format!("uring_receive {fd} 1000 {worker}")), 1000);
        assert_eq!(process.call_ok(&format!("receive {fd} 100 1 0 read")), 100);
        let (socket, account) = close_and_collect(&mut recorder, &mut process, fd, peer);
        let stream = recorder.received(socket);
        stream.verify(4);
        assert_eq!(stream.captured(), 200);
        assert_eq!(account.dropped, [(reason(mode, MissingReason::IoUring).name(), 1000)], "worker: {worker}");
        process.finish();
    }
}

fn io_uring_interleaved_with_reads(mode: CaptureMode) {
    let (mut recorder, mut process, fd, mut peer) = connected(in_mode(mode));
    let total = 400_000;
    process.send_command(&format!("uring_mixed {fd} {total}"));
    // Small writes make the io_uring receive wait repeatedly.
    for at in (0..total).step_by(400) {
        peer.write_all(&pattern(5, at, 400)).expect("a successful write");
    }
    let [by_read, by_ring] = process.read_reply()[..] else { panic!("two numbers") };
    assert_eq!((by_read + by_ring) as u64, total);
    assert!(by_ring > 0, "the ring received nothing: {by_read} by read");
    let (socket, account) = close_and_collect(&mut recorder, &mut process, fd, peer);
    let stream = recorder.received(socket);
    stream.verify(5);
    assert_eq!(stream.captured(), by_read as u64);
    assert_eq!(account.dropped, [(reason(mode, MissingReason::IoUring).name(), by_ring as u64)]);
    process.finish();
}

fn int80_write(mode: CaptureMode) {
    let (mut recorder, mut process, fd, mut peer) = connected(in_mode(mode));
    assert_eq!(process.call_ok(&format!("send {fd} 6 0 100 1 write")), 100);
    assert_eq!(process.call_ok(&format!("int80_write {fd} 6 1000")), 1000);
    assert_eq!(process.call_ok(&format!("send {fd} 6 1100 100 1 write")), 100);
    peer.read_exact(&mut [0; 1200]).expect("all bytes");
    let (socket, account) = close_and_collect(&mut recorder, &mut process, fd, peer);
    let stream = recorder.sent(socket);
    stream.verify(6);
    assert_eq!(stream.captured(), 200);
    assert_eq!(account.dropped, [(reason(mode, MissingReason::Compat).name(), 1000)]);
    process.finish();
}

fn partially_mapped_send_buffer(mode: CaptureMode) {
    let (mut recorder, mut process, fd, mut peer) = connected(in_mode(mode));
    // The kernel copies the mapped part and returns a partial write, all of which is captured.
    let sent = process.call(&format!("send_with_hole {fd} 7"))[0];
    let sent = u64::try_from(sent).expect("a partial write");
    assert!(sent > 0 && sent <= 1 << 20);
    peer.read_exact(&mut vec![0; sent as usize]).expect("all bytes");
    let (socket, _) = close_and_collect(&mut recorder, &mut process, fd, peer);
    recorder.sent(socket).verify_whole(7, sent);
    process.finish();
}

fn send_buffer_unmapped_during_write(mode: CaptureMode) {
    let (mut recorder, mut process, fd, mut peer) = connected(in_mode(mode));
    let (gone, total) = (128 << 10, 16 << 20);
    process.send_command(&format!("send_and_unmap {fd} 9 {gone} {total}"));
    assert_eq!(process.read_reply(), [0], "unmapped");
    peer.read_exact(&mut vec![0; total]).expect("all bytes");
    assert_eq!(process.read_reply(), [total as i64]);
    let (socket, account) = close_and_collect(&mut recorder, &mut process, fd, peer);
    let stream = recorder.sent(socket);
    stream.verify(9);
    assert_eq!(stream.holes(0, total as u64), 0);
    assert_eq!(stream.missing(MissingReason::Unreadable), gone as u64, "the rest is still captured");
    assert_eq!(account.dropped, [("unreadable", gone as u64)]);
    process.finish();
}

/// The programs follow as many vectors as the kernel accepts (UIO_MAXIOV), however many the process writes meanwhile.
fn vectors_replaced_during_sendmsg(mode: CaptureMode) {
    const MAX_IOVS: u64 = 1024;
    for empty in [MAX_IOVS - 1, MAX_IOVS] {
        let (mut recorder, mut process, fd, mut peer) = connected(in_mode(mode));
        let total = 16 << 20;
        process.send_command(&format!("send_and_replace_vectors {fd} 10 {empty} {total}"));
        assert_eq!(process.read_reply(), [0], "replaced");
        peer.read_exact(&mut vec![0; total]).expect("all bytes");
        assert_eq!(process.read_reply(), [total as i64]);
        let (socket, account) = close_and_collect(&mut recorder, &mut process, fd, peer);
        recorder.sent(socket).verify(10);
        let total = total as u64;
        let expected = if empty < MAX_IOVS { (total, 0) } else { (0, total) };
        assert_eq!((account.captured, account.dropped_for(MissingReason::Unreadable)), expected, "{empty}");
        process.finish();
    }
}

/// A reader that does not wait costs the sender no wake-up: the kernel counts the interrupts that they need.
fn stopped_reader_is_not_woken(mode: CaptureMode) {
    let (recorder, mut process, fd, mut peer) = connected(in_mode(mode));
    let (total, piece) = (16_000_000, 1000);
    let before = irq_works();
    process.send_command(&format!("send_all {fd} 8 0 {total} {piece} write"));
    peer.read_exact(&mut vec![0; total]).expect("all bytes");
    assert_eq!(process.read_reply(), [total as i64]);
    let woken = irq_works() - before;
    assert_eq!(recorder.account(process.pid()).captured, total as u64);
    assert!(woken < (total / piece / 10) as u64, "{woken} interrupts for {} records", total / piece);
    process.finish();
}

/// Interrupts for deferred work of this machine (`irq_work`), by which a BPF ring wakes its reader.
fn irq_works() -> u64 {
    let interrupts = std::fs::read_to_string("/proc/interrupts").expect("a file of the kernel");
    let line = interrupts.lines().find_map(|line| line.trim_start().strip_prefix("IWI:")).expect("x86-64");
    line.split_whitespace().map_while(|word| word.parse::<u64>().ok()).sum()
}

/// The order of concurrent writers is ambiguous; the number of bytes is exact.
fn two_threads_on_one_socket(mode: CaptureMode) {
    let (mut recorder, mut process, fd, mut peer) = connected(in_mode(mode));
    let each = 2_000_000;
    process.send_command(&format!("two_threads_send {fd} {fd} {each} 777"));
    peer.read_exact(&mut vec![0; 2 * each]).expect("all bytes");
    assert_eq!(process.read_reply(), [each as i64; 2]);
    let (socket, account) = close_and_collect(&mut recorder, &mut process, fd, peer);
    let total = 2 * each as u64;
    assert_eq!(account.seen, total, "{account:?}");
    assert_eq!(recorder.closed[&socket].sent_offset, total);
    let stream = recorder.sent(socket);
    assert_eq!(stream.captured(), account.captured);
    let uncovered = stream.by_position().holes(0, total);
    assert_eq!(uncovered + stream.missing(MissingReason::Concurrent), account.dropped_bytes());
    assert!(account.captured > total / 4, "{account:?}");
    process.finish();
}

fn full_ring(mode: CaptureMode) {
    let small = NetworkOptions { ring_bytes: 1 << 20, wake_bytes: 1 << 18, ..in_mode(mode) };
    for (call, piece) in [("write", 1000), ("sendmsg", 100_000)] {
        let (mut recorder, mut process, fd, mut peer) = connected(small.clone());
        let total = 8_000_000_u64;
        process.send_command(&format!("send_all {fd} 8 0 {total} {piece} {call}"));
        peer.read_exact(&mut vec![0; total as usize]).expect("all bytes");
        assert_eq!(process.read_reply(), [total as i64]);
        let account = recorder.account(process.pid());
        let lost = account.dropped_for(MissingReason::RingFull);
        assert!(lost > total / 2, "the ring was not full: {account:?}");
        assert!(account.dropped_records > 0);
        assert_eq!((account.seen, account.captured), (total, total - lost));

        // After the ring is drained, capture resumes behind a hole of exactly the lost length.
        let opened = recorder.wait_opened(process.pid(), 1);
        while recorder.poll() > 0 {}
        assert_eq!(process.call_ok(&format!("send {fd} 8 {total} 500 1 write")), 500);
        peer.read_exact(&mut [0; 500]).expect("all bytes");
        recorder.wait_covered(opened.socket, Direction::Sent, total - lost + 500);
        let stream = recorder.sent(opened.socket);
        stream.verify(8);
        assert_eq!((stream.holes(0, total + 500), stream.captured()), (lost, total - lost + 500));
        let last = stream.pieces.last().expect("the last write");
        assert_eq!((last.header.offset, last.bytes.len()), (total, 500));
        process.finish();
    }
}

fn open_and_close_events_with_full_ring(mode: CaptureMode) {
    let small = NetworkOptions { ring_bytes: 1 << 16, wake_bytes: 1 << 15, ..in_mode(mode) };
    let (mut recorder, mut process, fd, mut peer) = connected(small);
    // Fill the ring to its last bytes.
    for size in [60_000, 4000, 1000, 200, 50, 1, 1, 1] {
        process.call_ok(&format!("send {fd} 1 0 {size} 1 write"));
        peer.read_exact(&mut vec![0; size]).expect("all bytes");
    }
    while recorder.probe.account(process.pid()).expect("watched").dropped_records < 3 {
        process.call_ok(&format!("send {fd} 1 0 1 1 write"));
    }
    let (out, address) = listener("127.0.0.1:0");
    // Three connections stay open, three close before the ring is read; a new listener opens.
    let mut near = Vec::new();
    for _ in 0..6 {
        let fd = process.call_ok(&format!("connect {address}"));
        let (peer, _) = out.accept().expect("a connection");
        assert_eq!(process.call_ok(&format!("send {fd} 2 0 100 1 write")), 100);
        near.push((fd, peer));
    }
    for (fd, mut peer) in near.drain(3..) {
        process.call_ok(&format!("close {fd}"));
        assert_eq!(peer.read_to_end(&mut Vec::new()).expect("end of stream"), 100);
    }
    let port = chainscope_testing::free_port();
    process.call_ok(&format!("listen 127.0.0.1:{port}"));

    recorder.poll_until("the listener", |r| r.listening.iter().any(|l| l.2.port() == port));
    recorder.poll_until("three close events", |r| r.closed.len() == 3);
    // Open connections are reported with their next bytes, at offset 100 of streams that began at 0.
    for (fd, _) in &near {
        assert_eq!(process.call_ok(&format!("send {fd} 2 100 100 1 write")), 100);
    }
    recorder.poll_until("all open events", |r| r.opened.len() == 7);
    let pid = process.pid();
    for socket in recorder.opened.keys().copied().skip(1).collect::<Vec<_>>() {
        assert_eq!(recorder.opened[&socket].pid, pid);
        assert_eq!(recorder.opened[&socket].sent_offset, 0);
        if let Some(closed) = recorder.closed.get(&socket) {
            assert_eq!((closed.sent_offset, recorder.sent(socket).captured()), (100, 0));
        } else {
            recorder.wait_covered(socket, Direction::Sent, 100);
            let stream = recorder.sent(socket);
            stream.verify(2);
            assert_eq!((stream.captured(), stream.holes(0, 200)), (100, 100));
        }
    }
    assert_eq!(recorder.probe.counters().lost_notices, 0);
    let account = recorder.account(process.pid());
    assert!(account.dropped_for(MissingReason::RingFull) >= 600, "{account:?}");
    process.finish();
}
