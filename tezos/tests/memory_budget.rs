//! The memory budget that conversations share: hostile ones stay within it, and what it has no room for is reported.
//! A program of its own, because it measures its resident memory.
#![expect(clippy::unwrap_used, reason = "a failed test shows the line")]
use std::sync::Arc;

use chainscope_tezos::{
    Conversation, Direction, Gap, Identity, Limits, MemoryBudget, Message, Output, Piece, Role, StreamStats,
    generate::Generator,
    seal::{Announcement, Sealer, connection_chunk, frame, session},
};
use sha2::{Digest, Sha256};

/// A session that the local node opened, and what its two sides send after the handshake.
struct Session {
    identity: Arc<Identity>,
    handshake: [Vec<u8>; 2],
    ours: Sealer,
    theirs: Sealer,
}

fn begin() -> Session {
    let identities = [[1; 32], [2; 32]].map(|secret| Identity::from_secret_key(secret, [0; 24]));
    let announcement = |nonce| Announcement {
        port: 9732,
        message_nonce: [nonce; 24],
        chain_name: "TEZOS_MAINNET",
        distributed_db_version: 2,
        p2p_version: 1,
    };
    let [mut own, mut their] = [0, 1].map(|side| connection_chunk(&identities[side], &announcement(side as u8)));
    let (mut ours, _) = session(&identities[0], Role::Initiator, &own, &their).unwrap();
    let (mut theirs, _) = session(&identities[1], Role::Responder, &their, &own).unwrap();
    for (stream, sealer) in [(&mut own, &mut ours), (&mut their, &mut theirs)] {
        stream.extend(sealer.chunk(&[0, 0]));
        stream.extend(sealer.chunk(&[0]));
    }
    let [identity, _] = identities.map(Arc::new);
    Session { identity, handshake: [own, their], ours, theirs }
}

/// A conversation after the handshake.
struct Peer {
    conversation: Conversation,
    identity: Arc<Identity>,
    offsets: [u64; 2],
    messages: Vec<Message>,
    gaps: Vec<Gap>,
    comments: Vec<String>,
}

impl Peer {
    fn new(session: &Session, memory: &MemoryBudget) -> Self {
        let conversation =
            Conversation::new(Some(Role::Initiator), Limits::default()).with_start(0, 0).with_memory(memory);
        let identity = Arc::clone(&session.identity);
        let (messages, gaps, comments) = (Vec::new(), Vec::new(), Vec::new());
        let mut peer = Self { conversation, identity, offsets: [0; 2], messages, gaps, comments };
        for direction in [Direction::Sent, Direction::Received] {
            peer.push(direction, &session.handshake[direction as usize]);
        }
        assert_eq!(peer.messages.len(), 6);
        peer.messages.clear();
        peer
    }

    fn push(&mut self, direction: Direction, bytes: &[u8]) {
        let offset = &mut self.offsets[direction as usize];
        let piece = Piece::whole(direction, *offset, bytes, 1);
        *offset += bytes.len() as u64;
        let (messages, gaps, comments) = (&mut self.messages, &mut self.gaps, &mut self.comments);
        self.conversation.push(piece, &mut self.identity, &mut |output| match output {
            Output::Message(message) => messages.push(message),
            Output::Gap(gap) => gaps.push(gap),
            Output::Comment(comment) if !comment.contains("proof-of-work") => comments.push(comment),
            _ => {}
        });
    }

    /// Pushes bytes in pieces that are shorter than chunks.
    fn push_split(&mut self, direction: Direction, bytes: &[u8]) {
        for piece in bytes.chunks(16_384) {
            self.push(direction, piece);
        }
    }

    fn stats(&self) -> StreamStats {
        self.conversation.stats()
    }
}

/// Resident memory of this program, in bytes.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn hash(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

#[test]
fn endless_partial_messages_of_thousands_of_connections_stay_within_the_budget() {
    const LIMIT: usize = 16 << 20;
    let (hostile, other) = (MemoryBudget::new(LIMIT), MemoryBudget::new(LIMIT));
    let mut session = begin();
    // The beginning of a message of 100 MiB, and the beginning of a chunk.
    let mut message = frame(0x61, &[0; 150_000]);
    message[..4].copy_from_slice(&(100u32 << 20).to_be_bytes());
    let endless: Vec<Vec<u8>> = message.chunks(65_000).take(2).map(|plain| session.ours.chunk(plain)).collect();
    let partial = [&[0xff, 0xff][..], &[7; 60_000]].concat();
    let before = resident();
    let mut peers = Vec::new();
    for _ in 0..2_000 {
        let mut peer = Peer::new(&session, &hostile);
        for wire in &endless {
            peer.push(Direction::Sent, wire);
        }
        peer.push_split(Direction::Received, &partial);
        assert!(hostile.used() <= LIMIT, "{}", hostile.used());
        assert!(peer.stats().is_balanced());
        assert_eq!(peer.stats().opened, 6 + 2, "every whole chunk is recorded");
        peers.push(peer);
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < LIMIT + (48 << 20), "{} MiB", grown >> 20);
    let skipped: u64 = peers.iter().map(|peer| peer.stats().chunks_unbuffered).sum();
    assert!(skipped > 1_000, "{skipped}");

    // Another node's connection, with a message of several chunks.
    let mut fresh = begin();
    let long = Generator::new(1).operation(170_000);
    let wire = fresh.ours.message(&long).concat();
    let mut peer = Peer::new(&fresh, &other);
    peer.push_split(Direction::Sent, &wire);
    assert_eq!((peer.messages[0].sha256, peer.messages[0].error.as_str()), (hash(&long), ""));
    assert_eq!((peer.gaps.len(), peer.comments.len(), other.used()), (0, 0, 0));

    // The same node's, once the others have ended.
    drop(peers);
    assert_eq!(hostile.used(), 0);
    let mut peer = Peer::new(&fresh, &hostile);
    peer.push_split(Direction::Sent, &wire);
    assert_eq!((peer.messages[0].sha256, peer.messages[0].error.as_str()), (hash(&long), ""));
}

#[test]
fn a_message_without_memory_is_recorded_and_says_that_it_was_not_decoded() {
    let mut session = begin();
    let long = Generator::new(2).operation(170_000);
    let wires = session.ours.message(&long);
    let [unlimited, none] = [MemoryBudget::default(), MemoryBudget::new(0)].map(|memory| {
        let mut peer = Peer::new(&session, &memory);
        for wire in &wires {
            peer.push(Direction::Sent, wire);
        }
        peer
    });
    let (whole, cut) = (&unlimited.messages[0], &none.messages[0]);
    assert_eq!((whole.error.as_str(), unlimited.stats().messages_undecoded), ("", 0));
    let error = format!(
        "tag 0x0031: at byte 512: only the first bytes of {} were decoded: the memory for messages is used up",
        long.len()
    );
    assert_eq!(*cut, Message { error, ..whole.clone() });
    assert_eq!((none.stats().messages_undecoded, none.stats().chunks), (1, unlimited.stats().chunks));
}

#[test]
fn a_chunk_without_memory_is_a_gap_and_the_stream_goes_on() {
    let mut session = begin();
    let long = Generator::new(3).operation(60_000);
    let short = frame(0x13, &[0; 4]);
    let mut peer = Peer::new(&session, &MemoryBudget::new(10_000));
    peer.push_split(Direction::Sent, &session.ours.chunk(&long));
    peer.push_split(Direction::Sent, &session.ours.chunk(&short));
    let kinds: Vec<_> = peer.messages.iter().map(|message| (message.kind, message.first_chunk)).collect();
    assert_eq!(kinds, [("get_current_head", 4)]);
    let gap = Gap {
        direction: Direction::Sent,
        lost_bytes: 0,
        skipped_bytes: long.len() as u64 + 18,
        first_chunk: 3,
        missed_chunks: 1,
        recovered: true,
    };
    assert_eq!(peer.gaps, [gap]);
    let comment = "outgoing bytes are skipped, at chunk 3: the memory for incomplete chunks is used up";
    assert_eq!(peer.comments, [comment]);
    assert_eq!((peer.stats().chunks_unbuffered, peer.stats().skipped), (1, gap.skipped_bytes));
}

#[test]
fn a_search_without_memory_starts_over_and_frees_its_memory_when_it_ends() {
    let mut session = begin();
    let memory = MemoryBudget::new(64_000);
    let mut hostile = Peer::new(&session, &memory);
    hostile.push_split(Direction::Received, &[&[0xff, 0xff][..], &[7; 60_000]].concat());
    let mut peer = Peer::new(&session, &memory);
    for _ in 0..3 {
        let lost = session.theirs.chunk(&frame(0x31, &[5; 7_000]));
        peer.offsets[1] += 1_000;
        peer.push(Direction::Received, &lost[1_000..]);
    }
    assert!(peer.messages.is_empty() && peer.stats().windows_dropped > 0);
    assert!(peer.comments[0].starts_with("incoming bytes are skipped"), "{:?}", peer.comments);
    drop(hostile);
    let message = frame(0x13, &[0; 4]);
    for _ in 0..3 {
        peer.push(Direction::Received, &session.theirs.chunk(&message));
    }
    assert_eq!(peer.messages.len(), 3);
    assert!(peer.gaps[0].recovered && peer.gaps[0].first_chunk == 3 && peer.gaps[0].missed_chunks == 3);
    assert_eq!((memory.used(), peer.stats().pending), (0, 0));
    assert!(peer.stats().is_balanced());
}
