//! What `make bench` measures: ratios against the physical limit, taken in pairs in the same run.

pub mod blast;
pub mod capture;
pub mod decode;
pub mod unrelated;

/// Least, median and greatest of some figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The least.
    pub least: f64,
    /// The one in the middle.
    pub median: f64,
    /// The greatest.
    pub greatest: f64,
}

impl Spread {
    /// Of at least one figure; of none, all are 0.
    #[must_use]
    pub fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        let at = |index: usize| figures.get(index).copied().unwrap_or_default();
        Self { least: at(0), median: at(figures.len() / 2), greatest: at(figures.len().saturating_sub(1)) }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} ({:.2}..{:.2})", self.median, self.least, self.greatest)
    }
}

/// A size as people write it.
#[must_use]
pub fn size_name(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}
