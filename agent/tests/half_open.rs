//! Half-open connections. The only test of its binary, because it measures the memory of the whole process.
//!
//! Needs root and a kernel with BTF; fails where these are missing.
#![expect(clippy::unwrap_used, reason = "a panic shows the line of the failure")]

mod common;

use std::{io::Write as _, net::TcpStream};

use common::{Stage, TIMEOUT, check_account, session_in, test_process::TestProcess};

#[test]
fn ten_thousand_half_open_connections_take_bounded_memory() {
    let stage = Stage::new();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let limit = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let mut node = TestProcess::start();
    let port = node.listen(0);
    let agent = stage.start(stage.on_port(port));
    stage.found(node.pid());
    let before = resident_bytes();
    // Half of a connection message and no further bytes.
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
    assert!(grown < 32 << 20, "{grown} bytes more");
    agent.shutdown(TIMEOUT).unwrap();
    drop(half_open);
    check_account(&stage.collector.now());
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}
