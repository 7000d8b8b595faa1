//! Metrics that are read at each scrape, registered by node.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

/// A node: its name was checked when it was registered.
#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct NodeLabels {
    pub(crate) node: String,
}

/// Registers a gauge.
pub(crate) fn gauge(registry: &mut Registry, name: &str, help: &str, unit: Option<Unit>, value: u64) {
    let gauge = Gauge::<i64>::default();
    gauge.set(signed(value));
    match unit {
        Some(unit) => registry.register_with_unit(name, help, unit, gauge),
        None => registry.register(name, help, gauge),
    }
}

/// Registers a gauge of each node.
pub(crate) fn gauges_by_node(
    registry: &mut Registry,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    values: impl Iterator<Item = (String, u64)>,
) {
    let family = Family::<NodeLabels, Gauge>::default();
    for (node, value) in values {
        family.get_or_create(&NodeLabels { node }).set(signed(value));
    }
    match unit {
        Some(unit) => registry.register_with_unit(name, help, unit, family),
        None => registry.register(name, help, family),
    }
}

/// Registers a counter of each node.
pub(crate) fn counters_by_node(
    registry: &mut Registry,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    values: impl Iterator<Item = (String, u64)>,
) {
    let family = Family::<NodeLabels, Counter>::default();
    for (node, value) in values {
        family.get_or_create(&NodeLabels { node }).inc_by(value);
    }
    match unit {
        Some(unit) => registry.register_with_unit(name, help, unit, family),
        None => registry.register(name, help, family),
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
