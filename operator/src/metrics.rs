//! The operator's own metrics, in Prometheus' naming. No label is a node, a pod or a host: there are too many.

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

use crate::{certificates::Ends, reconcile::Counts};

/// What a write of a status came to.
#[derive(Debug, Clone, Copy, Hash, PartialEq, Eq, EncodeLabelValue)]
#[allow(missing_docs)]
pub enum WriteResult {
    Stored,
    Gone,
    Failed,
}

/// Label of a write.
#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct WriteLabels {
    /// What it came to.
    pub result: WriteResult,
}

/// Kinds of objects that are watched.
#[derive(Debug, Clone, Copy, Hash, PartialEq, Eq, EncodeLabelValue)]
#[allow(missing_docs)]
pub enum Watched {
    TezosNode,
    Pod,
    Secret,
}

/// Label of a change that was seen.
#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ChangeLabels {
    /// Of what.
    pub kind: Watched,
}

/// All metrics of reconcile. The config stream registers its own beside them.
#[derive(Debug, Clone)]
#[allow(missing_docs)] // the help texts below say it
pub struct Metrics {
    pub leading: Gauge,
    pub nodes: Gauge,
    pub nodes_ready: Gauge,
    pub pods_known: Gauge,
    pub pods_observed: Gauge,
    pub hosts_heard: Gauge,
    pub hosts_not_heard: Gauge,
    pub changes: Family<ChangeLabels, Counter>,
    pub lists: Family<ChangeLabels, Counter>,
    pub reconcile_seconds: Histogram,
    pub status_writes: Family<WriteLabels, Counter>,
    pub events: Counter,
    pub events_held_back: Counter,
    pub certificate_ends: Ends,
}

impl Metrics {
    /// Registers them all under `chainscope_operator_`.
    pub fn new(registry: &mut Registry) -> Self {
        let all = Self {
            leading: Gauge::default(),
            nodes: Gauge::default(),
            nodes_ready: Gauge::default(),
            pods_known: Gauge::default(),
            pods_observed: Gauge::default(),
            hosts_heard: Gauge::default(),
            hosts_not_heard: Gauge::default(),
            changes: Family::default(),
            lists: Family::default(),
            reconcile_seconds: Histogram::new([0.0001, 0.001, 0.01, 0.1, 1.0, 10.0]),
            status_writes: Family::default(),
            events: Counter::default(),
            events_held_back: Counter::default(),
            certificate_ends: Ends::default(),
        };
        registry.register("leading", "Whether this replica leads", all.leading.clone());
        registry.register("nodes", "TezosNodes", all.nodes.clone());
        registry.register("nodes_ready", "TezosNodes that are ready", all.nodes_ready.clone());
        registry.register("pods_known", "Pods of the cluster that have not ended", all.pods_known.clone());
        registry.register("pods_observed", "Pods that agents are told to observe", all.pods_observed.clone());
        registry.register("hosts_heard", "Hosts with observed pods whose agent is heard", all.hosts_heard.clone());
        let help = "Hosts with observed pods whose agent is not heard";
        registry.register("hosts_not_heard", help, all.hosts_not_heard.clone());
        registry.register("changes", "Changes that were seen, by kind of object", all.changes.clone());
        registry.register("lists", "Whole lists that were read, by kind of object", all.lists.clone());
        let help = "Time that one decision took";
        registry.register_with_unit("reconcile", help, Unit::Seconds, all.reconcile_seconds.clone());
        registry.register("status_writes", "Statuses written, by what came of it", all.status_writes.clone());
        registry.register("events", "Events made", all.events.clone());
        registry.register(
            "events_held_back",
            "Events not made, to stay within their rate",
            all.events_held_back.clone(),
        );
        let help = "When certificates end that this operator looks after";
        registry.register("certificate_expiry_timestamp_seconds", help, all.certificate_ends.clone());
        all
    }

    /// Takes over what the engine counts.
    pub fn set(&self, counts: &Counts) {
        let set = |gauge: &Gauge, value: usize| gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        set(&self.nodes, counts.nodes);
        set(&self.nodes_ready, counts.ready);
        set(&self.pods_known, counts.pods_known);
        set(&self.pods_observed, counts.pods_observed);
        set(&self.hosts_heard, counts.hosts_heard);
        set(&self.hosts_not_heard, counts.hosts_not_heard);
    }
}

/// The registry as OpenMetrics text; none if it cannot be written.
pub fn encode(registry: &Registry) -> Option<String> {
    let mut text = String::new();
    text::encode(&mut text, registry).ok()?;
    Some(text)
}
