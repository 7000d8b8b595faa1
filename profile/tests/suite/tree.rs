//! Trees equal those of a naive implementation of the contract, and satisfy its invariants.

use std::collections::BTreeMap;

use chainscope_profile::{Kind, Kinds, Label, Measure, Stacks, Tree, TreeError, TreeOptions};
use chainscope_testing::memory::{FrameName, Recorder};
use proptest::prelude::*;

use crate::common::{PagesByStack, Weighted, data, held, kib, naive, nested};

fn recorder(held: &PagesByStack, before: [u64; 3], unattributed: [i64; 3]) -> Recorder {
    let mut recorder = Recorder::new("9732", 4711, 1_000);
    for (stack, pages) in held {
        recorder.hold(stack, *pages);
    }
    (recorder.before_attach, recorder.unattributed) = (before, unattributed);
    recorder
}

fn weighted(now: &[&PagesByStack], then: &[&PagesByStack], kinds: Kinds, reverse: bool) -> Vec<Weighted> {
    let mut all: BTreeMap<Vec<FrameName>, [(i64, i64); 2]> = BTreeMap::new();
    for (at, lives) in [now, then].into_iter().enumerate() {
        for (stack, pages) in lives.iter().copied().flatten() {
            let entry = &mut all.entry(stack.clone()).or_default()[at];
            let (value, cache) = kib(kinds, *pages);
            *entry = (entry.0 + value, entry.1 + cache);
        }
    }
    let ordered = |mut stack: Vec<FrameName>| {
        if !reverse {
            stack.reverse();
        }
        stack
    };
    all.into_iter().map(|(stack, [now, then])| (ordered(stack), now, then)).collect()
}

fn kinds() -> impl Strategy<Value = Kinds> {
    prop_oneof![
        Just(Kinds::RESIDENT),
        Just(Kinds::ALL),
        Just(Kinds::only(Kind::Anon)),
        Just(Kinds::only(Kind::Cache)),
        Just(Kinds::only(Kind::Kernel)),
    ]
}

fn threshold() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), 1u64..1000, Just(u64::MAX)]
}

/// Checks the contract's invariants on all nodes of a tree.
fn check(tree: &Tree, threshold: u64) {
    for number in 0..tree.len() as u32 {
        let node = *tree.node(number);
        assert!(0 <= node.cache && node.cache <= node.value, "cache of {node:?}");
        let children: Vec<_> = tree.children(number).map(|child| *tree.node(child)).collect();
        if children.is_empty() {
            continue;
        }
        assert_eq!(children.iter().map(|child| child.value).sum::<i64>(), node.value, "the children of {node:?}");
        assert_eq!(children.iter().map(|child| child.cache).sum::<i64>(), node.cache, "the caches of {node:?}");
        let rank = |label: Label| match label {
            Label::Frame(_) => 0,
            Label::BeforeAttach => 1,
            Label::Unattributed => 2,
            Label::UnderThreshold => 3,
            Label::Unknown => 4,
            Label::Root => panic!("a root below the root"),
        };
        assert!(children.is_sorted_by_key(|child| rank(child.label)), "{children:?}");
        let frames: Vec<_> = children.iter().filter(|child| matches!(child.label, Label::Frame(_))).collect();
        assert!(frames.is_sorted_by_key(|child| std::cmp::Reverse(child.value)), "{frames:?}");
        assert!(frames.iter().all(|child| child.value as u64 >= threshold), "{frames:?}");
        for child in children.iter().filter(|child| !matches!(child.label, Label::Frame(_))) {
            assert_ne!(child.value, 0, "an empty pseudo node");
        }
    }
}

proptest! {
    #[test]
    fn a_tree_equals_the_naive_one(
        lives in proptest::collection::vec(held(), 1..4),
        before in [0u64..500, 0u64..300, 0u64..100],
        unattributed in [-50i64..50, -50i64..50, -50i64..50],
        kinds in kinds(),
        threshold in threshold(),
        reverse: bool,
    ) {
        let states: Vec<_> = lives.iter().map(|held| data(recorder(held, before, unattributed).keyframe())).collect();
        let stacks = Stacks::now(&states);
        let options = TreeOptions { reverse, threshold, kinds, measure: Measure::Now };
        let tree = Tree::new(&stacks, &options, &|| false).unwrap();
        check(&tree, threshold);

        let count = lives.len() as u64;
        let positive = unattributed.map(|pages| count * u64::try_from(pages).unwrap_or(0));
        let extra = [
            ("[resident before attach]", kib(kinds, before.map(|pages| pages * count)), (0, 0)),
            ("[unattributed]", kib(kinds, positive), (0, 0)),
        ];
        let lives: Vec<&PagesByStack> = lives.iter().collect();
        prop_assert_eq!(nested(&tree, tree.root()), naive(&weighted(&lives, &[], kinds, reverse), &options, &extra));
    }

    #[test]
    fn growth_is_the_difference_of_each_stack(
        now in proptest::collection::vec(held(), 0..3),
        then in proptest::collection::vec(held(), 0..3),
        before in [0u64..500, 0u64..300, 0u64..100],
        kinds in kinds(),
        threshold in threshold(),
        reverse: bool,
        both: bool,
    ) {
        let states = |lives: &[PagesByStack], before| -> Vec<_> {
            lives.iter().map(|held| data(recorder(held, before, [0; 3]).keyframe())).collect()
        };
        let stacks = Stacks::compared(&states(&now, [0; 3]), &states(&then, before));
        let measure = if both { Measure::Both } else { Measure::Growth };
        let options = TreeOptions { reverse, threshold, kinds, measure };
        let tree = Tree::new(&stacks, &options, &|| false).unwrap();
        let before = before.map(|pages| pages * then.len() as u64);
        let extra = [("[resident before attach]", (0, 0), kib(kinds, before))];
        let (now, then): (Vec<&PagesByStack>, Vec<&PagesByStack>) = (now.iter().collect(), then.iter().collect());
        prop_assert_eq!(nested(&tree, tree.root()), naive(&weighted(&now, &then, kinds, reverse), &options, &extra));
        if !both {
            for number in 0..tree.len() as u32 {
                let sum: i64 = tree.children(number).map(|child| tree.node(child).value).sum();
                prop_assert!(tree.children(number).is_empty() || sum == tree.node(number).value);
            }
        }
    }
}

#[test]
fn a_tree_without_memory_is_an_empty_root() {
    let tree = Tree::new(
        &Stacks::now(&[]),
        &TreeOptions { reverse: false, threshold: 0, kinds: Kinds::ALL, measure: Measure::Now },
        &|| false,
    )
    .unwrap();
    assert!(tree.is_empty());
    assert_eq!((tree.node(0).value, tree.children(0).len()), (0, 0));
}

#[test]
fn the_depth_of_stacks_is_unlimited() {
    let depth = 300_000;
    let mut recorder = Recorder::new("9732", 1, 1);
    let stack: Vec<FrameName> = (0..depth).map(|at| FrameName::own("f", at % 7)).collect();
    recorder.hold(&stack, [1000, 0, 0]);
    let stacks = Stacks::now(&[data(recorder.keyframe())]);
    for reverse in [false, true] {
        let options = TreeOptions { reverse, threshold: 256, kinds: Kinds::RESIDENT, measure: Measure::Now };
        let tree = Tree::new(&stacks, &options, &|| false).unwrap();
        assert_eq!(tree.len(), depth as usize + 1);
        assert!(
            chainscope_profile::flame_graph(
                &tree,
                &chainscope_profile::FlameGraphOptions { title: "deep", is_compared: false }
            )
            .len()
                > depth as usize
        );
    }
    let mut pprof = Vec::new();
    chainscope_profile::pprof(&stacks, Kinds::ALL, 0, &mut pprof).unwrap();
    assert!(pprof.len() > depth as usize);
}

#[test]
fn a_cancelled_tree_is_not_built() {
    let mut recorder = Recorder::new("9732", 1, 1);
    for at in 0..5000 {
        recorder.hold(&[FrameName::own("f", at), FrameName::own("g", at)], [1, 0, 0]);
    }
    let stacks = Stacks::now(&[data(recorder.keyframe())]);
    let options = TreeOptions { reverse: true, threshold: 0, kinds: Kinds::ALL, measure: Measure::Now };
    assert_eq!(Tree::new(&stacks, &options, &|| true).unwrap_err(), TreeError::Cancelled);
}
