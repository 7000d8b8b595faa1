//! Processing of resynchronisations: token buckets, of one direction and of the conversations that share a budget. A unit
//! is about 0.1 µs of processing.
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Units that the conversations of a shared budget may spend at once.
const SHARED_UNITS: u64 = 10_000_000;
/// Units added to a shared budget per second: a tenth of one processor.
const SHARED_UNITS_PER_SECOND: u64 = 1_000_000;
/// Number of captured bytes for which a unit is added to a shared budget. Bytes cost about as much to interpret.
const BYTES_PER_SHARED_UNIT: u64 = 16;

/// Units that are spent, and added for bytes and time of the stream. No clock is read.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    units: u64,
    refilled_ns: u64,
}

impl Bucket {
    pub(crate) fn new(units: u64) -> Self {
        Self { units, refilled_ns: 0 }
    }

    /// Sets the number of units.
    pub(crate) fn fill(&mut self, units: u64) {
        self.units = units;
    }

    /// Adds `units`, and those for the time since the last refill, up to `capacity`.
    pub(crate) fn refill(&mut self, units: u64, time_ns: u64, per_second: u64, capacity: u64) {
        let elapsed = if self.refilled_ns == 0 { 0 } else { time_ns.saturating_sub(self.refilled_ns) };
        let by_time = u128::from(elapsed) * u128::from(per_second) / 1_000_000_000;
        // Intervals shorter than a unit accumulate.
        if by_time > 0 || self.refilled_ns == 0 {
            self.refilled_ns = self.refilled_ns.max(time_ns);
        }
        self.units =
            self.units.saturating_add(units).saturating_add(u64::try_from(by_time).unwrap_or(u64::MAX)).min(capacity);
    }

    pub(crate) fn has(&self, units: u64) -> bool {
        self.units >= units
    }

    /// Takes units, of which there are enough.
    pub(crate) fn take(&mut self, units: u64) {
        self.units = self.units.saturating_sub(units);
    }
}

/// The budget of all resynchronisations of some conversations. Without it, many connections could have the budget of a
/// direction many times.
#[derive(Debug)]
pub(crate) struct SharedWork(Mutex<State>);

#[derive(Debug)]
struct State {
    bucket: Bucket,
    /// Captured bytes for which no unit was added yet.
    bytes: u64,
    spent: u64,
}

impl SharedWork {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State { bucket: Bucket::new(SHARED_UNITS), bytes: 0, spent: 0 }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the units for `bytes` of a stream, captured at this time.
    pub(crate) fn refill(&self, bytes: usize, time_ns: u64) {
        let mut state = self.state();
        let bytes = state.bytes.saturating_add(bytes as u64);
        state.bytes = bytes % BYTES_PER_SHARED_UNIT;
        state.bucket.refill(bytes / BYTES_PER_SHARED_UNIT, time_ns, SHARED_UNITS_PER_SECOND, SHARED_UNITS);
    }

    /// Takes units; returns false and takes none if there are too few.
    pub(crate) fn spend(&self, units: u64) -> bool {
        let mut state = self.state();
        let enough = state.bucket.has(units);
        if enough {
            state.bucket.take(units);
            state.spent = state.spent.saturating_add(units);
        }
        enough
    }

    /// Number of units spent so far.
    pub(crate) fn spent(&self) -> u64 {
        self.state().spent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_work_is_refilled_by_bytes_and_time_up_to_its_limit() {
        let work = SharedWork::new();
        assert!(!work.spend(SHARED_UNITS + 1) && work.spend(SHARED_UNITS) && !work.spend(1));
        for _ in 0..BYTES_PER_SHARED_UNIT {
            work.refill(1, 1);
        }
        assert!(work.spend(1) && !work.spend(1), "one byte at a time");
        work.refill(0, 1_000_001);
        assert!(work.spend(SHARED_UNITS_PER_SECOND / 1_000) && !work.spend(1));
        // Pieces of several streams may arrive with an earlier time.
        work.refill(0, 1);
        assert!(!work.spend(1));
        work.refill(0, u64::MAX);
        assert!(work.spend(SHARED_UNITS) && !work.spend(1));
        assert_eq!(work.spent(), 2 * SHARED_UNITS + 1 + SHARED_UNITS_PER_SECOND / 1_000);
    }
}
