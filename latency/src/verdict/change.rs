//! Change points over the history of a tag: since which run a function is slower or faster.
//!
//! Binary segmentation: the split that explains most of the variance is a change if shuffled histories explain as much in less than
//! [`ALPHA`] of all cases, and if it is larger than the margin; then both parts are looked at in the same way.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::interval::mean;
use super::units::MIN_UNITS;
use crate::Run;

/// Chance that a history without a change is split.
const ALPHA: f64 = 0.01;

/// Least number of runs on either side of a change.
const MIN_SIDE: usize = 3;

const SHUFFLES: u32 = 2_000;

/// One function over the runs of a tag, in order of time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = FunctionHistory))]
pub struct History {
    /// Name of the function.
    pub function: String,
    /// The changes, in order of time.
    pub changes: Vec<ChangePoint>,
}

/// A lasting change of a function's median between two runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChangePoint {
    /// Id of the first run after the change.
    pub run: String,
    /// Its commit.
    pub commit: Option<String>,
    /// Relative change of the runs' median, in percent, between the runs before it and after it, up to the next change.
    pub change_percent: f64,
    /// Share of shuffled histories that seem to change as much.
    pub p_value: f64,
}

/// Changes of each function over runs in order of time. A function needs 8 runs.
#[must_use]
pub fn change_points(runs: &[Run], margin: f64) -> Vec<History> {
    let mut names: Vec<&String> = runs.iter().flat_map(|run| &run.functions).map(|function| &function.name).collect();
    names.sort_unstable();
    names.dedup();
    let histories = names.into_iter().map(|name| {
        let medians: Vec<(&Run, f64)> = runs.iter().filter_map(|run| Some((run, log_median(run, name)?))).collect();
        let values: Vec<f64> = medians.iter().map(|(_, value)| *value).collect();
        let mut splits = Vec::new();
        if values.len() >= MIN_UNITS {
            segment(&values, 0, margin.ln_1p(), &mut splits);
        }
        splits.sort_unstable_by_key(|&(at, _)| at);
        let bounds: Vec<usize> = splits.iter().map(|&(at, _)| at).collect();
        let changes = splits.iter().enumerate().map(|(index, &(at, p_value))| {
            let from = if index == 0 { 0 } else { bounds[index - 1] };
            let to = bounds.get(index + 1).copied().unwrap_or(values.len());
            let change = mean(&values[at..to]) - mean(&values[from..at]);
            let info = &medians[at].0.info;
            let change_percent = change.exp_m1() * 100.0;
            ChangePoint { run: info.id.to_string(), commit: info.commit.clone(), change_percent, p_value }
        });
        History { function: name.clone(), changes: changes.collect() }
    });
    histories.collect()
}

fn log_median(run: &Run, function: &str) -> Option<f64> {
    let index = run.functions.iter().position(|known| known.name == function)?;
    let mut merged = crate::Histogram::default();
    run.blocks_of(index).for_each(|block| merged.merge(&block.histogram));
    merged.quantile_interpolated(0.5).map(|median| median.max(0.5).ln())
}

/// Find changes in `values`, whose first is number `offset` of the history.
fn segment(values: &[f64], offset: usize, margin: f64, splits: &mut Vec<(usize, f64)>) {
    let Some((at, explained)) = best_split(values) else { return };
    if (mean(&values[at..]) - mean(&values[..at])).abs() <= margin {
        return;
    }
    // Seeded by the place: the same history gives the same answer.
    let mut random = ChaCha8Rng::seed_from_u64((offset as u64) << 32 | values.len() as u64);
    let mut shuffled = values.to_vec();
    let as_much = (0..SHUFFLES)
        .filter(|_| {
            shuffled.shuffle(&mut random);
            best_split(&shuffled).is_some_and(|(_, other)| other >= explained)
        })
        .count();
    let p_value = (as_much as f64 + 1.0) / f64::from(SHUFFLES + 1);
    if p_value < ALPHA {
        splits.push((offset + at, p_value));
        segment(&values[..at], offset, margin, splits);
        segment(&values[at..], offset + at, margin, splits);
    }
}

/// Split with the largest variance between its parts, and that variance.
fn best_split(values: &[f64]) -> Option<(usize, f64)> {
    let total: f64 = values.iter().sum();
    let overall = total / values.len() as f64;
    let mut left = 0.0;
    let mut best = None;
    for (index, value) in values.iter().enumerate() {
        let (before, after) = (index as f64, (values.len() - index) as f64);
        if index >= MIN_SIDE && values.len() - index >= MIN_SIDE {
            let explained =
                before * (left / before - overall).powi(2) + after * ((total - left) / after - overall).powi(2);
            if best.is_none_or(|(_, most)| explained > most) {
                best = Some((index, explained));
            }
        }
        left += value;
    }
    best
}
