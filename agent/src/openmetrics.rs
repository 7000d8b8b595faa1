//! Metric families that are filled at each scrape, from counts that are kept elsewhere.

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// Labels of a sample. Their number is bounded by the configuration: text of a peer never becomes a label.
type Labels = Vec<(&'static str, String)>;

/// Registers a gauge without labels.
pub(crate) fn gauge(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let gauge = Gauge::<i64>::default();
    gauge.set(signed(value));
    registry.register(name, help, gauge);
}

/// Registers a gauge with a sample for each set of labels.
pub(crate) fn gauges(
    registry: &mut Registry,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (Labels, i64)>,
) {
    let family = Family::<Labels, Gauge>::default();
    for (labels, value) in samples {
        family.get_or_create(&labels).set(value);
    }
    registry.register(name, help, family);
}

/// Registers a counter without labels; the encoder appends `_total` to its name.
pub(crate) fn counter(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let counter = Counter::<u64>::default();
    counter.inc_by(value);
    registry.register(name, help, counter);
}

/// Registers a counter with a sample for each set of labels; the encoder appends `_total` to its name.
pub(crate) fn counters(
    registry: &mut Registry,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (Labels, u64)>,
) {
    let family = Family::<Labels, Counter>::default();
    for (labels, value) in samples {
        family.get_or_create(&labels).inc_by(value);
    }
    registry.register(name, help, family);
}

/// The label of a node.
pub(crate) fn node(name: &str) -> Labels {
    vec![("node", name.to_owned())]
}

/// A count as a gauge has it.
pub(crate) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
