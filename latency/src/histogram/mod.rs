//! Log-linear histogram of durations in nanoseconds, as the BPF programs fill it.
//!
//! An octave (2^e to 2^(e+1)) is divided into 32 buckets of equal width, so that a bucket is at most 1/32 (3.125 %) as wide as
//! its least value. The index of a value `v` is computed from its bits alone:
//!
//! ```text
//! v < 32    index = v                                              each value has a bucket of its own
//! v ≥ 32    e     = 63 - leading zeros of v                        exponent, 5 to 63
//!           m     = (v >> (e - 5)) & 31                            the five bits below the leading one
//!           index = (e - 4) * 32 + m
//!
//! v = 1 0 1 1 0 1 1 0 1₂ = 365                                     e = 8
//!     │ └───┬───┘ └─┬─┘
//!     │   m = 13  dropped (e - 5 = 3 bits)                         index = 4 * 32 + 13 = 141: 360 to 367
//!     leading one
//! ```
//!
//! The indexes are dense: 0 to 63 are the values themselves, 64 and 65 the values 64 and 65, 66 and 67, and the last, 1,919, ends
//! at 2^64 - 1. Two histograms are merged by adding their buckets.

mod export;

pub use export::{OtlpHistogram, PrometheusHistogram, Span};

use std::collections::BTreeMap;

/// Buckets of an octave, as a power of two.
const OCTAVE_BITS: u32 = 5;

/// Buckets of an octave.
const PER_OCTAVE: u64 = 1 << OCTAVE_BITS;

/// Number of buckets that cover all of `u64`.
pub const BUCKETS: u16 = (60 * PER_OCTAVE) as u16;

/// Index of the bucket of a value: see the module's documentation.
#[must_use]
pub const fn bucket_index(value: u64) -> u16 {
    if value < PER_OCTAVE {
        return value as u16;
    }
    let exponent = 63 - value.leading_zeros();
    let mantissa = (value >> (exponent - OCTAVE_BITS)) & (PER_OCTAVE - 1);
    ((exponent - OCTAVE_BITS + 1) as u64 * PER_OCTAVE + mantissa) as u16
}

/// Least and greatest value of a bucket, or `None` for an index of [`BUCKETS`] or more.
#[must_use]
pub const fn bucket_bounds(index: u16) -> Option<(u64, u64)> {
    if index >= BUCKETS {
        return None;
    }
    let (octave, mantissa) = (index as u64 / PER_OCTAVE, index as u64 % PER_OCTAVE);
    if octave == 0 {
        return Some((mantissa, mantissa));
    }
    let shift = octave as u32 - 1;
    let least = (PER_OCTAVE + mantissa) << shift;
    Some((least, least + ((1 << shift) - 1)))
}

/// A bucket that holds values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Its index.
    pub index: u16,
    /// Its least value, in nanoseconds.
    pub least: u64,
    /// Its greatest value, in nanoseconds.
    pub greatest: u64,
    /// How many values it holds.
    pub count: u64,
}

impl Bucket {
    /// Value that stands for the bucket: its middle, at most 1.6 % away from any value in it.
    #[must_use]
    pub const fn middle(&self) -> u64 {
        self.least + (self.greatest - self.least) / 2
    }
}

/// Buckets that hold values, with the exact count, sum, minimum and maximum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: BTreeMap<u16, u64>,
    count: u64,
    sum: u64,
    min: u64,
    max: u64,
}

impl Histogram {
    /// Histogram of what a probe counted; `None` if a bucket does not exist or the count overflows.
    ///
    /// A probe adds to buckets, sum, minimum and maximum one after the other, and may be read in between. What contradicts the
    /// buckets is therefore moved to the nearest value that does not: minimum and maximum into the first and last bucket that hold
    /// values, the sum between those of the least and the greatest values. The count is that of the buckets.
    #[must_use]
    pub fn from_parts(buckets: impl IntoIterator<Item = (u16, u64)>, sum: u64, min: u64, max: u64) -> Option<Self> {
        let mut histogram = Self::default();
        let (mut least_sum, mut greatest_sum) = (0_u64, 0_u64);
        for (index, count) in buckets {
            let (least, greatest) = bucket_bounds(index)?;
            if count > 0 {
                let held = histogram.buckets.entry(index).or_default();
                *held = held.checked_add(count)?;
                histogram.count = histogram.count.checked_add(count)?;
                least_sum = least_sum.saturating_add(least.saturating_mul(count));
                greatest_sum = greatest_sum.saturating_add(greatest.saturating_mul(count));
            }
        }
        let (first, last) = (histogram.buckets().next(), histogram.buckets().next_back());
        if let (Some(first), Some(last)) = (first, last) {
            histogram.min = min.clamp(first.least, first.greatest);
            histogram.max = max.clamp(last.least, last.greatest).max(histogram.min);
            histogram.sum = sum.clamp(least_sum, greatest_sum);
        }
        Some(histogram)
    }

    /// Add one value.
    pub fn record(&mut self, value: u64) {
        self.record_many(value, 1);
    }

    /// Add a value `count` times.
    pub fn record_many(&mut self, value: u64, count: u64) {
        if count == 0 {
            return;
        }
        self.min = if self.count == 0 { value } else { self.min.min(value) };
        self.max = self.max.max(value);
        *self.buckets.entry(bucket_index(value)).or_default() += count;
        self.count += count;
        self.sum = self.sum.saturating_add(value.saturating_mul(count));
    }

    /// Add all values of another histogram.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
        self.max = self.max.max(other.max);
        for (&index, &count) in &other.buckets {
            let held = self.buckets.entry(index).or_default();
            *held = held.saturating_add(count);
        }
        self.count = self.count.saturating_add(other.count);
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// Number of values.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Exact sum of the values, in nanoseconds; `u64::MAX` when it would be more (584 years).
    #[must_use]
    pub const fn sum(&self) -> u64 {
        self.sum
    }

    /// Exact least value.
    #[must_use]
    pub fn min(&self) -> Option<u64> {
        (self.count > 0).then_some(self.min)
    }

    /// Exact greatest value.
    #[must_use]
    pub fn max(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max)
    }

    /// Exact mean.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }

    /// Whether nothing was recorded.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The buckets that hold values, in order.
    pub fn buckets(&self) -> impl DoubleEndedIterator<Item = Bucket> + '_ {
        self.buckets.iter().filter_map(|(&index, &count)| {
            let (least, greatest) = bucket_bounds(index)?;
            Some(Bucket { index, least, greatest, count })
        })
    }

    /// Bucket that holds the quantile `q` (0 to 1) by nearest rank: the least value such that at least `q` of all values are not
    /// greater. Its bounds are narrowed by the exact minimum and maximum.
    #[must_use]
    pub fn quantile_bucket(&self, q: f64) -> Option<Bucket> {
        let rank = ((q.clamp(0.0, 1.0) * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0_u64;
        let mut bucket = self.buckets().find(|bucket| {
            seen = seen.saturating_add(bucket.count);
            seen >= rank
        })?;
        bucket.least = bucket.least.max(self.min);
        bucket.greatest = bucket.greatest.min(self.max);
        Some(bucket)
    }

    /// Quantile `q` (0 to 1) in nanoseconds, at most 1.6 % away from the exact one: the middle of its bucket.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<u64> {
        self.quantile_bucket(q).map(|bucket| bucket.middle())
    }

    /// Quantile `q` interpolated within its bucket, as if the values of a bucket were evenly spaced. A comparison uses it, because it
    /// changes smoothly with the distribution where the middle of a bucket jumps.
    #[must_use]
    pub fn quantile_interpolated(&self, q: f64) -> Option<f64> {
        let rank = q.clamp(0.0, 1.0) * self.count as f64;
        let mut below = 0_u64;
        let mut last = None;
        for bucket in self.buckets() {
            let least = bucket.least.max(self.min) as f64;
            let end = (bucket.greatest.min(self.max)) as f64 + 1.0;
            last = Some(end);
            if below.saturating_add(bucket.count) as f64 >= rank {
                let share = (rank - below as f64) / bucket.count as f64;
                return Some(least + (end - least) * share);
            }
            below = below.saturating_add(bucket.count);
        }
        last
    }
}
