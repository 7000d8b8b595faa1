//! Limits: number of unacknowledged profiles, and size of a message.

use super::*;

#[test]
fn unacknowledged_ended_profiles_are_limited() {
    let store = ProfileStore::default();
    for id in 0..200 {
        let started = vec![(id, subject(id))];
        update(
            &store,
            SymbolizedUpdate {
                started,
                reading: Some(reading(vec![], vec![target(id, id, 1)])),
                ..SymbolizedUpdate::default()
            },
        );
        update(&store, SymbolizedUpdate { ended: vec![(id, "exited")], ..SymbolizedUpdate::default() });
    }
    store.begin_stream(true);
    let mut merged = BTreeMap::new();
    drain(&store, &mut merged);
    assert_eq!(merged.len(), 64);
}

#[test]
fn a_large_state_is_split_into_parts_of_at_most_one_mebibyte() {
    let store = ProfileStore::default();
    store.begin_stream(true);
    let many = 60_000;
    let calls = (1..=many).map(|number| call(number, number / 2)).collect();
    let counts = (1..=many).map(|number| count(1, number, u64::from(number))).collect();
    let targets = vec![target(1, 1, 1)];
    update(
        &store,
        SymbolizedUpdate {
            calls,
            started: vec![(1, subject(1))],
            reading: Some(reading(counts, targets)),
            ..SymbolizedUpdate::default()
        },
    );
    let mut merged = Merged::default();
    let mut messages = 0;
    while let Some(state) = store.next() {
        messages += 1;
        merged.merge(&state);
    }
    assert!(messages > 2, "{messages}");
    let all: u64 = merged.by_stack(Kind::Anonymous).values().sum();
    assert_eq!(all, (1..=u64::from(many)).sum::<u64>());
}
