//! Throughput of the whole conversation pipeline (decryption, reassembly, SHA-256, decoding, preview) compared with
//! `crypto_box` opening the same chunks, in one run. Prints a table row for each message length.
//!
//! `decode_bench [seconds]` measures each length for so long; `decode_bench ratios` prints samples for the regression gate.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark that prints its results")]
use std::{hint::black_box, sync::Arc};

use chainscope_tezos::{
    Conversation, Direction, Identity, Limits, Output, Piece, Role,
    generate::Generator,
    seal::{Announcement, connection_chunk, session},
};
use crypto_box::{PublicKey, SalsaBox, SecretKey, aead::AeadInPlace};
use rustix::time::{ClockId, clock_gettime};

/// Samples for the regression gate, and seconds of each.
const RATIO_SAMPLES: usize = 9;
const RATIO_SECONDS: f64 = 0.3;

fn main() {
    let argument = std::env::args().nth(1);
    if argument.as_deref() == Some("ratios") {
        for length in [256, 1024, 65_517] {
            let bench = Bench::new(length);
            let samples = (0..RATIO_SAMPLES).map(|_| {
                let (raw, whole) = bench.measure(RATIO_SECONDS);
                format!("{:.5}", whole / raw)
            });
            println!("decode/{length} {}", samples.collect::<Vec<_>>().join(" "));
        }
        return;
    }
    let seconds = argument.map_or(0.2, |text| text.parse().unwrap());
    println!("| message | raw crypto_box open | Chainscope, whole pipeline | ratio |");
    println!("| ---: | ---: | ---: | ---: |");
    for length in [256, 1024, 4096, 65_517] {
        let (raw, whole) = Bench::new(length).measure(seconds);
        let rate = |per_second: f64| format!("{:.0}/s, {:.0} MB/s", per_second, per_second * length as f64 / 1e6);
        println!("| {length} B | {} | {} | {:.2} |", rate(raw), rate(whole), whole / raw);
    }
}

/// A session, and what both sides of the comparison need to read it.
struct Bench {
    local: Arc<Identity>,
    salsa_box: SalsaBox,
    chunks: [Vec<u8>; 2],
    /// The encrypted chunks that the local node sends: one message each.
    wires: Vec<Vec<u8>>,
}

impl Bench {
    fn new(length: usize) -> Self {
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
        let salsa_box = SalsaBox::new(&PublicKey::from(*identities[1].public_key()), &SecretKey::from(local));
        let [local, _] = identities;
        Self { local, salsa_box, chunks, wires }
    }

    /// Messages per second of processor time: of `crypto_box`, and of the whole pipeline. They alternate, so that other load on the machine
    /// affects both.
    fn measure(&self, seconds: f64) -> (f64, f64) {
        let messages = self.wires.len() as f64;
        let mut times = [0.0; 2];
        let mut rounds = 0.0;
        while times[0] + times[1] < seconds {
            let start = cpu_time();
            self.open();
            let between = cpu_time();
            self.whole();
            times[0] += between - start;
            times[1] += cpu_time() - between;
            rounds += 1.0;
        }
        (messages * rounds / times[0], messages * rounds / times[1])
    }

    fn open(&self) {
        let (base, _) = chainscope_tezos::cipher::nonces(&self.chunks[0], &self.chunks[1]);
        for (index, wire) in (0..).zip(&self.wires) {
            let nonce = base.plus(index).0;
            let mut text = wire[18..].to_vec();
            let tag = crypto_box::Tag::clone_from_slice(&wire[2..18]);
            self.salsa_box.decrypt_in_place_detached(&nonce.into(), b"", &mut text, &tag).unwrap();
            black_box(&text);
        }
    }

    fn whole(&self) {
        let mut keys = Arc::clone(&self.local);
        let mut conversation = Conversation::new(Some(Role::Initiator), Limits::default());
        let mut messages = 0;
        let mut out = |output: Output| {
            messages += u32::from(matches!(black_box(output), Output::Message(_)));
        };
        for (direction, chunk) in [Direction::Sent, Direction::Received].into_iter().zip(&self.chunks) {
            conversation.push(Piece::whole(direction, 0, chunk, 1), &mut keys, &mut out);
        }
        let mut offset = self.chunks[0].len() as u64;
        for wire in &self.wires {
            conversation.push(Piece::whole(Direction::Sent, offset, wire, 1), &mut keys, &mut out);
            offset += wire.len() as u64;
        }
        assert_eq!(messages as usize, self.wires.len() + 2);
    }
}

/// Seconds that this thread was on a processor.
fn cpu_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
