//! Shared support of the latency probe's tests: programs whose functions record their own times, and a probe on them.
//!
//! The tests need root. Without it they fail with the probe's error.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test binary uses a part of it")]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use chainscope_ebpf::latency::{Exit, LatencyOptions, LatencyProbe, Pairing, Scope, Span, SpanCounts, SpanId};
use chainscope_functions::Functions;

/// Compiles a program of `testing/programs`.
pub fn compile(compiler: &str, source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testing/programs").join(source);
    chainscope_testing::program::compile(compiler, &source, Path::new(env!("CARGO_TARGET_TMPDIR")), name, flags)
}

/// The program in C++.
pub fn workload(name: &str) -> PathBuf {
    compile("g++", "latency_workload.cc", name, &["-std=c++20", "-O2", "-g", "-pthread"])
}

/// The program in C.
pub fn plain(name: &str) -> PathBuf {
    compile("gcc", "latency_plain.c", name, &["-O2", "-pthread"])
}

/// The program in C whose functions are left in other ways than by returning.
pub fn stacks(name: &str) -> PathBuf {
    compile("gcc", "latency_stacks.c", name, &["-O2", "-pthread"])
}

/// A process that runs one of them.
pub struct Target {
    child: Child,
    commands: ChildStdin,
    replies: BufReader<ChildStdout>,
}

/// Durations that a function recorded of itself, in nanoseconds.
#[derive(Debug)]
pub struct Exact {
    pub count: u64,
    pub sum: u64,
    /// At 0, 50, 90, 99 and 100 %.
    pub ranks: Vec<u64>,
}

impl Target {
    pub fn start(program: &Path) -> Self {
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let commands = child.stdin.take().expect("piped");
        let replies = BufReader::new(child.stdout.take().expect("piped"));
        let mut target = Self { child, commands, replies };
        target.call("none", 0, 0);
        target
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets the program call a function, and returns the number that it answers.
    pub fn call(&mut self, name: &str, count: u64, argument: i64) -> u64 {
        self.answer(&format!("{name} {count} {argument}")).expect("the program has not ended")[0]
    }

    pub fn exact(&mut self, name: &str) -> Exact {
        let numbers = self.answer(&format!("exact {name}")).expect("the program has not ended");
        Exact { count: numbers[0], sum: numbers[1], ranks: numbers[2..].to_vec() }
    }

    /// The answer to a command; `None` if the program ended.
    pub fn answer(&mut self, command: &str) -> Option<Vec<u64>> {
        self.send(command);
        self.reply()
    }

    pub fn send(&mut self, command: &str) {
        writeln!(self.commands, "{command}").expect("the program runs");
    }

    pub fn reply(&mut self) -> Option<Vec<u64>> {
        let mut line = String::new();
        self.replies.read_line(&mut line).expect("readable");
        let numbers = line.split_whitespace().map(|number| number.parse().expect("a number"));
        (!line.is_empty()).then(|| numbers.collect())
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("a child")
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How exits are probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exits {
    Returns,
    Instructions,
}

/// The span of the functions that match a pattern.
pub fn span(program: &Path, pattern: &str, exits: Exits) -> Span {
    between(program, pattern, pattern, exits, Scope::Call)
}

/// From the entry of one function to the exit of another.
pub fn between(program: &Path, entry: &str, exit: &str, exits: Exits, scope: Scope) -> Span {
    let data = std::fs::read(program).expect("compiled");
    let functions = Functions::read(data.as_slice(), None).expect("an ELF file");
    let probes = |pattern: &str| {
        let pattern = pattern.parse().expect("a pattern");
        let found = functions.find(&pattern, 1000, None::<&[u8]>).unwrap_or_else(|error| panic!("{error}"));
        let parts = found.iter().flat_map(|function| function.parts.iter().map(move |part| (function, *part)));
        let probes =
            parts.map(|(function, part)| functions.probes(data.as_slice(), function, part).expect("probeable"));
        probes.collect::<Vec<_>>()
    };
    let ends = probes(exit).into_iter().flat_map(|probes| match exits {
        Exits::Returns => vec![Exit::Return(probes.entry)],
        Exits::Instructions => {
            let returns = probes.returns.into_iter().map(Exit::Instruction);
            returns.chain(probes.tail_calls.into_iter().map(Exit::TailCall)).collect()
        }
    });
    let exits = ends.collect();
    Span { entries: probes(entry).iter().map(|probes| probes.entry).collect(), exits, scope, counts_returns: true }
}

/// A probe that is attached to spans of a file.
pub struct Watcher {
    pub probe: LatencyProbe,
    pub spans: Vec<SpanId>,
}

impl Watcher {
    pub fn attach(program: &Path, pid: Option<u32>, pairing: Option<Pairing>, spans: &[Span]) -> Self {
        let options = LatencyOptions { pairing, max_spans: u32::try_from(spans.len()).expect("few") };
        let mut probe = LatencyProbe::load(&options).expect("root");
        let file = File::open(program).expect("compiled");
        let (_, spans) = probe.attach(&file, pid, spans).expect("attachable");
        Self { probe, spans }
    }

    pub fn counts(&self, index: usize) -> SpanCounts {
        self.probe.counts(self.spans[index])
    }

    /// How often each code was returned, of one span.
    pub fn returns(&self, index: usize) -> Vec<(i32, u64)> {
        let all = self.probe.returns().expect("readable");
        all.into_iter().filter(|((span, _), _)| *span == self.spans[index]).map(|((_, code), n)| (code, n)).collect()
    }
}

/// Greatest error of a percentile.
const ERROR: f64 = 0.031;

/// What a program may take between the end of a span, which may be the exit of another function, and its own clock, in
/// nanoseconds.
const RECORDING: u64 = 100_000;

/// Calls that may be preempted, for any time, between the clock of the probe and that of the function.
const PREEMPTED: u64 = 2;

/// The middle of the bucket that has the value of a rank, from 1, computed on its own.
fn value_at(counts: &SpanCounts, rank: u64) -> f64 {
    let mut seen = 0;
    let found = counts.buckets.iter().find(|(_, count)| {
        seen += count;
        seen >= rank
    });
    middle(found.expect("a value").0)
}

fn middle(bucket: u16) -> f64 {
    let index = f64::from(bucket);
    let (octave, within) = ((index / 32.0).floor(), index % 32.0);
    if octave == 0.0 { within } else { (32.5 + within) * 2_f64.powf(octave - 1.0) }
}

/// Compares a histogram with the durations that the function recorded itself. The function takes its own times a few
/// instructions, and a probe, after its entry and before its exit.
pub fn assert_agrees(counts: &SpanCounts, exact: &Exact) {
    assert_eq!(counts.ended, exact.count, "{counts:?}");
    assert_eq!(counts.buckets.iter().map(|(_, count)| count).sum::<u64>(), exact.count);
    // Of some dozens of calls the upper percentiles are single calls. Each one that was preempted moves the others by one rank.
    for (percent, index) in [(50, 1), (90, 2), (99, 3)] {
        let rank = (counts.ended * percent).div_ceil(100).max(1);
        let (least, greatest) = (value_at(counts, rank.saturating_sub(PREEMPTED).max(1)), value_at(counts, rank));
        let exact = exact.ranks[index] as f64;
        let agrees = greatest >= exact * (1.0 - ERROR) && least <= exact * (1.0 + ERROR);
        assert!(agrees, "{percent} %: {least} to {greatest}, exactly {exact}: {counts:?}");
    }
    let (sum, exact_sum) = (counts.sum_ns as f64, exact.sum as f64);
    let preempted = (PREEMPTED * counts.max_ns.saturating_sub(exact.ranks[0])) as f64;
    let is_sum = sum >= exact_sum * (1.0 - ERROR) && sum <= exact_sum * (1.0 + ERROR) + preempted;
    assert!(is_sum, "sum {sum}, exactly {exact_sum}: {counts:?}");
    let of_buckets: f64 = counts.buckets.iter().map(|(bucket, count)| middle(*bucket) * *count as f64).sum();
    assert!((sum / of_buckets - 1.0).abs() <= ERROR, "sum {sum}, {of_buckets} by the buckets: {counts:?}");
    let is_least = counts.min_ns + RECORDING >= exact.ranks[0] && counts.max_ns + RECORDING >= exact.ranks[4];
    assert!(is_least, "{counts:?} {exact:?}");
    let last = counts.buckets.last().map_or(0.0, |(bucket, _)| middle(*bucket));
    assert!((counts.max_ns as f64 / last - 1.0).abs() <= ERROR, "{counts:?}");
    assert!(counts.min_ns as f64 <= exact.ranks[1] as f64 * (1.0 + ERROR));
}
