//! Measures what timing a function costs each call of it: without a tracer, with the probe (return probes and exit
//! instructions), and with the histograms of bpftrace and bcc; the rate at which all processors together end spans; how exact the
//! histogram is; and how long it takes to attach to many functions.
//!
//! ```text
//! cargo run --release -p chainscope-ebpf --example latency_cost -- [rounds] [calls] [functions]
//! ```
//!
//! The tracers alternate, so that other load affects all. The output has the median of the rounds. With the defaults it takes three
//! minutes, of which perf events take one to detach.
#![expect(clippy::print_stdout, reason = "prints its results")]

mod accuracy;
mod attach;
mod cost;
mod target;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |at: usize, default: u64| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (rounds, calls, functions) = (number(1, 5), number(2, 300_000), number(3, 1_000));
    let program = target::compile();
    cost::of_calls(&program, rounds, calls);
    cost::rates(&program, rounds, calls);
    accuracy::of_histograms(&program);
    attach::of_functions(&program, usize::try_from(functions).unwrap_or(usize::MAX));
}
