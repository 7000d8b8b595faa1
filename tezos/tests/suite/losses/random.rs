//! Random losses, splits and bytes.
use std::collections::HashSet;

use chainscope_tezos::{
    Category, Direction, Limits, Output, Piece, generate::Generator, message::PEER_KINDS, seal::frame,
};
use proptest::prelude::*;

use super::{check, fresh, placed, record_streams, traffic};
use crate::{common::Recorder, sessions::pair};

/// Chunks and messages of a recording without times, by direction.
fn outputs_without_times(recorder: &Recorder) -> [Vec<Output>; 2] {
    let mut outputs = [Vec::new(), Vec::new()];
    for output in &recorder.outputs {
        match output.clone() {
            Output::Chunk(mut chunk) => {
                chunk.time_ns = 0;
                outputs[chunk.direction as usize].push(Output::Chunk(chunk));
            }
            Output::Message(mut message) => {
                message.time_ns = 0;
                outputs[message.direction as usize].push(Output::Message(message));
            }
            _ => {}
        }
    }
    outputs
}

fn random_loss(seed: u64, silent: bool, largest: usize) {
    let (pair, streams) = traffic(seed, 30);
    let whole = record_streams(&streams);
    let placed = placed(&whole);
    let mut recorder = fresh();
    for direction in [Direction::Sent, Direction::Received] {
        let handshake = &pair.handshake[direction as usize];
        recorder.next(direction, &handshake[..97]);
    }
    let mut generator = Generator::new(!seed);
    let mut holes = Vec::new();
    for direction in [Direction::Sent, Direction::Received] {
        let stream = &streams[direction as usize];
        let mut at = 97;
        while at < stream.len() {
            let to = (at + 1 + generator.below(largest)).min(stream.len());
            let piece = &stream[at..to];
            if generator.below(8) != 0 {
                recorder.next(direction, piece);
            } else if !silent {
                recorder.jump(direction, piece.len());
                match holes.last_mut() {
                    Some((of, _, end)) if *of == direction && *end == at as u64 => *end = to as u64,
                    _ => holes.push((direction, at as u64, to as u64)),
                }
            }
            at = to;
        }
    }
    recorder.finish();
    let all: HashSet<_> = placed.iter().flatten().map(|message| message.sha256).collect();
    for direction in [Direction::Sent, Direction::Received] {
        for message in recorder.messages(direction) {
            assert!(all.contains(&message.sha256), "{:?}", message);
            assert_eq!(&message.error, "");
        }
    }
    if !silent {
        check(&recorder, &placed, &holes, "random");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn damaged_bytes_never_give_a_wrong_message(seed: u64, flips in 1_usize..20) {
        let (_, mut streams) = traffic(seed, 20);
        let whole = record_streams(&streams);
        let all: HashSet<_> = placed(&whole).iter().flatten().map(|message| message.sha256).collect();
        let mut generator = Generator::new(!seed);
        for _ in 0..flips {
            let stream = &mut streams[generator.below(2)];
            let at = 97 + generator.below(stream.len() - 97);
            stream[at] ^= 1 << generator.below(8);
        }
        let mut recorder = fresh();
        for direction in [Direction::Sent, Direction::Received] {
            for piece in streams[direction as usize].chunks(4096) {
                recorder.next(direction, piece);
            }
        }
        recorder.finish();
        for direction in [Direction::Sent, Direction::Received] {
            for message in recorder.messages(direction) {
                prop_assert!(all.contains(&message.sha256));
            }
        }
    }

    #[test]
    fn silent_loss_never_gives_a_wrong_message(seed: u64, largest in 1_usize..5_000) {
        random_loss(seed, true, largest);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_split_gives_the_same(seed: u64, largest in 1_usize..20_000) {
        let (_, streams) = traffic(seed, 12);
        let whole = record_streams(&streams);
        let mut split = fresh();
        let mut generator = Generator::new(!seed);
        let mut at = [0, 0];
        while at[0] < streams[0].len() || at[1] < streams[1].len() {
            let direction = [Direction::Sent, Direction::Received][generator.below(2)];
            let stream = &streams[direction as usize];
            let from = at[direction as usize];
            let to = (from + 1 + generator.below(largest)).min(stream.len());
            if from < to {
                split.next(direction, &stream[from..to]);
                at[direction as usize] = to;
            }
        }
        // Bytes that were buffered until the other direction's connection message arrived are processed as well.
        prop_assert!(outputs_without_times(&whole) == outputs_without_times(&split));
        prop_assert_eq!(split.conversation.stats().pending, 0);
    }

    #[test]
    fn random_loss_never_gives_a_wrong_message(seed: u64, largest in 1_usize..5_000) {
        random_loss(seed, false, largest);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_accepted(
        pieces in prop::collection::vec((any::<bool>(), 0_u64..300, prop::collection::vec(any::<u8>(), 0..300), 0_u64..50, any::<bool>()), 0..40),
        opened: bool,
    ) {
        let mut recorder = if opened { pair(None, Limits::default(), "TEZOS").recorder } else { fresh() };
        for (sent, jump, bytes, missing, call_start) in pieces {
            let direction = if sent { Direction::Sent } else { Direction::Received };
            // Offsets may go backwards.
            let offset = (recorder.offsets[direction as usize] + jump / 20).saturating_sub(jump % 20);
            let covers = bytes.len() as u64 + missing;
            recorder.push(Piece { direction, offset, bytes: &bytes, covers, call_start, time_ns: 1 });
            recorder.offsets[direction as usize] = offset + covers;
        }
        recorder.finish();
        for direction in [Direction::Sent, Direction::Received] {
            prop_assert!(recorder.messages(direction).iter().filter(|m| m.category == Category::P2p).count() == 0);
        }
    }

    #[test]
    fn any_message_is_decoded_or_rejected(tag in 0_u16..0x100, body in prop::collection::vec(any::<u8>(), 0..400), at: usize, byte: u8) {
        for plain in [frame(tag, &body), {
            let (known, _) = PEER_KINDS[usize::from(tag) % PEER_KINDS.len()];
            let mut message = Generator::new(at as u64).message(known);
            let length = message.len();
            message[at % length] = byte;
            message
        }] {
            if let Ok(decoded) = chainscope_tezos::decode(Category::P2p, false, &plain) {
                let text = serde_json::to_string(&decoded).unwrap();
                let preview = chainscope_tezos::preview(&decoded).unwrap();
                prop_assert!(text.starts_with(&preview));
            }
            let _ = chainscope_tezos::message::preview_of_prefix(Category::P2p, false, &plain);
        }
    }
}
