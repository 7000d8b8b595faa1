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
