//! Counts of the tracepoints pillar, by tracepoint.

use std::{collections::BTreeMap, sync::Arc};

use chainscope_hygiene::EscapedTruncated;
use prometheus_client::registry::Registry;

use crate::{
    figures::Tally,
    openmetrics::{counters, node},
    workers::{self, ProcessCounts},
};

/// Tracepoints of a node that have metrics of their own; those of the others are one. Names come from the node's files.
const MAX_TRACEPOINTS: usize = 256;
/// The name of the others.
const OTHERS: &str = "other";

/// Shared by the tracers and the threads that serve metrics and reports.
pub(super) type Figures = workers::Figures<ByTracepoint>;

/// Hits of a tracepoint: `hits = recorded + filtered + dropped`, plus what is on its way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) hits: u64,
    /// Events that were added to the record stream.
    pub(super) recorded: u64,
    /// Events that no rule selects.
    pub(super) filtered: u64,
    /// Events that were lost, by reason.
    pub(super) dropped: BTreeMap<String, u64>,
    /// Time of the newest recorded event.
    pub(super) last_ns: i64,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.recorded += other.recorded;
        self.filtered += other.filtered;
        for (reason, count) in &other.dropped {
            *self.dropped.entry(reason.clone()).or_default() += count;
        }
        self.last_ns = self.last_ns.max(other.last_ns);
    }
}

/// Counts of a process, or of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ByTracepoint(pub(super) BTreeMap<String, Counts>);

impl ByTracepoint {
    /// The counts of a tracepoint, or of the others if there are too many.
    fn bounded(&mut self, name: &str) -> &mut Counts {
        let is_known = self.0.contains_key(name) || self.0.len() < MAX_TRACEPOINTS;
        self.0.entry(if is_known { name } else { OTHERS }.to_owned()).or_default()
    }
}

impl ProcessCounts for ByTracepoint {
    const GAUGES: [(&'static str, &'static str); 2] = [
        ("tracepoints_attached", "Locations of tracepoints that probes are attached to"),
        ("tracepoints_failed", "Processes of which tracepoints cannot be recorded, or not all"),
    ];

    fn merge(&mut self, other: &Self) {
        for (name, counts) in &other.0 {
            self.bounded(name).add(counts);
        }
    }

    fn tally(&self, attached: u32, error: String) -> Tally {
        let counts = || self.0.values();
        Tally {
            trace_events: counts().map(|counts| counts.recorded).sum(),
            trace_events_lost: counts().flat_map(|counts| counts.dropped.values()).sum(),
            trace_attached: attached,
            trace_error: error,
            last_record_ns: counts().map(|counts| counts.last_ns).max().unwrap_or(0),
            ..Tally::default()
        }
    }

    fn register(nodes: &BTreeMap<Arc<str>, Self>, registry: &mut Registry) {
        let labels = |of: &Arc<str>, tracepoint: &str| {
            let mut labels = node(of);
            labels.push(("tracepoint", EscapedTruncated(tracepoint).to_string()));
            labels
        };
        let mut family = |name: &str, help: &str, value: fn(&Counts) -> u64| {
            let samples = nodes.iter().flat_map(|(of, counts)| {
                counts.0.iter().map(move |(tracepoint, counts)| (labels(of, tracepoint), value(counts)))
            });
            counters(registry, name, help, samples);
        };
        family("tracepoint_hits", "Hits of attached tracepoints", |counts| counts.hits);
        family("tracepoint_events", "Events of tracepoints added to record streams", |counts| counts.recorded);
        family("tracepoint_events_filtered", "Events of tracepoints that no rule selects", |counts| counts.filtered);
        let dropped = nodes.iter().flat_map(|(of, counts)| {
            counts.0.iter().flat_map(move |(tracepoint, counts)| {
                counts.dropped.iter().map(move |(reason, count)| {
                    let mut labels = labels(of, tracepoint);
                    labels.push(("reason", reason.clone()));
                    (labels, *count)
                })
            })
        });
        counters(registry, "tracepoint_events_dropped", "Events of tracepoints that were lost, by reason", dropped);
    }
}
