//! A power-of-two histogram as bpftrace prints it.

use std::collections::BTreeMap;

use super::Lines;

/// Width of the bar of the most frequent interval.
const BAR: u64 = 52;

/// Counts by interval: 0, 1, [2, 4), [4, 8) and so on.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    /// By the exponent of the lower bound plus 1; 0 stands for the value 0, -1 for negative ones.
    counts: BTreeMap<i32, u64>,
}

impl Histogram {
    pub(super) fn add(&mut self, value: i128) {
        let interval = match u128::try_from(value) {
            Err(_) => -1,
            Ok(0) => 0,
            Ok(value) => value.ilog2().cast_signed() + 1,
        };
        *self.counts.entry(interval).or_default() += 1;
    }

    /// Prints it as the map with this name: every interval from the first to the last that has a count.
    pub(super) fn print(&self, name: &str, out: &mut Lines) {
        let (Some((first, _)), Some((last, _))) = (self.counts.first_key_value(), self.counts.last_key_value()) else {
            return;
        };
        let most = self.counts.values().copied().max().unwrap_or(1);
        out.line(format_args!("@{name}: "));
        for interval in *first..=*last {
            let count = self.counts.get(&interval).copied().unwrap_or(0);
            let bar = u128::from(count) * u128::from(BAR) / u128::from(most);
            let bar = "@".repeat(usize::try_from(bar).unwrap_or(0));
            out.line(format_args!("{:<16}{count:>8} |{bar:<52}|", label(interval)));
        }
        out.line(format_args!(""));
    }
}

fn label(interval: i32) -> String {
    match interval {
        ..0 => "(..., 0)".to_owned(),
        0 => "[0]".to_owned(),
        1 => "[1]".to_owned(),
        _ => format!("[{}, {})", bound(interval - 1), bound(interval)),
    }
}

/// A power of two with the suffix of its thousands: 512, 1K, 2K, 1M.
fn bound(power: i32) -> String {
    const SUFFIXES: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let suffix = usize::try_from(power / 10).ok().and_then(|index| SUFFIXES.get(index));
    match suffix {
        Some(suffix) => format!("{}{suffix}", 1 << (power % 10)),
        None => format!("2^{power}"),
    }
}
