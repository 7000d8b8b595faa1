//! The program whose functions are timed.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use chainscope_ebpf::latency::{Exit, Scope, Span};
use chainscope_functions::Functions;

pub(crate) fn compile() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testing/programs/latency_plain.c");
    let flags = ["-O2", "-pthread"];
    chainscope_testing::program::compile("gcc", &source, &std::env::temp_dir(), "latency_cost_target", &flags)
}

/// How exits are probed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Exits {
    Returns,
    Instructions,
}

/// The spans of the functions that match a pattern, at most 1,000.
pub(crate) fn spans(program: &Path, pattern: &str, exits: Exits) -> Vec<Span> {
    let data = std::fs::read(program).expect("compiled");
    let functions = Functions::read(data.as_slice(), None).expect("an ELF file");
    let found = functions.find(&pattern.parse().expect("a pattern"), 1_000, None::<&[u8]>).expect("functions");
    let spans = found.iter().map(|function| {
        let probes = functions.probes(data.as_slice(), function, function.parts[0]).expect("probeable");
        let exits = match exits {
            Exits::Returns => vec![Exit::Return(probes.entry)],
            Exits::Instructions => probes.returns.into_iter().map(Exit::Instruction).collect(),
        };
        Span { entries: vec![probes.entry], exits, scope: Scope::Call, counts_returns: false }
    });
    spans.collect()
}

/// A process that runs it.
pub(crate) struct Target {
    child: Child,
    commands: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Target {
    pub(crate) fn start(program: &Path) -> Self {
        let started = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.expect("the program starts");
        let commands = child.stdin.take().expect("piped");
        let replies = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, commands, replies }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The numbers that a command is answered with.
    pub(crate) fn answer(&mut self, command: &str) -> Vec<u64> {
        writeln!(self.commands, "{command}").expect("the program runs");
        let mut line = String::new();
        self.replies.read_line(&mut line).expect("the program answers");
        line.split_whitespace().map(|number| number.parse().expect("a number")).collect()
    }

    /// Nanoseconds that the calls of all threads take.
    pub(crate) fn hits(&mut self, calls: u64, threads: u64) -> f64 {
        self.answer(&format!("hits {calls} {threads}"))[0] as f64
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
