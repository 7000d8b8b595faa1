//! The histogram against exact values.

use chainscope_latency::{BUCKETS, Histogram, bucket_bounds, bucket_index};
use proptest::prelude::*;

#[test]
fn buckets_are_dense_and_end_at_the_greatest_value() {
    let mut next = 0_u64;
    for index in 0..BUCKETS {
        let (least, greatest) = bucket_bounds(index).unwrap();
        assert_eq!(least, next, "bucket {index}");
        assert_eq!((bucket_index(least), bucket_index(greatest)), (index, index));
        // Relative width at most 1/32.
        assert!(greatest - least <= least / 32, "bucket {index}: {least}..{greatest}");
        next = greatest.wrapping_add(1);
    }
    assert_eq!(next, 0, "the last bucket ends at 2^64 - 1");
    assert_eq!(bucket_bounds(BUCKETS), None);
}

#[test]
fn the_documented_example() {
    assert_eq!(bucket_index(365), 141);
    assert_eq!(bucket_bounds(141), Some((360, 367)));
}

#[test]
fn parts_are_kept_and_made_consistent() {
    let parts = |buckets: &[(u16, u64)], sum, min, max| {
        let histogram = Histogram::from_parts(buckets.iter().copied(), sum, min, max)?;
        Some((histogram.count(), histogram.sum(), histogram.min(), histogram.max()))
    };
    assert_eq!(parts(&[(141, 2)], 725, 361, 364), Some((2, 725, Some(361), Some(364))));
    assert_eq!(parts(&[(141, 2)], 1, 0, u64::MAX), Some((2, 720, Some(360), Some(367))));
    assert_eq!(parts(&[(141, 0)], 1, 0, 9), Some((0, 0, None, None)));
    assert_eq!(parts(&[(BUCKETS, 1)], 1, 1, 1), None, "no such bucket");
    assert_eq!(parts(&[(141, 1), (150, u64::MAX)], 725, 361, 440), None, "count overflows");
}

fn values() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec((0_u32..64, any::<u64>()).prop_map(|(bits, value)| value >> bits), 1..400)
}

fn histogram(values: &[u64]) -> Histogram {
    let mut histogram = Histogram::default();
    values.iter().for_each(|&value| histogram.record(value));
    histogram
}

proptest! {
    #[test]
    fn quantiles_are_within_the_error(mut values in values(), q in 0.0_f64..=1.0) {
        let histogram = histogram(&values);
        values.sort_unstable();
        let rank = ((q * values.len() as f64).ceil() as usize).max(1);
        let exact = values[rank - 1];
        let bucket = histogram.quantile_bucket(q).unwrap();
        prop_assert!((bucket.least..=bucket.greatest).contains(&exact));
        let (middle, exact) = (histogram.quantile(q).unwrap() as f64, exact as f64);
        prop_assert!((middle - exact).abs() <= exact / 64.0 + 0.5, "{middle} for {exact}");
    }

    #[test]
    fn count_sum_minimum_and_maximum_are_exact(values in values()) {
        let values: Vec<u64> = values.iter().map(|value| value >> 9).collect();
        let histogram = histogram(&values);
        prop_assert_eq!(histogram.count(), values.len() as u64);
        prop_assert_eq!(histogram.sum(), values.iter().sum::<u64>());
        prop_assert_eq!(histogram.min(), values.iter().min().copied());
        prop_assert_eq!(histogram.max(), values.iter().max().copied());
        prop_assert_eq!(histogram.buckets().map(|bucket| bucket.count).sum::<u64>(), values.len() as u64);
    }

    #[test]
    fn merging_is_recording_together(a in values(), b in values()) {
        let mut merged = histogram(&a);
        merged.merge(&histogram(&b));
        prop_assert_eq!(&merged, &histogram(&[a, b].concat()));
        let parts = merged.buckets().map(|bucket| (bucket.index, bucket.count)).collect::<Vec<_>>();
        let again = Histogram::from_parts(parts, merged.sum(), merged.min().unwrap(), merged.max().unwrap());
        prop_assert_eq!(again, Some(merged));
    }

    #[test]
    fn interpolation_stays_within_the_bucket_and_grows(values in values()) {
        let histogram = histogram(&values);
        let mut previous = 0.0;
        for step in 1..=20 {
            let q = f64::from(step) / 20.0;
            let interpolated = histogram.quantile_interpolated(q).unwrap();
            let bucket = histogram.quantile_bucket(q).unwrap();
            let (least, end) = (bucket.least as f64, bucket.greatest as f64 + 1.0);
            prop_assert!((least..=end * (1.0 + f64::EPSILON)).contains(&interpolated), "{interpolated} in {least}..{end}");
            prop_assert!(interpolated >= previous);
            previous = interpolated;
        }
    }
}
