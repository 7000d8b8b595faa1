//! A real session from a TezEdge node to an Octez node, Carthagenet 2020: every sent chunk is decrypted, every message
//! is decoded as expected.
use crate::common::{self, Recorder, carthagenet, unhex};
use chainscope_tezos::{Category, ChunkState, Direction, Limits, Output, Role, State};
use serde_json::Value;

#[test]
fn every_sent_message_is_decoded() {
    let session = carthagenet();
    let mut recorder = Recorder::new(Some(Role::Initiator), Limits::default(), session.identity);
    for (direction, payload) in &session.payloads {
        recorder.next(*direction, payload);
    }
    recorder.finish();

    let stats = recorder.conversation.stats();
    assert!(stats.is_balanced());
    assert_eq!((stats.pending, stats.skipped, stats.lost, stats.gaps), (0, 0, 0, 0));
    assert_eq!(stats.undecryptable, 0);
    let sent = recorder.chunks(Direction::Sent);
    assert_eq!(sent.len(), 5_475);
    assert_eq!(sent[0].state, ChunkState::Clear);
    assert_eq!(sent.len(), session.expected.len() + 1);
    for (chunk, expected) in sent[1..].iter().zip(&session.expected) {
        assert_eq!(chunk.state, ChunkState::Opened);
        assert_eq!(chunk.counter, expected["chunk"].as_u64().unwrap() + 1);
        assert_eq!(chunk.plain[..], unhex(&expected["plaintext_hex"]));
    }

    let messages = recorder.messages(Direction::Sent);
    assert_eq!(messages.len(), 5_475);
    assert_eq!(messages.iter().filter(|message| message.category == Category::P2p).count(), 5_472);
    for (message, expected) in messages[1..].iter().zip(&session.expected) {
        assert_eq!(message.error, "");
        let plain = unhex(&expected["plaintext_hex"]);
        let name = expected["type"].as_str().unwrap().to_lowercase();
        if message.category == Category::P2p {
            assert_eq!(message.kind, name);
        }
        let decoded = common::decode_json(message.category, &plain);
        assert_eq!(common::as_expected(&decoded), expected["decoded"], "{name}");
        assert_eq!(message.length, plain.len() as u64);
        let json = common::json_text(message.category, &plain);
        assert_eq!(message.preview.as_deref(), Some(&json[..json.len().min(100)]));
    }
    assert_eq!(recorder.messages(Direction::Received).len(), 4);
    let states: Vec<State> = recorder.states();
    assert_eq!(states, [State::Handshake, State::Decoding]);
    let comments: Vec<_> = recorder.outputs.iter().filter(|o| matches!(o, Output::Comment(_))).collect();
    assert_eq!(comments, Vec::<&Output>::new());
}

#[test]
fn an_unknown_or_wrong_role_is_corrected() {
    let session = carthagenet();
    for role in [None, Some(Role::Responder)] {
        let mut recorder = Recorder::new(role, Limits::default(), session.identity.clone());
        for (direction, payload) in session.payloads.iter().take(20) {
            recorder.next(*direction, payload);
        }
        assert_eq!(recorder.conversation.role(), Some(Role::Initiator));
        let roles: Vec<_> = recorder
            .outputs
            .iter()
            .filter_map(|output| match output {
                Output::Identified(identified) => Some(identified.role),
                _ => None,
            })
            .collect();
        assert_eq!(roles, [role, Some(Role::Initiator)]);
        assert_eq!(recorder.conversation.stats().undecryptable, 0);
        assert_eq!(recorder.conversation.stats().gaps, 0);
    }
}

#[test]
fn the_peer_is_identified() {
    let session = carthagenet();
    let mut recorder = Recorder::new(Some(Role::Initiator), Limits::default(), session.identity);
    for (direction, payload) in session.payloads.iter().take(6) {
        recorder.next(*direction, payload);
    }
    let identified = recorder.conversation.identified().unwrap();
    assert_eq!(identified.chain_name, "TEZOS_ALPHANET_CARTHAGE_2019-11-28T13:02:13Z");
    assert!(identified.peer_id.starts_with("id"));
    let first = recorder.messages(Direction::Received)[0].clone();
    let preview: Value = first.preview.unwrap()[..12].into();
    assert_eq!(preview, "{\"port\":9732");
}
