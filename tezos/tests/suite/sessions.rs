//! Whole sessions of both directions, from the vectors and encrypted by `seal`.
use std::{sync::Arc, task::Poll};

use chainscope_tezos::{
    Category, ChunkState, Conversation, Direction, Identity, Keyring, Limits, Message, Offsets, Output, Piece,
    Protocol, Role, State,
    generate::Generator,
    message::PEER_KINDS,
    seal::{Announcement, MAX_PLAIN_BYTES, Opener, Sealer, connection_chunk, frame, session},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::common::{self, Recorder, calls, identity, read_json, streams, unhex};

fn local() -> Arc<Identity> {
    identity("synthetic-two-way/identity.json")
}

fn remote() -> Arc<Identity> {
    identity("synthetic-two-way/remote_identity.json")
}

fn announcement(message_nonce: u8, chain_name: &str) -> Announcement<'_> {
    Announcement {
        port: 9732,
        message_nonce: [message_nonce; 24],
        chain_name,
        distributed_db_version: 2,
        p2p_version: 1,
    }
}

/// Compares the messages of both directions with the vectors.
fn compare(recorder: &Recorder, expected: &Value) {
    for (direction, from) in [(Direction::Sent, "L"), (Direction::Received, "R")] {
        let messages: Vec<Message> =
            recorder.messages(direction).into_iter().filter(|m| m.category == Category::P2p).collect();
        let expected: Vec<&Value> =
            expected["messages"].as_array().unwrap().iter().filter(|m| m["from_"] == from).collect();
        assert_eq!(messages.len(), expected.len());
        let chunks = recorder.chunks(direction);
        for (message, expected) in messages.iter().zip(expected) {
            assert_eq!(message.error, "");
            assert_eq!(message.kind, expected["type"].as_str().unwrap().to_lowercase());
            assert_eq!(json!(message.first_chunk - 1), expected["first_counter"]);
            assert_eq!(json!(message.last_chunk - message.first_chunk + 1), expected["chunks"]);
            assert_eq!(json!(message.length), expected["plaintext_len"]);
            assert_eq!(json!(hex::encode(message.sha256)), expected["plaintext_sha256"]);
            let plain: Vec<u8> = chunks
                .iter()
                .filter(|chunk| (message.first_chunk..=message.last_chunk).contains(&chunk.counter))
                .flat_map(|chunk| chunk.plain.to_vec())
                .collect();
            assert_eq!(Sha256::digest(&plain)[..], message.sha256);
            if !expected["plaintext_hex"].is_null() {
                assert_eq!(plain, unhex(&expected["plaintext_hex"]));
            }
            let text = common::json_text(Category::P2p, &plain);
            assert_eq!(message.preview.as_deref(), Some(&text[..text.len().min(100)]));
            if expected["decoded"].is_null() {
                let body = common::read("mainnet-bodies/operations-for-blocks.huge.msg");
                assert_eq!(plain, frame(0x61, &body));
            } else {
                let decoded = common::as_expected(&common::decode_json(Category::P2p, &plain));
                assert_eq!(decoded, expected["decoded"], "{}", message.kind);
            }
        }
    }
}

fn all_messages() -> Value {
    read_json("synthetic-two-way/outgoing-all-messages.expected.json")
}

#[test]
fn all_messages_of_both_directions() {
    for role in [Some(Role::Initiator), None] {
        let mut recorder = Recorder::new(role, Limits::default(), local());
        for (direction, bytes) in calls("outgoing-all-messages") {
            recorder.next(direction, &bytes);
        }
        recorder.finish();
        compare(&recorder, &all_messages());
        let stats = recorder.conversation.stats();
        assert_eq!((stats.gaps, stats.pending, stats.skipped, stats.undecryptable), (0, 0, 0, 0));
        assert_eq!(stats.chunks, 16 + 22 + 2);
        assert_eq!(stats.messages, 32 + 6);
        assert_eq!(recorder.conversation.protocol(), Protocol::Tezos);
        assert_eq!(recorder.states(), [State::Handshake, State::Decoding]);
        let order: Vec<_> = recorder
            .outputs
            .iter()
            .filter_map(|output| match output {
                Output::Message(message) => Some((message.direction, message.kind)),
                _ => None,
            })
            .take(6)
            .collect();
        let kinds = ["connection_message", "metadata", "ack_message"];
        assert_eq!(order, kinds.map(|kind| [(Direction::Sent, kind), (Direction::Received, kind)]).concat());
    }
}

#[test]
fn both_versions_of_nack_are_decoded() {
    for (name, role, nack) in
        [("incoming-nack-v0", Role::Responder, json!("NackV0")), ("outgoing-nack-v1", Role::Initiator, Value::Null)]
    {
        let mut recorder = Recorder::new(Some(role), Limits::default(), local());
        for (direction, bytes) in calls(name) {
            recorder.next(direction, &bytes);
        }
        recorder.finish();
        for direction in [Direction::Sent, Direction::Received] {
            let categories: Vec<_> = recorder.messages(direction).iter().map(|m| m.category).collect();
            assert_eq!(categories, [Category::Connection, Category::Meta, Category::Ack]);
            assert!(recorder.messages(direction).iter().all(|message| message.error.is_empty()));
        }
        let acks = [Direction::Sent, Direction::Received]
            .map(|direction| common::decode_json(Category::Ack, &recorder.chunks(direction)[2].plain));
        let refusal = acks.iter().find(|ack| **ack != json!("Ack")).unwrap();
        if nack.is_null() {
            assert_eq!(refusal["Nack"]["motive"], "TooManyConnections");
            assert_eq!(refusal["Nack"]["potential_peers_to_connect"].as_array().unwrap().len(), 2);
        } else {
            assert_eq!(*refusal, nack);
        }
        let stats = recorder.conversation.stats();
        assert_eq!((stats.chunks, stats.opened, stats.gaps), (6, 6, 0));
    }
}

/// The generated session with exchanged roles: encrypted again with the local node as the responder.
#[test]
fn all_messages_as_responder() {
    let (sent, received) = streams(&calls("outgoing-all-messages"));
    let chunk = |stream: &[u8]| stream[..105].to_vec();
    let (mut ours, _) = session(&local(), Role::Responder, &chunk(&sent), &chunk(&received)).unwrap();
    let (mut theirs, _) = session(&remote(), Role::Initiator, &chunk(&received), &chunk(&sent)).unwrap();
    let mut recorder = Recorder::new(Some(Role::Responder), Limits::default(), local());
    recorder.next(Direction::Received, &chunk(&received));
    recorder.next(Direction::Sent, &chunk(&sent));
    for (direction, sealer) in [(Direction::Sent, &mut ours), (Direction::Received, &mut theirs)] {
        recorder.next(direction, &sealer.chunk(&[0, 0]));
        recorder.next(direction, &sealer.chunk(&[0]));
    }
    let huge = frame(0x61, &common::read("mainnet-bodies/operations-for-blocks.huge.msg"));
    let expected = all_messages();
    for message in expected["messages"].as_array().unwrap() {
        let plain = if message["plaintext_hex"].is_null() { huge.clone() } else { unhex(&message["plaintext_hex"]) };
        let (direction, sealer) =
            if message["from_"] == "L" { (Direction::Sent, &mut ours) } else { (Direction::Received, &mut theirs) };
        for wire in sealer.message(&plain) {
            recorder.next(direction, &wire);
        }
    }
    recorder.finish();
    compare(&recorder, &expected);
    assert_eq!(recorder.conversation.stats().gaps, 0);
}

/// `seal` encrypts to the bytes of the vectors and decrypts them.
#[test]
fn seal_agrees_with_the_vectors() {
    let (sent, received) = streams(&calls("outgoing-all-messages"));
    let (mut sealer, mut opener) = session(&local(), Role::Initiator, &sent[..105], &received[..105]).unwrap();
    let mut wire = sent[..105].to_vec();
    wire.extend(sealer.chunk(&[0, 0]));
    wire.extend(sealer.chunk(&[0]));
    for message in all_messages()["messages"].as_array().unwrap().iter().filter(|m| m["from_"] == "L") {
        wire.extend(sealer.message(&unhex(&message["plaintext_hex"])).concat());
    }
    assert_eq!(wire, sent);
    let mut rest = &received[105..];
    let mut opened = Vec::new();
    while !rest.is_empty() {
        let length = 2 + usize::from(u16::from_be_bytes([rest[0], rest[1]]));
        opened.push(opener.chunk(&rest[..length]).unwrap());
        rest = &rest[length..];
    }
    assert_eq!((opened.len(), &opened[0][..], &opened[1][..]), (22, &[0, 0xff][..], &[0][..]));
    let own = connection_chunk(&local(), &announcement(3, "TEZOS_MAINNET"));
    assert_eq!((own.len(), &own[..2]), (105, &[0, 0x67][..]));
    assert!(session(&local(), Role::Initiator, &own, b"x").is_err());
}

/// A session between the two test identities, the local node as initiator, after the handshake.
pub(crate) struct Pair {
    pub(crate) recorder: Recorder,
    pub(crate) ours: Sealer,
    pub(crate) theirs: Sealer,
    pub(crate) handshake: [Vec<u8>; 2],
}

pub(crate) fn pair(role: Option<Role>, limits: Limits, chain_name: &str) -> Pair {
    let own = connection_chunk(&local(), &announcement(1, chain_name));
    let their = connection_chunk(&remote(), &announcement(2, chain_name));
    let (mut ours, _): (Sealer, Opener) = session(&local(), Role::Initiator, &own, &their).unwrap();
    let (mut theirs, _) = session(&remote(), Role::Responder, &their, &own).unwrap();
    let mut recorder = Recorder::new(role, limits, local());
    let mut handshake = [own, their];
    for (direction, sealer) in [(Direction::Sent, &mut ours), (Direction::Received, &mut theirs)] {
        let wire = &mut handshake[direction as usize];
        recorder.next(direction, wire);
        for plain in [&[0, 0][..], &[0]] {
            wire.extend(sealer.chunk(plain));
        }
    }
    for direction in [Direction::Sent, Direction::Received] {
        recorder.next(direction, &handshake[direction as usize][105 - 13 + chain_name.len()..]);
    }
    Pair { recorder, ours, theirs, handshake }
}

#[test]
fn several_messages_in_a_chunk_and_a_message_over_odd_chunks() {
    let mut pair = pair(Some(Role::Initiator), Limits::default(), "TEZOS");
    let mut generator = Generator::new(7);
    let messages: Vec<Vec<u8>> = PEER_KINDS.iter().map(|(tag, _)| generator.message(*tag)).collect();
    let all = messages.concat();
    // Frames of messages are split as well.
    for size in [1, 2, 3, 7, 500, all.len() / 2] {
        for piece in all.chunks(size) {
            let wire = pair.ours.chunk(piece);
            pair.recorder.next(Direction::Sent, &wire);
        }
    }
    let got = pair.recorder.messages(Direction::Sent);
    assert_eq!(got.len(), 3 + 6 * messages.len());
    for (got, (message, (tag, kind))) in got[3..].iter().zip(messages.iter().zip(PEER_KINDS).cycle()) {
        assert_eq!((got.error.as_str(), got.kind, got.tag), ("", kind, Some(tag)));
        assert_eq!(got.sha256[..], Sha256::digest(message)[..]);
    }
}

#[test]
fn messages_with_unknown_tags_or_invalid_bodies_are_recorded() {
    let mut pair = pair(Some(Role::Initiator), Limits::default(), "TEZOS");
    for (plain, kind, error) in [
        (frame(0x99, b"abc"), "unknown", "tag 0x0099: at byte 4: unknown tag"),
        (frame(0x10, b"abc"), "get_current_branch", "tag 0x0010: at byte 6: 4 bytes needed, 3 left"),
    ] {
        pair.recorder.next(Direction::Sent, &pair.ours.chunk(&plain));
        let message = pair.recorder.messages(Direction::Sent).pop().unwrap();
        assert_eq!((message.kind, message.error.as_str(), message.preview), (kind, error, None));
        assert_eq!(pair.recorder.chunks(Direction::Sent).pop().unwrap().plain, plain);
    }
}

#[test]
fn a_message_of_100_mib_is_decoded_and_a_longer_one_is_rejected() {
    let limits = Limits { max_prefix_bytes: 100_000, ..Limits::default() };
    let mut pair = pair(Some(Role::Initiator), limits, "TEZOS");
    // A list of operations of the maximum message length.
    let operation = [&[0, 0, 0xff, 0xfc][..], &[7; 0xfffc]].concat();
    let body = [&[1; 33][..], &[0], &operation.repeat(1590)].concat();
    let most = (100 << 20) - 2;
    let filler = most - body.len() - 4;
    let body = [&body[..], &(filler as u32).to_be_bytes(), &vec![9; filler]].concat();
    let message = frame(0x61, &body);
    assert_eq!(message.len(), (100 << 20) + 4);
    let mut outputs = 0;
    for piece in message.chunks(MAX_PLAIN_BYTES) {
        let wire = pair.ours.chunk(piece);
        pair.recorder.next(Direction::Sent, &wire);
        outputs += 1;
        let last = pair.recorder.outputs.pop().unwrap();
        if let Output::Message(message_out) = last {
            assert_eq!(message_out.length, message.len() as u64);
            assert_eq!(message_out.last_chunk - message_out.first_chunk + 1, outputs);
            assert_eq!(message_out.sha256[..], Sha256::digest(&message)[..]);
            assert_eq!((message_out.kind, message_out.error.as_str()), ("operations_for_blocks", ""));
            assert!(
                message_out.preview.unwrap().starts_with("{\"OperationsForBlocks\":{\"operations_for_block\":{\"hash")
            );
        } else {
            assert!(matches!(last, Output::Chunk(_)));
        }
    }
    // A message with one byte more is rejected; the next one is decoded.
    let mut refused = frame(0x61, &[0; 1000]);
    refused[..4].copy_from_slice(&((100u32 << 20) + 1).to_be_bytes());
    pair.recorder.next(Direction::Sent, &pair.ours.chunk(&refused));
    let message = pair.recorder.messages(Direction::Sent).pop().unwrap();
    assert_eq!(message.kind, "unknown");
    assert_eq!(message.error, "tag 0x0061: at byte 0: message length 104857601 exceeds 104857600");
    assert_eq!(
        pair.recorder.comments().last().unwrap(),
        &"outgoing message at chunk 1604 is not one: tag 0x0061: at byte 0: message length 104857601 exceeds 104857600"
    );
    pair.recorder.next(Direction::Sent, &pair.ours.chunk(&[5; 700]));
    pair.recorder.next(Direction::Sent, &pair.ours.chunk(&frame(0x13, &[0; 4])));
    let message = pair.recorder.messages(Direction::Sent).pop().unwrap();
    assert_eq!((message.kind, message.error.as_str()), ("get_current_head", ""));
}

#[test]
fn dal_connections_are_decrypted_but_not_decoded() {
    let mut pair = pair(Some(Role::Initiator), Limits::default(), "DAL_TEZOS_MAINNET");
    assert_eq!(pair.recorder.conversation.protocol(), Protocol::Dal);
    pair.recorder.next(Direction::Sent, &pair.ours.chunk(&frame(0x10, &[1; 9])));
    pair.recorder.next(Direction::Received, &pair.theirs.chunk(&frame(0x16, &[1; 9])));
    for (direction, tag) in [(Direction::Sent, 0x10), (Direction::Received, 0x16)] {
        let message = pair.recorder.messages(direction).pop().unwrap();
        assert_eq!((message.kind, message.tag), ("unknown", Some(tag)));
        assert_eq!(message.error, format!("tag 0x{tag:04x}: at byte 4: DAL messages are not decoded"));
        assert_eq!(pair.recorder.chunks(direction).pop().unwrap().state, ChunkState::Opened);
        assert_eq!(pair.recorder.messages(direction)[1].error, "");
    }
    assert_eq!(pair.recorder.states(), [State::Handshake, State::Raw]);
    assert!(pair.recorder.comments().iter().any(|comment| comment.contains("DAL")));
}

#[test]
fn http_tls_and_dns_are_recognised_as_other_protocols() {
    let dns_query =
        [&[0, 29, 0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 7][..], b"example\x03com\0\0\x01\0\x01"].concat();
    let dns_answer = [&[0, 200][..], &[0x55; 200]].concat();
    let cases: [(Direction, &[u8]); 8] = [
        (Direction::Received, b"GET /chains/main/blocks/head HTTP/1.1\r\n"),
        (Direction::Sent, b"GET / HTTP/1.1\r\n"),
        (Direction::Sent, b"HTTP/1.1 200 OK\r\n"),
        (Direction::Received, &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01]),
        (Direction::Sent, &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01]),
        (Direction::Received, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        (Direction::Sent, &dns_query),
        (Direction::Sent, &dns_answer),
    ];
    for (direction, bytes) in cases {
        let mut recorder = Recorder::new(None, Limits::default(), local());
        recorder.next(direction, bytes);
        assert!(matches!(&recorder.outputs[..], [Output::NotTezos { .. }]), "{bytes:?}: {:?}", recorder.outputs);
        recorder.next(Direction::Sent, b"more");
        recorder.lose(Direction::Received, 10);
        recorder.finish();
        assert_eq!(recorder.outputs.len(), 1);
        let stats = recorder.conversation.stats();
        assert_eq!(stats.not_protocol, bytes.len() as u64 + 4);
        assert_eq!(stats.lost, 10);
    }
    // Recognised by the number of bytes without a connection message.
    let mut recorder = Recorder::new(None, Limits::default(), local());
    for _ in 0..100 {
        recorder.next(Direction::Received, &[0xa5; 100]);
    }
    assert!(matches!(&recorder.outputs[..], [Output::NotTezos { .. }]));
    assert_eq!(recorder.conversation.stats().not_protocol, 10_000);
}

#[test]
fn a_peer_without_a_connection_message_is_reported_and_recorded() {
    let own = connection_chunk(&local(), &announcement(1, "TEZOS_MAINNET"));
    let not_like_one = "incoming data does not look like a connection message";
    let cases: [(Vec<u8>, &str); 4] = [
        ([&[0xff, 0xff][..], &[0xa5; 70_000]].concat(), not_like_one),
        ([&[0, 110][..], &[0xa5; 500]].concat(), not_like_one),
        (b"\0\x05hello\0\x05again".to_vec(), "incoming connection message is too short: 5 bytes"),
        (vec![0xfe; 30], not_like_one),
    ];
    for (garbage, comment) in cases {
        for first in [Direction::Sent, Direction::Received] {
            let mut recorder = Recorder::new(Some(Role::Responder), Limits::default(), local());
            // A few received bytes decide nothing before the local node has sent bytes.
            if first == Direction::Received {
                recorder.next(Direction::Received, &garbage[..20.min(garbage.len())]);
                recorder.next(Direction::Sent, &own);
                recorder.next(Direction::Received, &garbage[20.min(garbage.len())..]);
            } else {
                recorder.next(Direction::Sent, &own);
                recorder.next(Direction::Received, &garbage);
            }
            recorder.next(Direction::Sent, &[0, 3, 1, 2, 3]);
            recorder.finish();
            assert_eq!(
                recorder.comments(),
                ["outgoing connection message bad proof-of-work, target: 26", comment]
                    [usize::from(recorder.comments().len() == 1)..]
            );
            assert_eq!(recorder.states(), [State::Handshake, State::Raw]);
            let stats = recorder.conversation.stats();
            assert_eq!(stats.captured, own.len() as u64 + garbage.len() as u64 + 5);
            // What is left is the beginning of a chunk.
            assert_eq!((stats.pending, stats.skipped), (0, stats.captured - stats.in_chunks));
            assert_eq!(recorder.chunks(Direction::Sent).len(), 2);
            assert!(recorder.messages(Direction::Received).is_empty());
            assert!(stats.skipped <= 65_537);
        }
    }
}

#[test]
fn an_incomplete_chunk_is_buffered_in_bounded_memory() {
    let mut pair = pair(Some(Role::Initiator), Limits::default(), "TEZOS");
    pair.recorder.next(Direction::Received, &[0xff, 0xff]);
    for _ in 0..65_534 {
        pair.recorder.next(Direction::Received, &[0]);
    }
    let stats = pair.recorder.conversation.stats();
    assert_eq!(stats.pending, 65_536);
    // With its last byte, decryption fails.
    pair.recorder.next(Direction::Received, &[0]);
    assert!(pair.recorder.comments().contains(&"incoming chunk cannot decrypt, position: 3"));
}

#[test]
fn a_connection_without_a_second_connection_message_is_closed() {
    let own = connection_chunk(&local(), &announcement(1, "TEZOS_MAINNET"));
    let mut recorder = Recorder::new(Some(Role::Initiator), Limits::default(), local());
    recorder.next(Direction::Sent, &own);
    let mut most = 0;
    for _ in 0..1000 {
        recorder.next(Direction::Sent, &[0; 100]);
        most = most.max(recorder.conversation.stats().pending);
    }
    assert!(most <= Limits::default().max_buffered_bytes as u64);
    assert!(recorder.comments().contains(&"incoming data does not look like a connection message"));
    assert_eq!(recorder.states().last(), Some(&State::Raw));
}

struct Refusing;

impl Keyring for Refusing {
    fn identity(&mut self, _: &[u8; 32]) -> Poll<Result<Arc<Identity>, String>> {
        Poll::Ready(Err("no identity.json in /data".to_owned()))
    }
}

/// A keyring whose answer follows later.
struct NotYet;

impl Keyring for NotYet {
    fn identity(&mut self, _: &[u8; 32]) -> Poll<Result<Arc<Identity>, String>> {
        Poll::Pending
    }
}

/// Plays calls to a conversation whose identity is known `late` calls after the keyring was asked.
fn play_with_late_identity(
    conversation: &mut Conversation,
    calls: &[(Direction, Vec<u8>)],
    mut offsets: [u64; 2],
    mut late: usize,
) -> Vec<Output> {
    let mut outputs = Vec::new();
    for (direction, bytes) in calls {
        let offset = &mut offsets[*direction as usize];
        conversation.push(Piece::whole(*direction, *offset, bytes, 1), &mut NotYet, &mut |o| outputs.push(o));
        *offset += bytes.len() as u64;
        if let Some(key) = conversation.awaited_identity() {
            assert_eq!(key, *local().public_key());
            if late == 0 {
                conversation.set_identity(Ok(local()), &mut |o| outputs.push(o));
            }
            late = late.saturating_sub(1);
        }
        assert!(conversation.stats().is_balanced());
    }
    outputs
}

fn messages_of(outputs: &[Output]) -> Vec<[u8; 32]> {
    let mut messages: Vec<_> = outputs
        .iter()
        .filter_map(|output| if let Output::Message(message) = output { Some(message.sha256) } else { None })
        .collect();
    messages.sort();
    messages
}

#[test]
fn a_conversation_waits_for_its_identity() {
    let calls = calls("outgoing-all-messages");
    let mut whole = Recorder::new(Some(Role::Initiator), Limits::default(), local());
    for (direction, bytes) in &calls {
        whole.next(*direction, bytes);
    }
    let limits = Limits { max_awaiting_identity_bytes: 4 << 20, ..Limits::default() };
    for late in [0, 1, 5, 20, 60] {
        let mut conversation = Conversation::new(Some(Role::Initiator), limits).with_start(0, 0);
        let outputs = play_with_late_identity(&mut conversation, &calls, [0, 0], late);
        assert_eq!(messages_of(&outputs), messages_of(&whole.outputs), "{late}");
        let stats = conversation.stats();
        assert_eq!((stats.pending, stats.skipped, stats.undecryptable), (0, 0, 0), "{late}");
    }

    // A resumed session, at its saved offsets and at others.
    let mut first = Recorder::new(Some(Role::Initiator), Limits::default(), local());
    for (direction, bytes) in &calls[..20] {
        first.next(*direction, bytes);
    }
    let saved = first.conversation.saved().unwrap();
    for (offsets, start) in [(Offsets::Continued, first.offsets), (Offsets::Unknown, [7, 9])] {
        let resume = || Conversation::resume(&saved, offsets, limits).unwrap();
        let at_once = play_with_late_identity(&mut resume(), &calls[20..], start, 0);
        for late in [1, 12] {
            let outputs = play_with_late_identity(&mut resume(), &calls[20..], start, late);
            assert!(messages_of(&outputs).len() > 20);
            assert_eq!(messages_of(&outputs), messages_of(&at_once), "{offsets:?} {late}");
        }
    }
}

#[test]
fn the_wait_for_an_identity_is_bounded() {
    let calls = calls("outgoing-all-messages");
    let reason = |outputs: &[Output]| {
        outputs.iter().rev().find_map(|output| match output {
            Output::State { state: State::Undecryptable, reason, .. } => Some(reason.clone()),
            _ => None,
        })
    };
    let limits = Limits { max_awaiting_identity_bytes: 1000, ..Limits::default() };
    let mut conversation = Conversation::new(Some(Role::Initiator), limits);
    let outputs = play_with_late_identity(&mut conversation, &calls, [0, 0], usize::MAX);
    assert_eq!(reason(&outputs).unwrap(), "identity: not read before 1000 bytes had arrived");
    let stats = conversation.stats();
    assert_eq!((stats.chunks, stats.undecryptable, stats.in_chunks), (40, 38, stats.captured));

    let mut conversation = Conversation::new(Some(Role::Initiator), Limits::default());
    let mut outputs = play_with_late_identity(&mut conversation, &calls[..20], [0, 0], usize::MAX);
    assert!(conversation.awaited_identity().is_some() && conversation.stats().pending > 0);
    conversation.finish(None, None, &mut |output| outputs.push(output));
    assert_eq!(reason(&outputs).unwrap(), "identity: not read before the connection ended");
    assert!(conversation.awaited_identity().is_none() && conversation.stats().undecryptable > 0);
}

#[test]
fn without_the_identity_chunks_are_recorded() {
    let calls = calls("outgoing-all-messages");
    let mut conversation = Conversation::new(Some(Role::Initiator), Limits::default());
    let mut outputs = Vec::new();
    let mut offsets = [0; 2];
    for (direction, bytes) in &calls {
        let offset = &mut offsets[*direction as usize];
        conversation.push(Piece::whole(*direction, *offset, bytes, 1), &mut Refusing, &mut |o| outputs.push(o));
        *offset += bytes.len() as u64;
    }
    let states: Vec<_> = outputs
        .iter()
        .filter_map(|output| match output {
            Output::State { state, reason, remedy } => Some((*state, reason.as_str(), !remedy.is_empty())),
            _ => None,
        })
        .collect();
    assert_eq!(
        states,
        [(State::Handshake, "", false), (State::Undecryptable, "identity: no identity.json in /data", true)]
    );
    let mismatch = "outgoing connection message public key does not match with identity";
    assert!(outputs.contains(&Output::Comment(mismatch.to_owned())));
    let stats = conversation.stats();
    assert_eq!((stats.chunks, stats.opened, stats.undecryptable), (40, 2, 38));
    assert_eq!(stats.in_chunks, stats.captured);
    assert_eq!(conversation.saved(), None);

    // The identity of another node gives the same result; the reason has both peer ids.
    let mut recorder = Recorder::new(Some(Role::Initiator), Limits::default(), remote());
    for (direction, bytes) in &calls {
        recorder.next(*direction, bytes);
    }
    assert!(recorder.outputs.iter().any(|output| matches!(output, Output::State { reason, .. }
        if reason.starts_with("identity: the node is id") && reason.contains(remote().peer_id()))));
}

#[test]
fn a_connection_that_started_before_capture_is_undecryptable() {
    let mut pair = pair(Some(Role::Initiator), Limits::default(), "TEZOS");
    let wire = pair.ours.chunk(&frame(0x10, &[0; 4]));
    for start in [None, Some((500, 700))] {
        let mut conversation = Conversation::new(Some(Role::Initiator), Limits::default());
        if let Some((sent, received)) = start {
            conversation = conversation.with_start(sent, received);
        }
        let mut recorder = Recorder::with(conversation, local());
        recorder.offsets = [500, 700];
        recorder.next(Direction::Sent, &wire);
        recorder.next(Direction::Received, &wire);
        recorder.next(Direction::Sent, &wire);
        assert!(matches!(&recorder.outputs[..], [Output::State { state: State::Undecryptable, reason, remedy }]
            if reason == "started before capture" && remedy.contains("DELETE /network/connections/")));
        assert_eq!(recorder.conversation.stats().skipped, 3 * wire.len() as u64);
    }
    // Another protocol is recognised by a later piece.
    let mut recorder = Recorder::with(Conversation::new(None, Limits::default()), local());
    recorder.offsets = [500, 700];
    recorder.next(Direction::Received, &[0xa5; 40]);
    recorder.next(Direction::Sent, b"HTTP/1.1 200 OK\r\n\r\n");
    assert!(matches!(recorder.outputs.last(), Some(Output::NotTezos { .. })));
}

#[test]
fn a_hole_in_a_connection_message_is_fatal() {
    let calls = calls("outgoing-all-messages");
    // 0: sent, 1 to 3: received.
    for dropped in 0..4 {
        let mut recorder = Recorder::new(Some(Role::Initiator), Limits::default(), local());
        for (at, (direction, bytes)) in calls.iter().enumerate() {
            if at == dropped {
                recorder.jump(*direction, bytes.len());
            } else {
                recorder.next(*direction, bytes);
            }
        }
        recorder.finish();
        let word = if dropped == 0 { "outgoing" } else { "incoming" };
        let reason = format!("bytes of the {word} connection message were lost");
        assert!(recorder.outputs.iter().any(|output| matches!(output, Output::State { state: State::Undecryptable, reason: is, .. } if *is == reason)), "{dropped}");
        let stats = recorder.conversation.stats();
        assert_eq!(stats.lost, calls[dropped].1.len() as u64);
        assert!(stats.opened <= 1);
        assert!(recorder.gaps().iter().all(|gap| !gap.recovered));
    }
}

/// As from the journal: a conversation continues where another stopped.
#[test]
fn sessions_are_resumed() {
    let calls = calls("outgoing-all-messages");
    let mut whole = Recorder::new(Some(Role::Initiator), Limits::default(), local());
    for (direction, bytes) in &calls {
        whole.next(*direction, bytes);
    }
    let p2p = |recorder: &Recorder, direction| -> Vec<[u8; 32]> {
        recorder.messages(direction).iter().filter(|m| m.category == Category::P2p).map(|m| m.sha256).collect()
    };
    // (number of calls before the save, first call after the resume)
    for (stop, start) in [(20, 20), (16, 24), (11, 40), (60, 100)] {
        for offsets in [Offsets::Continued, Offsets::Unknown] {
            let mut first = Recorder::new(Some(Role::Initiator), Limits::default(), local());
            for (direction, bytes) in &calls[..stop] {
                first.next(*direction, bytes);
            }
            let saved = first.conversation.saved().unwrap();
            let conversation = Conversation::resume(&saved, offsets, Limits::default()).unwrap();
            let mut second = Recorder::with(conversation, local());
            if offsets == Offsets::Continued {
                second.offsets = first.offsets;
            }
            for (at, (direction, bytes)) in calls[stop..].iter().enumerate() {
                if offsets == Offsets::Continued && stop + at < start {
                    second.jump(*direction, bytes.len());
                } else if stop + at >= start {
                    second.next(*direction, bytes);
                }
            }
            second.finish();
            let case = format!("{stop} {start} {offsets:?}");
            assert_eq!(second.conversation.role(), Some(Role::Initiator));
            assert!(second.conversation.identified().is_some());
            assert_eq!(second.states(), [State::Decoding], "{case}");
            for direction in [Direction::Sent, Direction::Received] {
                let all = p2p(&whole, direction);
                let got = p2p(&second, direction);
                assert!(all.ends_with(&got), "{case}");
                assert!(got.len() >= 4, "{case} {direction:?}: {}", got.len());
            }
            assert!(second.gaps().iter().all(|gap| gap.recovered), "{case} {:?}", second.gaps());
        }
    }
    let bad = chainscope_tezos::SavedSession { sent_message: vec![0; 5], ..whole.conversation.saved().unwrap() };
    assert!(Conversation::resume(&bad, Offsets::Continued, Limits::default()).is_err());
}
