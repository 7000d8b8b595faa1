//! Blocks of runs as series of units.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::{Block, Run};
use crate::{Histogram, Time};

/// Least number of units a side, or of pairs, for a verdict.
pub const MIN_UNITS: usize = 8;

/// Spans beyond a quantile that a unit must have, so that the quantile is not a matter of single spans.
const SPANS_BEYOND: f64 = 5.0;

/// Blocks that were recorded at the same time are pairs if they are at least this share of the shorter side.
const PAIRED_SHARE: f64 = 0.8;

/// The runs of one side of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// The runs, in order of time.
    pub runs: &'a [Run],
}

/// Spans of a moment: a block, or several that were pooled.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) start: Time,
    pub(super) length: Duration,
    pub(super) histogram: Histogram,
}

impl Unit {
    fn of(block: &Block) -> Self {
        Self { start: block.start, length: block.length, histogram: block.histogram.clone() }
    }

    fn pool(&mut self, other: &Self) {
        self.length += other.length;
        self.histogram.merge(&other.histogram);
    }

    fn end(&self) -> i128 {
        i128::from(self.start.0) + i128::try_from(self.length.as_nanos()).unwrap_or(i128::MAX / 2)
    }

    /// Whether at least half of the shorter one was recorded at the same time as the other.
    fn is_simultaneous(&self, other: &Self) -> bool {
        let both = self.end().min(other.end()) - i128::from(self.start.0.max(other.start.0));
        let shorter = self.length.min(other.length).as_nanos();
        both > 0 && both.unsigned_abs() * 2 >= shorter
    }

    fn log_quantile(&self, q: f64) -> f64 {
        // The middle of a nanosecond, so that a duration of 0 has a logarithm.
        self.histogram.quantile_interpolated(q).unwrap_or_default().max(0.5).ln()
    }
}

/// The units of one function on one side, run by run.
#[derive(Clone, Debug, Default)]
pub(super) struct Series {
    runs: Vec<Vec<Unit>>,
}

/// Spans that a unit must have for a quantile.
fn spans_needed(q: f64) -> u64 {
    // A little less, so that what 1 - 0.9 lacks of 0.1 is not one more.
    (SPANS_BEYOND / (1.0 - q).min(q) - 1e-6).ceil() as u64
}

impl Series {
    /// Blocks of a function. One shorter than half a block, as at the end of a run, joins the block before it.
    pub(super) fn new(side: Side<'_>, function: &str) -> Self {
        let mut runs = Vec::new();
        for run in side.runs {
            let Some(index) = run.functions.iter().position(|known| known.name == function) else { continue };
            let mut units = Vec::<Unit>::new();
            for block in run.blocks_of(index) {
                match units.last_mut() {
                    Some(last) if block.length < run.info.block / 2 => last.pool(&Unit::of(block)),
                    _ => units.push(Unit::of(block)),
                }
            }
            runs.push(units);
        }
        Self { runs }
    }

    /// All spans.
    pub(super) fn merged(&self) -> Histogram {
        let mut merged = Histogram::default();
        self.runs.iter().flatten().for_each(|unit| merged.merge(&unit.histogram));
        merged
    }

    /// Number of blocks.
    pub(super) fn blocks(&self) -> usize {
        self.runs.iter().map(Vec::len).sum()
    }

    /// Time recorded.
    pub(super) fn recorded(&self) -> Duration {
        self.runs.iter().flatten().map(|unit| unit.length).sum()
    }

    /// Logarithms of a quantile of each run, unit by unit.
    fn logarithms(&self, q: f64, by_run: bool) -> Vec<Vec<f64>> {
        let needed = spans_needed(q);
        let complete = |unit: &Unit| !by_run && unit.histogram.count() >= needed;
        let runs = self.runs.iter().map(|units| {
            let units = pool(units, complete, Unit::pool);
            units.iter().filter(|unit| unit.histogram.count() >= needed).map(|unit| unit.log_quantile(q)).collect()
        });
        runs.filter(|units: &Vec<f64>| !units.is_empty()).collect()
    }

    /// Units of both sides that were recorded at the same time, by the runs that they are of.
    fn pairs(&self, other: &Self) -> Vec<Vec<(Unit, Unit)>> {
        let in_order = |series: &Self| {
            let runs = series.runs.iter().enumerate();
            let mut units: Vec<(usize, Unit)> =
                runs.flat_map(|(run, units)| units.iter().map(move |unit| (run, unit.clone()))).collect();
            units.sort_by_key(|(_, unit)| unit.start);
            units
        };
        let mut right = in_order(other).into_iter().peekable();
        let mut pairs = BTreeMap::<(usize, usize), Vec<(Unit, Unit)>>::new();
        for (run, left) in in_order(self) {
            while right.peek().is_some_and(|(_, unit)| unit.start < left.start && !unit.is_simultaneous(&left)) {
                right.next();
            }
            if let Some((other_run, unit)) = right.next_if(|(_, unit)| unit.is_simultaneous(&left)) {
                pairs.entry((run, other_run)).or_default().push((left, unit));
            }
        }
        pairs.into_values().collect()
    }
}

/// What is compared of a function: the logarithms of one quantile, run by run.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Observations {
    /// Differences of units of the same moment, by the two runs that they are of.
    Paired(Vec<Vec<f64>>),
    /// Units of each side.
    Independent(Vec<Vec<f64>>, Vec<Vec<f64>>),
}

impl Observations {
    /// Number of units of the shorter side.
    pub(super) fn units(&self) -> usize {
        let count = |runs: &[Vec<f64>]| runs.iter().map(Vec::len).sum();
        match self {
            Self::Paired(differences) => count(differences),
            Self::Independent(a, b) => count(a).min(count(b)),
        }
    }
}

/// Both sides of a comparison of one function.
#[derive(Clone, Debug)]
pub(super) struct Sides {
    pub(super) a: Series,
    pub(super) b: Series,
    pairs: Option<Vec<Vec<(Unit, Unit)>>>,
}

impl Sides {
    pub(super) fn new(a: Series, b: Series) -> Self {
        let pairs = a.pairs(&b);
        let least = (a.blocks().min(b.blocks()) as f64 * PAIRED_SHARE).max(MIN_UNITS as f64);
        let count: usize = pairs.iter().map(Vec::len).sum();
        let pairs = (count as f64 >= least).then_some(pairs);
        Self { a, b, pairs }
    }

    pub(super) fn is_paired(&self) -> bool {
        self.pairs.is_some()
    }

    /// Whether the unit is the run.
    pub(super) fn is_by_run(&self) -> bool {
        !self.is_paired() && self.a.runs.len().min(self.b.runs.len()) >= MIN_UNITS
    }

    pub(super) fn observations(&self, q: f64) -> Observations {
        let Some(pairs) = &self.pairs else {
            if self.is_by_run() {
                let one_series = |side: &Series| vec![side.logarithms(q, true).concat()];
                return Observations::Independent(one_series(&self.a), one_series(&self.b));
            }
            return Observations::Independent(self.a.logarithms(q, false), self.b.logarithms(q, false));
        };
        let complete = |(a, b): &(Unit, Unit)| a.histogram.count().min(b.histogram.count()) >= spans_needed(q);
        let differences = pairs.iter().map(|pairs| {
            let pooled = pool(pairs, complete, |to, from| {
                to.0.pool(&from.0);
                to.1.pool(&from.1);
            });
            let complete = pooled.iter().filter(|pair| complete(pair));
            complete.map(|pair| pair.1.log_quantile(q) - pair.0.log_quantile(q)).collect()
        });
        Observations::Paired(differences.filter(|run: &Vec<f64>| !run.is_empty()).collect())
    }
}

/// Join neighbours until each is complete. An incomplete rest joins the last complete one.
fn pool<T: Clone>(units: &[T], is_complete: impl Fn(&T) -> bool, join: impl Fn(&mut T, &T)) -> Vec<Cow<'_, T>> {
    let mut pooled = Vec::<Cow<'_, T>>::new();
    let mut open: Option<T> = None;
    for unit in units {
        let joined = match open.take() {
            Some(mut open) => {
                join(&mut open, unit);
                Cow::Owned(open)
            }
            None => Cow::Borrowed(unit),
        };
        if is_complete(&joined) {
            pooled.push(joined);
        } else {
            open = Some(joined.into_owned());
        }
    }
    match (pooled.last_mut(), open) {
        (Some(last), Some(rest)) => join(last.to_mut(), &rest),
        (None, Some(rest)) => pooled.push(Cow::Owned(rest)),
        (_, None) => {}
    }
    pooled
}
