//! Lifecycle of sockets and watched processes: selection by port, namespace and process, and open and close events.
#![expect(unsafe_code, reason = "the test process makes raw system calls")]

mod common;

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpStream};
use std::process::Command;

use chainscope_ebpf::network::{CaptureMode, ClosedBy, Direction, ExecEvents, NetworkOptions, Role, Verdict};

use chainscope_testing::free_port;
use common::recorder::Recorder;
use common::{TestProcess, listener, pattern, responder};

both_modes!(
    listener_on_watched_port,
    same_port_in_two_network_namespaces,
    same_port_at_several_addresses,
    listener_at_any_address,
    port_watched_in_one_network_namespace,
    other_ports_are_ignored,
    existing_process_and_listener,
    existing_connection_of_either_role,
    existing_connection_without_traffic,
    leave_alone_verdict_stops_capture,
    two_interleaved_connections,
    two_threads_on_separate_sockets,
    duplicated_descriptor_closed_by_thread,
    nonblocking_connect,
    forked_child_sends,
    removed_process,
    closed_listener,
);

fn listener_on_watched_port(mode: CaptureMode) {
    let (mut recorder, mut process, listener, address) = responder(mode);
    let mut peers = Vec::new();
    for accept in ["accept", "accept4"] {
        let mut peer = TcpStream::connect(address).expect("a listener");
        // Bytes that arrive before accept are captured too.
        peer.write_all(&pattern(1, 0, 100)).expect("a successful write");
        let fd = process.call_ok(&format!("{accept} {listener}"));
        assert_eq!(process.call_ok(&format!("receive {fd} 100 1 0 read")), 100);
        peers.push((peer, fd));
    }
    recorder.poll_until("listening", |r| !r.listening.is_empty());
    assert_eq!(recorder.listening, [(process.pid(), process.netns(), address)]);
    for (count, (peer, fd)) in peers.into_iter().enumerate() {
        let opened = recorder.wait_opened(process.pid(), count + 1);
        assert_eq!((opened.role, opened.local), (Some(Role::Responder), address));
        assert_eq!(opened.remote, peer.local_addr().expect("an address"));
        assert_eq!((opened.netns, opened.sent_offset, opened.received_offset), (process.netns(), 0, 0));
        recorder.wait_covered(opened.socket, Direction::Received, 100);
        let link = std::fs::read_link(format!("/proc/{}/fd/{fd}", process.pid())).expect("a descriptor");
        let inode = recorder.inodes.get(&opened.socket).copied().unwrap_or(opened.inode);
        assert_eq!(link.to_string_lossy(), format!("socket:[{inode}]"));
        process.close(fd, peer);
        assert_eq!(recorder.wait_closed(opened.socket).by, ClosedBy::Local);
        recorder.received(opened.socket).verify_whole(1, 100);
    }
    process.finish();
}

fn same_port_in_two_network_namespaces(mode: CaptureMode) {
    let mut recorder = Recorder::new(mode);
    let mut processes = [TestProcess::in_new_netns(), TestProcess::in_new_netns()];
    recorder.probe.watch_port(None, 9732).expect("map update");
    for process in &mut processes {
        assert_eq!(process.call("listen 127.0.0.1:9732")[1], 0);
    }
    recorder.poll_until("both", |r| r.listening.len() == 2);
    let expected: Vec<_> =
        processes.iter().map(|p| (p.pid(), p.netns(), "127.0.0.1:9732".parse().expect("an address"))).collect();
    assert_eq!(recorder.listening, expected);
    assert_ne!(processes[0].netns(), processes[1].netns());
    for (seed, process) in processes.iter_mut().enumerate() {
        // The process connects to itself; the role distinguishes the two ends.
        let near = process.call_ok("connect 127.0.0.1:9732");
        process.call_ok(&format!("send {near} {seed} 0 500 1 write"));
    }
    for (seed, process) in processes.iter().enumerate() {
        let opened = recorder.wait_opened(process.pid(), 2);
        let near = recorder.opened.values().find(|o| o.pid == process.pid() && o.role == Some(Role::Initiator));
        let near = *near.unwrap_or_else(|| panic!("no initiator: {opened:?}"));
        assert_eq!(near.netns, process.netns());
        recorder.wait_covered(near.socket, Direction::Sent, 500);
        recorder.sent(near.socket).verify_whole(seed as u64, 500);
    }
}

fn port_watched_in_one_network_namespace(mode: CaptureMode) {
    let mut recorder = Recorder::new(mode);
    let (mut inside, mut outside) = (TestProcess::in_new_netns(), TestProcess::in_new_netns());
    recorder.probe.watch_port(Some(inside.netns()), 9732).expect("map update");
    outside.call_ok("listen 127.0.0.1:9732");
    inside.call_ok("listen 127.0.0.1:9732");
    recorder.poll_until("listening", |r| !r.listening.is_empty());
    assert_eq!(recorder.listening, [(inside.pid(), inside.netns(), "127.0.0.1:9732".parse().expect("an address"))]);
    assert_eq!(recorder.probe.processes(), [inside.pid()]);
    recorder.probe.unwatch_port(Some(inside.netns()), 9732).expect("it was watched");
    recorder.probe.unwatch_port(None, 1).expect("a no-op");
}

fn other_ports_are_ignored(mode: CaptureMode) {
    let (mut recorder, mut process, listener, address) = responder(mode);
    let rpc = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let rpc_listener = process.call_ok(&format!("listen {rpc}"));
    let mut rpc_peer = TcpStream::connect(rpc).expect("a listener");
    let fd = process.call_ok(&format!("accept {rpc_listener}"));
    rpc_peer.write_all(&pattern(1, 0, 700)).expect("a successful write");
    assert_eq!(process.call_ok(&format!("receive {fd} 700 1 0 read")), 700);
    assert_eq!(process.call_ok(&format!("send {fd} 1 0 300 1 write")), 300);

    // Outgoing connections of the process are captured for every destination.
    let (other, other_address) = common::listener("127.0.0.1:0");
    let own = process.call_ok(&format!("connect {other_address}"));
    let _kept = other.accept().expect("a connection");
    assert_eq!(process.call_ok(&format!("send {own} 1 0 10 1 write")), 10);
    let mut peer = TcpStream::connect(address).expect("a listener");
    let near = process.call_ok(&format!("accept {listener}"));
    peer.write_all(&pattern(1, 0, 20)).expect("a successful write");
    assert_eq!(process.call_ok(&format!("receive {near} 20 1 0 read")), 20);

    recorder.wait_opened(process.pid(), 2);
    let last = recorder.opened.values().last().copied().expect("two connections");
    recorder.wait_covered(last.socket, Direction::Received, 20);
    assert!(recorder.opened.values().all(|o| o.local.port() != rpc.port()), "{:?}", recorder.opened);
    let account = recorder.account(process.pid());
    assert_eq!((account.left_alone, account.captured, account.seen), (1000, 30, 1030));

    // Without the port filter, new connections are captured.
    recorder.probe.set_port_filter(process.pid(), None).expect("it was watched");
    let _rpc_peer = TcpStream::connect(rpc).expect("a listener");
    let opened = recorder.wait_opened(process.pid(), 3);
    assert_eq!(opened.local, rpc);
    process.finish();
}

/// Programs of one network namespace may listen on one port, at different addresses.
fn same_port_at_several_addresses(mode: CaptureMode) {
    let mut recorder = Recorder::new(mode);
    let port = free_port();
    let (ipv4, ipv6) =
        (|last| SocketAddr::from(([127, 0, 0, last], port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port)));
    recorder.probe.watch_port(None, port).expect("map update");
    let mut listens = [ipv4(1), ipv4(2), ipv6].map(|address| {
        let mut process = TestProcess::new();
        let fd = process.call_ok(&format!("listen {address}"));
        (process, address, fd)
    });
    // This listener was there before.
    let mut existing = TestProcess::new();
    recorder.probe.unwatch_port(None, port).expect("it was watched");
    existing.call_ok(&format!("listen {}", ipv4(3)));
    recorder.probe.add_process(existing.pid()).expect("map update");
    recorder.probe.add_listener(existing.netns(), ipv4(3), existing.pid()).expect("map update");

    let mut peers = Vec::new();
    let pids: Vec<_> = listens.iter().map(|(process, address, _)| (process.pid(), *address)).collect();
    for (pid, address) in pids.into_iter().chain([(existing.pid(), ipv4(3))]) {
        peers.push(TcpStream::connect(address).expect("a listener"));
        let opened = recorder.wait_opened(pid, 1);
        assert_eq!((opened.pid, opened.local, opened.role), (pid, address, Some(Role::Responder)));
    }
    // The end of one listener is not the end of another.
    let [(first, _, fd), (second, address, _), _] = &mut listens;
    first.call_ok(&format!("close {fd}"));
    peers.push(TcpStream::connect(*address).expect("a listener"));
    recorder.wait_opened(second.pid(), 2);
}

fn listener_at_any_address(mode: CaptureMode) {
    let mut recorder = Recorder::new(mode);
    for (address, destinations) in [("0.0.0.0", &["127.0.0.1"][..]), ("::", &["127.0.0.2", "::1"])] {
        let address = SocketAddr::new(address.parse().expect("an address"), free_port());
        recorder.probe.watch_port(None, address.port()).expect("map update");
        let mut process = TestProcess::new();
        process.call_ok(&format!("listen {address}"));
        recorder.poll_until("listening", |r| r.listening.contains(&(process.pid(), process.netns(), address)));
        for (count, destination) in destinations.iter().enumerate() {
            let destination = SocketAddr::new(destination.parse().expect("an address"), address.port());
            let _peer = TcpStream::connect(destination).expect("a listener");
            let opened = recorder.wait_opened(process.pid(), count + 1);
            assert_eq!(opened.local.ip().to_canonical(), destination.ip());
        }
    }
}

fn existing_process_and_listener(mode: CaptureMode) {
    let mut recorder = Recorder::new(mode);
    let mut process = TestProcess::new();
    let port = free_port();
    let fd = process.call_ok(&format!("listen 127.0.0.1:{port}"));
    recorder.probe.add_process(process.pid()).expect("map update");
    recorder.probe.add_process(process.pid()).expect("again changes nothing");
    recorder.probe.add_listener(process.netns(), ([127, 0, 0, 1], port).into(), process.pid()).expect("map update");
    let mut peer = TcpStream::connect(("127.0.0.1", port)).expect("a listener");
    let opened = recorder.wait_opened(process.pid(), 1);
    assert_eq!((opened.role, opened.received_offset), (Some(Role::Responder), 0));
    peer.write_all(&pattern(2, 0, 1000)).expect("a successful write");
    let near = process.call_ok(&format!("accept {fd}"));
    assert_eq!(process.call_ok(&format!("receive {near} 1000 1 0 recvfrom")), 1000);
    recorder.wait_covered(opened.socket, Direction::Received, 1000);
    recorder.received(opened.socket).verify_whole(2, 1000);
    recorder.probe.remove_listener(process.netns(), ([127, 0, 0, 1], port).into()).expect("it was watched");
    process.finish();
}

fn existing_connection_of_either_role(mode: CaptureMode) {
    let mut recorder = Recorder::new(mode);
    let mut process = TestProcess::new();
    let (out, out_address) = listener("127.0.0.1:0");
    let near = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let listening = process.call_ok(&format!("listen {near}"));
    for initiator in [true, false] {
        let (fd, mut peer) = if initiator {
            (process.call_ok(&format!("connect {out_address}")), out.accept().expect("a connection").0)
        } else {
            let peer = TcpStream::connect(near).expect("a listener");
            (process.call_ok(&format!("accept {listening}")), peer)
        };
        // Before the attach: 5000 bytes sent, 3000 of 3100 bytes received.
        assert_eq!(process.call_ok(&format!("send {fd} 1 0 5000 1 write")), 5000);
        peer.read_exact(&mut [0; 5000]).expect("all bytes");
        peer.write_all(&pattern(2, 0, 3100)).expect("a successful write");
        assert_eq!(process.call_ok(&format!("receive {fd} 3000 1 0 read")), 3000);

        recorder.probe.add_process(process.pid()).expect("map update");
        assert_eq!(process.call_ok(&format!("receive {fd} 100 1 0 read")), 100);
        assert_eq!(process.call_ok(&format!("send {fd} 1 5000 200 1 write")), 200);
        let opened = recorder.wait_opened(process.pid(), if initiator { 1 } else { 2 });
        assert_eq!((opened.sent_offset, opened.received_offset), (5000, 3000), "initiator: {initiator}");
        let role = if initiator { Role::Initiator } else { Role::Responder };
        assert_eq!(opened.role, Some(role));
        assert_ne!(opened.inode, 0);
        peer.shutdown(std::net::Shutdown::Write).expect("open");
        assert_eq!(process.call_ok(&format!("receive {fd} 10 1 0 read")), 0);
        process.call_ok(&format!("close {fd}"));
        let closed = recorder.wait_closed(opened.socket);
        assert_eq!((closed.sent_offset, closed.received_offset, closed.by), (5200, 3100, ClosedBy::Remote));
        let (sent, received) = (recorder.sent(opened.socket), recorder.received(opened.socket));
        sent.verify(1);
        received.verify(2);
        assert_eq!((sent.holes(5000, 5200), sent.captured()), (0, 200));
        assert_eq!((received.holes(3000, 3100), received.captured()), (0, 100));
        assert_eq!(recorder.account(process.pid()).seen, 300);
        recorder.probe.remove_process(process.pid()).expect("it was watched");
    }
    process.finish();
}

fn existing_connection_without_traffic(mode: CaptureMode) {
    let mut recorder = Recorder::new(mode);
    let mut process = TestProcess::new();
    let (out, address) = listener("[::1]:0");
    for first_sends in [true, false] {
        let fd = process.call_ok(&format!("connect {address}"));
        let (mut peer, _) = out.accept().expect("a connection");
        recorder.probe.add_process(process.pid()).expect("map update");
        if first_sends {
            assert_eq!(process.call_ok(&format!("send {fd} 1 0 10 1 write")), 10);
        } else {
            peer.write_all(&pattern(1, 0, 10)).expect("a successful write");
            assert_eq!(process.call_ok(&format!("receive {fd} 10 1 0 read")), 10);
        }
        let opened = recorder.wait_opened(process.pid(), if first_sends { 1 } else { 2 });
        assert_eq!((opened.sent_offset, opened.received_offset), (0, 0));
        assert_eq!(opened.role, Some(Role::Initiator));
        recorder.probe.remove_process(process.pid()).expect("it was watched");
    }
    process.finish();
}

fn leave_alone_verdict_stops_capture(mode: CaptureMode) {
    let mut recorder = Recorder::new(mode);
    let mut process = TestProcess::new();
    let (out, address) = listener("127.0.0.1:0");
    recorder.probe.add_process(process.pid()).expect("map update");
    let mut fds = Vec::new();
    for count in 1..=2 {
        let fd = process.call_ok(&format!("connect {address}"));
        let (peer, _) = out.accept().expect("a connection");
        assert_eq!(process.call_ok(&format!("send {fd} 1 0 100 1 write")), 100);
        let opened = recorder.wait_opened(process.pid(), count);
        let verdict = if count == 1 { Verdict::LeaveAlone } else { Verdict::Keep };
        recorder.probe.set_verdict(opened.socket, verdict).expect("map update");
        assert_eq!(process.call_ok(&format!("send {fd} 1 100 900 1 write")), 900);
        process.close(fd, peer);
        let closed = recorder.wait_closed(opened.socket);
        let sent = recorder.sent(opened.socket);
        assert_eq!(
            closed.sent_offset,
            1000,
            "{verdict:?}: {closed:?} of {opened:?}, first piece {:?}",
            sent.pieces.first().map(|piece| &piece.header)
        );
        fds.push(opened.socket);
    }
    assert_eq!(recorder.sent(fds[0]).captured(), 100);
    recorder.sent(fds[1]).verify_whole(1, 1000);
    let account = recorder.account(process.pid());
    assert_eq!((account.seen, account.captured, account.left_alone), (2000, 1100, 900));
    process.finish();
}

fn two_interleaved_connections(mode: CaptureMode) {
    let (mut recorder, mut process, listener, address) = responder(mode);
    let mut connections = Vec::new();
    for seed in [1_u64, 2] {
        let peer = TcpStream::connect(address).expect("a listener");
        connections.push((seed, process.call_ok(&format!("accept {listener}")), peer, 0_u64));
    }
    for round in 0..50_usize {
        for (seed, fd, peer, at) in &mut connections {
            let size = 1 + (round * 997 * *seed as usize) % 9000;
            peer.write_all(&pattern(*seed, *at, size)).expect("a successful write");
            process.call_ok(&format!("receive_all {fd} {size} 3000 readv"));
            process.call_ok(&format!("send {fd} {} {at} {size} 2 sendmsg", *seed + 10));
            peer.read_exact(&mut vec![0; size]).expect("all bytes");
            *at += size as u64;
        }
    }
    for (seed, fd, peer, at) in connections {
        let local = peer.local_addr().expect("an address");
        process.close(fd, peer);
        recorder.poll_until("it", |r| r.opened.values().any(|o| o.remote == local));
        let opened = *recorder.opened.values().find(|o| o.remote == local).expect("just seen");
        recorder.wait_closed(opened.socket);
        recorder.received(opened.socket).verify_whole(seed, at);
        recorder.sent(opened.socket).verify_whole(seed + 10, at);
    }
    process.finish();
}

fn two_threads_on_separate_sockets(mode: CaptureMode) {
    let mut recorder = Recorder::new(mode);
    let mut process = TestProcess::new();
    let (out, address) = listener("127.0.0.1:0");
    recorder.probe.add_process(process.pid()).expect("map update");
    let fds = [0, 1].map(|_| process.call_ok(&format!("connect {address}")));
    let total = 4_000_000_usize;
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (mut peer, _) = out.accept().expect("a connection");
            std::thread::spawn(move || {
                peer.read_exact(&mut vec![0; total]).expect("all bytes");
                peer
            })
        })
        .collect();
    process.send_command(&format!("two_threads_send {} {} {total} 3333", fds[0], fds[1]));
    let sockets = [1, 2].map(|count| recorder.wait_opened(process.pid(), count).socket);
    for (socket, seed) in sockets.into_iter().zip(1..) {
        recorder.wait_covered(socket, Direction::Sent, total as u64);
        recorder.sent(socket).verify_whole(seed, total as u64);
    }
    assert_eq!(process.read_reply(), [total as i64; 2]);
    assert_eq!(recorder.account(process.pid()).captured, 2 * total as u64);
    drop(readers);
    process.finish();
}

fn duplicated_descriptor_closed_by_thread(mode: CaptureMode) {
    let mut recorder = Recorder::new(mode);
    let mut process = TestProcess::new();
    let (out, address) = listener("127.0.0.1:0");
    recorder.probe.add_process(process.pid()).expect("map update");
    let fd = process.call_ok(&format!("connect {address}"));
    let (peer, _) = out.accept().expect("a connection");
    process.call_ok(&format!("send {fd} 1 0 100 1 write"));
    let second = process.call_ok(&format!("dup {fd}"));
    process.call_ok(&format!("thread_close {fd}"));
    process.call_ok(&format!("send {second} 1 100 100 1 write"));
    process.call_ok(&format!("thread_send {second} 1 200 100"));
    // The kernel reuses the closed descriptor's number for another connection.
    let reused = process.call_ok(&format!("connect {address}"));
    assert_eq!(reused, fd);
    process.call_ok(&format!("send {reused} 2 0 50 1 write"));
    let opened = recorder.wait_opened(process.pid(), 1);
    let other = recorder.wait_opened(process.pid(), 2);
    recorder.wait_covered(other.socket, Direction::Sent, 50);
    assert!(!recorder.closed.contains_key(&opened.socket), "one descriptor is left");
    process.close(second, peer);
    assert_eq!(recorder.wait_closed(opened.socket).sent_offset, 300);
    recorder.sent(opened.socket).verify_whole(1, 300);
    recorder.sent(other.socket).verify_whole(2, 50);
    process.finish();
}

fn nonblocking_connect(mode: CaptureMode) {
    let mut recorder = Recorder::new(mode);
    let mut process = TestProcess::new();
    let (out, address) = listener("[::1]:0");
    recorder.probe.add_process(process.pid()).expect("map update");
    let fd = process.call_ok(&format!("connect {address} nonblocking"));
    let (mut peer, _) = out.accept().expect("a connection");
    peer.write_all(&pattern(1, 0, 10)).expect("a successful write");
    assert_eq!(process.call_ok(&format!("receive {fd} 10 1 0 read")), 10);
    let opened = recorder.wait_opened(process.pid(), 1);
    assert_eq!((opened.role, opened.remote), (Some(Role::Initiator), address));
    recorder.wait_covered(opened.socket, Direction::Received, 10);
    recorder.received(opened.socket).verify_whole(1, 10);
    process.finish();
}

fn forked_child_sends(mode: CaptureMode) {
    let (mut recorder, mut process, listener, address) = responder(mode);
    let mut peer = TcpStream::connect(address).expect("a listener");
    let fd = process.call_ok(&format!("accept {listener}"));
    assert_eq!(process.call_ok(&format!("send {fd} 1 0 100 1 write")), 100);
    assert_eq!(process.call(&format!("fork_send {fd} 1 100 200")), [0], "the child's exit status");
    assert_eq!(process.call_ok(&format!("send {fd} 1 300 100 1 write")), 100);
    peer.read_exact(&mut [0; 400]).expect("all bytes");
    process.close(fd, peer);
    let opened = recorder.wait_opened(process.pid(), 1);
    assert_eq!(recorder.wait_closed(opened.socket).sent_offset, 400);
    recorder.sent(opened.socket).verify_whole(1, 400);
    assert_eq!(recorder.account(process.pid()).captured, 400);
    process.finish();
}

fn removed_process(mode: CaptureMode) {
    let (mut recorder, mut process, listener, address) = responder(mode);
    let peer = TcpStream::connect(address).expect("a listener");
    let fd = process.call_ok(&format!("accept {listener}"));
    process.call_ok(&format!("send {fd} 1 0 100 1 write"));
    let opened = recorder.wait_opened(process.pid(), 1);
    recorder.probe.remove_process(process.pid()).expect("it was watched");
    recorder.probe.remove_process(process.pid()).expect("a no-op");
    assert!(recorder.probe.account(process.pid()).is_none());
    process.call_ok(&format!("send {fd} 1 100 100 1 write"));
    process.close(fd, peer);
    assert_eq!(recorder.wait_closed(opened.socket).sent_offset, 200);
    assert_eq!(recorder.sent(opened.socket).captured(), 100);
    // The removed process still listens, but its connections are not reported. The event of a process added later shows
    // that all earlier events have been read.
    let _unseen = TcpStream::connect(address).expect("a listener");
    let mut other = TestProcess::new();
    recorder.probe.add_process(other.pid()).expect("map update");
    other.call_ok(&format!("connect {address}"));
    recorder.wait_opened(other.pid(), 1);
    assert_eq!(recorder.opened.len(), 2, "{:?}", recorder.opened);
    other.finish();
    process.finish();
}

fn closed_listener(mode: CaptureMode) {
    let (mut recorder, mut process, listener, address) = responder(mode);
    process.call_ok(&format!("close {listener}"));
    recorder.probe.unwatch_port(None, address.port()).expect("it was watched");
    // An unwatched process listens on the same port.
    let mut unwatched = TestProcess::new();
    unwatched.call_ok(&format!("listen {address}"));
    let _peer = TcpStream::connect(address).expect("a listener");
    let (_out, other) = common::listener("127.0.0.1:0");
    process.call_ok(&format!("connect {other}"));
    let opened = recorder.wait_opened(process.pid(), 1);
    assert_eq!(opened.remote, other);
    assert_eq!(recorder.opened.len(), 1, "the unwatched process's connection is reported: {:?}", recorder.opened);
    process.finish();
    unwatched.finish();
}

#[test]
fn exec_events_are_reported_on_request() {
    let mut recorder = Recorder::with(NetworkOptions { exec_events: ExecEvents::All, ..NetworkOptions::default() });
    let mut child = Command::new("true").spawn().expect("a program");
    recorder.poll_until("it", |r| r.executed.contains(&child.id()));
    child.wait().expect("an exit status");
}

#[test]
fn dropped_probe_closes_all_descriptors() {
    let bpf_descriptors = || {
        let links = std::fs::read_dir("/proc/self/fd").expect("own descriptors");
        let of_bpf = |link: &std::path::Path| link.to_string_lossy().contains("bpf");
        links.flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok()).filter(|link| of_bpf(link)).count()
    };
    // Other tests of this binary load probes in concurrent threads, so the descriptors are counted in a separate
    // process.
    if std::env::var_os("CHAINSCOPE_TEST_ALONE").is_none() {
        let own = std::env::current_exe().expect("the executable path");
        let mut alone = Command::new(own);
        alone.args(["--exact", "dropped_probe_closes_all_descriptors"]).env("CHAINSCOPE_TEST_ALONE", "1");
        assert!(alone.status().expect("a child process").success());
        return;
    }
    for mode in [CaptureMode::Sock, CaptureMode::Syscall] {
        let recorder = Recorder::new(mode);
        assert!(bpf_descriptors() > 10);
        drop(recorder);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while bpf_descriptors() != 0 {
            assert!(std::time::Instant::now() < deadline, "{} are left", bpf_descriptors());
            std::thread::yield_now();
        }
    }
}

#[test]
fn invalid_ring_size_is_rejected() {
    for ring_bytes in [0, 1000, 3 << 20] {
        let error =
            chainscope_ebpf::network::NetworkProbe::load(&NetworkOptions { ring_bytes, ..NetworkOptions::default() });
        let text = error.expect_err("not a power of two").to_string();
        assert!(text.contains(&ring_bytes.to_string()), "{text}");
    }
}

#[test]
fn self_check_passes_on_this_host() {
    let findings = chainscope_ebpf::self_check();
    assert!(findings.len() > 8);
    let bad: Vec<_> = findings.iter().filter(|finding| !finding.ok).collect();
    assert!(bad.is_empty(), "{bad:?}");
}

#[test]
fn missing_capabilities_are_named() {
    if std::env::var_os("CHAINSCOPE_TEST_ALONE").is_some() {
        let error =
            chainscope_ebpf::network::NetworkProbe::load(&NetworkOptions::default()).expect_err("no capabilities");
        let text = error.to_string();
        assert!(text.contains("missing here: CAP_BPF, CAP_PERFMON") && text.len() < 300, "{text}");
        return;
    }
    let own = std::env::current_exe().expect("the executable path");
    let mut alone = Command::new("setpriv");
    alone.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(own);
    alone.args(["--exact", "missing_capabilities_are_named"]).env("CHAINSCOPE_TEST_ALONE", "1");
    assert!(alone.status().expect("setpriv").success());
}
