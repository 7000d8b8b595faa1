//! Times in parameters and responses.
//!
//! Responses show whole milliseconds, so times are compared as whole milliseconds: a row is in `from..=to` exactly if the
//! time that it shows is.

use chainscope_store::Order;

use super::params::order;

/// Nanoseconds of a millisecond.
pub(crate) const NS_PER_MS: i64 = 1_000_000;

/// Numbers below are seconds.
const SECONDS_BELOW: u64 = 100_000_000_000;
/// Numbers below (that are not seconds) are milliseconds, others nanoseconds.
const MILLIS_BELOW: u64 = 100_000_000_000_000;

/// A `from` of at least this with an explicit direction is TezEdge Explorer's search by time.
const EXPLORER_FROM: u64 = 1_000_000_000_000_000;

/// The times that the parameters of a list select: from the first, included, to the second, excluded.
///
/// The Explorer searches messages by a time T with two requests, `from=<T in ns>` backward and forward, and means a pivot.
pub(crate) fn range(
    from: Option<u64>,
    to: Option<u64>,
    timestamp: Option<u64>,
    direction: Option<&str>,
) -> (Option<i64>, Option<i64>) {
    let is_pivot = |from: u64| from >= EXPLORER_FROM && direction.is_some() && to.is_none() && timestamp.is_none();
    let (from, pivot) = match from {
        Some(from) if is_pivot(from) => (None, Some(from)),
        from => (from, timestamp),
    };
    let mut start = from.map(nanoseconds).map(first_shown_at_least);
    let mut end = to.map(nanoseconds).map(first_shown_after);
    if let Some(edge) = pivot.map(nanoseconds).map(first_shown_after) {
        match order(direction) {
            Order::NewestFirst => end = Some(end.map_or(edge, |end| end.min(edge))),
            Order::OldestFirst => start = Some(start.map_or(edge, |start| start.max(edge))),
        }
    }
    (start, end)
}

/// A time in a unit that follows from its magnitude, as nanoseconds since 1970.
pub(crate) fn nanoseconds(time: u64) -> i64 {
    let factor = match time {
        0..SECONDS_BELOW => 1_000_000_000,
        SECONDS_BELOW..MILLIS_BELOW => 1_000_000,
        _ => 1,
    };
    i64::try_from(u128::from(time) * factor).unwrap_or(i64::MAX)
}

/// The time that a response shows: rounded down to whole milliseconds.
pub(crate) fn shown_time(time_ns: i64) -> i64 {
    time_ns.div_euclid(NS_PER_MS).saturating_mul(NS_PER_MS)
}

/// The first time that is shown as `time_ns` or later.
pub(crate) fn first_shown_at_least(time_ns: i64) -> i64 {
    let rounded = shown_time(time_ns);
    if rounded == time_ns { time_ns } else { rounded.saturating_add(NS_PER_MS) }
}

/// The first time that is shown as later than `time_ns`.
pub(crate) fn first_shown_after(time_ns: i64) -> i64 {
    shown_time(time_ns).saturating_add(NS_PER_MS)
}

#[cfg(test)]
mod tests {
    use super::nanoseconds;

    #[test]
    fn the_unit_of_a_time_is_inferred() {
        assert_eq!(nanoseconds(1_626_264_123), 1_626_264_123_000_000_000);
        assert_eq!(nanoseconds(1_626_264_123_456), 1_626_264_123_456_000_000);
        assert_eq!(nanoseconds(1_626_264_123_456_789_000), 1_626_264_123_456_789_000);
        assert_eq!(nanoseconds(99_999_999_999), i64::MAX);
        assert_eq!(nanoseconds(100_000_000_000), 100_000_000_000_000_000);
        assert_eq!(nanoseconds(100_000_000_000_000), 100_000_000_000_000);
        assert_eq!(nanoseconds(u64::MAX), i64::MAX);
    }
}
