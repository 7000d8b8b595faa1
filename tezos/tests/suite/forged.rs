//! Chunks that a peer forges inside others next to a gap: the real ones after them are found.
use chainscope_tezos::{
    Direction, Limits, Piece, Role,
    cipher::{Cipher, SharedKey},
    seal::frame,
};
use sha2::{Digest, Sha256};

use crate::{
    common::Recorder,
    losses::CONNECTION_CHUNK_BYTES,
    sessions::{Pair, pair},
};

/// The remote side of a pair, which crafts what it sends: its cipher, and the counter of its next chunk.
struct Forger {
    cipher: Cipher,
    counter: u64,
}

impl Forger {
    fn new(pair: &Pair) -> Self {
        let [own, their] = pair.handshake.each_ref().map(|stream| &stream[..CONNECTION_CHUNK_BYTES]);
        let key = SharedKey::new(&pair.recorder.identity, their[4..36].try_into().unwrap());
        Self { cipher: Cipher::pair(&key, Role::Initiator, own, their).1, counter: 3 }
    }

    /// The wire bytes of a chunk with any counter.
    fn sealed(&self, counter: u64, plain: &[u8]) -> Vec<u8> {
        let sealed = self.cipher.seal(counter - 1, plain);
        [&u16::try_from(sealed.len()).unwrap().to_be_bytes()[..], &sealed].concat()
    }

    fn chunk(&mut self, plain: &[u8]) -> Vec<u8> {
        self.counter += 1;
        self.sealed(self.counter - 1, plain)
    }

    /// The next chunk, of two messages, so that a search does not recognise its beginning. Its cipher text ends with
    /// `inner`, which are whole chunks. Also returns its messages.
    fn chunk_around(&mut self, inner: &[u8]) -> (Vec<u8>, [Vec<u8>; 2]) {
        let [short, mut long] = [frame(0x13, &[0; 4]), frame(0x31, &[5; 60_000])];
        let key_stream = self.sealed(self.counter, &vec![0; short.len() + long.len()]).split_off(18);
        let pairs = inner.iter().rev().zip(key_stream.iter().rev());
        for (plain, (wanted, key)) in long.iter_mut().rev().zip(pairs) {
            *plain = wanted ^ key;
        }
        let wire = self.chunk(&[&short[..], &long].concat());
        assert!(wire.ends_with(inner));
        (wire, [short, long])
    }
}

/// Pushes bytes of the received direction that do not begin with a call.
fn receive(recorder: &mut Recorder, bytes: &[u8]) {
    let offset = recorder.offsets[1];
    let time_ns = recorder.time_ns;
    recorder.push(Piece { call_start: false, ..Piece::whole(Direction::Received, offset, bytes, time_ns) });
    recorder.offsets[1] += bytes.len() as u64;
}

/// Pushes 20 chunks of a message each; returns the hashes of the messages.
fn receive_real(recorder: &mut Recorder, forger: &mut Forger) -> Vec<[u8; 32]> {
    let messages = (0..20_u8).map(|number| frame(0x10, &[number; 4]));
    messages
        .map(|message| {
            receive(recorder, &forger.chunk(&message));
            hash(&message)
        })
        .collect()
}

/// Hashes of the received messages after the handshake.
fn hashes(recorder: &Recorder) -> Vec<[u8; 32]> {
    recorder.messages(Direction::Received)[3..].iter().map(|message| message.sha256).collect()
}

fn hash(message: &[u8]) -> [u8; 32] {
    Sha256::digest(message).into()
}

/// A peer sends a byte out of band, which is counted as missing, before a chunk that contains forged ones.
#[test]
fn a_hole_that_no_chunk_lacks_hides_no_chunk() {
    for hole in [1, 17, 40] {
        let mut pair = pair(Some(Role::Initiator), Limits::default(), "TEZOS");
        let mut forger = Forger::new(&pair);
        let forged = forger.sealed(2_000, &frame(0x13, &[0; 5]));
        let (wire, messages) = forger.chunk_around(&forged);
        let recorder = &mut pair.recorder;
        recorder.jump(Direction::Received, hole);
        receive(recorder, &wire);
        let mut expected: Vec<_> = messages.iter().map(|message| hash(message)).collect();
        expected.extend(receive_real(recorder, &mut forger));
        recorder.finish();
        let got = hashes(recorder);
        assert!(got == expected, "{hole}: {} of {}", got.len(), expected.len());
        let gaps: Vec<_> = recorder.gaps().iter().map(|gap| (gap.lost_bytes, gap.missed_chunks)).collect();
        assert_eq!(gaps, [(hole as u64, 0)]);
    }
}

/// The beginning of a chunk is missing, and the rest contains forged chunks with greater counters.
#[test]
fn chunks_forged_inside_another_hide_no_chunk_after_it() {
    // What follows the forged chunks: nothing, a hole that no chunk lacks, more forged ones after other bytes.
    for (hole, again) in [(0, false), (1, false), (0, true)] {
        let mut pair = pair(Some(Role::Initiator), Limits::default(), "TEZOS");
        let mut forger = Forger::new(&pair);
        let forged = [0_u8, 1, 2].map(|number| frame(0x13, &[number; 5]));
        let [first, second, third] =
            [(2_000, 0), (2_001, 1), (2_100, 2)].map(|(counter, at): (u64, usize)| forger.sealed(counter, &forged[at]));
        let mut inner = [first, second].concat();
        if again {
            inner.extend([&[0, 40][..], &[7; 40], &third].concat());
        }
        let (wire, _) = forger.chunk_around(&inner);
        let recorder = &mut pair.recorder;
        recorder.jump(Direction::Received, 100);
        receive(recorder, &wire[100..]);
        recorder.jump(Direction::Received, hole);
        let mut expected: Vec<_> = forged[..if again { 3 } else { 2 }].iter().map(|message| hash(message)).collect();
        expected.extend(receive_real(recorder, &mut forger));
        recorder.finish();
        let got = hashes(recorder);
        let missing: Vec<_> = (0..expected.len()).filter(|at| !got.contains(&expected[*at])).collect();
        assert!(got == expected, "{hole} {again}: {} of {}, {missing:?}", got.len(), expected.len());
    }
}
