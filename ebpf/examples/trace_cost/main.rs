//! Measures what a hit of a tracepoint costs the program, with 3 numbers and with 6 arguments of which 3 are strings: without
//! a tracer, with the probe, and with bpftrace printing the same to /dev/null.
//!
//! ```text
//! cargo run --release -p chainscope-ebpf --example trace_cost -- [rounds] [hits]
//! ```
//!
//! The three alternate, so that other load affects all. The output has the median of the rounds.
#![expect(clippy::print_stdout, reason = "prints its results")]

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chainscope_ebpf::trace::{Fetch, Location, TraceOptions, TraceProbe};
use chainscope_usdt::Image;

/// Nanoseconds per hit with 3 and with 6 arguments.
type Cost = [f64; 2];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |at: usize, default: usize| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (rounds, hits) = (number(1, 5), number(2, 300_000));
    let folder = std::env::temp_dir();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/trace_cost/target.c");
    let program = chainscope_testing::program::compile("gcc", &source, &folder, "trace_cost_target", &["-O2"]);
    let (mut alone, mut ours, mut theirs, mut lost) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for _ in 0..rounds {
        alone.push(run(&program, hits, false));
        let (cost, dropped) = with_probe(&program, hits);
        ours.push(cost);
        lost += dropped;
        theirs.extend(with_bpftrace(&program, hits));
    }
    println!("ns per hit, median of {rounds} rounds of {hits} hits; lost by the probe: {lost}");
    println!("| | 3 numbers | 6 arguments, 3 strings |\n| --- | --- | --- |");
    let median = |costs: &[Cost]| [0, 1].map(|index| median(costs.iter().map(|cost| cost[index]).collect()));
    let [alone, ours, theirs] = [alone, ours, theirs].map(|costs| median(&costs));
    for (name, costs) in [("no tracer", alone), ("probe", ours), ("bpftrace", theirs)] {
        let of = |index: usize| costs[index].map_or_else(|| "not installed".to_owned(), |cost| format!("{cost:.0}"));
        println!("| {name} | {} | {} |", of(0), of(1));
    }
    // At most 1 is the aim.
    let ratio = |index: usize| match (ours[index], theirs[index]) {
        (Some(ours), Some(theirs)) => format!("{:.2}", ours / theirs),
        _ => "-".to_owned(),
    };
    println!("| probe / bpftrace | {} | {} |", ratio(0), ratio(1));
}

fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied()
}

/// Runs the program. With a tracer, it waits for it.
fn run(program: &Path, hits: usize, is_traced: bool) -> Cost {
    let traced = is_traced.then_some("traced");
    let output = Command::new(program).arg(hits.to_string()).args(traced).output().expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let costs: Vec<f64> = text.split_whitespace().map(|cost| cost.parse().expect("a number")).collect();
    costs.try_into().expect("two numbers")
}

fn with_probe(program: &Path, hits: usize) -> (Cost, u64) {
    let image = Image::read(std::fs::read(program).expect("compiled").as_slice()).expect("an ELF file");
    let string = [Fetch::Value, Fetch::String, Fetch::String, Fetch::String, Fetch::Value, Fetch::Value];
    let locations: Vec<Location> = image
        .tracepoints
        .iter()
        .flat_map(|tracepoint| {
            let fetches = if tracepoint.name == "message" { string } else { [Fetch::Value; 6] };
            tracepoint.locations.iter().map(move |location| Location {
                offset: location.offset.expect("in executable code"),
                semaphore: location.semaphore.and_then(|semaphore| semaphore.offset),
                arguments: location.arguments.iter().cloned().zip(fetches).collect(),
            })
        })
        .collect();
    let options = TraceOptions { ring_bytes: 256 << 20, ..TraceOptions::default() };
    let mut probe = TraceProbe::load(&options).unwrap_or_else(|error| panic!("{error}"));
    let file = File::open(program).expect("compiled");
    let (_, ids) = probe.attach(&file, None, &locations).unwrap_or_else(|error| panic!("{error}"));
    let is_running = AtomicBool::new(true);
    let cost = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while is_running.load(Ordering::Relaxed) {
                probe.poll(Duration::from_millis(50), &mut |event| drop(event)).expect("a ring");
            }
            ids.iter().map(|id| probe.counts(*id).expect("counters")).collect::<Vec<_>>()
        });
        let cost = run(program, hits, true);
        is_running.store(false, Ordering::Relaxed);
        (cost, reader.join().expect("the reader"))
    });
    assert_eq!(cost.1.iter().map(|counts| counts.hits).sum::<u64>(), 2 * hits as u64);
    (cost.0, cost.1.iter().map(|counts| counts.dropped()).sum())
}

fn with_bpftrace(program: &Path, hits: usize) -> Option<Cost> {
    let path = program.display();
    let script = format!(
        "usdt:{path}:cost:numbers {{ printf(\"%d %d %d\\n\", arg0, arg1, arg2); }} \
         usdt:{path}:cost:message {{ printf(\"%d %s %s %s %d\\n\", arg0, str(arg1), str(arg2), str(arg3), arg4); }}"
    );
    let mut tracer: Child =
        Command::new("bpftrace").args(["-e", &script]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let mut output = tracer.stdout.take()?;
    let cost = std::thread::scope(|scope| {
        scope.spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
        let cost = run(program, hits, true);
        let _ = tracer.kill();
        cost
    });
    let _ = tracer.wait();
    Some(cost)
}
