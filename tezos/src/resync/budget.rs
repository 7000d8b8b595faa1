//! Processing budget of a direction's resynchronisations.
use crate::limits::Limits;

/// A token bucket refilled by bytes and time of the stream. A unit is about 0.1 µs of processing.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    units: u64,
    refilled_ns: u64,
}

impl Budget {
    /// A full budget.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self { units: limits.resync_budget, refilled_ns: 0 }
    }

    /// Adds the units for `bytes` of the stream and for the time since the last refill.
    pub(crate) fn refill(&mut self, bytes: usize, time_ns: u64, limits: &Limits) {
        let elapsed = if self.refilled_ns == 0 { 0 } else { time_ns.saturating_sub(self.refilled_ns) };
        let by_time = u128::from(elapsed) * u128::from(limits.resync_budget_per_second) / 1_000_000_000;
        // Intervals shorter than a unit accumulate.
        if by_time > 0 || self.refilled_ns == 0 {
            self.refilled_ns = self.refilled_ns.max(time_ns);
        }
        let by_bytes = (bytes as u64).saturating_mul(limits.resync_budget_per_byte);
        self.units = self
            .units
            .saturating_add(by_bytes)
            .saturating_add(u64::try_from(by_time).unwrap_or(u64::MAX))
            .min(limits.resync_budget);
    }

    /// Takes units; returns false and takes none if there are too few.
    pub(super) fn spend(&mut self, units: u64) -> bool {
        let enough = self.units >= units;
        if enough {
            self.units -= units;
        }
        enough
    }
}
