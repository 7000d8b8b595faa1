//! The operator's clocks. Ages and timeouts are differences of the monotonic clock, which a step of the wall clock does not
//! affect; the wall clock is for timestamps, and for times that come from other hosts.

use std::{
    sync::LazyLock,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// A moment on both clocks.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// Nanoseconds of the monotonic clock, see [`monotonic_ns`].
    pub monotonic_ns: i64,
    /// Nanoseconds since the Unix epoch.
    pub unix_ns: i64,
}

impl Moment {
    /// The current time.
    #[expect(clippy::disallowed_methods, reason = "timestamps of conditions")]
    pub fn now() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { monotonic_ns: monotonic_ns(), unix_ns: i64::try_from(unix.as_nanos()).unwrap_or(i64::MAX) }
    }
}

/// Nanoseconds of the monotonic clock since its first use in this process.
pub fn monotonic_ns() -> i64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    i64::try_from(START.elapsed().as_nanos()).unwrap_or(i64::MAX)
}
