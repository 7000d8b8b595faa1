//! The real-time clock of this machine; the only reader of it in this crate.

use std::time::{SystemTime, SystemTimeError, UNIX_EPOCH};

/// Milliseconds since 1970, as in times of the API.
pub(crate) fn unix_millis() -> Result<u128, SystemTimeError> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())
}
