//! The real-time clock of this machine; the only reader of it in this crate.

use std::time::SystemTime;

use chrono::{DateTime, Utc};

/// The time, in UTC.
#[expect(clippy::disallowed_methods, reason = "the only reader of the wall clock in this crate")]
pub(crate) fn now() -> DateTime<Utc> {
    SystemTime::now().into()
}
