//! What was counted of a span.

use super::abi::Table;

/// Counts of a span since it was attached. Each number is counted on its own; they agree exactly while no call is in progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpanCounts {
    /// Entries.
    pub started: u64,
    /// Exits that have an entry.
    pub ended: u64,
    /// Sum of the durations, in nanoseconds.
    pub sum_ns: u64,
    /// Least duration; 0 if there is none.
    pub min_ns: u64,
    /// Greatest duration; 0 if there is none.
    pub max_ns: u64,
    /// Number of durations in each bucket that has any, by its index: 32 buckets an octave, as in the crate `chainscope-latency`.
    pub buckets: Vec<(u16, u64)>,
    /// Entries whose stack frame, or thread, was entered again before an exit: the earlier span never ended. A part of those that
    /// have not ended; always 0 for [`Pairing::Session`](super::Pairing::Session).
    pub replaced: u64,
    /// Exits without an entry: the call was in progress when the probe was attached, or its start was not kept.
    pub no_entry: u64,
    /// Entries that could not be kept.
    pub no_room: u64,
    /// Return codes that could not be counted, because there are too many distinct ones.
    pub no_return_room: u64,
}

impl SpanCounts {
    /// Spans that are in progress, or will never end.
    #[must_use]
    pub fn not_ended(&self) -> u64 {
        self.started.saturating_sub(self.ended).saturating_sub(self.no_room)
    }

    /// Adds up the tables of a span.
    pub(super) fn sum(tables: impl Iterator<Item = Table>) -> Self {
        let mut total = Self::default();
        let mut buckets = Vec::new();
        let mut not_min = 0;
        for table in tables {
            total.started += table.started;
            total.ended += table.ended;
            total.sum_ns = total.sum_ns.saturating_add(table.sum);
            total.max_ns = total.max_ns.max(table.max);
            not_min = table.not_min.max(not_min);
            total.replaced += table.replaced;
            total.no_entry += table.no_entry;
            total.no_room += table.no_room;
            total.no_return_room += table.no_return_room;
            if table.ended > 0 {
                buckets.resize(table.buckets.len(), 0);
                buckets.iter_mut().zip(&table.buckets).for_each(|(sum, count)| *sum += count);
            }
        }
        if total.ended > 0 {
            total.min_ns = !not_min;
        }
        total.buckets = (0_u16..).zip(buckets).filter(|(_, count)| *count > 0).collect();
        total
    }
}
