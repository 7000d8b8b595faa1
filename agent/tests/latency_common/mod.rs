//! Programs whose functions are recorded, and plans for them.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test binary uses a part of it")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use chainscope_agent::latency::{Plan, Program, RecordError, RecordOptions, SpanRequest};
use chainscope_latency::{Block, Histogram};
use chainscope_testing::program::compile;

pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testing/programs").join(name)
}

pub fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

pub fn workload(name: &str) -> PathBuf {
    compile("g++", &source("latency_workload.cc"), folder(), name, &["-std=c++20", "-O2", "-g", "-pthread"])
}

pub fn plain(name: &str) -> PathBuf {
    compile("gcc", &source("latency_plain.c"), folder(), name, &["-O2", "-pthread"])
}

/// A process of one of them.
pub struct Target {
    pub child: Child,
    commands: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Target {
    pub fn start(program: &Path) -> Self {
        Self::spawn(&mut Command::new(program))
    }

    /// Starts it by another command.
    pub fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let commands = child.stdin.take().unwrap();
        let replies = BufReader::new(child.stdout.take().unwrap());
        let mut target = Self { child, commands, replies };
        target.answer("none 0 0");
        target
    }

    pub fn answer(&mut self, command: &str) -> Vec<u64> {
        writeln!(self.commands, "{command}").unwrap();
        let mut line = String::new();
        self.replies.read_line(&mut line).unwrap();
        line.split_whitespace().map(|number| number.parse().unwrap()).collect()
    }

    pub fn end(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn request(entry: &str, exit: Option<&str>) -> SpanRequest {
    let exit = exit.map(|exit| exit.parse().unwrap());
    SpanRequest { name: None, entry: entry.parse().unwrap(), exit, counts_returns: true, is_optional: false }
}

pub fn plan(pid: Option<u32>, path: Option<&Path>, requests: &[SpanRequest]) -> Result<Plan, RecordError> {
    Plan::new(Program::open(pid, path)?, requests, &RecordOptions::default())
}

pub fn merged(blocks: &[Block], function: usize) -> Histogram {
    let mut whole = Histogram::default();
    blocks.iter().filter(|block| block.function == function).for_each(|block| whole.merge(&block.histogram));
    whole
}

/// Greatest error of a percentile.
const ERROR: f64 = 0.031;

/// Calls that may be preempted, for any time, between the clock of the probe and that of the function.
const PREEMPTED: u64 = 2;

/// `exact`: what the program answers to `exact NAME`. The function reads its clock after its entry and before its exit.
pub fn assert_agrees(histogram: &Histogram, exact: &[u64]) {
    let count = histogram.count();
    assert_eq!(count, exact[0]);
    let value = |rank: u64| histogram.quantile((rank as f64 - 0.5) / count as f64).unwrap() as f64;
    // Of some dozens of calls the upper percentiles are single calls. Each one that was preempted moves the others by one rank.
    for (percent, exact) in [(50, exact[3]), (90, exact[4]), (99, exact[5])] {
        let rank = (count * percent).div_ceil(100);
        let (least, greatest, exact) = (value(rank.saturating_sub(PREEMPTED).max(1)), value(rank), exact as f64);
        let agrees = greatest >= exact * (1.0 - ERROR) && least <= exact * (1.0 + ERROR);
        assert!(agrees, "{percent} %: {least} to {greatest}, exactly {exact}");
    }
}
