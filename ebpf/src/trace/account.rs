//! Counts of the hits of a location.

use super::abi::Counters;

/// Hits of a location since it was attached. Each number is counted on its own.
///
/// `hits = delivered + ring_full + no_slot` holds exactly while no hit is in progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How often it was hit.
    pub hits: u64,
    /// Events put into the ring.
    pub delivered: u64,
    /// Events dropped because the ring was full.
    pub ring_full: u64,
    /// Events dropped because too many hits were in progress at once, waiting for pages of their processes.
    pub no_slot: u64,
    /// Events, of those delivered, that lack a part of a payload because the ring was full.
    pub incomplete: u64,
    /// Events that [`TraceProbe::poll`](super::TraceProbe::poll) has returned.
    pub received: u64,
}

impl Counts {
    /// Sums up the counters of the CPUs.
    pub(super) fn sum(cpus: &[Counters], received: u64) -> Self {
        let mut total = Self { received, ..Self::default() };
        for cpu in cpus {
            total.hits += cpu.hits;
            total.delivered += cpu.delivered;
            total.ring_full += cpu.ring_full;
            total.no_slot += cpu.no_slot;
            total.incomplete += cpu.incomplete;
        }
        total
    }

    /// Events dropped for any reason.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.ring_full + self.no_slot
    }
}
