//! How much longer to record for a verdict.

use std::time::Duration;

use super::interval::Estimate;

/// Chance that recording as long as planned gives the verdict, if the difference is as it was seen: 80 %, as a quantile of the normal
/// distribution.
const POWER: f64 = 0.841_621;

/// More than this is not planned: the difference is too near the margin to be distinguished from it.
const MAX_FACTOR: f64 = 200.0;

/// Time that each side has to be recorded in all so that the interval leaves the margin; `None` if no sensible time does it.
///
/// The interval narrows with the square root of the time. What has to fit is the distance from the difference to the nearer bound.
pub(super) fn total(estimate: &Estimate, margin: f64, confidence: f64, recorded: Duration) -> Option<Duration> {
    let distance = (estimate.mean.abs() - margin).abs();
    let needed = estimate.half_width(confidence) + POWER * estimate.worst_error();
    let factor = (needed / distance).powi(2);
    (factor.is_finite() && factor <= MAX_FACTOR).then(|| recorded.mul_f64(factor.max(1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_times_as_long_for_half_the_width() {
        let recorded = Duration::from_secs(300);
        let estimate = Estimate { mean: 0.0, error: 0.02, freedom: 1e9, between_runs: None };
        // Needed: t(0.975; 1000) + 0.84 standard errors.
        let factor = (0.02 * (1.962_339 + POWER) / 0.05_f64).powi(2);
        let planned = total(&estimate, 0.05, 0.95, recorded).unwrap();
        assert!((planned.as_secs_f64() - 300.0 * factor).abs() < 0.1, "{planned:?}");
        let narrower = Estimate { error: 0.01, ..estimate };
        assert_eq!(total(&narrower, 0.05, 0.95, recorded), Some(recorded), "it is enough already");
        let at_the_margin = Estimate { mean: 0.05, ..estimate };
        assert_eq!(total(&at_the_margin, 0.05, 0.95, recorded), None);
    }
}
