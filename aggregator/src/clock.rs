//! The wall clock of this machine; the only reader of it in this crate.

use std::time::{SystemTime, UNIX_EPOCH};

/// The current time.
#[expect(clippy::disallowed_methods, reason = "the only reader of the wall clock in this crate")]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

/// Nanoseconds since 1970.
pub(crate) fn now_ns() -> i64 {
    match now().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |ns| -ns),
    }
}
