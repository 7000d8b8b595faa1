//! Metrics of the operator. Nodes, pods and hosts are not labels, to bound the number of series.

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

use crate::{certificates::ExpiryGauges, reconcile::Counts};

/// The result of a status write.
#[derive(Debug, Clone, Copy, Hash, PartialEq, Eq, EncodeLabelValue)]
pub enum WriteResult {
    /// The status is stored.
    Applied,
    /// The node does not exist any more.
    Gone,
    /// The request failed.
    Failed,
}

/// Labels of a status write.
#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct WriteLabels {
    /// The result.
    pub result: WriteResult,
}

/// Kinds of watched objects.
#[derive(Debug, Clone, Copy, Hash, PartialEq, Eq, EncodeLabelValue)]
pub enum ObjectKind {
    /// `TezosNode`.
    TezosNode,
    /// `NodeTrace`.
    NodeTrace,
    /// `Pod`.
    Pod,
    /// `Secret`.
    Secret,
}

/// Labels of a watch event.
#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ChangeLabels {
    /// Kind of the object.
    pub kind: ObjectKind,
}

/// Metrics of the controller; the config stream registers its own. The help texts describe each metric.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the help texts below describe the fields")]
pub struct Metrics {
    pub is_leader: Gauge,
    pub nodes: Gauge,
    pub nodes_ready: Gauge,
    pub pods_known: Gauge,
    pub pods_observed: Gauge,
    pub agents_connected: Gauge,
    pub agents_disconnected: Gauge,
    pub changes: Family<ChangeLabels, Counter>,
    pub relists: Family<ChangeLabels, Counter>,
    pub reconcile_seconds: Histogram,
    pub status_writes: Family<WriteLabels, Counter>,
    pub events: Counter,
    pub events_dropped: Counter,
    pub certificate_expiry: ExpiryGauges,
}

impl Metrics {
    /// Registers them all under `chainscope_operator_`.
    pub fn new(registry: &mut Registry) -> Self {
        let all = Self {
            is_leader: Gauge::default(),
            nodes: Gauge::default(),
            nodes_ready: Gauge::default(),
            pods_known: Gauge::default(),
            pods_observed: Gauge::default(),
            agents_connected: Gauge::default(),
            agents_disconnected: Gauge::default(),
            changes: Family::default(),
            relists: Family::default(),
            reconcile_seconds: Histogram::new([0.0001, 0.001, 0.01, 0.1, 1.0, 10.0]),
            status_writes: Family::default(),
            events: Counter::default(),
            events_dropped: Counter::default(),
            certificate_expiry: ExpiryGauges::default(),
        };
        registry.register("is_leader", "1 if this replica is the leader, else 0", all.is_leader.clone());
        registry.register("nodes", "TezosNode and NodeTrace resources", all.nodes.clone());
        let help = "TezosNode and NodeTrace resources with condition Ready=True";
        registry.register("nodes_ready", help, all.nodes_ready.clone());
        registry.register("pods_known", "Pods in the watch cache that have not terminated", all.pods_known.clone());
        registry.register("pods_observed", "Pods in the configuration of the agents", all.pods_observed.clone());
        let help = "Hosts with observed pods and a connected agent";
        registry.register("agents_connected", help, all.agents_connected.clone());
        let help = "Hosts with observed pods and without a connected agent";
        registry.register("agents_disconnected", help, all.agents_disconnected.clone());
        registry.register("changes", "Watch events by kind of object", all.changes.clone());
        registry.register("relists", "Completed lists by kind of object", all.relists.clone());
        let help = "Duration of a reconciliation";
        registry.register_with_unit("reconcile", help, Unit::Seconds, all.reconcile_seconds.clone());
        registry.register("status_writes", "Status writes by result", all.status_writes.clone());
        registry.register("events", "Kubernetes Events created", all.events.clone());
        let help = "Kubernetes Events dropped by the rate limit or a full queue";
        registry.register("events_dropped", help, all.events_dropped.clone());
        let help = "Expiry time of the certificates that the operator manages";
        registry.register("certificate_expiry_timestamp_seconds", help, all.certificate_expiry.clone());
        all
    }

    /// Sets the gauges of the reconciler's objects.
    pub fn set(&self, counts: &Counts) {
        let set = |gauge: &Gauge, value: usize| gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        set(&self.nodes, counts.nodes);
        set(&self.nodes_ready, counts.ready);
        set(&self.pods_known, counts.pods_known);
        set(&self.pods_observed, counts.pods_observed);
        set(&self.agents_connected, counts.agents_connected);
        set(&self.agents_disconnected, counts.agents_disconnected);
    }
}

/// Encodes the registry as OpenMetrics text; `None` if encoding fails.
pub fn encode(registry: &Registry) -> Option<String> {
    let mut text = String::new();
    text::encode(&mut text, registry).ok()?;
    Some(text)
}
