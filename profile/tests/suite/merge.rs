//! Merged profiles equal the recorded ones whatever states are lost; inconsistent states are rejected and change
//! nothing.

use std::collections::BTreeMap;

use chainscope_profile::{Kind, Limits, MergeError, MergeOutcome, Profile, ProfileData, Stacks, encode};
use chainscope_proto::v1::{MemoryCounts, MemoryState};
use chainscope_testing::memory::{FrameName, Recorder, in_parts};
use proptest::prelude::*;
use prost::Message as _;

use crate::common::{PagesByStack, data, merge, stack};

/// Samples of a merged profile, by its pprof export.
fn holds(data: &ProfileData) -> Vec<(Vec<String>, Vec<i64>)> {
    let mut pprof = Vec::new();
    let stacks = Stacks::now(&[data.clone().into()]);
    chainscope_profile::pprof(&stacks, chainscope_profile::Kinds::ALL, 0, &mut pprof).unwrap();
    samples(&pprof)
}

/// Samples of a pprof file, decoded by field numbers: names of the functions, outermost first, and values.
fn samples(profile: &[u8]) -> Vec<(Vec<String>, Vec<i64>)> {
    #[derive(Clone, PartialEq, prost::Message)]
    struct File {
        #[prost(message, repeated, tag = "2")]
        sample: Vec<Sample>,
        #[prost(message, repeated, tag = "4")]
        location: Vec<Location>,
        #[prost(message, repeated, tag = "5")]
        function: Vec<Function>,
        #[prost(string, repeated, tag = "6")]
        string_table: Vec<String>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    struct Sample {
        #[prost(uint64, repeated, tag = "1")]
        location_id: Vec<u64>,
        #[prost(int64, repeated, tag = "2")]
        value: Vec<i64>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    struct Location {
        #[prost(uint64, tag = "3")]
        address: u64,
        #[prost(message, repeated, tag = "4")]
        line: Vec<Line>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    struct Line {
        #[prost(uint64, tag = "1")]
        function_id: u64,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    struct Function {
        #[prost(int64, tag = "2")]
        name: i64,
        #[prost(int64, tag = "4")]
        filename: i64,
    }
    let file = File::decode(profile).unwrap();
    let text = |id: i64| file.string_table[id as usize].clone();
    let mut samples: BTreeMap<Vec<String>, Vec<i64>> = BTreeMap::new();
    for sample in &file.sample {
        let mut names: Vec<String> = Vec::new();
        for location in sample.location_id.iter().map(|id| &file.location[*id as usize - 1]) {
            for line in &location.line {
                let function = &file.function[line.function_id as usize - 1];
                names.push(format!("{} {} {:x}", text(function.name), text(function.filename), location.address));
            }
        }
        names.reverse();
        let values = samples.entry(names).or_insert_with(|| vec![0; 4]);
        for (sum, value) in values.iter_mut().zip(&sample.value) {
            *sum += value;
        }
    }
    samples.into_iter().collect()
}

fn expected(held: &PagesByStack) -> Vec<(Vec<String>, Vec<i64>)> {
    let mut samples: BTreeMap<Vec<String>, Vec<i64>> = BTreeMap::new();
    for (stack, pages) in held.iter().filter(|(_, pages)| **pages != [0; 3]) {
        let names = stack.iter().map(|frame| {
            let name = match &frame.function {
                Some(name) => name.clone(),
                None if frame.executable.is_empty() => "[unknown]".to_owned(),
                None => format!("{}@{:08x}", frame.executable, frame.offset),
            };
            format!("{name} {} {:x}", frame.executable, frame.offset)
        });
        let bytes = pages.map(|pages| pages as i64 * 4096);
        let values = samples.entry(names.collect()).or_insert_with(|| vec![0; 4]);
        for (sum, value) in values.iter_mut().zip([bytes.iter().sum(), bytes[0], bytes[1], bytes[2]]) {
            *sum += value;
        }
    }
    samples.into_iter().collect()
}

/// Changes of stacks, then a state that is sent or lost.
#[derive(Debug, Clone)]
struct Step {
    changes: Vec<(Vec<FrameName>, [u64; 3])>,
    keyframe: bool,
    /// Whether the delta is based on an older acknowledged state than the last one.
    old_base: bool,
    arrives: bool,
    twice: bool,
    parts: Option<usize>,
}

fn step() -> impl Strategy<Value = Step> {
    let pages = [0u64..3, 0u64..3, 0u64..3];
    let changes = proptest::collection::vec((stack(), pages), 0..6);
    let flags = (proptest::bool::weighted(0.2), any::<bool>(), proptest::bool::weighted(0.7), any::<bool>());
    (changes, flags, proptest::option::of(1usize..4)).prop_map(
        |(changes, (keyframe, old_base, arrives, twice), parts)| Step {
            changes,
            keyframe,
            old_base,
            arrives,
            twice,
            parts,
        },
    )
}

proptest! {
    #[test]
    fn a_merged_profile_equals_the_recorded_one(steps in proptest::collection::vec(step(), 1..12)) {
        let mut recorder = Recorder::new("9732", 4711, 1_000);
        let mut profile = Profile::default();
        let mut held = PagesByStack::new();
        let mut acknowledged: Vec<u64> = Vec::new();
        for step in steps {
            for (stack, pages) in step.changes {
                recorder.hold(&stack, pages);
                held.insert(stack, pages);
            }
            let base = match (acknowledged.as_slice(), step.old_base) {
                ([.., older, _], true) => Some(*older),
                (all, _) => all.last().copied(),
            };
            let state = match base {
                Some(base) if !step.keyframe => recorder.delta(base),
                _ => recorder.keyframe(),
            };
            if !step.arrives {
                continue;
            }
            let parts = match step.parts {
                Some(entries) => in_parts(&state, entries),
                None => vec![state.clone()],
            };
            for _ in 0..=usize::from(step.twice) {
                for part in &parts {
                    let taken = merge(&mut profile, part.clone());
                    prop_assert!(matches!((part.more, &taken), (true, MergeOutcome::Incomplete | MergeOutcome::Merged(_)) | (false, MergeOutcome::Merged(_))), "{taken:?}");
                }
                prop_assert_eq!(profile.sequence(), state.sequence);
            }
            acknowledged.push(state.sequence);
            let data = profile.data().unwrap();
            prop_assert_eq!(holds(data), expected(&held));

            // A snapshot restores the same profile.
            let mut again = Profile::default();
            for part in encode(data, "9732", 1) {
                merge(&mut again, part);
            }
            let again = again.data().unwrap();
            prop_assert_eq!(holds(again), expected(&held));
            prop_assert_eq!((&again.target, again.time_ns, &again.totals), (&data.target, data.time_ns, &data.totals));
            prop_assert!(again.nodes() <= data.nodes());
        }
    }

    /// Arbitrary states: no panic, and a rejected state changes nothing.
    #[test]
    fn an_inconsistent_state_is_rejected_and_changes_nothing(
        bytes in proptest::collection::vec(any::<(u8, u32, u32)>(), 1..12),
        parents in proptest::collection::vec(0u32..6, 0..6),
    ) {
        let mut recorder = Recorder::new("9732", 1, 1);
        recorder.hold(&[FrameName::own("main", 1), FrameName::own("alloc", 2)], [5, 6, 7]);
        let mut profile = Profile::default();
        merge(&mut profile, recorder.keyframe());
        let mut state = recorder.delta(1);
        state.first_node = 3;
        state.node_frames = parents.iter().map(|parent| parent % 4).collect();
        state.node_parents = parents;
        for (what, a, b) in bytes {
            match what % 8 {
                0 => state.first_node = a % 5,
                1 => state.first_frame = a % 5,
                2 => state.first_string = a % 5,
                3 => state.counts.push(MemoryCounts { kind: (a % 5) as i32, nodes: vec![b], pages: vec![u64::MAX] }),
                4 => state.counts.push(MemoryCounts { kind: 1, nodes: vec![a % 3, 0], pages: vec![u64::from(b)] }),
                5 => state.node_frames.push(a % 4),
                6 => state.base = u64::from(a % 4),
                _ => state.page_bytes = b,
            }
        }
        let before = holds(profile.data().unwrap());
        match merge(&mut profile, state) {
            MergeOutcome::KeyframeRequired(_) => {
                prop_assert_eq!(holds(profile.data().unwrap()), before);
                prop_assert_eq!(profile.sequence(), 1);
            }
            // The state happens to be consistent: then it can be exported.
            _ => { holds(profile.data().unwrap()); }
        }
    }
}

fn merge_error(profile: &mut Profile, state: MemoryState) -> MergeError {
    match merge(profile, state) {
        MergeOutcome::KeyframeRequired(error) => error,
        other => panic!("not rejected: {other:?}"),
    }
}

#[test]
fn gaps_and_missing_parts_are_reported() {
    let mut recorder = Recorder::new("9732", 1, 1);
    recorder.hold(&[FrameName::own("main", 1)], [5, 0, 0]);
    let first = recorder.keyframe();
    recorder.hold(&[FrameName::own("main", 1)], [6, 0, 0]);
    let second = recorder.delta(1);
    recorder.hold(&[FrameName::own("main", 1)], [7, 0, 0]);
    let third = recorder.delta(2);

    let mut profile = Profile::default();
    assert_eq!(merge_error(&mut profile, second.clone()), MergeError::Gap { base: 1, merged: 0 });
    merge(&mut profile, first);
    assert_eq!(merge_error(&mut profile, third), MergeError::Gap { base: 2, merged: 1 });
    let mut parts = in_parts(&second, 1);
    parts.remove(1);
    assert_eq!(merge(&mut profile, parts.remove(0)), MergeOutcome::Incomplete);
    assert!(matches!(
        merge_error(&mut profile, parts.remove(0)),
        MergeError::PartMissing { sequence: 2, expected: 1, found: 2 }
    ));
    assert_eq!(merge_error(&mut profile, MemoryState::default()), MergeError::NoSequence);
    assert_eq!(
        merge_error(&mut profile, MemoryState { sequence: 3, base: 3, ..second.clone() }),
        MergeError::BaseAhead { sequence: 3, base: 3 }
    );
    assert_eq!(profile.sequence(), 1, "the merged state stays until the keyframe");

    // Parts of an incomplete state are replaced by the next state.
    let parts = in_parts(&second, 1);
    assert_eq!(merge(&mut profile, parts[0].clone()), MergeOutcome::Incomplete);
    assert_eq!(merge(&mut profile, recorder.keyframe()), MergeOutcome::Merged(4));
    assert_eq!(profile.data().unwrap().attributed(), [28, 0, 0]);
    // An older state is answered with the last merged one.
    assert_eq!(merge(&mut profile, second), MergeOutcome::Merged(4));
    assert_eq!(profile.data().unwrap().attributed(), [28, 0, 0]);
}

#[test]
fn a_state_beyond_a_limit_is_rejected() {
    let mut recorder = Recorder::new("9732", 1, 1);
    for at in 0..20 {
        recorder.hold(&[FrameName::own(&format!("f{at}"), at)], [5, 0, 0]);
    }
    let state = recorder.keyframe();
    let limits = Limits::default();
    for (limits, what) in [
        (Limits { nodes: 10, ..limits.clone() }, "nodes"),
        (Limits { frames: 15, ..limits.clone() }, "frames"),
        (Limits { string_bytes: 10, ..limits.clone() }, "bytes of strings"),
        (Limits { state_bytes: 100, ..limits }, "bytes of a state"),
    ] {
        match Profile::default().merge(state.clone(), &limits) {
            MergeOutcome::KeyframeRequired(MergeError::LimitExceeded { what: found, .. }) => assert_eq!(found, what),
            other => panic!("{what}: {other:?}"),
        }
    }
}

#[test]
fn a_frame_that_is_named_later_is_replaced() {
    let mut recorder = Recorder::new("9732", 1, 1);
    recorder.hold(&[FrameName::library("libx.so", None, 9)], [5, 0, 0]);
    let first = recorder.keyframe();
    let mut profile = Profile::default();
    merge(&mut profile, first.clone());
    let mut frames = first.frames;
    frames[0].function = 2;
    let named = MemoryState {
        sequence: 2,
        base: 1,
        first_string: 2,
        strings: vec!["late".into()],
        first_frame: 1,
        frames,
        ..MemoryState::default()
    };
    assert_eq!(merge(&mut profile, named), MergeOutcome::Merged(2));
    assert_eq!(holds(profile.data().unwrap())[0].0, ["late libx.so 9"]);
}

#[test]
fn a_clone_is_unchanged_while_the_next_state_is_merged() {
    let mut recorder = Recorder::new("9732", 1, 1);
    recorder.hold(&[FrameName::own("main", 1)], [5, 0, 0]);
    let mut profile = Profile::default();
    merge(&mut profile, recorder.keyframe());
    let seen = profile.data().unwrap().clone();
    recorder.hold(&[FrameName::own("main", 1)], [9, 0, 0]);
    merge(&mut profile, recorder.delta(1));
    assert_eq!((seen.attributed()[0], profile.data().unwrap().attributed()[0]), (20, 36));
}

#[test]
fn a_large_profile_is_encoded_in_parts_of_bounded_size() {
    let mut recorder = Recorder::new("9732", 1, 1);
    for at in 0..60_000 {
        recorder.hold(&[FrameName::own("main", 1), FrameName::own(&format!("function number {at}"), at)], [1, 1, 0]);
    }
    let data = data(recorder.keyframe());
    let parts = encode(&data, "9732", 1);
    assert!(parts.len() > 2);
    assert!(parts.iter().all(|part| part.encoded_len() <= 1 << 20));
    let mut again = Profile::default();
    let last = parts.into_iter().map(|part| merge(&mut again, part)).last();
    assert_eq!(last, Some(MergeOutcome::Merged(1)));
    assert_eq!(again.data().unwrap().attributed(), data.attributed());
    assert_eq!(Kind::of_wire(99), None);
    assert!(Limits::default().nodes > 0);
}
