//! How far the percentiles of the histogram are from those of the times that the function takes of itself.

use std::fs::File;
use std::path::Path;

use chainscope_ebpf::latency::{LatencyOptions, LatencyProbe, SpanCounts};

use crate::target::{Exits, Target, spans};

/// Naps of 0.8 to 1.2 ms, of 400 different lengths.
const NAPS: u64 = 2_000;

/// Prints the table of errors.
pub(crate) fn of_histograms(program: &Path) {
    println!("\n| {NAPS} naps of about 1 ms | p50 | p90 | p99 | mean | not counted |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    for (name, exits) in [("sessions", Exits::Returns), ("exit instructions", Exits::Instructions)] {
        let mut target = Target::start(program);
        let options = LatencyOptions { max_spans: 1, pairing: None };
        let mut probe = LatencyProbe::load(&options).unwrap_or_else(|error| panic!("{error}"));
        let file = File::open(program).expect("compiled");
        let attached = probe.attach(&file, Some(target.pid()), &spans(program, "plain_nap", exits));
        let (_, spans) = attached.unwrap_or_else(|error| panic!("{error}"));
        target.answer(&format!("vary {NAPS} 1000"));
        // Count, sum, and the values at 0, 50, 90, 99 and 100 %.
        let exact = target.answer("exact nap");
        let counts = probe.counts(spans[0]);
        let error = |measured: f64, exact: u64| format!("{:+.2} %", (measured / exact as f64 - 1.0) * 100.0);
        let percentiles = [(50, 3), (90, 4), (99, 5)].map(|(percent, at)| error(quantile(&counts, percent), exact[at]));
        let mean = error(counts.sum_ns as f64, exact[1]);
        println!("| {name} | {} | {mean} | {} |", percentiles.join(" | "), exact[0].abs_diff(counts.ended));
    }
}

/// The middle of the bucket that has the value of a rank.
fn quantile(counts: &SpanCounts, percent: u64) -> f64 {
    let rank = (counts.ended * percent).div_ceil(100).max(1);
    let mut seen = 0;
    let found = counts.buckets.iter().find(|(_, count)| {
        seen += count;
        seen >= rank
    });
    let Some((index, _)) = found else { return 0.0 };
    let (octave, within) = (u32::from(*index) / 32, f64::from(*index % 32));
    match octave {
        0 => within,
        octave => (32.5 + within) * f64::from(octave - 1).exp2(),
    }
}
