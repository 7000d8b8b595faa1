//! The aggregator's own metrics, in Prometheus' naming and base units.
//!
//! Labels are bounded: nodes (checked names, at most [`crate::Limits::max_nodes`]), routes, status codes. Data of peers is
//! never a label.

use std::sync::atomic::{AtomicU64, Ordering};

use chainscope_proto::v1::Record;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

/// Metrics of the ingest.
#[derive(Debug)]
pub(crate) struct IngestMetrics {
    pub(crate) sessions: Gauge,
    pub(crate) session_errors: Counter,
    pub(crate) batches: Counter,
    /// Batches of nodes that the agent is not authorized for.
    pub(crate) refused_batches: Counter,
    pub(crate) records: Counter,
    /// Parts of memory states.
    pub(crate) memory_states: Counter,
    pub(crate) refused_states: Family<ReasonLabels, Counter>,
    pub(crate) bytes: Counter,
    pub(crate) unknown_kinds: Counter,
    /// Records that were replaced by a loss.
    pub(crate) invalid_records: Family<ReasonLabels, Counter>,
    pub(crate) store_errors: Counter,
    pub(crate) sync_seconds: Histogram,
    pub(crate) compaction_wait_seconds: Counter<f64, AtomicU64>,
}

impl IngestMetrics {
    fn new() -> Self {
        Self {
            sessions: Gauge::default(),
            session_errors: Counter::default(),
            batches: Counter::default(),
            refused_batches: Counter::default(),
            records: Counter::default(),
            memory_states: Counter::default(),
            refused_states: Family::default(),
            bytes: Counter::default(),
            unknown_kinds: Counter::default(),
            invalid_records: Family::default(),
            store_errors: Counter::default(),
            sync_seconds: Histogram::new(SECONDS),
            compaction_wait_seconds: Counter::default(),
        }
    }

    /// Counts a batch that was appended or recognised as a resend.
    pub(crate) fn batch(&self, bytes: usize, records: &[Record]) {
        self.batches.inc();
        self.records.inc_by(records.len() as u64);
        self.bytes.inc_by(bytes as u64);
        self.unknown_kinds.inc_by(records.iter().filter(|record| record.kind.is_none()).count() as u64);
    }

    fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("ingest");
        registry.register("sessions", "Open sessions with agents", self.sessions.clone());
        registry.register("session_errors", "Sessions that ended by an error", self.session_errors.clone());
        registry.register("batches", "Batches received", self.batches.clone());
        registry.register(
            "refused_batches",
            "Batches of nodes that the agent is not authorized for",
            self.refused_batches.clone(),
        );
        registry.register("records", "Records received, resent ones included", self.records.clone());
        registry.register("memory_states", "Parts of memory states received", self.memory_states.clone());
        registry.register("refused_memory_states", "Memory states not merged", self.refused_states.clone());
        registry.register_with_unit("received", "Size of the batches received", Unit::Bytes, self.bytes.clone());
        registry.register(
            "unknown_kinds",
            "Records of a kind that this build does not know",
            self.unknown_kinds.clone(),
        );
        registry.register(
            "invalid_records",
            "Records with impossible contents, not stored",
            self.invalid_records.clone(),
        );
        registry.register("store_errors", "Writes that failed in the store", self.store_errors.clone());
        registry.register_with_unit("sync", "Duration of a sync of the log", Unit::Seconds, self.sync_seconds.clone());
        registry.register_with_unit(
            "compaction_wait",
            "Time that batches waited for a database whose compaction lags",
            Unit::Seconds,
            self.compaction_wait_seconds.clone(),
        );
    }
}

/// Labels of what is refused.
#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct ReasonLabels {
    /// One of a fixed set.
    pub(crate) reason: &'static str,
}

/// Labels of a request.
#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    /// A route's template, or "other".
    pub(crate) route: String,
    /// The status code.
    pub(crate) code: u16,
}

/// Labels of a route.
#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct RouteLabels {
    /// A route's template, or "other".
    pub(crate) route: String,
}

/// Upper bounds of the buckets of durations, in seconds.
const SECONDS: [f64; 11] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];

/// Metrics of the API.
#[derive(Debug)]
pub(crate) struct HttpMetrics {
    pub(crate) requests: Family<RequestLabels, Counter>,
    pub(crate) seconds: Family<RouteLabels, Histogram, fn() -> Histogram>,
    pub(crate) connections: Gauge,
    pub(crate) streams: Gauge,
    pub(crate) refused: Counter,
    /// Rows that streams have sent; exported as a counter at each scrape.
    pub(crate) streamed: AtomicU64,
}

impl HttpMetrics {
    fn new() -> Self {
        Self {
            requests: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            connections: Gauge::default(),
            streams: Gauge::default(),
            refused: Counter::default(),
            streamed: AtomicU64::new(0),
        }
    }

    fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("http");
        registry.register("requests", "Responses sent", self.requests.clone());
        registry.register_with_unit(
            "request_duration",
            "Time until a response began",
            Unit::Seconds,
            self.seconds.clone(),
        );
        registry.register("connections", "Open connections", self.connections.clone());
        registry.register("streams", "Open live streams", self.streams.clone());
        registry.register("refused", "Requests refused because of overload", self.refused.clone());
    }
}

/// All metrics.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) ingest: std::sync::Arc<IngestMetrics>,
    pub(crate) http: HttpMetrics,
    pub(crate) registry: Registry,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let ingest = std::sync::Arc::new(IngestMetrics::new());
        let http = HttpMetrics::new();
        let mut registry = Registry::with_prefix("chainscope");
        ingest.register(&mut registry);
        http.register(&mut registry);
        Self { ingest, http, registry }
    }

    /// Rows that live streams have sent.
    pub(crate) fn streamed(&self) -> u64 {
        self.http.streamed.load(Ordering::Relaxed)
    }
}
