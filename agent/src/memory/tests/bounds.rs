//! What is bounded: profiles that nobody takes, and the size of a message.

use super::*;

#[test]
fn ended_profiles_that_nobody_takes_are_bounded() {
    let board = Board::default();
    for id in 0..200 {
        let began = vec![(id, subject(id))];
        update(&board, Update { began, reading: Some(reading(vec![], vec![target(id, id, 1)])), ..Update::default() });
        update(&board, Update { ended: vec![(id, "exited")], ..Update::default() });
    }
    board.begin_stream(true);
    let mut merged = BTreeMap::new();
    drain(&board, &mut merged);
    assert_eq!(merged.len(), 64);
}

#[test]
fn a_large_state_comes_in_parts_of_a_mebibyte() {
    let board = Board::default();
    board.begin_stream(true);
    let many = 60_000;
    let calls = (1..=many).map(|number| call(number, number / 2)).collect();
    let counts = (1..=many).map(|number| count(1, number, u64::from(number))).collect();
    let targets = vec![target(1, 1, 1)];
    update(
        &board,
        Update { calls, began: vec![(1, subject(1))], reading: Some(reading(counts, targets)), ..Update::default() },
    );
    let mut merged = Merged::default();
    let mut messages = 0;
    while let Some(state) = board.next() {
        messages += 1;
        merged.take(&state);
    }
    assert!(messages > 2, "{messages}");
    let all: u64 = merged.by_stack(Kind::Anonymous).values().sum();
    assert_eq!(all, (1..=u64::from(many)).sum::<u64>());
}
