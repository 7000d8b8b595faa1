//! Whatever happens on the way: what an aggregator merged is what the agent holds.

use std::collections::VecDeque;

use chainscope_proto::v1::MemoryAck;
use proptest::prelude::*;

use super::*;

proptest! {
    /// Whatever is acknowledged, lost or asked for again: what was merged is what is held.
    #[test]
    fn what_is_merged_is_what_is_held(
        steps in prop::collection::vec((prop::collection::vec((1_u32..40, 0_u64..5), 0..6), 0_u8..8), 1..40),
    ) {
        let board = Board::default();
        board.begin_stream(true);
        let calls = (1..40).map(|number| call(number, number / 2)).collect();
        update(&board, Update { calls, began: vec![(1, subject(1))], ..Update::default() });
        let mut held: BTreeMap<u32, u64> = BTreeMap::new();
        let mut merged = Merged::default();
        for (changes, event) in steps {
            let counts = changes.iter().map(|(node, pages)| count(1, *node, *pages)).collect();
            held.extend(changes);
            update(&board, Update { reading: Some(reading(counts, vec![target(1, 1, 1)])), ..Update::default() });
            match event {
                0 => board.begin_stream(true),
                // The acknowledgement is lost with its stream.
                1 => {
                    if let Some(state) = board.next() {
                        merged.take(&state);
                    }
                    board.begin_stream(true);
                }
                2 => board.acknowledge(&MemoryAck { keyframe_wanted: true, ..ack(&merged.last) }),
                3 => {}
                _ => while let Some(state) = board.next() {
                    if let Some(ack) = merged.take(&state) {
                        board.acknowledge(&ack);
                    }
                },
            }
        }
        while let Some(state) = board.next() {
            if let Some(ack) = merged.take(&state) {
                board.acknowledge(&ack);
            }
        }
        let mut expected: BTreeMap<Vec<String>, u64> = BTreeMap::new();
        for (node, pages) in held.into_iter().filter(|(_, pages)| *pages > 0) {
            let mut names = VecDeque::new();
            let mut at = node;
            while at != 0 {
                if at.is_multiple_of(3) {
                    names.push_front(format!("i{at}"));
                }
                names.push_front(format!("f{at}"));
                at /= 2;
            }
            *expected.entry(names.into()).or_default() += pages;
        }
        prop_assert_eq!(merged.by_stack(Kind::Anonymous), expected);
    }
}
