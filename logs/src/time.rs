//! Times in log lines.

use chrono::{DateTime, Datelike as _, NaiveDate, NaiveDateTime, Utc};

/// Time in a log line, as far as it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineTime {
    /// Nanoseconds since 1970.
    Exact(i64),
    /// Local time of the node, without a year.
    Local(LocalTime),
}

/// A time of day of a month, in an unknown time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalTime {
    pub(crate) month: u32,
    pub(crate) day: u32,
    pub(crate) hour: u32,
    pub(crate) minute: u32,
    pub(crate) second: u32,
    pub(crate) nanosecond: u32,
}

impl LocalTime {
    fn in_year(self, year: i32) -> Option<NaiveDateTime> {
        NaiveDate::from_ymd_opt(year, self.month, self.day)?.and_hms_nano_opt(
            self.hour,
            self.minute,
            self.second,
            self.nanosecond,
        )
    }

    /// Nanoseconds since 1970 as UTC, in the latest year in which it is not after `received`: messages are of the past. None if
    /// the last years have no such day.
    pub(crate) fn latest(self, received: i64) -> Option<i64> {
        let year = DateTime::<Utc>::from_timestamp_nanos(received).year();
        let candidates = (year - 1..=year + 1).filter_map(|year| self.in_year(year)?.and_utc().timestamp_nanos_opt());
        candidates.filter(|time| *time <= received.saturating_add(MAX_AHEAD)).max()
    }
}

/// How far a time may be ahead of its arrival, in nanoseconds: two days, for time zones and clocks that are not set.
const MAX_AHEAD: i64 = 2 * 86_400 * 1_000_000_000;

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Reads `Mon DD HH:MM:SS`, optionally with a fraction, at the start of a line. Returns it and what follows.
pub(crate) fn local_time(text: &str) -> Option<(LocalTime, &str)> {
    let (name, rest) = text.split_at_checked(3)?;
    let month = MONTHS.iter().position(|month| *month == name)? as u32 + 1;
    let rest = rest.strip_prefix(' ')?;
    let (day, rest) = number(rest.trim_start_matches(' '), 2)?;
    let (hour, rest) = number(rest.strip_prefix(' ')?, 2)?;
    let (minute, rest) = number(rest.strip_prefix(':')?, 2)?;
    let (second, rest) = number(rest.strip_prefix(':')?, 2)?;
    let (nanosecond, rest) = match rest.strip_prefix('.') {
        Some(fraction) => {
            let (value, after) = number(fraction, 9)?;
            let digits = (fraction.len() - after.len()) as u32;
            (value * 10_u32.pow(9 - digits), after)
        }
        None => (0, rest),
    };
    let time = LocalTime { month, day, hour, minute, second, nanosecond };
    // A leap year: the year is not known.
    time.in_year(2000)?;
    Some((time, rest))
}

/// Reads a number of at most `most` digits. Returns it and what follows.
fn number(text: &str, most: usize) -> Option<(u32, &str)> {
    let digits = text.bytes().take(most).take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at(digits);
    Some((number.parse().ok()?, rest))
}

/// Reads an RFC 3339 time up to the first space. Returns nanoseconds since 1970 and what follows the space.
pub(crate) fn rfc3339(text: &str) -> Option<(i64, &str)> {
    let (time, rest) = text.split_once(' ')?;
    Some((rfc3339_exact(time)?, rest))
}

/// Nanoseconds since 1970 of an RFC 3339 time.
pub(crate) fn rfc3339_exact(time: &str) -> Option<i64> {
    DateTime::parse_from_rfc3339(time).ok()?.timestamp_nanos_opt()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW_YEAR_2026: i64 = 1_767_225_600_000_000_000;

    #[test]
    fn local_times() {
        let (time, rest) = local_time("Apr  8 16:49:28.172 - light_mode").expect("a time");
        let LocalTime { month, day, hour, minute, second, nanosecond } = time;
        assert_eq!(
            (month, day, hour, minute, second, nanosecond, rest),
            (4, 8, 16, 49, 28, 172_000_000, " - light_mode")
        );
        assert_eq!(local_time("Feb 29 00:00:60").map(|_| ()), None);
        assert!(local_time("Feb 29 00:00:59").is_some());
        for wrong in ["", "Ap", "Foo 10 10:10:10", "Jan 1", "Jan 32 10:10:10", "Jan 10 10:10", "Jän 10 10:10:10"] {
            assert_eq!(local_time(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn year_is_the_latest_that_is_not_ahead() {
        let second = 1_000_000_000;
        let (december, _) = local_time("Dec 31 23:59:59").expect("a time");
        assert_eq!(december.latest(NEW_YEAR_2026), Some(NEW_YEAR_2026 - second));
        let (january, _) = local_time("Jan  1 00:00:01").expect("a time");
        assert_eq!(january.latest(NEW_YEAR_2026 - second), Some(NEW_YEAR_2026 + second));
        // April 2026 would be nearer.
        let (april, _) = local_time("Apr 27 08:29:09").expect("a time");
        assert_eq!(april.latest(NEW_YEAR_2026), Some(1_745_742_549_000_000_000));
        // 2024 is two years away.
        let (leap, _) = local_time("Feb 29 00:00:00").expect("a time");
        assert_eq!(leap.latest(NEW_YEAR_2026), None);
        // The end of the range of nanoseconds is in April 2262.
        assert!(january.latest(i64::MAX).is_some_and(|time| time < i64::MAX));
    }
}
