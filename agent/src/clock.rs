//! Kernel monotonic time to real time.
//!
//! The kernel stamps events with `CLOCK_MONOTONIC`; records carry nanoseconds since 1970. The difference is sampled once
//! a second, so that records follow the host's clock as it is slewed; a jump is noted.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Least change of the offset between two samples that counts as a jump, in nanoseconds.
const JUMP_NS: u64 = 100_000_000;

/// The sampled offset.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    offset_ns: i64,
}

impl Clock {
    pub(crate) fn sampled() -> Self {
        Self { offset_ns: sample() }
    }

    /// A clock with a known offset, for tests and replays.
    #[cfg(test)]
    pub(crate) fn with_offset(offset_ns: i64) -> Self {
        Self { offset_ns }
    }

    /// Real time of a kernel time stamp, nanoseconds since 1970.
    pub(crate) fn real(&self, monotonic_ns: u64) -> i64 {
        i64::try_from(monotonic_ns).unwrap_or(i64::MAX).saturating_add(self.offset_ns)
    }

    /// Real time now.
    pub(crate) fn now(&self) -> i64 {
        self.real(monotonic_ns())
    }

    /// Real time of a process's start, given in clock ticks since boot.
    pub(crate) fn of_ticks(ticks: u64) -> i64 {
        let hertz = rustix::param::clock_ticks_per_second().max(1);
        let since_boot = u128::from(ticks) * 1_000_000_000 / u128::from(hertz);
        let boot = realtime_ns().saturating_sub(nanoseconds(clock_gettime(ClockId::Boottime)));
        boot.saturating_add(i64::try_from(since_boot).unwrap_or(i64::MAX))
    }

    /// Samples again; returns by how many nanoseconds the clock jumped, if it did.
    pub(crate) fn resample(&mut self) -> Option<i64> {
        self.move_to(sample())
    }

    fn move_to(&mut self, offset_ns: i64) -> Option<i64> {
        let moved = offset_ns.saturating_sub(self.offset_ns);
        self.offset_ns = offset_ns;
        (moved.unsigned_abs() >= JUMP_NS).then_some(moved)
    }
}

/// `CLOCK_MONOTONIC` of a process's start, given in clock ticks since boot: at most a tick too early.
pub(crate) fn monotonic_of_ticks(ticks: u64) -> u64 {
    let hertz = rustix::param::clock_ticks_per_second().max(1);
    let since_boot = i64::try_from(u128::from(ticks) * 1_000_000_000 / u128::from(hertz)).unwrap_or(i64::MAX);
    // The clock of ticks goes on while the machine is suspended.
    let suspended = nanoseconds(clock_gettime(ClockId::Boottime)) - nanoseconds(clock_gettime(ClockId::Monotonic));
    u64::try_from(since_boot.saturating_sub(suspended.max(0))).unwrap_or(0)
}

/// `CLOCK_MONOTONIC` in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    u64::try_from(nanoseconds(clock_gettime(ClockId::Monotonic))).unwrap_or(0)
}

/// `CLOCK_REALTIME` in nanoseconds since 1970.
pub(crate) fn realtime_ns() -> i64 {
    nanoseconds(clock_gettime(ClockId::Realtime))
}

fn nanoseconds(time: Timespec) -> i64 {
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

/// Real minus monotonic time. The closest of a few samples: a preemption between the two reads makes one wrong.
fn sample() -> i64 {
    let mut best = (i64::MAX, 0);
    for _ in 0..3 {
        let before = nanoseconds(clock_gettime(ClockId::Monotonic));
        let real = realtime_ns();
        let after = nanoseconds(clock_gettime(ClockId::Monotonic));
        let width = after - before;
        if width < best.0 {
            best = (width, real - (before + width / 2));
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_leads_from_monotonic_to_real_time() {
        let clock = Clock::sampled();
        let before = realtime_ns();
        let now = clock.now();
        let after = realtime_ns();
        assert!(before - 10_000_000 < now && now < after + 10_000_000, "{before} {now} {after}");
    }

    #[test]
    fn a_start_in_ticks_is_a_real_time() {
        let own = crate::targets::proc::Proc::default().start_of(std::process::id()).unwrap();
        let started = Clock::of_ticks(own);
        let now = realtime_ns();
        assert!(started <= now && now - started < 3_600_000_000_000, "{started} {now}");
    }

    #[test]
    fn slewing_is_followed_and_a_jump_is_reported() {
        let mut clock = Clock::with_offset(1_000);
        assert_eq!(clock.move_to(1_500), None);
        assert_eq!(clock.real(10), 1_510);
        assert_eq!(clock.move_to(1_500 - 200_000_000), Some(-200_000_000));
        assert_eq!(clock.real(10), 1_510 - 200_000_000);
    }
}
