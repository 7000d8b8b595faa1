//! Random profiles, and a naive tree made from lists of stacks.

use std::{collections::BTreeMap, sync::Arc};

use chainscope_profile::{
    Category, Kinds, Label, Limits, Measure, MergeOutcome, Profile, ProfileData, Tree, TreeOptions,
};
use chainscope_proto::v1::{FunctionCategory, MemoryState};
use chainscope_testing::memory::FrameName;
use proptest::prelude::*;

/// Pages per kind of each stack (outermost frame first).
pub(crate) type PagesByStack = BTreeMap<Vec<FrameName>, [u64; 3]>;

/// One of nine frames, so that stacks share them; one is unresolved, one has no symbol.
pub(crate) fn frame(number: u8) -> FrameName {
    match number % 9 {
        0 => FrameName::library("", None, 0x7f00_0000_1234),
        1 => FrameName::library("libc.so.6", None, 0x9_1234),
        2 => FrameName::library("libc.so.6", Some("read"), 0x1_0000_0007),
        3 => FrameName { category: FunctionCategory::NodeCpp, ..FrameName::own("main", 7) },
        other => FrameName::own(["alloc", "grow", "run", "start", "poll"][usize::from(other) - 4], u64::from(other)),
    }
}

pub(crate) fn stack() -> impl Strategy<Value = Vec<FrameName>> {
    proptest::collection::vec((0u8..9).prop_map(frame), 0..9)
}

pub(crate) fn held() -> impl Strategy<Value = PagesByStack> {
    let pages = [0u64..200, 0u64..100, 0u64..50];
    proptest::collection::btree_map(stack(), pages, 0..40)
}

/// Merges a part with the default limits.
pub(crate) fn merge(profile: &mut Profile, state: MemoryState) -> MergeOutcome {
    profile.merge(state, &Limits::default())
}

pub(crate) fn data(state: MemoryState) -> Arc<ProfileData> {
    let mut profile = Profile::default();
    let sequence = state.sequence;
    assert_eq!(merge(&mut profile, state), MergeOutcome::Merged(sequence));
    Arc::new(profile.data().expect("a keyframe was merged").clone())
}

/// A tree as nested lists: label, value, cache, children.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Naive {
    pub(crate) label: String,
    pub(crate) value: i64,
    pub(crate) cache: i64,
    pub(crate) children: Vec<Naive>,
}

/// A stack: frames in display order, value and cache now, value and cache at the earlier time.
pub(crate) type Weighted = (Vec<FrameName>, (i64, i64), (i64, i64));

/// A further child of the root: label, value and cache now, value and cache at the earlier time.
pub(crate) type Extra<'a> = (&'a str, (i64, i64), (i64, i64));

pub(crate) fn naive(stacks: &[Weighted], options: &TreeOptions, extra: &[Extra<'_>]) -> Naive {
    let value = |now: (i64, i64), then: (i64, i64)| match options.measure {
        Measure::Now => now,
        Measure::Growth => (now.0 - then.0, now.1 - then.1),
        Measure::Both => (now.0, then.0),
    };
    let keep = |now: (i64, i64), then: (i64, i64)| match options.measure {
        Measure::Now => now.0,
        Measure::Growth => (now.0 - then.0).abs(),
        Measure::Both => now.0.max(then.0),
    };
    let extra: Vec<Naive> = (extra.iter())
        .filter(|(_, now, then)| keep(*now, *then) != 0)
        .map(|(label, now, then)| {
            let (value, cache) = value(*now, *then);
            Naive { label: (*label).to_owned(), value, cache, children: Vec::new() }
        })
        .collect();
    grow("", stacks, options, &value, &keep, extra)
}

fn grow(
    label: &str,
    stacks: &[Weighted],
    options: &TreeOptions,
    value: &dyn Fn((i64, i64), (i64, i64)) -> (i64, i64),
    keep: &dyn Fn((i64, i64), (i64, i64)) -> i64,
    extra: Vec<Naive>,
) -> Naive {
    let add = |(a, b): (i64, i64), (c, d): (i64, i64)| (a + c, b + d);
    let sum = |stacks: &[Weighted]| stacks.iter().map(|(_, now, then)| value(*now, *then)).fold((0, 0), add);
    let total = extra.iter().fold(sum(stacks), |total, each| add(total, (each.value, each.cache)));
    let mut groups: BTreeMap<FrameName, Vec<Weighted>> = BTreeMap::new();
    for (frames, now, then) in stacks {
        if keep(*now, *then) == 0 && value(*now, *then) == (0, 0) {
            continue;
        }
        if let Some((first, rest)) = frames.split_first() {
            groups.entry(first.clone()).or_default().push((rest.to_vec(), *now, *then));
        }
    }
    let mut named: Vec<(FrameName, Vec<Weighted>)> = Vec::new();
    let mut under = (0, 0);
    for (frame, group) in groups.into_iter().filter(|(frame, _)| !frame.executable.is_empty()) {
        let kept: i64 = group.iter().map(|(_, now, then)| keep(*now, *then)).sum();
        if kept >= i64::try_from(options.threshold).unwrap_or(i64::MAX) {
            named.push((frame, group));
        } else {
            under = add(under, sum(&group));
        }
    }
    let mut children = Vec::new();
    if !named.is_empty() || !extra.is_empty() {
        named.sort_by_key(|(frame, group)| {
            let FrameName { offset, executable, function, category, .. } = frame.clone();
            (-sum(group).0, offset as u32, executable, function, category as i32, offset)
        });
        let mut unknown = total;
        for (frame, group) in &named {
            let child = grow(&text(frame), group, options, value, keep, Vec::new());
            unknown = add(unknown, (-child.value, -child.cache));
            children.push(child);
        }
        for each in extra {
            unknown = add(unknown, (-each.value, -each.cache));
            children.push(each);
        }
        unknown = add(unknown, (-under.0, -under.1));
        for (label, (value, cache)) in [("underThreshold", under), ("unknown", unknown)] {
            if (value, cache) != (0, 0) {
                children.push(Naive { label: label.to_owned(), value, cache, children: Vec::new() });
            }
        }
    }
    Naive { label: label.to_owned(), value: total.0, cache: total.1, children }
}

fn text(frame: &FrameName) -> String {
    format!("{:x} {} {:?} {}", frame.offset, frame.executable, frame.function, frame.category as i32)
}

/// A tree as nested lists.
pub(crate) fn nested(tree: &Tree, number: u32) -> Naive {
    let node = tree.node(number);
    let label = match node.label {
        Label::Root => String::new(),
        Label::Frame(frame) => {
            let frame = tree.frame(frame);
            let category = match frame.category {
                Category::NodeRust => FunctionCategory::NodeRust,
                Category::NodeCpp => FunctionCategory::NodeCpp,
                Category::SystemLib => FunctionCategory::SystemLib,
            };
            format!("{:x} {} {:?} {}", frame.offset, frame.executable, frame.function, category as i32)
        }
        other => other.pseudo().expect("a pseudo node").to_owned(),
    };
    let children = tree.children(number).map(|child| nested(tree, child)).collect();
    Naive { label, value: node.value, cache: node.cache, children }
}

/// Pages as kibibytes: value and cache.
pub(crate) fn kib(kinds: Kinds, pages: [u64; 3]) -> (i64, i64) {
    kinds.sum(&pages.map(|pages| i64::try_from(pages * 4).expect("few pages")))
}
