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

/// `exact`: what the program answers to `exact NAME`.
pub fn assert_agrees(histogram: &Histogram, exact: &[u64]) {
    assert_eq!(histogram.count(), exact[0]);
    for (q, exact) in [(0.5, exact[3]), (0.9, exact[4]), (0.99, exact[5])] {
        let measured = histogram.quantile(q).unwrap() as f64;
        assert!((measured / exact as f64 - 1.0).abs() <= 0.031, "{q}: {measured}, exactly {exact}");
    }
}
