//! Mapping of calls to nodes: calls with equal frames share a node; unknown calls map to the root.

use super::*;

#[test]
fn calls_with_equal_frames_share_a_node() {
    let store = small_store();
    let mut merged = BTreeMap::new();
    drain(&store, &mut merged);
    // The same location as call 3, twice.
    let again = |number: u32| (number, Call { parent: 2, ..call(3, 2).1 });
    let counts = vec![count(7, 8, 1), count(7, 9, 4)];
    let calls = vec![again(8), again(9)];
    update(&store, SymbolizedUpdate { calls, reading: Some(reading(counts, vec![])), ..SymbolizedUpdate::default() });
    drain(&store, &mut merged);
    assert_eq!(only(&merged).by_stack(Kind::Anonymous)[&stack(&["f1", "f2", "f3", "i3"])], 15);
    assert_eq!(only(&merged).nodes.len(), 4);
    update(
        &store,
        SymbolizedUpdate { reading: Some(reading(vec![count(7, 9, 0)], vec![])), ..SymbolizedUpdate::default() },
    );
    drain(&store, &mut merged);
    assert_eq!(only(&merged).by_stack(Kind::Anonymous)[&stack(&["f1", "f2", "f3", "i3"])], 11);
}

#[test]
fn pages_of_an_unknown_call_are_attributed_to_the_root() {
    let store = small_store();
    let counts = vec![count(7, 900, 4), count(7, 901, 3)];
    update(&store, SymbolizedUpdate { reading: Some(reading(counts, vec![])), ..SymbolizedUpdate::default() });
    let mut merged = BTreeMap::new();
    drain(&store, &mut merged);
    assert_eq!(only(&merged).by_stack(Kind::Anonymous)[&stack(&[])], 7);
    update(
        &store,
        SymbolizedUpdate { reading: Some(reading(vec![count(7, 900, 0)], vec![])), ..SymbolizedUpdate::default() },
    );
    drain(&store, &mut merged);
    assert_eq!(only(&merged).by_stack(Kind::Anonymous)[&stack(&[])], 3);
}

/// A reading after which the probe has no such calls any more.
fn removing(calls: std::ops::RangeInclusive<u32>, counts: Vec<Count>) -> SymbolizedUpdate {
    let reading = Reading { removed_nodes: calls.map(NodeId).collect(), ..reading(counts, vec![]) };
    SymbolizedUpdate { reading: Some(reading), ..SymbolizedUpdate::default() }
}

#[test]
fn calls_at_ever_new_addresses_are_forgotten() {
    let store = small_store();
    let mut merged = BTreeMap::new();
    for number in 10..500 {
        let calls = vec![call(number, 3)];
        let reading = Some(reading(vec![count(7, number, 2)], vec![]));
        update(&store, SymbolizedUpdate { calls, reading, ..SymbolizedUpdate::default() });
        drain(&store, &mut merged);
        update(&store, removing(number..=number, vec![count(7, number, 0)]));
        assert_eq!(store.metrics().calls, 3, "after call {number}");
    }
    drain(&store, &mut merged);
    let stacks = only(&merged).by_stack(Kind::Anonymous);
    assert_eq!(stacks.values().sum::<u64>(), 15);
    assert_eq!(stacks[&stack(&["f1", "f2", "f3", "i3"])], 10);
}

#[test]
fn calls_of_an_ended_profile_stay_until_it_is_acknowledged() {
    let store = small_store();
    update(&store, SymbolizedUpdate { ended: vec![(7, "exited")], ..SymbolizedUpdate::default() });
    update(&store, removing(1..=3, vec![]));
    assert_eq!(store.metrics().calls, 3);
    let mut merged = BTreeMap::new();
    drain(&store, &mut merged);
    assert_eq!(only(&merged).by_stack(Kind::Anonymous)[&stack(&["f1", "f2", "f3", "i3"])], 10);
    update(&store, removing(4..=4, vec![]));
    assert_eq!(store.metrics().calls, 0);
}
