//! The course of a run: its blocks, or transactions, in periods.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ReturnCount, return_counts, rfc3339};
use crate::{
    Histogram,
    model::{Block, Run, Time, Transaction},
};

/// Most periods of a function in all runs.
const MAX_PERIODS: usize = 240;
/// Least number of periods of a run that is long enough.
const MIN_PERIODS: usize = 8;

/// What ended in a period of a run: a block, or several of a long run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = LatencyPeriod))]
pub struct Period {
    /// Start, in RFC 3339.
    pub start: String,
    /// Length, in seconds.
    pub seconds: f64,
    /// Number of spans.
    pub spans: u64,
    /// Exact mean.
    pub mean_ns: Option<f64>,
    /// Median.
    pub p50_ns: Option<u64>,
    /// 99th percentile.
    pub p99_ns: Option<u64>,
    /// Return codes, most frequent first.
    pub returns: Vec<ReturnCount>,
}

/// A period while it is filled.
#[derive(Default)]
struct Filled {
    start: i64,
    length_ns: u64,
    histogram: Histogram,
    returns: BTreeMap<i64, u64>,
}

impl Filled {
    fn finish(self) -> Period {
        Period {
            start: rfc3339(Time(self.start)),
            seconds: self.length_ns as f64 / 1e9,
            spans: self.histogram.count(),
            mean_ns: self.histogram.mean(),
            p50_ns: self.histogram.quantile(0.5),
            p99_ns: self.histogram.quantile(0.99),
            returns: return_counts(self.returns),
        }
    }
}

/// Number of the period that a time is in, of periods that are as few as `runs` runs may have.
struct Grid {
    first: i64,
    unit_ns: i128,
}

impl Grid {
    fn new(run: &Run, runs: usize, times: impl Iterator<Item = i64> + Clone) -> Self {
        let (first, last) = (times.clone().min().unwrap_or(0), times.max().unwrap_or(0));
        let block_ns = i128::try_from(run.info.block.as_nanos()).unwrap_or(i128::from(u64::MAX)).max(1);
        let last_block = (i128::from(last) - i128::from(first)) / block_ns;
        let most = (MAX_PERIODS / runs.max(1)).max(MIN_PERIODS) as i128;
        Self { first, unit_ns: block_ns.saturating_mul(last_block / most + 1) }
    }

    fn index(&self, time: i64) -> i128 {
        (i128::from(time) - i128::from(self.first)) / self.unit_ns
    }
}

/// Blocks of a function in a run, which is one of `runs`.
pub(super) fn of_blocks<'a>(run: &Run, runs: usize, blocks: impl Iterator<Item = &'a Block> + Clone) -> Vec<Period> {
    let grid = Grid::new(run, runs, blocks.clone().map(|block| block.start.0));
    let mut periods = BTreeMap::<i128, Filled>::new();
    for block in blocks {
        let period = periods
            .entry(grid.index(block.start.0))
            .or_insert_with(|| Filled { start: block.start.0, ..Filled::default() });
        period.start = period.start.min(block.start.0);
        period.length_ns = period.length_ns.saturating_add(u64::try_from(block.length.as_nanos()).unwrap_or(u64::MAX));
        period.histogram.merge(&block.histogram);
        for (code, count) in &block.returns {
            let held = period.returns.entry(*code).or_default();
            *held = held.saturating_add(*count);
        }
    }
    periods.into_values().map(Filled::finish).collect()
}

/// Transactions of a run, which is one of `runs`.
pub(super) fn of_transactions<'a>(
    run: &Run,
    runs: usize,
    transactions: impl Iterator<Item = &'a Transaction> + Clone,
) -> Vec<Period> {
    let grid = Grid::new(run, runs, transactions.clone().map(|transaction| transaction.time.0));
    let length_ns = u64::try_from(grid.unit_ns).unwrap_or(u64::MAX);
    let mut periods = BTreeMap::<i128, Filled>::new();
    for transaction in transactions {
        let index = grid.index(transaction.time.0);
        let period = periods.entry(index).or_insert_with(|| {
            let start = i128::from(grid.first).saturating_add(index.saturating_mul(grid.unit_ns));
            Filled { start: i64::try_from(start).unwrap_or(i64::MAX), length_ns, ..Filled::default() }
        });
        period.histogram.record(transaction.duration_ns);
        *period.returns.entry(transaction.result).or_default() += 1;
    }
    periods.into_values().map(Filled::finish).collect()
}
