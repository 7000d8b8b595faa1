//! Measures what timing a function costs each call of it: without a tracer, with the probe (return probes and exit
//! instructions), and with the histograms of bpftrace and bcc. Then the rate at which all processors together end spans.
//!
//! ```text
//! cargo run --release -p chainscope-ebpf --example latency_cost -- [rounds] [calls]
//! ```
//!
//! The tracers alternate, so that other load affects all. The output has the median of the rounds.
#![expect(clippy::print_stdout, reason = "prints its results")]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use chainscope_ebpf::latency::{Exit, LatencyOptions, LatencyProbe, Pairing, Scope, Span};
use chainscope_functions::Functions;

/// A call that is traced takes at least as many times longer.
const TRACED: f64 = 10.0;
/// Calls by which the start of a tracer is recognised.
const TRIAL: u64 = 2000;
/// How long a tracer may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(60);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |at: usize, default: u64| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (rounds, calls) = (number(1, 5), number(2, 300_000));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testing/programs/latency_plain.c");
    let folder = std::env::temp_dir();
    let flags = ["-O2", "-pthread"];
    let program = chainscope_testing::program::compile("gcc", &source, &folder, "latency_cost_target", &flags);
    let path = program.display().to_string();
    let bpftrace = format!(
        "uprobe:{path}:plain_hit {{ @start[tid] = nsecs; }} uretprobe:{path}:plain_hit /@start[tid]/ \
         {{ @ns = hist(nsecs - @start[tid]); delete(@start[tid]); }}"
    );
    let bcc = format!("{path}:plain_hit");
    let mut table: Vec<(&str, Vec<f64>)> =
        ["no tracer", "probe, sessions", "probe, exit instructions", "bpftrace", "bcc funclatency"]
            .map(|name| (name, Vec::new()))
            .into();
    for _ in 0..rounds {
        let alone = Target::start(&program).hits(calls, 1) / calls as f64;
        let costs = [
            Some(alone),
            Some(with_probe(&program, calls, 1, Exits::Returns)),
            Some(with_probe(&program, calls, 1, Exits::Instructions)),
            with_tracer(&program, calls, alone, Command::new("bpftrace").args(["-e", &bpftrace])),
            with_tracer(&program, calls, alone, Command::new("funclatency-bpfcc").arg(&bcc)),
        ];
        table.iter_mut().zip(costs).for_each(|((_, all), cost)| all.extend(cost));
    }
    println!("ns per call, median of {rounds} rounds of {calls} calls; lost by the probe: 0");
    println!("| | ns per call |\n| --- | ---: |");
    for (name, costs) in table {
        let cost = median(costs).map_or_else(|| "not installed".to_owned(), |cost| format!("{cost:.0}"));
        println!("| {name} | {cost} |");
    }
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    println!("\n| {threads} threads | spans/s | lost |\n| --- | ---: | ---: |");
    for (name, exits) in [("sessions", Exits::Returns), ("exit instructions", Exits::Instructions)] {
        let rates = (0..rounds).map(|_| 1e9 / with_probe(&program, calls, threads, exits));
        let rate = median(rates.collect()).unwrap_or_default();
        println!("| {name} | {rate:.0} | 0 |");
    }
}

fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied()
}

#[derive(Clone, Copy, PartialEq)]
enum Exits {
    Returns,
    Instructions,
}

/// Nanoseconds per call of all threads together. Panics if a span is lost.
fn with_probe(program: &Path, calls: u64, threads: u64, exits: Exits) -> f64 {
    let data = std::fs::read(program).expect("compiled");
    let functions = Functions::read(data.as_slice(), None).expect("an ELF file");
    let pattern = "plain_hit".parse().expect("a pattern");
    let found = functions.find(&pattern, 1, None::<&[u8]>).expect("the function");
    let probes = functions.probes(data.as_slice(), &found[0], found[0].parts[0]).expect("probeable");
    let (exits, pairing) = match exits {
        Exits::Returns => (vec![Exit::Return(probes.entry)], Pairing::Session),
        Exits::Instructions => (probes.returns.into_iter().map(Exit::Instruction).collect(), Pairing::StackFrame),
    };
    let span = Span { entries: vec![probes.entry], exits, scope: Scope::Call, counts_returns: false };
    let mut target = Target::start(program);
    let options = LatencyOptions { max_spans: 1, pairing: Some(pairing) };
    let mut probe = LatencyProbe::load(&options).unwrap_or_else(|error| panic!("{error}"));
    let file = File::open(program).expect("compiled");
    let attached = probe.attach(&file, Some(target.pid()), &[span]);
    let (_, spans) = attached.unwrap_or_else(|error| panic!("{error}"));
    let cost = target.hits(calls, threads) / (calls * threads) as f64;
    let counts = probe.counts(spans[0]);
    let counted: u64 = counts.buckets.iter().map(|(_, count)| count).sum();
    assert_eq!((counts.started, counts.ended, counted), (calls * threads, calls * threads, calls * threads));
    cost
}

/// Nanoseconds per call; `None` if the tracer is not installed, or does not trace.
fn with_tracer(program: &Path, calls: u64, alone: f64, tracer: &mut Command) -> Option<f64> {
    let mut target = Target::start(program);
    let mut tracer: Child = tracer.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    let start = Instant::now();
    let is_attached = loop {
        if target.hits(TRIAL, 1) / TRIAL as f64 > alone * TRACED {
            break true;
        }
        if start.elapsed() > START_TIMEOUT || tracer.try_wait().is_ok_and(|ended| ended.is_some()) {
            break false;
        }
        std::thread::park_timeout(Duration::from_millis(50));
    };
    let cost = is_attached.then(|| target.hits(calls, 1) / calls as f64);
    let _ = tracer.kill();
    let _ = tracer.wait();
    cost
}

struct Target {
    child: Child,
    commands: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Target {
    fn start(program: &Path) -> Self {
        let started = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.expect("the program starts");
        let commands = child.stdin.take().expect("piped");
        let replies = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, commands, replies }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Nanoseconds that the calls of all threads take.
    fn hits(&mut self, calls: u64, threads: u64) -> f64 {
        writeln!(self.commands, "hits {calls} {threads}").expect("the program runs");
        let mut line = String::new();
        self.replies.read_line(&mut line).expect("the program answers");
        line.trim().parse().expect("a number")
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
