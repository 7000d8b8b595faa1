//! Calls and nodes: calls of one name share a node, and a call that nobody knows has the root's.

use super::*;

#[test]
fn calls_of_one_name_are_one_node() {
    let board = small();
    let mut merged = BTreeMap::new();
    drain(&board, &mut merged);
    // The same place as call 3 has, twice.
    let again = |number: u32| (number, Call { parent: 2, ..call(3, 2).1 });
    let counts = vec![count(7, 8, 1), count(7, 9, 4)];
    let calls = vec![again(8), again(9)];
    update(&board, Update { calls, reading: Some(reading(counts, vec![])), ..Update::default() });
    drain(&board, &mut merged);
    assert_eq!(only(&merged).by_stack(Kind::Anonymous)[&stack(&["f1", "f2", "f3", "i3"])], 15);
    assert_eq!(only(&merged).nodes.len(), 4);
    update(&board, Update { reading: Some(reading(vec![count(7, 9, 0)], vec![])), ..Update::default() });
    drain(&board, &mut merged);
    assert_eq!(only(&merged).by_stack(Kind::Anonymous)[&stack(&["f1", "f2", "f3", "i3"])], 11);
}

#[test]
fn pages_of_an_unknown_call_are_the_root_s() {
    let board = small();
    let counts = vec![count(7, 900, 4), count(7, 901, 3)];
    update(&board, Update { reading: Some(reading(counts, vec![])), ..Update::default() });
    let mut merged = BTreeMap::new();
    drain(&board, &mut merged);
    assert_eq!(only(&merged).by_stack(Kind::Anonymous)[&stack(&[])], 7);
    update(&board, Update { reading: Some(reading(vec![count(7, 900, 0)], vec![])), ..Update::default() });
    drain(&board, &mut merged);
    assert_eq!(only(&merged).by_stack(Kind::Anonymous)[&stack(&[])], 3);
}
