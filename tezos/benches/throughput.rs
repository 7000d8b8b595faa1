//! Throughput of the whole conversation pipeline (decryption, reassembly, SHA-256, decoding, preview) compared with
//! `crypto_box` opening the same chunks, in one run. Prints a table row for each message length.
//!
//! Runs are short by default; `cargo bench` passes `--bench`, which measures longer.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark that prints its results")]
use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use chainscope_tezos::{
    Conversation, Direction, Identity, Limits, Output, Piece, Role,
    generate::Generator,
    seal::{Announcement, connection_chunk, session},
};
use crypto_box::{PublicKey, SalsaBox, SecretKey, aead::AeadInPlace};

fn main() {
    let seconds = if std::env::args().any(|argument| argument == "--bench") { 2.0 } else { 0.2 };
    println!("| message | raw crypto_box open | Chainscope, whole pipeline | ratio |");
    println!("| ---: | ---: | ---: | ---: |");
    for length in [256, 1024, 4096, 65_517] {
        let (raw, whole) = measure(length, seconds);
        let rate = |per_second: f64| format!("{:.0}/s, {:.0} MB/s", per_second, per_second * length as f64 / 1e6);
        println!("| {length} B | {} | {} | {:.2} |", rate(raw), rate(whole), whole / raw);
    }
}

/// Messages per second: of `crypto_box`, and of the whole pipeline.
fn measure(length: usize, seconds: f64) -> (f64, f64) {
    let (local, remote) = ([7; 32], [9; 32]);
    let identities = [local, remote].map(|secret| Arc::new(Identity::from_secret_key(secret, [0; 24])));
    let chunks = [1, 2].map(|nonce| {
        let announcement = Announcement {
            port: 9732,
            message_nonce: [nonce; 24],
            chain_name: "TEZOS_MAINNET",
            distributed_db_version: 2,
            p2p_version: 1,
        };
        connection_chunk(&identities[usize::from(nonce) - 1], &announcement)
    });
    let (mut sealer, _) = session(&identities[0], Role::Initiator, &chunks[0], &chunks[1]).unwrap();
    let mut generator = Generator::new(1);
    let mut wires = vec![sealer.chunk(&[0, 0]), sealer.chunk(&[0])];
    wires.extend((0..2_000_000 / length).map(|_| sealer.message(&generator.operation(length)).concat()));

    let their = PublicKey::from(*identities[1].public_key());
    let salsa_box = SalsaBox::new(&their, &SecretKey::from(local));
    let (base, _) = chainscope_tezos::cipher::nonces(&chunks[0], &chunks[1]);
    let open = || {
        for (index, wire) in (0..).zip(&wires) {
            let nonce = base.plus(index).0;
            let mut text = wire[18..].to_vec();
            let tag = crypto_box::Tag::clone_from_slice(&wire[2..18]);
            salsa_box.decrypt_in_place_detached(&nonce.into(), b"", &mut text, &tag).unwrap();
            black_box(&text);
        }
    };
    let whole = || {
        let mut keys = Arc::clone(&identities[0]);
        let mut conversation = Conversation::new(Some(Role::Initiator), Limits::default());
        let mut messages = 0;
        let mut out = |output: Output| {
            messages += u32::from(matches!(black_box(output), Output::Message(_)));
        };
        let mut offset = 0;
        for (direction, chunk) in [(Direction::Sent, &chunks[0]), (Direction::Received, &chunks[1])] {
            conversation.push(Piece::whole(direction, 0, chunk, 1), &mut keys, &mut out);
        }
        offset += chunks[0].len() as u64;
        for wire in &wires {
            conversation.push(Piece::whole(Direction::Sent, offset, wire, 1), &mut keys, &mut out);
            offset += wire.len() as u64;
        }
        assert_eq!(messages as usize, wires.len() + 2);
    };
    let messages = wires.len() as f64;
    // Alternating, so that other load on the machine affects both.
    let mut times = [Duration::ZERO; 2];
    let mut rounds = 0.0;
    while times[0].as_secs_f64() + times[1].as_secs_f64() < seconds {
        let start = Instant::now();
        open();
        let between = Instant::now();
        whole();
        times[0] += between - start;
        times[1] += between.elapsed();
        rounds += 1.0;
    }
    (messages * rounds / times[0].as_secs_f64(), messages * rounds / times[1].as_secs_f64())
}
