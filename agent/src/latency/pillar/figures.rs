//! Counts of the latency pillar.

use std::{collections::BTreeMap, sync::Arc};

use chainscope_latency::Block;
use prometheus_client::registry::Registry;

use crate::{
    figures::Tally,
    openmetrics::{counters, node},
    workers::{self, ProcessCounts},
};

/// Shared by the timers and the threads that serve metrics and reports.
pub(super) type Figures = workers::Figures<Counts>;

/// What was recorded of the functions of a process: `ended spans = spans + not_kept`, plus those of the block that is counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Records of blocks.
    pub(super) blocks: u64,
    pub(super) spans: u64,
    /// Spans of blocks that did not fit into the record stream.
    pub(super) not_kept: u64,
    /// Spans that were found not to end.
    pub(super) unended: u64,
    /// What the probe has lost, by reason.
    pub(super) lost: BTreeMap<&'static str, u64>,
    /// Records of transactions.
    pub(super) transactions: u64,
    /// Transactions that did not fit into the record stream; their durations are in blocks.
    pub(super) transactions_not_kept: u64,
    /// Time of the newest record.
    pub(super) last_ns: i64,
}

impl Counts {
    /// Adds a block that was recorded.
    pub(super) fn add(&mut self, block: &Block) {
        self.spans += block.histogram.count();
        self.unended += block.unended;
        for (reason, count) in &block.lost {
            *self.lost.entry(reason.as_str()).or_default() += count;
        }
    }
}

impl ProcessCounts for Counts {
    const GAUGES: [(&'static str, &'static str); 2] = [
        ("latency_functions", "Functions that are timed"),
        ("latency_failed", "Processes of which functions cannot be timed, or not all"),
    ];

    fn merge(&mut self, other: &Self) {
        self.blocks += other.blocks;
        self.spans += other.spans;
        self.not_kept += other.not_kept;
        self.transactions += other.transactions;
        self.transactions_not_kept += other.transactions_not_kept;
        self.unended += other.unended;
        for (reason, count) in &other.lost {
            *self.lost.entry(reason).or_default() += count;
        }
        self.last_ns = self.last_ns.max(other.last_ns);
    }

    fn tally(&self, attached: u32, error: String) -> Tally {
        Tally { latency_functions: attached, latency_error: error, last_record_ns: self.last_ns, ..Tally::default() }
    }

    fn register(nodes: &BTreeMap<Arc<str>, Self>, registry: &mut Registry) {
        let mut family = |name: &str, help: &str, value: fn(&Self) -> u64| {
            counters(registry, name, help, nodes.iter().map(|(of, counts)| (node(of), value(counts))));
        };
        family("latency_blocks", "Blocks of the latency of functions added to record streams", |counts| counts.blocks);
        family("latency_spans", "Spans of functions in these blocks", |counts| counts.spans);
        let help = "Spans of functions whose blocks did not fit into the record stream";
        family("latency_spans_dropped", help, |counts| counts.not_kept);
        let help = "Transactions of functions added to record streams one by one";
        family("latency_transactions", help, |counts| counts.transactions);
        let help = "Transactions that did not fit into the record stream; their durations are in blocks";
        family("latency_transactions_dropped", help, |counts| counts.transactions_not_kept);
        family("latency_spans_unended", "Spans of functions that were found not to end", |counts| counts.unended);
        let lost = nodes.iter().flat_map(|(of, counts)| {
            counts.lost.iter().map(move |(reason, count)| {
                let mut labels = node(of);
                labels.push(("reason", (*reason).to_owned()));
                (labels, *count)
            })
        });
        counters(registry, "latency_lost", "Spans and return codes that are missing in blocks, by reason", lost);
    }
}
