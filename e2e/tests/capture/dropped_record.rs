//! Each capture record of the synthetic session is dropped in turn, in both roles: all messages outside the gap are decoded, the gap is
//! reported, and the account balances after every step. Needs no root: records are passed to the interpreter directly.

use std::ops::Range;
use std::sync::Arc;

use chainscope_demo_node::behaviour;
use chainscope_demo_node::script::{Script, Step};
use chainscope_demo_node::wire::{Chunks, Cipher, Identity, ciphers};
use chainscope_e2e::harness::vectors;
use chainscope_tezos::{Conversation, Direction, Gap, Limits, Message, Output, Piece, Role};
use sha2::{Digest, Sha256};

/// A message as decrypted by the demo node's own code, and the position of its chunks in the stream.
struct Sent {
    direction: Direction,
    sha256: [u8; 32],
    bytes: Range<u64>,
}

/// A capture record: the bytes of one system call.
struct Record {
    direction: Direction,
    offset: u64,
    bytes: Vec<u8>,
}

struct Session {
    role: Role,
    identity: Arc<chainscope_tezos::Identity>,
    records: Vec<Record>,
    messages: Vec<Sent>,
    /// Stream offsets at which the connection messages end.
    greeting: (u64, u64),
    ends: (u64, u64),
}

impl Session {
    fn load(swapped: bool) -> Self {
        let folder = vectors::tezos("synthetic-two-way");
        let identity = |name: &str| std::fs::read(folder.join(name)).expect("identity");
        let own = |name: &str| serde_json::from_slice::<Identity>(&identity(name)).expect("identity");
        let (local, remote) = (own("identity.json"), own("remote_identity.json"));
        let mut script = Script::load(&folder, Some("outgoing-all-messages")).expect("script");
        if swapped {
            script = script.swap_roles(&local, &remote).expect("swaps");
        }
        let (sent, received) = (script.stream(true), script.stream(false));
        let greeting = (greeting(&sent), greeting(&received));
        let split = |stream: &[u8], end: u64| stream[..end as usize].to_vec();
        let (ours, theirs) = (split(&sent, greeting.0), split(&received, greeting.1));
        let (by_us, by_them) = ciphers(local.secret_key(), script.role, &ours, &theirs).expect("keys");
        let mut messages = messages(Direction::Sent, &sent, by_us);
        messages.extend(self::messages(Direction::Received, &received, by_them));
        let (mut sent_at, mut received_at) = (0, 0);
        let records = script.steps.iter().map(|step| {
            let (direction, at, bytes) = match step {
                Step::Send(bytes) => (Direction::Sent, &mut sent_at, bytes),
                Step::Receive(bytes) => (Direction::Received, &mut received_at, bytes),
            };
            let record = Record { direction, offset: *at, bytes: bytes.clone() };
            *at += bytes.len() as u64;
            record
        });
        Self {
            role: match script.role {
                behaviour::Role::Initiator => Role::Initiator,
                behaviour::Role::Responder => Role::Responder,
            },
            identity: Arc::new(chainscope_tezos::Identity::from_json(&identity("identity.json")).expect("identity")),
            records: records.collect(),
            messages,
            greeting,
            ends: (sent.len() as u64, received.len() as u64),
        }
    }

    /// The records after the connection messages, without which nothing can be decrypted.
    fn droppable(&self) -> Vec<usize> {
        let after = |record: &Record| match record.direction {
            Direction::Sent => record.offset >= self.greeting.0,
            Direction::Received => record.offset >= self.greeting.1,
        };
        (0..self.records.len()).filter(|n| after(&self.records[*n])).collect()
    }

    /// Messages and gaps without the record `dropped`. `is_reported`: the kernel reports the length of the gap, as it does if only
    /// the bytes are missing; otherwise it follows from the offset of the next record.
    fn interpret(&self, role: Option<Role>, dropped: Option<usize>, is_reported: bool) -> (Vec<Message>, Vec<Gap>) {
        let mut conversation = Conversation::new(role, Limits::default()).with_start(0, 0);
        let mut keys = self.identity.clone();
        let (mut messages, mut gaps) = (Vec::new(), Vec::new());
        let mut out = |output: Output| match output {
            Output::Message(message) => messages.push(message),
            Output::Gap(gap) => gaps.push(gap),
            _ => {}
        };
        let mut captured = 0;
        for (n, record) in self.records.iter().enumerate() {
            let whole = Piece::whole(record.direction, record.offset, &record.bytes, n as u64 * 1_000_000);
            let piece = match dropped {
                Some(hole) if hole == n && !is_reported => continue,
                Some(hole) if hole == n => Piece { bytes: &[], ..whole },
                _ => whole,
            };
            conversation.push(piece, &mut keys, &mut out);
            captured += piece.bytes.len() as u64;
            let stats = conversation.stats();
            assert!(stats.is_balanced(), "{stats:?} after record {n}");
            assert_eq!(stats.captured, captured, "{stats:?} after record {n}");
        }
        conversation.finish(Some(self.ends.0), Some(self.ends.1), &mut out);
        let stats = conversation.stats();
        assert!(stats.is_balanced(), "{stats:?}");
        assert_eq!(stats.captured + stats.lost, self.ends.0 + self.ends.1, "{stats:?}");
        assert_eq!(stats.messages, messages.len() as u64);
        assert_eq!(stats.gaps, gaps.len() as u64);
        (messages, gaps)
    }
}

fn greeting(stream: &[u8]) -> u64 {
    let mut chunks = Chunks::default();
    chunks.push(stream);
    chunks.pop().expect("a connection message").len() as u64
}

/// All messages of a stream, including metadata and ack. Each starts at a chunk.
fn messages(direction: Direction, stream: &[u8], mut cipher: Cipher) -> Vec<Sent> {
    let mut chunks = Chunks::default();
    chunks.push(stream);
    let mut at = chunks.pop().expect("a connection message").len() as u64;
    let mut messages = Vec::new();
    let mut partial: Vec<u8> = Vec::new();
    let mut start = at;
    while let Some(chunk) = chunks.pop() {
        if partial.is_empty() {
            start = at;
        }
        at += chunk.len() as u64;
        partial.extend(cipher.open(&chunk[2..]).expect("opens"));
        let whole = messages.len() < 2
            || partial.len() >= 4 + u32::from_be_bytes(partial[..4].try_into().expect("four")) as usize;
        if whole {
            let sha256 = Sha256::digest(std::mem::take(&mut partial)).into();
            messages.push(Sent { direction, sha256, bytes: start..at });
        }
    }
    messages
}

#[test]
fn initiator_without_any_one_record() {
    every_record_in_turn(false);
}

#[test]
fn responder_without_any_one_record() {
    every_record_in_turn(true);
}

fn every_record_in_turn(swapped: bool) {
    let session = Session::load(swapped);
    let (all, gaps) = session.interpret(Some(session.role), None, false);
    assert_eq!((all.len(), gaps.len()), (2 + session.messages.len(), 0));
    let droppable = session.droppable();
    assert!(droppable.len() > 100, "{}", droppable.len());
    for dropped in droppable {
        for role in [Some(session.role), None] {
            for is_reported in [true, false] {
                check(&session, role, dropped, is_reported);
            }
        }
    }
}

fn check(session: &Session, role: Option<Role>, dropped: usize, is_reported: bool) {
    let record = &session.records[dropped];
    let hole = record.offset..record.offset + record.bytes.len() as u64;
    let case =
        format!("record {dropped} ({:?} {hole:?}, role {role:?}, length is_reported: {is_reported})", record.direction);
    let (messages, gaps) = session.interpret(role, Some(dropped), is_reported);
    for direction in [Direction::Sent, Direction::Received] {
        let touches = |m: &Sent| direction == record.direction && m.bytes.start < hole.end && hole.start < m.bytes.end;
        let expected: Vec<_> =
            session.messages.iter().filter(|m| m.direction == direction && !touches(m)).map(|m| m.sha256).collect();
        // The connection message of each direction comes first.
        let came: Vec<_> = messages.iter().filter(|m| m.direction == direction).skip(1).map(|m| m.sha256).collect();
        assert_eq!(hex(&came), hex(&expected), "{case}: {direction:?}");
    }
    assert_eq!(gaps.len(), 1, "{case}: {gaps:?}");
    assert_eq!((gaps[0].direction, gaps[0].lost_bytes), (record.direction, record.bytes.len() as u64), "{case}");
    let follows = session.messages.iter().any(|m| m.direction == record.direction && m.bytes.start >= hole.end);
    assert_eq!(gaps[0].recovered, follows, "{case}: {gaps:?}");
}

fn hex(hashes: &[[u8; 32]]) -> Vec<String> {
    hashes.iter().map(|h| hex::encode(&h[..4])).collect()
}
