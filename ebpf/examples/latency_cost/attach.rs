//! How long it takes to attach to a thousand functions, and to detach.

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use chainscope_ebpf::latency::{LatencyOptions, LatencyProbe, Pairing};

use crate::target::{Exits, Target, spans};

/// Prints the table of times.
pub(crate) fn of_functions(program: &Path, functions: usize) {
    println!("\n| {functions} functions | attach, s | detach, s |\n| --- | ---: | ---: |");
    for (name, exits, pairing) in [
        ("one link, sessions", Exits::Returns, Pairing::Session),
        ("one link each for entries and exits", Exits::Instructions, Pairing::StackFrame),
        ("perf events (before Linux 6.10)", Exits::Instructions, Pairing::PerfEvents),
    ] {
        let target = Target::start(program);
        let spans = spans(program, "many_*", exits);
        let spans = &spans[..functions.min(spans.len())];
        let options = LatencyOptions { max_spans: 1_000, pairing: Some(pairing) };
        let mut probe = LatencyProbe::load(&options).unwrap_or_else(|error| panic!("{error}"));
        let file = File::open(program).expect("compiled");
        let start = Instant::now();
        let attached = probe.attach(&file, Some(target.pid()), spans);
        let attaching = start.elapsed();
        attached.unwrap_or_else(|error| panic!("{error}"));
        let start = Instant::now();
        probe.detach_all();
        println!("| {name} | {:.2} | {:.2} |", attaching.as_secs_f64(), start.elapsed().as_secs_f64());
    }
}
