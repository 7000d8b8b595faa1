//! Processing budget of a direction's resynchronisations.
use crate::{limits::Limits, memory::MemoryBudget, work::Bucket};

/// A token bucket refilled by bytes and time of the stream. What it spends is also taken from the budget that the
/// conversation shares with others.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    own: Bucket,
    shared: MemoryBudget,
}

impl Budget {
    /// A full budget, shared with no other conversation.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self { own: Bucket::new(limits.resync_budget), shared: MemoryBudget::default() }
    }

    /// From now on units are also taken from the shared budget.
    pub(crate) fn share(&mut self, shared: &MemoryBudget) {
        self.shared = shared.clone();
    }

    /// Fills the direction's own part.
    pub(crate) fn fill(&mut self, limits: &Limits) {
        self.own.fill(limits.resync_budget);
    }

    /// Adds the units for `bytes` of the stream and for the time since the last refill.
    pub(crate) fn refill(&mut self, bytes: usize, time_ns: u64, limits: &Limits) {
        let by_bytes = (bytes as u64).saturating_mul(limits.resync_budget_per_byte);
        self.own.refill(by_bytes, time_ns, limits.resync_budget_per_second, limits.resync_budget);
        if let Some(work) = self.shared.work() {
            work.refill(bytes, time_ns);
        }
    }

    /// Takes units; returns false and takes none if there are too few.
    pub(super) fn spend(&mut self, units: u64) -> bool {
        let enough = self.own.has(units) && self.shared.work().is_none_or(|work| work.spend(units));
        if enough {
            self.own.take(units);
        }
        enough
    }
}
