//! Mean of an autocorrelated series, with its standard error and degrees of freedom.
//!
//! The mean of `n` units with autocorrelation `ρ` varies as that of fewer independent ones: its variance is `VIF` times `σ²/n`,
//! `VIF = 1 + 2 Σ (1 - k/n) ρ^k`. Two estimates of it are made, and the larger one is taken:
//!
//! - first-order autoregression: `ρ` of lag 1, pooled over both sides, corrected for its bias in short series,
//!   `(ρ̂ + 1/n) / (1 - 3/n)` (Kendall 1954), and taken at its upper limit of 90 %, since too small a `ρ` does more harm than too
//!   large a one, put into the formula above; the sample variance is corrected for its own bias, `(n - 1) / (n - VIF)`;
//! - circular block bootstrap (Politis and Romano 1992): the variance of the mean over resamples of blocks of `L` units, which for a
//!   mean has a closed form: no resampling, no seed. `L` is the optimal length for that `ρ`, `(6ρ² / (1-ρ²)²)^⅓ n^⅓` (Politis and
//!   White 2004), at most `n/4`.
//!
//! The first is right for short series, where a bootstrap is too optimistic, the second for long ones with another dependence.
//! Degrees of freedom are those of the effective number of units, `n / VIF - 1`.
//!
//! Where a side has several runs, a run is one draw of what differs from start to start, however many blocks it has. Then the mean of
//! a side is that of its runs. It has a second standard error, by the variance of their means, `s²/R`, with the degrees of freedom of
//! `s²`, which is pooled over both sides: the number of runs less 1 for each side. What is claimed has to hold by both.

use statrs::distribution::{Continuous, ContinuousCDF, StudentsT};

/// Greatest autocorrelation that is assumed: beyond it a series of a few units cannot be distinguished from a trend.
const MAX_RHO: f64 = 0.9;

/// The autocorrelation is taken at its upper confidence limit of 90 %, in standard errors.
const UPPER_LIMIT: f64 = 1.281_552;

/// A mean with its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Estimate {
    pub(crate) mean: f64,
    pub(crate) error: f64,
    pub(crate) freedom: f64,
    /// Standard error and degrees of freedom by the variance between runs, where there are several.
    pub(crate) between_runs: Option<(f64, f64)>,
}

impl Estimate {
    /// Difference of two independent means, with the degrees of freedom of Welch and Satterthwaite.
    pub(crate) fn difference(from: Self, to: Self) -> Self {
        let (a, b) = (from.error.powi(2), to.error.powi(2));
        let spread = a.powi(2) / from.freedom + b.powi(2) / to.freedom;
        let freedom = if spread > 0.0 { (a + b).powi(2) / spread } else { from.freedom + to.freedom };
        Self { mean: to.mean - from.mean, error: (a + b).sqrt(), freedom, between_runs: None }
    }

    /// Mean of differences between two sides, by pairs of runs.
    pub(crate) fn mean_of_runs(runs: &[Vec<f64>]) -> Self {
        let rho = autocorrelation(&slices(&[runs]));
        let within = within_runs(runs, rho);
        within.with_run_effect(run_effect(&[runs]), &[runs])
    }

    /// Difference of two sides of independent runs.
    pub(crate) fn difference_of_runs(from: &[Vec<f64>], to: &[Vec<f64>]) -> Self {
        let rho = autocorrelation(&slices(&[from, to]));
        let within = Self::difference(within_runs(from, rho), within_runs(to, rho));
        within.with_run_effect(run_effect(&[from, to]), &[from, to])
    }

    /// Takes in what differs from run to run, if it is known.
    fn with_run_effect(self, effect: Option<(f64, f64)>, sides: &[&[Vec<f64>]]) -> Self {
        let error = |variance: f64| sides.iter().map(|runs| variance / runs.len() as f64).sum::<f64>().sqrt();
        Self { between_runs: effect.map(|(variance, freedom)| (error(variance), freedom)), ..self }
    }

    /// The larger standard error.
    pub(crate) fn worst_error(&self) -> f64 {
        self.between_runs.map_or(self.error, |(error, _)| error.max(self.error))
    }

    /// Each standard error with its degrees of freedom.
    fn errors(&self) -> impl Iterator<Item = (f64, f64)> {
        [Some((self.error, self.freedom)), self.between_runs].into_iter().flatten()
    }

    /// Probability of a difference this large or larger if the true one were `bound`.
    pub(crate) fn p_above(&self, bound: f64) -> f64 {
        let distance = self.mean - bound;
        let p_value = |(error, freedom): (f64, f64)| {
            if error <= f64::EPSILON {
                return if distance > 0.0 { 0.0 } else { 1.0 };
            }
            student(freedom).map_or(1.0, |student| student.sf(distance / error))
        };
        self.errors().map(p_value).fold(0.0, f64::max)
    }

    /// Probability of a difference this small or smaller if the true one were `bound`.
    pub(crate) fn p_below(&self, bound: f64) -> f64 {
        Self { mean: -self.mean, ..*self }.p_above(-bound)
    }

    /// Half the width of the two-sided interval of this confidence.
    pub(crate) fn half_width(&self, confidence: f64) -> f64 {
        let half = |(error, freedom): (f64, f64)| {
            if error <= f64::EPSILON {
                return 0.0;
            }
            student(freedom).map_or(f64::INFINITY, |student| upper_quantile(&student, (1.0 - confidence) / 2.0) * error)
        };
        self.errors().map(half).fold(0.0, f64::max)
    }
}

/// Beyond 1,000 degrees of freedom the distribution does not change visibly.
fn student(freedom: f64) -> Option<StudentsT> {
    StudentsT::new(0.0, 1.0, freedom.min(1_000.0)).ok()
}

/// Value that is exceeded with probability `p`, at most one half; `StudentsT::inverse_cdf` does not end for many degrees of freedom.
/// By Newton's method from 0: the survival function is convex there, so no step goes too far.
fn upper_quantile(student: &StudentsT, p: f64) -> f64 {
    let mut value = 0.0;
    for _ in 0..100 {
        let step = (student.sf(value) - p) / student.pdf(value);
        if !step.is_finite() || step <= value * 1e-12 {
            break;
        }
        value += step;
    }
    value
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Upper estimate of the autocorrelation of lag 1, pooled over series that are assumed to have the same. Each series has a mean of its
/// own; none is shorter than 2.
pub(crate) fn autocorrelation(series: &[&[f64]]) -> f64 {
    let (mut products, mut squares, mut units) = (0.0, 0.0, 0.0);
    for values in series {
        let mean = mean(values);
        squares += values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        products += values.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum::<f64>();
        units += values.len() as f64;
    }
    let length = units / series.len() as f64;
    if squares <= f64::EPSILON || length <= 3.0 {
        return 0.0;
    }
    let rho = (products / squares + 1.0 / length) / (1.0 - 3.0 / length);
    let error = ((1.0 - rho.powi(2)).max(0.0) / units).sqrt();
    (rho + UPPER_LIMIT * error).clamp(0.0, MAX_RHO)
}

/// By how much autocorrelation inflates the variance of the mean of `units`.
fn inflation(units: usize, rho: f64) -> f64 {
    let length = units as f64;
    let mut power = 1.0;
    let mut sum = 0.0;
    for lag in 1..units {
        power *= rho;
        sum += (1.0 - lag as f64 / length) * power;
        if power < 1e-9 {
            break;
        }
    }
    1.0 + 2.0 * sum
}

/// Length of the blocks of the bootstrap.
fn block_length(units: usize, rho: f64) -> usize {
    let optimal = (6.0 * rho.powi(2) / (1.0 - rho.powi(2)).powi(2) * units as f64).cbrt();
    (optimal.ceil() as usize).clamp(1, (units / 4).max(1))
}

/// Variance of the mean over all resamples of the circular block bootstrap, corrected for the shortness of the series.
fn bootstrap_variance(values: &[f64], mean: f64, length: usize) -> f64 {
    let units = values.len();
    let squares: f64 = (0..units)
        .map(|start| (0..length).map(|offset| values[(start + offset) % units] - mean).sum::<f64>().powi(2))
        .sum();
    let (n, length) = (units as f64, length as f64);
    squares / (n * n * length) * n / (n - length)
}

/// Mean of a series of at least 2 units whose autocorrelation is `rho`.
pub(crate) fn estimate(values: &[f64], rho: f64) -> Estimate {
    let n = values.len() as f64;
    let mean = mean(values);
    let inflation = inflation(values.len(), rho).min(n * 0.9);
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    let autoregression = squares / (n - inflation) * inflation / n;
    let bootstrap = bootstrap_variance(values, mean, block_length(values.len(), rho));
    Estimate {
        mean,
        error: autoregression.max(bootstrap).sqrt(),
        freedom: (n / inflation - 1.0).max(1.0),
        between_runs: None,
    }
}

fn slices<'a>(sides: &[&'a [Vec<f64>]]) -> Vec<&'a [f64]> {
    sides.iter().flat_map(|runs| runs.iter()).filter(|run| run.len() > 1).map(Vec::as_slice).collect()
}

/// Mean of the means of runs whose units have this autocorrelation, as if runs did not differ.
fn within_runs(runs: &[Vec<f64>], rho: f64) -> Estimate {
    if let [run] = runs {
        return estimate(run, rho);
    }
    let count = runs.len() as f64;
    let means: Vec<f64> = runs.iter().map(|run| mean(run)).collect();
    // A run of one unit says nothing of how units vary.
    let known: Vec<Estimate> = runs.iter().filter(|run| run.len() > 1).map(|run| estimate(run, rho)).collect();
    let variance = known.iter().map(|run| run.error.powi(2)).sum::<f64>() / (known.len() as f64).max(1.0) / count;
    let freedom = known.iter().map(|run| run.freedom).sum::<f64>().max(1.0);
    Estimate { mean: mean(&means), error: variance.sqrt(), freedom, between_runs: None }
}

/// Variance of the means of runs around that of their side, and its degrees of freedom; `None` if no side has two runs.
fn run_effect(sides: &[&[Vec<f64>]]) -> Option<(f64, f64)> {
    let (mut squares, mut freedom) = (0.0, 0.0);
    for runs in sides {
        let means: Vec<f64> = runs.iter().map(|run| mean(run)).collect();
        let of_side = mean(&means);
        squares += means.iter().map(|value| (value - of_side).powi(2)).sum::<f64>();
        freedom += (runs.len() as f64 - 1.0).max(0.0);
    }
    (freedom > 0.0).then(|| (squares / freedom, freedom))
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// The closed form is the limit of resampling.
    #[test]
    fn closed_form_is_the_variance_over_resamples() {
        let values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0, 5.0, 3.0, 5.0, 8.0];
        let (length, mean) = (3, mean(&values));
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let resamples = 40_000;
        let mut variance = 0.0;
        for _ in 0..resamples {
            let sum: f64 = (0..values.len() / length)
                .flat_map(|_| {
                    let start = random.random_range(0..values.len());
                    (0..length).map(move |offset| values[(start + offset) % values.len()])
                })
                .sum();
            variance += (sum / values.len() as f64 - mean).powi(2) / f64::from(resamples);
        }
        let corrected = variance * 12.0 / 9.0;
        let closed = bootstrap_variance(&values, mean, length);
        assert!((corrected / closed - 1.0).abs() < 0.03, "{corrected} {closed}");
    }

    #[test]
    fn independent_units_give_the_textbook_interval() {
        let values = [4.0, 6.0, 5.0, 7.0, 3.0, 5.0, 4.0, 6.0];
        let estimate = estimate(&values, 0.0);
        // s² = 12/7, standard error sqrt(s²/8), t(0.975; 7) = 2.364624.
        assert!((estimate.error - (12.0_f64 / 7.0 / 8.0).sqrt()).abs() < 1e-12);
        assert!((estimate.half_width(0.95) - 2.364_624 * estimate.error).abs() < 1e-5);
        assert!((estimate.p_above(5.0) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn quantiles_of_the_t_distribution_are_those_of_tables() {
        let upper = |freedom, p| upper_quantile(&StudentsT::new(0.0, 1.0, freedom).unwrap(), p);
        for (freedom, p, expected) in [
            (1.0, 0.025, 12.706_205),
            (1.0, 0.000_5, 636.619_249),
            (3.0, 0.005, 5.840_909),
            (10.0, 0.05, 1.812_461),
            (1_000.0, 0.025, 1.962_339),
        ] {
            assert!((upper(freedom, p) / expected - 1.0).abs() < 1e-6, "{freedom} {p}: {}", upper(freedom, p));
        }
        assert!(upper(2.5, 0.5).abs() < 1e-12);
    }

    #[test]
    fn inflation_is_that_of_an_autoregression() {
        // For long series (1 + ρ) / (1 - ρ).
        assert!((inflation(100_000, 0.5) - 3.0).abs() < 1e-3);
        assert!((inflation(2, 0.5) - 1.5).abs() < 1e-12);
        assert!((inflation(8, 0.0) - 1.0).abs() < 1e-12);
    }

    /// Share of `pairs` of autocorrelated series without a difference whose 95 % interval leaves out 0.
    fn error_rate(units: usize, rho: f64, pairs: u32) -> f64 {
        let normal = statrs::distribution::Normal::standard();
        let mut random = ChaCha8Rng::seed_from_u64(units as u64 * 100 + (rho * 10.0) as u64);
        let mut draw = || {
            let mut shock = || normal.inverse_cdf(random.random_range(1e-12..1.0));
            let mut state = shock();
            let series: Vec<f64> = (0..units)
                .map(|_| {
                    state = rho * state + (1.0 - rho * rho).sqrt() * shock();
                    state
                })
                .collect();
            series
        };
        let wrong = (0..pairs)
            .filter(|_| {
                let (a, b) = (draw(), draw());
                let rho = autocorrelation(&[&a, &b]);
                let estimate = Estimate::difference(estimate(&a, rho), estimate(&b, rho));
                estimate.mean.abs() > estimate.half_width(0.95)
            })
            .count();
        wrong as f64 / f64::from(pairs)
    }

    /// From the least number of units on, up to the autocorrelation that the documentation promises.
    #[test]
    fn intervals_keep_their_confidence() {
        let pairs = 2_000;
        for units in [8, 12, 20, 40] {
            for rho in [0.0, 0.3, 0.5, 0.7] {
                let rate = error_rate(units, rho, pairs);
                println!("{units} units, autocorrelation {rho}: {rate:.4}");
                // 5 % and three standard deviations of what 2,000 pairs give.
                assert!(rate <= 0.05 + 3.0 * (0.05 * 0.95 / f64::from(pairs)).sqrt(), "{units} {rho}: {rate}");
                assert!(rate >= 0.005, "{units} {rho}: {rate}: much wider than promised");
            }
        }
    }
}
