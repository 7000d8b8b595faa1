//! Waiting for conditions, never for time.

use std::time::{Duration, Instant};

/// How long anything may take before a test gives up: two cores are shared with other tests.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Asks until there is an answer.
///
/// # Panics
/// After [`WAIT_TIMEOUT`], with `what` was waited for.
#[track_caller]
pub fn until<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    until_within(WAIT_TIMEOUT, what, probe)
}

/// Asks until it is so.
///
/// # Panics
/// As [`until`].
#[track_caller]
pub fn until_true(what: &str, mut is_so: impl FnMut() -> bool) {
    until(what, || is_so().then_some(()));
}

/// Asks until it is so, for at most [`WAIT_TIMEOUT`]; whether it is. For a test that can say more about what is not.
#[must_use]
pub fn until_or(mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while !is_so() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    true
}

/// As [`until`], with a deadline of its own.
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
        assert!(Instant::now() < deadline, "waited {timeout:?} in vain for {what}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}
