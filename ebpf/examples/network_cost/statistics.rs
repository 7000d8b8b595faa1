//! Medians and percentiles.

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

pub(crate) fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Each sample of one variant over that of another in the same round.
pub(crate) fn ratios(samples: &[f64], to: &[f64]) -> Vec<f64> {
    samples.iter().zip(to).map(|(sample, to)| sample / to).collect()
}

/// The sample at a share of the sorted ones.
pub(crate) fn percentile(sorted: &[u32], share: f64) -> f64 {
    let at = (sorted.len().saturating_sub(1) as f64 * share) as usize;
    sorted.get(at).map_or(f64::NAN, |sample| f64::from(*sample))
}
