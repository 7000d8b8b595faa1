//! Property test of synchronisation: the merged profile equals the agent's profile.

use std::collections::VecDeque;

use chainscope_proto::v1::MemoryAck;
use proptest::prelude::*;

use super::*;

proptest! {
    /// After any sequence of acknowledgements, losses and keyframe requests the merged profile equals the agent's.
    #[test]
    fn merged_profile_equals_the_agents_profile(
        steps in prop::collection::vec((prop::collection::vec((1_u32..40, 0_u64..5), 0..6), 0_u8..8), 1..40),
    ) {
        let store = ProfileStore::default();
        store.begin_stream(true);
        let calls = (1..40).map(|number| call(number, number / 2)).collect();
        update(&store, SymbolizedUpdate { calls, started: vec![(1, subject(1))], ..SymbolizedUpdate::default() });
        let mut held: BTreeMap<u32, u64> = BTreeMap::new();
        let mut merged = Merged::default();
        for (changes, event) in steps {
            let counts = changes.iter().map(|(node, pages)| count(1, *node, *pages)).collect();
            held.extend(changes);
            let reading = Some(reading(counts, vec![target(1, 1, 1)]));
            update(&store, SymbolizedUpdate { reading, ..SymbolizedUpdate::default() });
            match event {
                0 => store.begin_stream(true),
                // The acknowledgement is lost with its stream.
                1 => {
                    if let Some(state) = store.next() {
                        merged.merge(&state);
                    }
                    store.begin_stream(true);
                }
                2 => store.acknowledge(&MemoryAck { keyframe_wanted: true, ..ack(&merged.last) }),
                3 => {}
                _ => while let Some(state) = store.next() {
                    if let Some(ack) = merged.merge(&state) {
                        store.acknowledge(&ack);
                    }
                },
            }
        }
        while let Some(state) = store.next() {
            if let Some(ack) = merged.merge(&state) {
                store.acknowledge(&ack);
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
