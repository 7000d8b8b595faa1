//! Metrics of the config stream.

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

type Label = [(&'static str, &'static str); 1];

/// Metrics of the config stream; clones share their values.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    streams: Family<Label, Gauge>,
    updates: Family<Label, Counter>,
    items: Family<Label, Counter>,
    reviews: Family<Label, Counter>,
    refusals: Family<Label, Counter>,
    ended: Family<Label, Counter>,
    statuses: Counter,
    ignored_pods: Counter,
}

impl Metrics {
    /// Registers the metrics with the prefix `config_stream`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("config_stream");
        registry.register("open", "Open streams by client", self.streams.clone());
        registry.register("updates", "Update parts of at most 1 MiB sent, by client", self.updates.clone());
        registry.register("items", "Pods or nodes in sent updates, changed or removed, by client", self.items.clone());
        registry.register("token_reviews", "Token reviews by outcome", self.reviews.clone());
        registry.register("refusals", "Refused calls by reason", self.refusals.clone());
        registry.register("ended", "Ended streams by reason", self.ended.clone());
        registry.register("statuses", "Statuses received from agents", self.statuses.clone());
        registry.register(
            "ignored_reports",
            "Ignored pod reports: of other hosts or nodes, or duplicates",
            self.ignored_pods.clone(),
        );
    }

    pub(crate) fn reviewed(&self, outcome: &'static str) {
        self.reviews.get_or_create(&[("outcome", outcome)]).inc();
    }

    pub(crate) fn refused(&self, reason: &'static str) {
        self.refusals.get_or_create(&[("reason", reason)]).inc();
    }

    pub(crate) fn sent(&self, client: &'static str, items: usize) {
        self.updates.get_or_create(&[("client", client)]).inc();
        self.items.get_or_create(&[("client", client)]).inc_by(items as u64);
    }

    pub(crate) fn ended(&self, reason: &'static str) {
        self.ended.get_or_create(&[("reason", reason)]).inc();
    }

    pub(crate) fn status(&self, ignored: u64) {
        self.statuses.inc();
        self.ignored_pods.inc_by(ignored);
    }

    pub(crate) fn open(&self, client: &'static str) -> Open {
        let gauge = self.streams.get_or_create(&[("client", client)]).clone();
        gauge.inc();
        Open(gauge)
    }
}

/// Guard of an open stream, counted until it is dropped.
pub(crate) struct Open(Gauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}
