//! Measures merging and all exports of a profile with many distinct stacks.
//!
//! `profile_bench [stacks]`, by default 100,000. Times are the best and the median of eleven rounds. `profile_bench ratios` prints
//! samples for the regression gate: the time to make a tree to that of one pass over the nodes. `profile_bench growth` prints points
//! for `growth_plot`, of 1,000 to 1,000,000 stacks.

#![expect(clippy::print_stdout, reason = "a benchmark that prints its results")]

use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use chainscope_profile::{
    FlameGraphOptions, Kinds, Limits, Measure, MergeOutcome, Profile, Stacks, Tree, TreeOptions, encode, flame_graph,
    pprof,
};
use chainscope_proto::v1::MemoryState;
use chainscope_testing::memory::{FrameName, Recorder};
use prost::Message as _;
use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};
use rustix::time::{ClockId, clock_gettime};

const ROUNDS: usize = 11;
/// More than the product accepts of one process: a million stacks.
const LIMITS: Limits = Limits { nodes: 64 << 20, frames: 4 << 20, string_bytes: 1 << 30, state_bytes: 8 << 30 };

fn main() {
    let argument = std::env::args().nth(1);
    if argument.as_deref() == Some("growth") {
        return [1_000, 10_000, 100_000, 1_000_000].into_iter().for_each(print_growth);
    }
    let is_quick = argument.as_deref() == Some("ratios");
    let stacks = argument.filter(|_| !is_quick).map_or(100_000, |text| text.parse().expect("a number of stacks"));
    let mut recorder = Recorder::new("9732", 4711, 1);
    let mut random = SmallRng::seed_from_u64(7);
    fill(&mut recorder, &mut random, stacks);
    let keyframe = recorder.keyframe();
    if is_quick {
        return print_ratios(&keyframe);
    }
    let mut profile = Profile::default();
    println!("{:<46}{:>10}{:>12}", "", "best, ms", "median, ms");
    show("merge a keyframe", || merge(&mut Profile::default(), keyframe.clone()));
    merge(&mut profile, keyframe.clone());
    let data = Arc::new(profile.data().expect("merged").clone());
    println!("  {} stacks, {} nodes, keyframe {} KiB", data.stacks(), data.nodes(), keyframe.encoded_len() >> 10);

    let mut deltas = deltas(&mut recorder, &mut random);
    let bytes = deltas.iter().map(|delta| delta.encoded_len()).max().unwrap_or(0);
    show("merge a delta of 1,000 changes, being read", || {
        let held = profile.data().cloned();
        merge(&mut profile, deltas.pop().expect("one per round"));
        drop(held);
    });
    println!("  delta {} KiB", bytes >> 10);

    let now = [Arc::clone(&data)];
    show("call tree in kibibytes", || drop(black_box(Stacks::now(&now))));
    show("compared with an earlier one", || drop(black_box(Stacks::compared(&now, &now))));
    let one = Stacks::now(&now);
    for (name, reverse, threshold) in [
        ("tree, threshold 256", false, 256),
        ("tree, threshold 256, reversed", true, 256),
        ("tree, threshold 0", false, 0),
        ("tree, threshold 0, reversed", true, 0),
    ] {
        let options = TreeOptions { reverse, threshold, kinds: Kinds::RESIDENT, measure: Measure::Now };
        show(name, || drop(black_box(tree(&one, &options))));
        println!("  {} nodes", tree(&one, &options).len());
    }
    let options = TreeOptions { reverse: true, threshold: 256, kinds: Kinds::RESIDENT, measure: Measure::Now };
    let flame = FlameGraphOptions { title: "bench", is_compared: false };
    show("flame graph, threshold 256", || drop(black_box(flame_graph(&tree(&one, &options), &flame))));
    show("pprof, everything", || {
        pprof(&one, Kinds::RESIDENT, 0, &mut black_box(Vec::new())).expect("written to memory")
    });
    show("snapshot", || drop(black_box(encode(&data, "9732", 1))));
    let kept: usize = encode(&data, "9732", 1).iter().map(MemoryState::encoded_len).sum();
    println!("  {} KiB before compression", kept >> 10);
}

/// Prints a line for each ratio: its name and its samples.
fn print_ratios(keyframe: &MemoryState) {
    let mut profile = Profile::default();
    merge(&mut profile, keyframe.clone());
    let one = Stacks::now(&[Arc::new(profile.data().expect("merged").clone())]);
    let mut pages = vec![0_u64; keyframe.node_parents.len() + 1];
    for counts in keyframe.counts.iter().take(2) {
        for (node, count) in counts.nodes.iter().zip(&counts.pages) {
            pages[*node as usize] += count;
        }
    }
    // Of the processor: other load affects it least.
    let time = |act: &mut dyn FnMut()| {
        let before = clock_gettime(ClockId::ThreadCPUTime);
        act();
        let time = clock_gettime(ClockId::ThreadCPUTime) - before;
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    for (name, reverse) in [("innermost", false), ("outermost", true)] {
        let options = TreeOptions { reverse, threshold: 256, kinds: Kinds::RESIDENT, measure: Measure::Now };
        let samples = (0..2 * ROUNDS).map(|_| {
            let pass = time(&mut || drop(black_box(sums(&keyframe.node_parents, pages.clone()))));
            let made = time(&mut || drop(black_box(tree(&one, &options))));
            format!("{:.4}", made / pass)
        });
        println!("tree/{name} {}", samples.collect::<Vec<_>>().join(" "));
    }
}

/// Prints the times of a profile with `stacks` stacks, as points.
fn print_growth(stacks: usize) {
    let mut recorder = Recorder::new("9732", 4711, 1);
    fill(&mut recorder, &mut SmallRng::seed_from_u64(7), stacks);
    let keyframe = recorder.keyframe();
    let mut profile = Profile::default();
    let point = |series: &str, times: &[Duration]| {
        println!("growth\tstacks\t{series}\t{stacks}\t{}", times[times.len() / 2].as_secs_f64() * 1e3);
    };
    point("merge a keyframe, ms", &times(|| merge(&mut Profile::default(), keyframe.clone())));
    merge(&mut profile, keyframe);
    let one = Stacks::now(&[Arc::new(profile.data().expect("merged").clone())]);
    for (series, reverse) in [("tree, ms", false), ("tree from the entry points, ms", true)] {
        let options = TreeOptions { reverse, threshold: 256, kinds: Kinds::RESIDENT, measure: Measure::Now };
        point(series, &times(|| drop(black_box(tree(&one, &options)))));
    }
}

/// Adds each node to its parent, which has a smaller number: the least that a tree of sums can cost.
fn sums(parents: &[u32], mut pages: Vec<u64>) -> Vec<u64> {
    for (at, parent) in parents.iter().enumerate().rev() {
        pages[*parent as usize] += pages[at + 1];
    }
    pages
}

fn tree(stacks: &Stacks, options: &TreeOptions) -> Tree {
    Tree::new(stacks, options, &|| false).expect("within the limit")
}

fn merge(profile: &mut Profile, state: MemoryState) {
    let sequence = state.sequence;
    assert_eq!(profile.merge(state, &LIMITS), MergeOutcome::Merged(sequence));
}

/// Adds distinct stacks of 12 to 28 frames that branch like those of a program: few outer functions, many inner ones.
fn fill(recorder: &mut Recorder, random: &mut SmallRng, stacks: usize) {
    for at in 0..stacks {
        let stack = stack(random, at);
        recorder.hold(&stack, [random.random_range(1..64), random.random_range(0..4), 0]);
    }
}

fn stack(random: &mut SmallRng, at: usize) -> Vec<FrameName> {
    let depth = random.random_range(12..=28);
    let mut stack = Vec::with_capacity(depth + 1);
    for level in 0..depth {
        let choices = match level {
            0..4 => 2,
            4..10 => 6,
            _ => 400,
        };
        let number: u64 = random.random_range(0..choices);
        let offset = (level as u64) << 20 | number << 4;
        stack.push(FrameName::own(&format!("chain::module_{level}::function_{number}::h0123456789abcdef"), offset));
    }
    stack.push(FrameName::library("libc.so.6", Some("malloc"), 0x9_7f00 + (at as u64 % 64)));
    stack
}

fn deltas(recorder: &mut Recorder, random: &mut SmallRng) -> Vec<MemoryState> {
    let mut deltas: Vec<MemoryState> = (0..ROUNDS)
        .map(|_| {
            fill(recorder, random, 1000);
            let base = recorder.sequence;
            recorder.delta(base)
        })
        .collect();
    deltas.reverse();
    deltas
}

/// Times of all rounds, sorted.
fn times(mut act: impl FnMut()) -> Vec<Duration> {
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let began = Instant::now();
            act();
            began.elapsed()
        })
        .collect();
    times.sort();
    times
}

fn show(name: &str, act: impl FnMut()) {
    let times = times(act);
    let ms = |time: Option<&Duration>| time.map_or(0.0, Duration::as_secs_f64) * 1000.0;
    println!("{name:<46}{:>10.2}{:>12.2}", ms(times.first()), ms(times.get(ROUNDS / 2)));
}
