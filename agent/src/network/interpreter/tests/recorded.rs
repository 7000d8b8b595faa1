//! Recorded sessions, and the sockets on which they are played to the interpreter.

use std::net::SocketAddr;

use chainscope_ebpf::network::DataHeader;

use super::*;

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../vectors/tezos");
pub(super) const NETNS: u32 = 4_026_531_840;
pub(super) const INODE: u64 = 12_345;

pub(super) fn read(path: &str) -> String {
    std::fs::read_to_string(format!("{VECTORS}/{path}")).unwrap()
}

pub(super) fn identity(path: &str) -> OneKey {
    OneKey(Ok(Arc::new(Identity::from_json(read(path).as_bytes()).unwrap())))
}

/// One captured stretch of a session.
pub(in crate::network) struct Step {
    pub(in crate::network) direction: Direction,
    pub(in crate::network) bytes: Vec<u8>,
}

/// The events of a socket, with stream offsets kept.
pub(super) struct Socket {
    pub(super) id: SocketId,
    pub(super) ends: [u64; 2],
    pub(super) time_ns: u64,
}

pub(super) fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

impl Socket {
    pub(super) fn opened(&self, role: Option<Role>) -> Opened {
        Opened {
            socket: self.id,
            pid: PID,
            netns: NETNS,
            inode: INODE + self.id.0,
            local: address("[::ffff:10.0.0.1]:40000"),
            remote: address("[::ffff:10.0.0.2]:9732"),
            role,
            sent_offset: self.ends[0],
            received_offset: self.ends[1],
            time_ns: self.time_ns,
        }
    }

    pub(super) fn open(bench: &mut Bench, id: u64, role: Option<Role>) -> Self {
        let socket = Self { id: SocketId(id), ends: [0, 0], time_ns: 5_000 + id };
        bench.event(&Event::Opened(socket.opened(role)));
        socket
    }

    pub(super) fn data<'a>(&mut self, direction: Direction, bytes: &'a [u8]) -> Data<'a> {
        let end = &mut self.ends[usize::from(direction == Direction::Received)];
        let offset = *end;
        *end += bytes.len() as u64;
        self.time_ns += 1;
        whole(self.id, direction, offset, self.time_ns, bytes)
    }

    pub(super) fn push(&mut self, bench: &mut Bench, direction: Direction, bytes: &[u8]) {
        let data = self.data(direction, bytes);
        bench.event(&Event::Data(data));
    }

    pub(super) fn play(&mut self, bench: &mut Bench, steps: &[Step]) {
        for step in steps {
            self.push(bench, step.direction, &step.bytes);
        }
    }

    pub(super) fn close(self, bench: &mut Bench) {
        bench.event(&Event::Closed(Closed {
            socket: self.id,
            by: ClosedBy::Remote,
            sent_offset: self.ends[0],
            received_offset: self.ends[1],
            time_ns: self.time_ns + 1,
        }));
    }
}

fn syscalls(path: &str) -> Vec<Step> {
    read(path)
        .lines()
        .filter_map(|line| {
            let call: serde_json::Value = serde_json::from_str(line).unwrap();
            let direction = match call["op"].as_str().unwrap() {
                "write" => Direction::Sent,
                "read" => Direction::Received,
                _ => return None,
            };
            let bytes = hex::decode(call["data"].as_str().unwrap()).unwrap();
            (!bytes.is_empty()).then_some(Step { direction, bytes })
        })
        .collect()
}

pub(in crate::network) fn synthetic() -> Vec<Step> {
    syscalls("synthetic-two-way/outgoing-all-messages.syscalls.jsonl")
}

/// Direction, kind, first chunk and SHA-256 of every message between peers that the synthetic session holds.
pub(super) fn synthetic_messages() -> Vec<(bool, u64, Vec<u8>)> {
    let expected: serde_json::Value =
        serde_json::from_str(&read("synthetic-two-way/outgoing-all-messages.expected.json")).unwrap();
    let message = |message: &serde_json::Value| {
        let is_incoming = message["from_"] == "R";
        // There the first encrypted chunk has number 0, here the connection message has.
        let first = message["first_counter"].as_u64().unwrap() + 1;
        (is_incoming, first, hex::decode(message["plaintext_sha256"].as_str().unwrap()).unwrap())
    };
    let mut messages: Vec<_> = expected["messages"].as_array().unwrap().iter().map(message).collect();
    messages.sort();
    messages
}

pub(super) fn p2p_messages(bench: &Bench) -> Vec<(bool, u64, Vec<u8>)> {
    let mut messages: Vec<_> = bench
        .messages()
        .into_iter()
        .filter(|message| message.category == "p2p")
        .map(|message| (message.incoming, message.first_chunk, message.sha256.to_vec()))
        .collect();
    messages.sort();
    messages
}

pub(super) fn bytes_of(steps: &[Step]) -> u64 {
    steps.iter().map(|step| step.bytes.len() as u64).sum()
}

/// The bytes of a whole call.
pub(in crate::network) fn whole(
    socket: SocketId,
    direction: Direction,
    offset: u64,
    time_ns: u64,
    bytes: &[u8],
) -> Data<'_> {
    let header = DataHeader {
        socket,
        direction,
        offset,
        covers: bytes.len() as u64,
        missing: None,
        call_start: true,
        socket_call: false,
        time_ns,
    };
    Data { header, bytes }
}
