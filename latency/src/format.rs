//! Numbers as people read them.

/// A duration with three digits and its unit.
pub(crate) fn duration(nanoseconds: u64) -> String {
    let value = nanoseconds as f64;
    // Bounds at which a value is rounded up to the next unit.
    let (scaled, unit) = match value {
        v if v < 1e3 => return format!("{nanoseconds} ns"),
        v if v < 999.5e3 => (v / 1e3, "µs"),
        v if v < 999.5e6 => (v / 1e6, "ms"),
        v => (v / 1e9, "s"),
    };
    let decimals = match scaled {
        s if s < 9.995 => 2,
        s if s < 99.95 => 1,
        _ => 0,
    };
    format!("{scaled:.decimals$} {unit}")
}

/// A relative change, with its sign.
pub(crate) fn change(percent: f64) -> String {
    let text = format!("{percent:+.1} %");
    if text == "-0.0 %" { "+0.0 %".to_owned() } else { text.replace('-', "−") }
}

/// A count with its thousands apart.
pub(crate) fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Seconds as minutes and hours.
pub(crate) fn seconds(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{:.1} h", seconds as f64 / 3_600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        let durations =
            [0, 999, 1_000, 9_994, 9_995, 99_950, 999_499, 999_500, 12_345_678, 1_500_000_000, 4_000_000_000_000];
        let texts = durations.map(duration);
        let expected = [
            "0 ns", "999 ns", "1.00 µs", "9.99 µs", "10.0 µs", "100 µs", "999 µs", "1.00 ms", "12.3 ms", "1.50 s",
            "4000 s",
        ];
        assert_eq!(texts, expected);
        assert_eq!([change(-3.21), change(0.0), change(-0.001)], ["−3.2 %", "+0.0 %", "+0.0 %"]);
        assert_eq!([count(0), count(999), count(1_234_567)], ["0", "999", "1,234,567"]);
        assert_eq!([seconds(30), seconds(150), seconds(9_000)], ["30 s", "3 min", "2.5 h"]);
    }
}
