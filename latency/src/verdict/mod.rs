//! Whether a function got slower between two sets of runs.
//!
//! **Unit.** Spans of a moment share its load, so a million of them are no million observations. The unit is a block of a run (30 s),
//! or the run where both sides have [`MIN_UNITS`] runs or more. With fewer runs, but several, blocks are the units and the runs show how
//! much is different from start to start ([`interval`]). What is compared are the logarithms of a unit's p50, p90 and p99.
//! Blocks with too few spans for a quantile are pooled with their neighbours first.
//!
//! **Design.** Where both sides were recorded at the same time, units of the same moment are pairs and their differences are
//! analysed, which takes out what both felt. Otherwise the sides are independent. Which of the two is decided by times alone.
//!
//! **Interval.** Student's t around the difference of the means. Its standard error is that of the circular block bootstrap, computed
//! in closed form instead of by resampling, or that of a first-order autoregression, whichever is larger; its degrees of freedom
//! shrink with the autocorrelation ([`interval`]).
//!
//! **Decision.** With a margin of 5 %, *slower* means: the hypothesis "at most 5 % slower" is refused; *faster* likewise; *same*: both
//! "more than 5 % slower" and "more than 5 % faster" are refused (two one-sided tests, TOST), for each quantile. Everything else is
//! *inconclusive*. Both families of tests are corrected for the number of functions and quantiles by Holm's method.

mod change;
mod compare;
mod holm;
pub(crate) mod interval;
mod plan;
mod units;

pub use change::{ChangePoint, History, change_points};
pub use compare::{
    Comparison, Design, FunctionComparison, Options, QuantileComparison, Reason, ShiftPoint, Verdict, compare,
};
pub use units::{MIN_UNITS, Side};
