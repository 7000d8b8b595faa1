//! Times on the command line and in output.

use std::time::{Duration, UNIX_EPOCH};

use crate::clock;

/// Reads a time as a parameter of the API: a number since 1970 as it is, a date and time, or a duration before now.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let millis = |time: Duration| u64::try_from(time.as_millis()).map_err(|error| error.to_string());
    if let Ok(ago) = humantime::parse_duration(text) {
        let now = clock::since_epoch().map_err(|error| error.to_string())?;
        return millis(now.checked_sub(ago).ok_or("before 1970")?);
    }
    let time = humantime::parse_rfc3339_weak(text).map_err(|_| {
        "neither a time such as 2026-11-23T17:00:00Z, nor a duration before now such as 10m, nor seconds or milliseconds since 1970"
    })?;
    millis(time.duration_since(UNIX_EPOCH).map_err(|_| "before 1970")?)
}

/// Date and time in UTC with milliseconds, "2018-02-14T17:01:29.123Z", of nanoseconds since 1970; outside of 1970 to 9999
/// the number.
pub(crate) fn rfc3339(nanoseconds: i64) -> String {
    match u64::try_from(nanoseconds) {
        Ok(since) => humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_nanos(since)).to_string(),
        Err(_) => nanoseconds.to_string(),
    }
}

/// The same with whole seconds: "2018-02-14T17:01:29Z".
pub(crate) fn rfc3339_seconds(nanoseconds: i64) -> String {
    match u64::try_from(nanoseconds) {
        Ok(since) => humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_nanos(since)).to_string(),
        Err(_) => nanoseconds.to_string(),
    }
}

/// Nanoseconds since 1970 of a parameter of the API: seconds below 10^11, milliseconds below 10^14, else nanoseconds.
pub(crate) fn nanoseconds(parameter: u64) -> u64 {
    match parameter {
        0..100_000_000_000 => parameter * 1_000_000_000,
        100_000_000_000..100_000_000_000_000 => parameter * 1_000_000,
        nanoseconds => nanoseconds,
    }
}

/// The time of day in UTC with milliseconds, "17:01:29.123", of nanoseconds since 1970.
pub(crate) fn of_day(nanoseconds: i64) -> String {
    let time = rfc3339(nanoseconds);
    time.get(11..23).map(str::to_owned).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::{nanoseconds, of_day, parse, rfc3339, rfc3339_seconds};
    use crate::clock;

    #[test]
    fn numbers_dates_and_durations_are_times() {
        assert_eq!(parse("1626264123"), Ok(1_626_264_123));
        assert_eq!(parse("2021-07-14T12:02:03.456Z"), Ok(1_626_264_123_456));
        assert_eq!(parse("2021-07-14 12:02:03"), Ok(1_626_264_123_000));
        let now = || clock::since_epoch().unwrap().as_millis();
        let (before, parsed, after) = (now(), u128::from(parse("1h 30m").unwrap()), now());
        assert!((before..=after).contains(&(parsed + 5_400_000)), "{before} {parsed} {after}");
        for wrong in ["", "-1", "yesterday", "10", "1960-01-01T00:00:00Z", "100years"] {
            assert_eq!(parse(wrong).is_err(), wrong != "10", "{wrong}");
        }
    }

    #[test]
    fn times_are_shown_in_utc_and_impossible_ones_as_numbers() {
        assert_eq!(rfc3339(1_626_264_123_456_789_000), "2021-07-14T12:02:03.456Z");
        assert_eq!(of_day(1_626_264_123_456_789_000), "12:02:03.456");
        assert_eq!((rfc3339(-1), of_day(-1)), ("-1".to_owned(), "-1".to_owned()));
        assert_eq!(rfc3339(i64::MAX), "2262-04-11T23:47:16.854Z");
        assert_eq!(
            (rfc3339_seconds(999_999_999).as_str(), rfc3339_seconds(-1).as_str()),
            ("1970-01-01T00:00:00Z", "-1")
        );
        let same = [1_626_264_123, 1_626_264_123_000, 1_626_264_123_000_000_000].map(nanoseconds);
        assert_eq!(same, [1_626_264_123_000_000_000; 3]);
    }
}
