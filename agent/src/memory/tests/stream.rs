//! Stream protocol: a keyframe, then deltas, one state in flight at a time, until the process exits.

use std::collections::BTreeMap;

use chainscope_proto::v1::{MemoryAck, MemoryState};

use super::*;

#[test]
fn a_keyframe_is_followed_by_deltas() {
    let store = small_store();
    let mut merged = BTreeMap::new();
    drain(&store, &mut merged);
    assert!(store.is_settled());
    let first = only(&merged).clone();
    let expected = BTreeMap::from([(stack(&["f1", "f2"]), 5), (stack(&["f1", "f2", "f3", "i3"]), 10)]);
    assert_eq!(first.by_stack(Kind::Anonymous), expected);
    let (process, totals) = (first.last.process.unwrap(), first.last.totals.unwrap());
    assert_eq!((process.pid, process.name.as_str(), process.ended_ns), (70, "octez-node", 0));
    assert_eq!((totals.control_anon, totals.kinds[0].attributed, totals.kinds[0].unattributed), (15, 15, 0));
    // Pages are freed at one call and allocated at a new one.
    let counts = vec![count(7, 3, 0), count(7, 4, 2)];
    update(
        &store,
        SymbolizedUpdate {
            calls: vec![call(4, 1)],
            reading: Some(reading(counts, vec![target(7, 70, 7)])),
            ..SymbolizedUpdate::default()
        },
    );
    drain(&store, &mut merged);
    let second = only(&merged);
    assert_eq!((second.last.base, second.keyframes), (1, 1));
    assert_eq!(second.last.counts[0].nodes.len(), 2, "only what changed");
    let expected = BTreeMap::from([(stack(&["f1", "f2"]), 5), (stack(&["f1", "f4"]), 2)]);
    assert_eq!(second.by_stack(Kind::Anonymous), expected);
    // An unchanged reading produces no message.
    update(
        &store,
        SymbolizedUpdate { reading: Some(reading(vec![], vec![target(7, 70, 7)])), ..SymbolizedUpdate::default() },
    );
    assert_eq!(store.next(), None);
}

#[test]
fn changes_while_a_state_is_in_flight_are_in_the_next_state() {
    let store = small_store();
    let mut merged = BTreeMap::<u64, Merged>::new();
    let first = store.next().unwrap();
    for pages in [1, 2, 3] {
        update(
            &store,
            SymbolizedUpdate {
                reading: Some(reading(vec![count(7, 3, pages)], vec![])),
                ..SymbolizedUpdate::default()
            },
        );
        assert_eq!(store.next(), None, "the first is not acknowledged");
    }
    assert!(!store.is_settled());
    store.acknowledge(&merged.entry(first.profile).or_default().merge(&first).unwrap());
    drain(&store, &mut merged);
    let merged = only(&merged);
    assert_eq!((merged.last.sequence, merged.last.base), (2, 1));
    assert_eq!(merged.by_stack(Kind::Anonymous)[&stack(&["f1", "f2", "f3", "i3"])], 3);
}

#[test]
fn a_new_stream_and_a_keyframe_request_resend_the_whole_profile() {
    let store = small_store();
    let mut merged = BTreeMap::new();
    drain(&store, &mut merged);
    let before = only(&merged).by_stack(Kind::Anonymous);
    store.begin_stream(true);
    drain(&store, &mut merged);
    assert_eq!((only(&merged).keyframes, only(&merged).by_stack(Kind::Anonymous)), (2, before.clone()));
    let wanted = MemoryAck { keyframe_wanted: true, ..ack(&only(&merged).last) };
    store.acknowledge(&wanted);
    drain(&store, &mut merged);
    assert_eq!((only(&merged).keyframes, only(&merged).by_stack(Kind::Anonymous)), (3, before));
    // An older aggregator, which accepts no states, gets none.
    store.begin_stream(false);
    assert_eq!(store.next(), None);
    assert!(store.is_settled());
}

#[test]
fn a_refused_profile_is_not_sent_until_the_next_stream() {
    let store = small_store();
    let state = store.next().unwrap();
    store.acknowledge(&MemoryAck { refused: "not yours".to_owned(), sequence: 0, ..ack(&state) });
    update(
        &store,
        SymbolizedUpdate {
            reading: Some(reading(vec![count(7, 3, 1)], vec![target(7, 70, 9)])),
            ..SymbolizedUpdate::default()
        },
    );
    assert_eq!(store.next(), None);
    assert!(store.is_settled());
    store.begin_stream(true);
    assert_eq!(store.next().unwrap().base, 0);
    // Requested keyframes that are refused again are limited.
    let refused =
        |state: &MemoryState| MemoryAck { refused: "?".to_owned(), keyframe_wanted: true, sequence: 0, ..ack(state) };
    store.begin_stream(true);
    let mut asked = 0;
    while let Some(state) = store.next() {
        store.acknowledge(&refused(&state));
        asked += 1;
    }
    assert_eq!(asked, 3);
}

#[test]
fn an_ended_profile_sends_a_final_state_and_is_removed() {
    let store = small_store();
    let mut merged = BTreeMap::new();
    drain(&store, &mut merged);
    assert_eq!(store.metrics().nodes["node"].attributed_bytes, [15 * 4096, 0, 0]);
    let gone = TargetReading { alive: false, ..target(7, 70, 0) };
    let counts = vec![count(7, 3, 0), count(7, 2, 0)];
    update(
        &store,
        SymbolizedUpdate {
            ended: vec![(7, "exited")],
            reading: Some(reading(counts, vec![gone])),
            ..SymbolizedUpdate::default()
        },
    );
    drain(&store, &mut merged);
    let process = only(&merged).last.process.clone().unwrap();
    assert_eq!((process.ended_by.as_str(), only(&merged).by_stack(Kind::Anonymous).len()), ("exited", 0));
    assert!(process.ended_ns > 0 && store.is_settled());
    store.begin_stream(true);
    assert_eq!(store.next(), None);
    assert!(store.metrics().nodes.is_empty());
}
