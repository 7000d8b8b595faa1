//! Exponential histograms of Prometheus and OpenTelemetry.
//!
//! Both divide an octave into 32 buckets of equal *ratio* (`2^(1/32)`, 2.2 %), a log-linear histogram into 32 of equal *width*: the
//! bounds differ, and no scale of theirs has bounds that ours contain. A bucket is therefore counted where its middle lies. Count
//! and sum stay exact. A value is at most 1/64 away from the middle of its bucket and that at most a factor `2^(1/32)` from either
//! bound of the exponential one: what is read from the export is at most 3.8 % ([`EXPORT_ERROR`]) away from the exact value.

use std::collections::BTreeMap;

use super::Histogram;

/// Schema of Prometheus and scale of OpenTelemetry: `2^5` buckets an octave.
const SCHEMA: i8 = 5;

/// Greatest relative error of a value that is read from an exported bucket.
#[cfg(test)]
const EXPORT_ERROR: f64 = 0.038;

const NANOSECONDS: f64 = 1e9;

/// A run of consecutive buckets of a [`PrometheusHistogram`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index of its first bucket: absolute for the first span, else the number of empty buckets since the one before.
    pub offset: i32,
    /// Number of buckets.
    pub length: u32,
}

/// Native histogram of Prometheus (`io.prometheus.client.Histogram`), in seconds.
///
/// Bucket `i` is `2^((i-1)/32) < seconds ≤ 2^(i/32)`.
#[derive(Clone, Debug, PartialEq)]
pub struct PrometheusHistogram {
    /// Resolution: `2^schema` buckets an octave.
    pub schema: i8,
    /// Values up to this are in the zero bucket.
    pub zero_threshold: f64,
    /// Durations of 0 ns.
    pub zero_count: u64,
    /// Exact number of values.
    pub count: u64,
    /// Exact sum, in seconds.
    pub sum: f64,
    /// Which buckets follow.
    pub positive_spans: Vec<Span>,
    /// Count of each bucket as the difference to the one before.
    pub positive_deltas: Vec<i64>,
}

/// Exponential histogram data point of OpenTelemetry (`ExponentialHistogramDataPoint`), in seconds.
///
/// Bucket `i` is `2^(i/32) < seconds ≤ 2^((i+1)/32)`.
#[derive(Clone, Debug, PartialEq)]
pub struct OtlpHistogram {
    /// Resolution: `2^scale` buckets an octave.
    pub scale: i32,
    /// Durations of 0 ns.
    pub zero_count: u64,
    /// Exact number of values.
    pub count: u64,
    /// Exact sum, in seconds.
    pub sum: f64,
    /// Exact least value, in seconds.
    pub min: Option<f64>,
    /// Exact greatest value, in seconds.
    pub max: Option<f64>,
    /// Index of the first of `positive_counts`.
    pub positive_offset: i32,
    /// Counts of consecutive buckets.
    pub positive_counts: Vec<u64>,
}

impl Histogram {
    /// Count of zeros, and counts by index of OpenTelemetry: one less than that of Prometheus.
    fn exponential(&self) -> (u64, BTreeMap<i32, u64>) {
        let (mut zeros, mut counts) = (0, BTreeMap::<i32, u64>::new());
        for bucket in self.buckets() {
            if bucket.greatest == 0 {
                zeros = bucket.count;
                continue;
            }
            // Halves keep the middle of an even number of integers.
            let middle = (bucket.least as f64 + bucket.greatest as f64) / 2.0;
            let index = ((middle / NANOSECONDS).log2() * f64::from(1_u32 << SCHEMA)).ceil() as i32 - 1;
            *counts.entry(index).or_default() += bucket.count;
        }
        (zeros, counts)
    }

    /// As a native histogram of Prometheus, in seconds.
    #[must_use]
    pub fn to_prometheus(&self) -> PrometheusHistogram {
        let (zero_count, counts) = self.exponential();
        let (mut positive_spans, mut positive_deltas) = (Vec::<Span>::new(), Vec::new());
        let mut next = None;
        let mut previous = 0_i64;
        for (index, count) in counts {
            let index = index + 1;
            match (positive_spans.last_mut(), next) {
                (Some(span), Some(next)) if next == index => span.length += 1,
                (_, next) => positive_spans.push(Span { offset: index - next.unwrap_or(0), length: 1 }),
            }
            next = Some(index + 1);
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            positive_deltas.push(count - previous);
            previous = count;
        }
        PrometheusHistogram {
            schema: SCHEMA,
            zero_threshold: 0.0,
            zero_count,
            count: self.count(),
            sum: self.sum() as f64 / NANOSECONDS,
            positive_spans,
            positive_deltas,
        }
    }

    /// As an exponential histogram of OpenTelemetry, in seconds.
    #[must_use]
    pub fn to_otlp(&self) -> OtlpHistogram {
        let (zero_count, counts) = self.exponential();
        let positive_offset = counts.first_key_value().map_or(0, |(&index, _)| index);
        let end = counts.last_key_value().map_or(0, |(&index, _)| index + 1);
        let positive_counts =
            (positive_offset..end).map(|index| counts.get(&index).copied().unwrap_or_default()).collect();
        let seconds = |nanoseconds: u64| nanoseconds as f64 / NANOSECONDS;
        OtlpHistogram {
            scale: i32::from(SCHEMA),
            zero_count,
            count: self.count(),
            sum: seconds(self.sum()),
            min: self.min().map(seconds),
            max: self.max().map(seconds),
            positive_offset,
            positive_counts,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sorted values, some of them near each other, from nanoseconds to hours.
    fn values() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec((0_u32..44, any::<u64>()).prop_map(|(bits, value)| value >> (63 - bits)), 1..300)
            .prop_map(|mut values| {
                values.sort_unstable();
                values
            })
    }

    fn histogram(values: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        values.iter().for_each(|&value| histogram.record(value));
        histogram
    }

    /// Bounds in nanoseconds of the exported bucket that holds each value by rank.
    fn expand(offset: i32, counts: &[u64], zeros: u64) -> Vec<(f64, f64)> {
        let mut bounds = vec![(0.0, 0.0); usize::try_from(zeros).unwrap()];
        for (index, &count) in (offset..).zip(counts) {
            let bound = |index: i32| (f64::from(index) / 32.0).exp2() * NANOSECONDS;
            bounds.extend(std::iter::repeat_n((bound(index), bound(index + 1)), usize::try_from(count).unwrap()));
        }
        bounds
    }

    proptest! {
        #[test]
        fn exported_values_are_within_the_stated_error(values in values()) {
            let otlp = histogram(&values).to_otlp();
            prop_assert_eq!(otlp.count, values.len() as u64);
            let expanded = expand(otlp.positive_offset, &otlp.positive_counts, otlp.zero_count);
            prop_assert_eq!(expanded.len(), values.len());
            for (&value, &(least, greatest)) in values.iter().zip(&expanded) {
                let value = value as f64;
                prop_assert!(least >= value * (1.0 - EXPORT_ERROR) - 1e-6, "{value} in {least}..{greatest}");
                prop_assert!(greatest <= value * (1.0 + EXPORT_ERROR) + 1e-6, "{value} in {least}..{greatest}");
            }
        }

        #[test]
        fn prometheus_has_the_buckets_of_otlp(values in values()) {
            let histogram = histogram(&values);
            let (otlp, prometheus) = (histogram.to_otlp(), histogram.to_prometheus());
            let mut counts = BTreeMap::new();
            let (mut index, mut count) = (0, 0);
            let mut deltas = prometheus.positive_deltas.iter();
            for span in &prometheus.positive_spans {
                index += span.offset;
                for _ in 0..span.length {
                    count += deltas.next().unwrap();
                    // Prometheus numbers a bucket by its upper bound, OpenTelemetry by its lower one.
                    counts.insert(index - 1, u64::try_from(count).unwrap());
                    index += 1;
                }
            }
            prop_assert!(deltas.next().is_none());
            let expected: BTreeMap<i32, u64> =
                (otlp.positive_offset..).zip(otlp.positive_counts).filter(|(_, count)| *count > 0).collect();
            prop_assert_eq!(counts, expected);
            prop_assert_eq!(prometheus.zero_count, otlp.zero_count);
        }
    }

    #[test]
    fn a_power_of_two_of_seconds_is_an_upper_bound() {
        // 1 s lies in the bucket that ends near 1 s: index 0 of Prometheus is 2^(-1/32) < s ≤ 1.
        let prometheus = histogram(&[990_000_000]).to_prometheus();
        assert_eq!(prometheus.positive_spans, [Span { offset: 0, length: 1 }]);
        assert_eq!(prometheus.positive_deltas, [1]);
    }
}
