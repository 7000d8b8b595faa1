//! Blocks: differences of what the kernel has counted.

use std::{collections::BTreeMap, time::Duration};

use chainscope_ebpf::latency::SpanCounts;
use chainscope_latency::{Block, Histogram, LossReason, Time};

/// What was counted of a function up to a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Total {
    pub(super) counts: SpanCounts,
    pub(super) returns: BTreeMap<i32, u64>,
}

/// The block of a function between two totals; `None` if nothing happened. With the last total of a recording, spans that have not
/// ended by then are those that never do.
pub(super) fn difference(
    function: usize,
    (start, length): (Time, Duration),
    before: &Total,
    after: &Total,
    is_last: bool,
) -> Option<Block> {
    let (old, new) = (&before.counts, &after.counts);
    let known: BTreeMap<u16, u64> = old.buckets.iter().copied().collect();
    let added = |index: u16, count: u64| count.saturating_sub(known.get(&index).copied().unwrap_or(0));
    let buckets = new.buckets.iter().map(|(index, count)| (*index, added(*index, *count)));
    // The extremes are those of the recording so far, and are moved into the first and last bucket of the block: exact for the run.
    let sum = new.sum_ns.saturating_sub(old.sum_ns);
    let histogram = Histogram::from_parts(buckets, sum, new.min_ns, new.max_ns)?;
    let mut returns = BTreeMap::new();
    for (code, count) in &after.returns {
        let added = count.saturating_sub(before.returns.get(code).copied().unwrap_or(0));
        if added > 0 {
            returns.insert(i64::from(*code), added);
        }
    }
    let mut unended = new.replaced.saturating_sub(old.replaced);
    if is_last {
        unended += new.not_ended().saturating_sub(new.replaced);
    }
    let losses = [
        (LossReason::NoEntry, new.no_entry.saturating_sub(old.no_entry)),
        (LossReason::SpansFull, new.no_room.saturating_sub(old.no_room)),
        (LossReason::ReturnsFull, new.no_return_room.saturating_sub(old.no_return_room)),
    ];
    let lost: BTreeMap<LossReason, u64> = losses.into_iter().filter(|(_, count)| *count > 0).collect();
    let is_empty = histogram.is_empty() && returns.is_empty() && unended == 0 && lost.is_empty();
    (!is_empty).then_some(Block { function, start, length, histogram, returns, unended, lost })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(started: u64, replaced: u64, buckets: &[(u16, u64)]) -> Total {
        let ended = buckets.iter().map(|(_, count)| count).sum();
        let sum_ns = buckets.iter().map(|(index, count)| u64::from(*index) * count).sum();
        let buckets = buckets.to_vec();
        let counts =
            SpanCounts { started, ended, sum_ns, min_ns: 3, max_ns: 40, buckets, replaced, ..SpanCounts::default() };
        Total { counts, returns: BTreeMap::from([(104, ended)]) }
    }

    #[test]
    fn blocks_add_up_to_the_totals() {
        let period = (Time(0), Duration::from_secs(30));
        let totals = [
            Total::default(),
            total(10, 1, &[(3, 4), (40, 2)]),
            total(10, 1, &[(3, 4), (40, 2)]),
            total(20, 2, &[(3, 5), (8, 3), (40, 6)]),
        ];
        let blocks: Vec<Option<Block>> =
            (1..4).map(|at| difference(7, period, &totals[at - 1], &totals[at], at == 3)).collect();
        assert!(blocks[1].is_none(), "nothing happened");
        let (first, last) = (blocks[0].as_ref().unwrap(), blocks[2].as_ref().unwrap());
        assert_eq!((first.histogram.count(), last.histogram.count(), last.function), (6, 8, 7));
        assert_eq!((first.histogram.min(), first.histogram.max()), (Some(3), Some(40)));
        assert_eq!(last.histogram.sum(), 3 + 8 * 3 + 40 * 4);
        assert_eq!((first.returns[&104], last.returns[&104]), (6, 8));
        // Of 20, 14 ended; one of the others was replaced before the first block's end.
        assert_eq!((first.unended, last.unended), (1, 5));
    }
}
