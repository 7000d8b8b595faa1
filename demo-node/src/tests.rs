//! The demo node's cryptography, scripts and messages, compared with vectors of real sessions.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::behaviour::Role;
use crate::io_sizes::WriteSizes;
use crate::messages::{KINDS, Messages, Sizes};
use crate::script::{Script, Step};
use crate::wire::{Chunks, Identity, MAX_PLAIN, ciphers, peer_id};

/// A file or folder of the Tezos vectors.
fn vectors(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/tezos").join(path)
}

fn identity(path: &str) -> Identity {
    serde_json::from_slice(&std::fs::read(vectors(path)).expect("readable")).expect("identity")
}

fn bytes(value: &Value) -> Vec<u8> {
    hex::decode(value.as_str().expect("hex")).expect("hex")
}

#[test]
fn real_session_opens() {
    let script = Script::load(&vectors("carthagenet-2020"), None).expect("script");
    let (sent, received) = (script.stream(true), script.stream(false));
    let (mut sent_chunks, mut received_chunks) = (Chunks::default(), Chunks::default());
    sent_chunks.push(&sent);
    received_chunks.push(&received);
    let local = identity("carthagenet-2020/identity.json");
    assert_eq!(local.peer_id(), peer_id(local.public_key()));
    let (ours, theirs) = (sent_chunks.pop().expect("chunk").to_vec(), received_chunks.pop().expect("chunk").to_vec());
    let (mut by_us, mut by_them) = ciphers(local.secret_key(), Role::Initiator, &ours, &theirs).expect("keys");
    let expected = std::fs::read_to_string(vectors("carthagenet-2020/sent.expected.jsonl")).expect("readable");
    let expected: Vec<Value> = expected.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for line in &expected {
        let plain = by_us.open(&sent_chunks.pop().expect("chunk")[2..]).expect("opens");
        assert_eq!(plain, bytes(&line["plaintext_hex"]));
    }
    assert!(sent_chunks.is_empty());
    assert_eq!(expected.len(), 5_474);
    while let Some(chunk) = received_chunks.pop() {
        assert!(by_them.open(&chunk[2..]).is_some());
    }
    // The wrong role opens nothing.
    let (mut wrong, _) = ciphers(local.secret_key(), Role::Responder, &ours, &theirs).expect("keys");
    assert!(wrong.open(&sent[ours.len() + 2..ours.len() + 20]).is_none());
}

#[test]
fn the_other_side_opens_sealed_chunks() {
    let mut random = rand::rng();
    let (a, b) = (Identity::generate(&mut random, 8), Identity::generate(&mut random, 0));
    let (hello_a, hello_b) =
        (a.connection_message(&mut random, 9732, b"TEZOS"), b.connection_message(&mut random, 0, b"TEZOS"));
    let (mut a_sends, mut a_reads) = ciphers(a.secret_key(), Role::Initiator, &hello_a, &hello_b).expect("keys");
    let (mut b_sends, mut b_reads) = ciphers(b.secret_key(), Role::Responder, &hello_b, &hello_a).expect("keys");
    for length in [0, 1, 2, 1000, MAX_PLAIN] {
        let plain = vec![7; length];
        assert_eq!(b_reads.open(&a_sends.seal(&plain)[2..]), Some(plain.clone()));
        assert_eq!(a_reads.open(&b_sends.seal(&plain)[2..]), Some(plain));
    }
}

#[test]
fn swapped_roles_keep_messages_and_write_sizes() {
    let folder = vectors("synthetic-two-way");
    let (local, remote) =
        (identity("synthetic-two-way/identity.json"), identity("synthetic-two-way/remote_identity.json"));
    let script = Script::load(&folder, Some("outgoing-all-messages")).expect("script");
    let swapped = script.swap_roles(&local, &remote).expect("swaps");
    assert_eq!(swapped.role, Role::Responder);
    let shape = |script: &Script| {
        let shape = script.steps.iter().map(|s| match s {
            Step::Send(bytes) => (true, bytes.len()),
            Step::Receive(bytes) => (false, bytes.len()),
        });
        shape.collect::<Vec<_>>()
    };
    assert_eq!(shape(&script), shape(&swapped));
    assert_ne!(script.steps, swapped.steps);
    let back = swapped.swap_roles(&local, &remote).expect("swaps back");
    assert_eq!(back.steps, script.steps);
}

#[test]
fn the_mirrored_script_sends_what_the_other_receives() {
    let script = Script::load(&vectors("synthetic-two-way"), Some("outgoing-all-messages")).expect("script");
    let mirror = script.mirrored();
    assert_eq!(mirror.role, Role::Responder);
    assert_eq!(mirror.stream(true), script.stream(false));
    assert_eq!(mirror.stream(false), script.stream(true));
    assert!(mirror.steps.iter().all(|step| !matches!(step, Step::Send(b) | Step::Receive(b) if b.is_empty())));
}

#[test]
fn messages_are_of_every_kind_and_reproducible_by_seed() {
    let some: Vec<_> = Messages::new(5, Sizes::Natural).take(2000).collect();
    assert_eq!(some, Messages::new(5, Sizes::Natural).take(2000).collect::<Vec<_>>());
    for (tag, kind, _) in &KINDS[..25] {
        let one = some.iter().find(|m| m.kind == *kind).unwrap_or_else(|| panic!("no {kind}"));
        assert_eq!(one.framed[4..6], tag.to_be_bytes());
        assert_eq!(one.framed[..4], u32::try_from(one.framed.len() - 4).expect("length").to_be_bytes());
    }
    assert!(Messages::new(1, Sizes::Fixed(1024)).take(10).all(|m| m.framed.len() == 1024));
    assert!(Messages::new(1, Sizes::Mixed(200_000)).take(200).any(|m| m.framed.len() > MAX_PLAIN));
}

#[test]
fn write_sizes_range_from_one_byte_to_the_maximum() {
    let mut random = rand::rng();
    let picked: Vec<_> = (0..20_000).map(|_| WriteSizes::UpTo(1 << 20).pick(&mut random)).collect();
    assert!(picked.iter().all(|p| (1..=1 << 20).contains(p)));
    assert!(picked.contains(&1));
    assert!(picked.iter().any(|p| *p > 1 << 19));
}
