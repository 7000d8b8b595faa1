//! The real-time clock of this machine; the only reader of it in this crate.

use std::time::{SystemTime, SystemTimeError, UNIX_EPOCH};

/// Milliseconds since 1970, as in times of the API.
#[expect(clippy::disallowed_methods, reason = "the only reader of the wall clock in this crate")]
pub(crate) fn unix_millis() -> Result<u128, SystemTimeError> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())
}
