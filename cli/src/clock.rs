//! The real-time clock of this machine; the only reader of it in this crate.

use std::time::{Duration, SystemTime, SystemTimeError, UNIX_EPOCH};

/// Time since 1970.
#[expect(clippy::disallowed_methods, reason = "the only reader of the wall clock in this crate")]
pub(crate) fn since_epoch() -> Result<Duration, SystemTimeError> {
    SystemTime::now().duration_since(UNIX_EPOCH)
}
