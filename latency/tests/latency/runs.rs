//! Runs to show: two functions, noise of a fixed seed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chainscope_latency::{
    Block, Function, Histogram, Location, LossReason, Resolution, Run, RunId, RunInfo, Time, Transaction, TransactionId,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A text that breaks a page and a terminal unless it is escaped.
pub(crate) const HOSTILE: &str = "x<script>alert(1)</script>&\"'\u{1b}[31m";

/// A run of 12 blocks of each function, whose spans take `factor` times as long.
pub(crate) fn run(number: u8, factor: f64) -> Run {
    let mut random = ChaCha8Rng::seed_from_u64(u64::from(number));
    let start = 1_700_000_000_000_000_000 + i64::from(number) * 3_600_000_000_000;
    let mut blocks = Vec::new();
    for index in 0..12_i64 {
        for (function, (median, factor)) in
            [(2_400_000.0, factor), (180_000.0, 1.0), (45_000.0, 1.0)].into_iter().enumerate()
        {
            let mut histogram = Histogram::default();
            let load = 1.0 + 0.02 * random.random::<f64>();
            for _ in 0..2_000 {
                // Sum of uniform numbers: nearly normal.
                let shape: f64 = (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0;
                histogram.record((median * factor * load * (0.3 * shape).exp()) as u64);
            }
            blocks.push(Block {
                function,
                start: Time(start + index * 30_000_000_000),
                length: Duration::from_secs(30),
                histogram,
                returns: BTreeMap::from([(0, 550), (125, 40), (-99, 10)]),
                unended: u64::from(function == 0),
                lost: if function == 1 { BTreeMap::from([(LossReason::NoEntry, 2)]) } else { BTreeMap::new() },
            });
        }
    }
    let function = |name: &str, entry: &str, exit: &str| Function {
        name: name.into(),
        entry: Location { pattern: entry.into(), symbols: vec![entry.into()] },
        exit: Location { pattern: exit.into(), symbols: vec![exit.into()] },
    };
    let transaction = |index: u8| Transaction {
        id: TransactionId([index.wrapping_mul(37); 32]),
        kind: i64::from(index % 8),
        result: if index.is_multiple_of(5) { 125 } else { 0 },
        duration_ns: 150_000 + u64::from(index) * 77_777,
        time: Time(start + i64::from(index) * 1_000_000_007),
    };
    Run {
        info: RunInfo {
            id: RunId([number; 16]),
            node: Some("main".into()),
            pid: 4_242,
            executable: "/opt/rippled/bin/rippled".into(),
            build_id: Some("3fa9c0".into()),
            version: Some(format!("2.{number}.0")),
            commit: Some(format!("{number:02x}bcc6f8c9d0e1f2")),
            tags: BTreeSet::from([format!("2.{number}"), "nightly".into()]),
            host: "node-7".into(),
            kernel: "6.18.4".into(),
            start: Time(start),
            end: Some(Time(start + 360_000_000_000)),
            block: Duration::from_secs(30),
            resolution: Resolution::LogLinear,
        },
        functions: vec![
            function("payment", "*::Payment::preflight(*)", "*::Payment::doApply()"),
            function("offer_create", "*::CreateOffer::preflight(*)", "*::CreateOffer::doApply()"),
            function(HOSTILE, HOSTILE, HOSTILE),
        ],
        blocks,
        transactions: (0..40).map(transaction).collect(),
    }
}
