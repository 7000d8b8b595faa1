//! Comparison of two sides, function by function.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::interval::Estimate;
use super::units::{MIN_UNITS, Observations, Series, Side, Sides};
use super::{holm, plan};
use crate::model::Resolution;

/// Quantiles that the verdict is about.
const QUANTILES: [f64; 3] = [0.5, 0.9, 0.99];

/// Quantiles of the shift function.
const SHIFT: [f64; 11] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99];

/// What a comparison is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Least relative change that matters: 0.05 is 5 %.
    pub margin: f64,
    /// Accepted chance of any wrong *slower* or *faster* among all functions, and of any wrong *same*.
    pub alpha: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self { margin: 0.05, alpha: 0.05 }
    }
}

/// Outcome for one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Verdict {
    /// By more than the margin, at one quantile at least.
    Slower,
    /// By more than the margin at one quantile at least, and slower at none.
    Faster,
    /// Within the margin at all quantiles.
    Same,
    /// Not enough is known.
    Inconclusive,
}

impl Verdict {
    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Slower => "slower",
            Self::Faster => "faster",
            Self::Same => "same",
            Self::Inconclusive => "inconclusive",
        }
    }
}

/// Why a verdict is inconclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = InconclusiveReason))]
pub enum Reason {
    /// The function is recorded on one side only.
    OneSide,
    /// Fewer than 8 units.
    TooFewUnits,
    /// A side was imported with bins of powers of two.
    Resolution,
    /// The interval contains a bound of the margin.
    Uncertain,
}

impl Reason {
    /// The reason as a sentence.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::OneSide => "recorded on one side only",
            Self::TooFewUnits => "fewer than 8 blocks with enough spans",
            Self::Resolution => "imported bins are powers of two: too coarse for a verdict",
            Self::Uncertain => "the interval contains the margin: record longer",
        }
    }
}

/// How the units of both sides are related.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ComparisonDesign))]
pub enum Design {
    /// Blocks of the same moment are pairs. Where there are several pairs of runs, they show how much runs differ.
    Paired,
    /// Blocks of each side on their own. Where a side has several runs, they show how much runs differ.
    Blocks,
    /// Runs of each side: both have 8 or more.
    Runs,
}

/// One quantile of a function on both sides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QuantileComparison {
    /// The quantile, 0 to 1.
    pub quantile: f64,
    /// Its value over all spans of the first side.
    pub a_ns: u64,
    /// Its value over all spans of the second side.
    pub b_ns: u64,
    /// Units of the shorter side; no interval below 8.
    pub units: usize,
    /// Relative change between the units of both sides, in percent.
    pub change_percent: Option<f64>,
    /// Lower end of its interval of confidence 1 - alpha, for this quantile alone.
    pub low_percent: Option<f64>,
    /// Upper end.
    pub high_percent: Option<f64>,
    /// Chance of such a change if the true one were within the margin, corrected for all functions and quantiles.
    pub p_change: Option<f64>,
}

/// One quantile of the shift function: what became of the fast, the usual and the slow spans.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ShiftPoint {
    /// The quantile, 0 to 1.
    pub quantile: f64,
    /// Relative change in percent.
    pub change_percent: f64,
    /// Lower end of its interval, for this quantile alone.
    pub low_percent: f64,
    /// Upper end.
    pub high_percent: f64,
}

/// One function on both sides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FunctionComparison {
    /// Name of the function.
    pub function: String,
    /// The outcome.
    pub verdict: Verdict,
    /// Why it is inconclusive.
    pub reason: Option<Reason>,
    /// How units are related.
    pub design: Design,
    /// Spans of the first side.
    pub a_spans: u64,
    /// Spans of the second side.
    pub b_spans: u64,
    /// The quantiles that the verdict is about.
    pub quantiles: Vec<QuantileComparison>,
    /// Chance of so small a change if the true one were the margin, for the worst quantile, corrected for all functions.
    pub p_same: Option<f64>,
    /// Change at more quantiles.
    pub shift: Vec<ShiftPoint>,
    /// Seconds that each side has to be recorded in all for a verdict, for an inconclusive one where that is foreseeable.
    pub record_seconds: Option<u64>,
}

impl FunctionComparison {
    /// The least chance that what was seen is no change.
    #[must_use]
    pub fn significance(&self) -> f64 {
        self.quantiles.iter().filter_map(|quantile| quantile.p_change).fold(1.0, f64::min)
    }
}

/// Result of [`compare`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = LatencyComparison))]
pub struct Comparison {
    /// The margin, in percent.
    pub margin_percent: f64,
    /// The accepted chance of any wrong verdict.
    pub alpha: f64,
    /// The worst verdict: slower, inconclusive, faster, same.
    pub verdict: Verdict,
    /// The functions, most significant change first.
    pub functions: Vec<FunctionComparison>,
}

/// A function while it is judged.
struct Candidate {
    name: String,
    sides: Sides,
    blocked: Option<Reason>,
    /// Estimate of each quantile that has enough units.
    estimates: Vec<(f64, usize, Option<Estimate>)>,
}

/// Compare the functions of two sides: what changed from `a` to `b`.
#[must_use]
pub fn compare(a: Side<'_>, b: Side<'_>, options: &Options) -> Comparison {
    let names: BTreeSet<&String> = [a, b]
        .iter()
        .flat_map(|side| side.runs)
        .flat_map(|run| &run.functions)
        .map(|function| &function.name)
        .collect();
    let coarse = [a, b].iter().flat_map(|side| side.runs).any(|run| run.info.resolution == Resolution::PowersOfTwo);
    let candidates: Vec<Candidate> = names.into_iter().map(|name| Candidate::new(a, b, name, coarse)).collect();

    let margin = options.margin.ln_1p();
    let estimates =
        || candidates.iter().flat_map(|candidate| candidate.estimates.iter().filter_map(|(_, _, e)| e.as_ref()));
    // Two-sided: slower or faster.
    let changes: Vec<f64> =
        estimates().map(|estimate| (2.0 * estimate.p_above(margin).min(estimate.p_below(-margin))).min(1.0)).collect();
    // *Same* claims all quantiles of a function at once, so its p-value is that of the worst and needs no correction among them.
    let sames: Vec<Option<f64>> = candidates.iter().map(|candidate| candidate.p_same(margin)).collect();
    let mut changes = holm::adjust(&changes).into_iter();
    let mut adjusted_sames = holm::adjust(&sames.iter().copied().flatten().collect::<Vec<_>>()).into_iter();

    let mut functions: Vec<FunctionComparison> = candidates
        .iter()
        .zip(&sames)
        .map(|(candidate, same)| {
            let p_changes = candidate.estimates.iter().map(|(_, _, e)| e.and_then(|_| changes.next())).collect();
            let p_same = same.and_then(|_| adjusted_sames.next());
            candidate.finish(p_changes, p_same, margin, options)
        })
        .collect();
    functions.sort_by(|a, b| a.significance().total_cmp(&b.significance()).then_with(|| a.function.cmp(&b.function)));
    let rank = [Verdict::Slower, Verdict::Inconclusive, Verdict::Faster, Verdict::Same];
    let verdict = rank
        .into_iter()
        .find(|verdict| functions.iter().any(|function| function.verdict == *verdict))
        .unwrap_or(Verdict::Inconclusive);
    Comparison { margin_percent: options.margin * 100.0, alpha: options.alpha, verdict, functions }
}

/// Difference of the logarithms, if there are enough units.
fn difference(observations: &Observations) -> Option<Estimate> {
    if observations.units() < MIN_UNITS {
        return None;
    }
    Some(match observations {
        Observations::Paired(differences) => Estimate::mean_of_runs(differences),
        Observations::Independent(a, b) => Estimate::difference_of_runs(a, b),
    })
}

fn percent(logarithm: f64) -> f64 {
    logarithm.exp_m1() * 100.0
}

impl Candidate {
    fn new(a: Side<'_>, b: Side<'_>, name: &str, coarse: bool) -> Self {
        let sides = Sides::new(Series::new(a, name), Series::new(b, name));
        let blocked = if sides.a.blocks() == 0 || sides.b.blocks() == 0 {
            Some(Reason::OneSide)
        } else {
            coarse.then_some(Reason::Resolution)
        };
        let estimates = QUANTILES
            .iter()
            .map(|&q| {
                let observations = sides.observations(q);
                (q, observations.units(), blocked.is_none().then(|| difference(&observations)).flatten())
            })
            .collect();
        Self { name: name.to_owned(), sides, blocked, estimates }
    }

    /// The two one-sided tests of all quantiles that can be judged.
    fn p_same(&self, margin: f64) -> Option<f64> {
        let estimates = self.estimates.iter().filter_map(|(_, _, estimate)| estimate.as_ref());
        estimates.map(|estimate| estimate.p_below(margin).max(estimate.p_above(-margin))).reduce(f64::max)
    }

    fn finish(
        &self,
        p_changes: Vec<Option<f64>>,
        p_same: Option<f64>,
        margin: f64,
        options: &Options,
    ) -> FunctionComparison {
        let significant = |above: bool| {
            self.estimates.iter().zip(&p_changes).any(|((_, _, estimate), p)| {
                estimate.is_some_and(|estimate| (estimate.mean > 0.0) == above) && p.is_some_and(|p| p <= options.alpha)
            })
        };
        let (verdict, reason) = if let Some(reason) = self.blocked {
            (Verdict::Inconclusive, Some(reason))
        } else if significant(true) {
            (Verdict::Slower, None)
        } else if significant(false) {
            (Verdict::Faster, None)
        } else if p_same.is_some_and(|p| p <= options.alpha) {
            (Verdict::Same, None)
        } else if p_same.is_none() {
            (Verdict::Inconclusive, Some(Reason::TooFewUnits))
        } else {
            (Verdict::Inconclusive, Some(Reason::Uncertain))
        };
        let (merged_a, merged_b) = (self.sides.a.merged(), self.sides.b.merged());
        let confidence = 1.0 - options.alpha;
        let quantiles = self
            .estimates
            .iter()
            .zip(p_changes)
            .map(|(&(quantile, units, estimate), p_change)| {
                let half = estimate.map(|estimate| estimate.half_width(confidence));
                let at = |sign: f64| Some(percent(estimate?.mean + sign * half?));
                QuantileComparison {
                    quantile,
                    a_ns: merged_a.quantile(quantile).unwrap_or_default(),
                    b_ns: merged_b.quantile(quantile).unwrap_or_default(),
                    units,
                    change_percent: at(0.0),
                    low_percent: at(-1.0),
                    high_percent: at(1.0),
                    p_change,
                }
            })
            .collect();
        FunctionComparison {
            function: self.name.clone(),
            verdict,
            reason,
            design: self.design(),
            a_spans: merged_a.count(),
            b_spans: merged_b.count(),
            quantiles,
            p_same,
            shift: self.shift(confidence),
            record_seconds: self.plan(reason, margin, confidence).map(|duration| duration.as_secs_f64().ceil() as u64),
        }
    }

    fn design(&self) -> Design {
        match (self.sides.is_paired(), self.sides.is_by_run()) {
            (true, _) => Design::Paired,
            (_, true) => Design::Runs,
            _ => Design::Blocks,
        }
    }

    fn shift(&self, confidence: f64) -> Vec<ShiftPoint> {
        if self.blocked.is_some() {
            return Vec::new();
        }
        let points = SHIFT.iter().filter_map(|&quantile| {
            let estimate = difference(&self.sides.observations(quantile))?;
            let half = estimate.half_width(confidence);
            Some(ShiftPoint {
                quantile,
                change_percent: percent(estimate.mean),
                low_percent: percent(estimate.mean - half),
                high_percent: percent(estimate.mean + half),
            })
        });
        points.collect()
    }

    /// How long to record in all: until the quantile that needs it longest leaves the margin, or until there are enough blocks.
    fn plan(&self, reason: Option<Reason>, margin: f64, confidence: f64) -> Option<Duration> {
        let recorded = self.sides.a.recorded().min(self.sides.b.recorded());
        match reason? {
            Reason::OneSide | Reason::Resolution => None,
            Reason::TooFewUnits => {
                let units = self.estimates.first().map_or(0, |(_, units, _)| *units);
                (units > 0).then(|| recorded.mul_f64(MIN_UNITS as f64 / units as f64))
            }
            Reason::Uncertain => {
                let estimates = self.estimates.iter().filter_map(|(_, _, estimate)| estimate.as_ref());
                let totals = estimates.map(|estimate| plan::total(estimate, margin, confidence, recorded));
                totals.collect::<Option<Vec<_>>>()?.into_iter().max()
            }
        }
    }
}
