//! Change points over the history of a tag: since which run a function is slower or faster.
//!
//! Binary segmentation: the split that explains most of the variance is a change if it is larger than the margin, and if shuffled
//! histories explain as much in few enough cases; then both parts are looked at in the same way, each with half of the chance of an
//! error. Over all functions Holm's method keeps the chance of any change that is none at [`ALPHA`].

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::holm;
use super::interval::mean;
use super::units::MIN_UNITS;
use crate::Run;

/// Chance that a history of any function is split where there is no change.
const ALPHA: f64 = 0.05;

/// Least number of runs on either side of a change.
const MIN_SIDE: usize = 3;

/// Bounds of the number of shuffles, and how many of them are expected to explain as much at the limit of what is a change.
const SHUFFLES: (f64, f64) = (2_000.0, 200_000.0);
const EXPECTED: f64 = 20.0;

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
    /// Share of shuffled histories that seem to change as much, corrected for the number of functions and of parts.
    pub p_value: f64,
}

/// Changes of each function over runs in order of time. A function needs 8 runs.
#[must_use]
pub fn change_points(runs: &[Run], margin: f64) -> Vec<History> {
    let mut names: Vec<&String> = runs.iter().flat_map(|run| &run.functions).map(|function| &function.name).collect();
    names.sort_unstable();
    names.dedup();
    let medians: Vec<Vec<(&Run, f64)>> =
        names.iter().map(|name| runs.iter().filter_map(|run| Some((run, log_median(run, name)?))).collect()).collect();
    let values: Vec<Vec<f64>> =
        medians.iter().map(|medians| medians.iter().map(|(_, value)| *value).collect()).collect();
    let tested = values.iter().filter(|values| values.len() >= MIN_UNITS).count();
    let search = Search { margin: margin.ln_1p(), level: ALPHA / tested.max(1) as f64 };
    let first: Vec<Option<Split>> = values
        .iter()
        .map(|values| (values.len() >= MIN_UNITS).then(|| search.split(values, 0, search.level)).flatten())
        .collect();
    // A function without a split has been tested as well.
    let p_values: Vec<f64> = values
        .iter()
        .zip(&first)
        .filter(|(values, _)| values.len() >= MIN_UNITS)
        .map(|(_, split)| split.map_or(1.0, |split| split.p_value))
        .collect();
    let mut adjusted = holm::adjust(&p_values).into_iter();
    let histories =
        names.into_iter().zip(&medians).zip(values.iter().zip(first)).map(|((name, medians), (values, first))| {
            let p_value = if values.len() >= MIN_UNITS { adjusted.next() } else { None };
            let mut splits = Vec::new();
            if let (Some(split), Some(p_value)) = (first, p_value.filter(|p_value| *p_value < ALPHA)) {
                splits.push(Split { p_value, ..split });
                search.parts(values, 0, split.at, search.level / 2.0, &mut splits);
            }
            splits.sort_unstable_by_key(|split| split.at);
            History { function: name.clone(), changes: changes(medians, values, &splits) }
        });
    histories.collect()
}

fn changes(medians: &[(&Run, f64)], values: &[f64], splits: &[Split]) -> Vec<ChangePoint> {
    let bounds: Vec<usize> = splits.iter().map(|split| split.at).collect();
    let changes = splits.iter().enumerate().map(|(index, &Split { at, p_value })| {
        let from = if index == 0 { 0 } else { bounds[index - 1] };
        let to = bounds.get(index + 1).copied().unwrap_or(values.len());
        let change = mean(&values[at..to]) - mean(&values[from..at]);
        let info = &medians[at].0.info;
        let change_percent = change.exp_m1() * 100.0;
        ChangePoint { run: info.id.to_string(), commit: info.commit.clone(), change_percent, p_value }
    });
    changes.collect()
}

fn log_median(run: &Run, function: &str) -> Option<f64> {
    let index = run.functions.iter().position(|known| known.name == function)?;
    let mut merged = crate::Histogram::default();
    run.blocks_of(index).for_each(|block| merged.merge(&block.histogram));
    merged.quantile_interpolated(0.5).map(|median| median.max(0.5).ln())
}

/// A place where a history may be split.
#[derive(Clone, Copy, Debug)]
struct Split {
    /// Number of the first run after it.
    at: usize,
    p_value: f64,
}

/// How splits are looked for.
#[derive(Clone, Copy, Debug)]
struct Search {
    /// Logarithm of the least change that matters.
    margin: f64,
    /// Chance of an error for one function.
    level: f64,
}

impl Search {
    /// The best split of `values`, whose first is number `offset` of the history; `None` if it is within the margin. Its p-value is
    /// exact enough to be compared with `level`.
    fn split(&self, values: &[f64], offset: usize, level: f64) -> Option<Split> {
        let (at, explained) = best_split(values)?;
        if (mean(&values[at..]) - mean(&values[..at])).abs() <= self.margin {
            return None;
        }
        // Seeded by the place: the same history gives the same answer.
        let mut random = ChaCha8Rng::seed_from_u64((offset as u64) << 32 | values.len() as u64);
        let mut shuffled = values.to_vec();
        let most = (EXPECTED / level).clamp(SHUFFLES.0, SHUFFLES.1) as u32;
        let (mut as_much, mut shuffles) = (0.0, 0.0);
        for _ in 0..most {
            shuffled.shuffle(&mut random);
            shuffles += 1.0;
            if best_split(&shuffled).is_some_and(|(_, other)| other >= explained) {
                as_much += 1.0;
            }
            // Besag and Clifford 1991: what is found so often is no change, and the share is known well enough.
            if as_much >= 2.0 * EXPECTED {
                return Some(Split { at: offset + at, p_value: as_much / shuffles });
            }
        }
        Some(Split { at: offset + at, p_value: (as_much + 1.0) / (shuffles + 1.0) })
    }

    /// Looks for changes in both parts of `values`, each with this chance of an error for both.
    fn parts(&self, values: &[f64], offset: usize, at: usize, level: f64, splits: &mut Vec<Split>) {
        let (left, right) = values.split_at(at - offset);
        for (part, offset) in [(left, offset), (right, at)] {
            let level = level / 2.0;
            if let Some(split) = self.split(part, offset, level).filter(|split| split.p_value < level) {
                splits.push(Split { p_value: (split.p_value * ALPHA / level).min(1.0), ..split });
                self.parts(part, offset, split.at, level, splits);
            }
        }
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
