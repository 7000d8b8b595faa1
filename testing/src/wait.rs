//! Polling for conditions instead of sleeping for fixed times.

use std::time::{Duration, Instant};

/// Default timeout of a wait; long because tests share two cores.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Polls until `probe` returns a value.
///
/// # Panics
/// After [`WAIT_TIMEOUT`]; the message contains `what`.
#[track_caller]
pub fn until<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    until_within(WAIT_TIMEOUT, what, probe)
}

/// Polls until `is_so` returns true.
///
/// # Panics
/// Like [`until`].
#[track_caller]
pub fn until_true(what: &str, mut is_so: impl FnMut() -> bool) {
    until(what, || is_so().then_some(()));
}

/// Polls until `is_so` returns true; returns false after [`WAIT_TIMEOUT`], so that the caller can report details.
#[must_use]
pub fn holds_within_timeout(mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while !is_so() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    true
}

/// Like [`until`], with an explicit timeout.
///
/// # Panics
/// After `timeout`.
#[track_caller]
pub fn until_within<T>(timeout: Duration, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(answer) = probe() {
            return answer;
        }
        assert!(Instant::now() < deadline, "timed out after {timeout:?} waiting for {what}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}
