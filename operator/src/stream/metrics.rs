//! Counters of the config stream, for the operator's metrics page.

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

type Label = [(&'static str, &'static str); 1];

/// The counters; a clone counts into the same ones.
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
    /// Adds the counters to a page; their names begin with `config_stream`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("config_stream");
        registry.register("open", "Open streams, by who is told", self.streams.clone());
        registry.register("updates", "Updates sent, in parts of at most 1 MiB, by who was told", self.updates.clone());
        registry.register("items", "Pods or nodes sent or taken back, by who was told", self.items.clone());
        registry.register("token_reviews", "Answers about tokens, by outcome", self.reviews.clone());
        registry.register("refusals", "Refused calls, by reason", self.refusals.clone());
        registry.register("ended", "Ended streams, by reason", self.ended.clone());
        registry.register("statuses", "Statuses taken from agents", self.statuses.clone());
        registry.register(
            "ignored_reports",
            "Reports about pods that are not the agent's, or too many",
            self.ignored_pods.clone(),
        );
    }

    pub(crate) fn reviewed(&self, outcome: &'static str) {
        self.reviews.get_or_create(&[("outcome", outcome)]).inc();
    }

    pub(crate) fn refused(&self, reason: &'static str) {
        self.refusals.get_or_create(&[("reason", reason)]).inc();
    }

    pub(crate) fn sent(&self, to: &'static str, items: usize) {
        self.updates.get_or_create(&[("to", to)]).inc();
        self.items.get_or_create(&[("to", to)]).inc_by(items as u64);
    }

    pub(crate) fn ended(&self, reason: &'static str) {
        self.ended.get_or_create(&[("reason", reason)]).inc();
    }

    pub(crate) fn status(&self, ignored: u64) {
        self.statuses.inc();
        self.ignored_pods.inc_by(ignored);
    }

    pub(crate) fn open(&self, to: &'static str) -> Open {
        let gauge = self.streams.get_or_create(&[("to", to)]).clone();
        gauge.inc();
        Open(gauge)
    }
}

/// An open stream, counted as long as it lives.
pub(crate) struct Open(Gauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}
