//! What goes over the stream: a keyframe, then what changed, one state at a time, until the process ended.

use std::collections::BTreeMap;

use chainscope_proto::v1::{MemoryAck, MemoryState};

use super::*;

#[test]
fn a_profile_begins_with_a_keyframe_and_goes_on_with_what_changed() {
    let board = small();
    let mut merged = BTreeMap::new();
    drain(&board, &mut merged);
    assert!(board.is_settled());
    let first = only(&merged).clone();
    let expected = BTreeMap::from([(stack(&["f1", "f2"]), 5), (stack(&["f1", "f2", "f3", "i3"]), 10)]);
    assert_eq!(first.by_stack(Kind::Anonymous), expected);
    let (process, totals) = (first.last.process.unwrap(), first.last.totals.unwrap());
    assert_eq!((process.pid, process.name.as_str(), process.ended_ns), (70, "octez-node", 0));
    assert_eq!((totals.control_anon, totals.kinds[0].attributed, totals.kinds[0].unattributed), (15, 15, 0));
    // Freed at one place, grown at another that is new.
    let counts = vec![count(7, 3, 0), count(7, 4, 2)];
    update(
        &board,
        Update { calls: vec![call(4, 1)], reading: Some(reading(counts, vec![target(7, 70, 7)])), ..Update::default() },
    );
    drain(&board, &mut merged);
    let second = only(&merged);
    assert_eq!((second.last.base, second.keyframes), (1, 1));
    assert_eq!(second.last.counts[0].nodes.len(), 2, "only what changed");
    let expected = BTreeMap::from([(stack(&["f1", "f2"]), 5), (stack(&["f1", "f4"]), 2)]);
    assert_eq!(second.by_stack(Kind::Anonymous), expected);
    // The same again is nothing to tell.
    update(&board, Update { reading: Some(reading(vec![], vec![target(7, 70, 7)])), ..Update::default() });
    assert_eq!(board.next(), None);
}

#[test]
fn one_state_is_on_its_way_and_the_next_has_what_changed_meanwhile() {
    let board = small();
    let mut merged = BTreeMap::<u64, Merged>::new();
    let first = board.next().unwrap();
    for pages in [1, 2, 3] {
        update(&board, Update { reading: Some(reading(vec![count(7, 3, pages)], vec![])), ..Update::default() });
        assert_eq!(board.next(), None, "the first is not acknowledged");
    }
    assert!(!board.is_settled());
    board.acknowledge(&merged.entry(first.profile).or_default().take(&first).unwrap());
    drain(&board, &mut merged);
    let merged = only(&merged);
    assert_eq!((merged.last.sequence, merged.last.base), (2, 1));
    assert_eq!(merged.by_stack(Kind::Anonymous)[&stack(&["f1", "f2", "f3", "i3"])], 3);
}

#[test]
fn a_new_stream_and_an_aggregator_that_asks_get_everything() {
    let board = small();
    let mut merged = BTreeMap::new();
    drain(&board, &mut merged);
    let before = only(&merged).by_stack(Kind::Anonymous);
    board.begin_stream(true);
    drain(&board, &mut merged);
    assert_eq!((only(&merged).keyframes, only(&merged).by_stack(Kind::Anonymous)), (2, before.clone()));
    let wanted = MemoryAck { keyframe_wanted: true, ..ack(&only(&merged).last) };
    board.acknowledge(&wanted);
    drain(&board, &mut merged);
    assert_eq!((only(&merged).keyframes, only(&merged).by_stack(Kind::Anonymous)), (3, before));
    // One that takes no states, as an older one, gets none.
    board.begin_stream(false);
    assert_eq!(board.next(), None);
    assert!(board.is_settled());
}

#[test]
fn a_refused_profile_is_left_alone_until_the_next_stream() {
    let board = small();
    let state = board.next().unwrap();
    board.acknowledge(&MemoryAck { refused: "not yours".to_owned(), sequence: 0, ..ack(&state) });
    update(
        &board,
        Update { reading: Some(reading(vec![count(7, 3, 1)], vec![target(7, 70, 9)])), ..Update::default() },
    );
    assert_eq!(board.next(), None);
    assert!(board.is_settled());
    board.begin_stream(true);
    assert_eq!(board.next().unwrap().base, 0);
    // One that refuses whatever it asked for is not asked for ever.
    let refused =
        |state: &MemoryState| MemoryAck { refused: "?".to_owned(), keyframe_wanted: true, sequence: 0, ..ack(state) };
    board.begin_stream(true);
    let mut asked = 0;
    while let Some(state) = board.next() {
        board.acknowledge(&refused(&state));
        asked += 1;
    }
    assert_eq!(asked, 3);
}

#[test]
fn an_ended_profile_is_told_once_more_and_then_forgotten() {
    let board = small();
    let mut merged = BTreeMap::new();
    drain(&board, &mut merged);
    assert_eq!(board.figures().nodes["node"].attributed_bytes, [15 * 4096, 0, 0]);
    let gone = TargetReading { alive: false, ..target(7, 70, 0) };
    let counts = vec![count(7, 3, 0), count(7, 2, 0)];
    update(
        &board,
        Update { ended: vec![(7, "exited")], reading: Some(reading(counts, vec![gone])), ..Update::default() },
    );
    drain(&board, &mut merged);
    let process = only(&merged).last.process.clone().unwrap();
    assert_eq!((process.ended_by.as_str(), only(&merged).by_stack(Kind::Anonymous).len()), ("exited", 0));
    assert!(process.ended_ns > 0 && board.is_settled());
    board.begin_stream(true);
    assert_eq!(board.next(), None);
    assert!(board.figures().nodes.is_empty());
}
