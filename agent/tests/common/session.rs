//! The synthetic session, played between a test process and this process, or between two test processes.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use super::test_process::TestProcess;

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../vectors/tezos/synthetic-two-way");

pub(crate) struct Step {
    pub(crate) is_sent: bool,
    pub(crate) bytes: Vec<u8>,
}

fn read(file: &str) -> String {
    std::fs::read_to_string(format!("{VECTORS}/{file}")).unwrap()
}

pub(crate) fn identity() -> String {
    read("identity.json")
}

pub(crate) fn another_identity() -> String {
    read("remote_identity.json")
}

/// The writes and reads of the node.
pub(crate) fn steps() -> Vec<Step> {
    read("outgoing-all-messages.syscalls.jsonl")
        .lines()
        .filter_map(|line| {
            let call: serde_json::Value = serde_json::from_str(line).unwrap();
            let is_sent = match call["op"].as_str().unwrap() {
                "write" => true,
                "read" => false,
                _ => return None,
            };
            let bytes = hex::decode(call["data"].as_str().unwrap()).unwrap();
            (!bytes.is_empty()).then_some(Step { is_sent, bytes })
        })
        .collect()
}

/// (incoming, first chunk, SHA-256) of each message between peers.
pub(crate) fn messages() -> Vec<(bool, u64, Vec<u8>)> {
    let expected: serde_json::Value = serde_json::from_str(&read("outgoing-all-messages.expected.json")).unwrap();
    let message = |message: &serde_json::Value| {
        let digest = hex::decode(message["plaintext_sha256"].as_str().unwrap()).unwrap();
        (message["from_"] == "R", message["first_counter"].as_u64().unwrap() + 1, digest)
    };
    let mut messages: Vec<_> = expected["messages"].as_array().unwrap().iter().map(message).collect();
    messages.sort();
    messages
}

/// The other end of the node's connection.
pub(crate) trait Peer {
    fn put(&mut self, bytes: &[u8]);
    fn take(&mut self, length: usize);
}

impl Peer for TcpStream {
    fn put(&mut self, bytes: &[u8]) {
        self.write_all(bytes).unwrap();
    }

    fn take(&mut self, length: usize) {
        self.read_exact(&mut vec![0; length]).unwrap();
    }
}

impl Peer for (&mut TestProcess, usize) {
    fn put(&mut self, bytes: &[u8]) {
        self.0.write(self.1, bytes);
    }

    fn take(&mut self, length: usize) {
        self.0.read(self.1, length);
    }
}

pub(crate) fn play(node: &mut TestProcess, connection: usize, peer: &mut impl Peer, steps: &[Step]) {
    for step in steps {
        if step.is_sent {
            node.write(connection, &step.bytes);
            peer.take(step.bytes.len());
        } else {
            peer.put(&step.bytes);
            node.read(connection, step.bytes.len());
        }
    }
}
