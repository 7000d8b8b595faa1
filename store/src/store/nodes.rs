//! The nodes, and how much is kept of each.

use std::ops::Range;

use super::Store;
use crate::{
    TextIndexState, Totals, keys, kind::RetentionClass, latency::LATENCY_TRANSACTIONS, logs::LOG_MESSAGES,
    network::MESSAGES, trace::TRACE_EVENTS, view::NodeView,
};

/// A node and what is kept of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Its name.
    pub name: String,
    /// Id of the oldest message that is kept.
    pub first_id: u64,
    /// Id that the next message will get.
    pub next_id: u64,
    /// Messages kept.
    pub rows: u64,
    /// Ids of the log messages that are kept, up to the next one to be given.
    pub log_ids: Range<u64>,
    /// Bytes of the log messages that are kept, before compression.
    pub log_bytes: u64,
    /// Ids of the events of tracepoints that are kept, up to the next one to be given.
    pub trace_ids: Range<u64>,
    /// Bytes of the events of tracepoints and of the latency of functions that are kept, before compression.
    pub trace_bytes: u64,
    /// Bytes kept besides those of logs, tracepoints and latency, before compression.
    pub bytes: u64,
    /// Records of any kind kept, summaries of open connections and memory snapshots excluded.
    pub facts: u64,
    /// Segments kept.
    pub segments: u64,
    /// Least time of what is kept, nanoseconds since 1970.
    pub first_time_ns: Option<i64>,
    /// Greatest time of what is kept.
    pub last_time_ns: Option<i64>,
    /// Counts since its database was created.
    pub totals: Totals,
}

impl Store {
    /// Every node, by name.
    pub fn nodes(&self) -> Vec<NodeInfo> {
        self.0.views.all().iter().map(|view| NodeInfo::of(view)).collect()
    }

    /// Id of the first message that is kept and of the next one to come. Both 0 for a node that is not known.
    pub fn visible(&self, node: &str) -> (u64, u64) {
        let ids = self.0.views.get(node).map_or(0..0, |view| view.ids(&MESSAGES));
        (ids.start, ids.end)
    }

    /// As [`Self::visible`], of log messages.
    pub fn visible_logs(&self, node: &str) -> (u64, u64) {
        let ids = self.0.views.get(node).map_or(0..0, |view| view.ids(&LOG_MESSAGES));
        (ids.start, ids.end)
    }

    /// As [`Self::visible`], of events of tracepoints.
    pub fn visible_traces(&self, node: &str) -> (u64, u64) {
        let ids = self.0.views.get(node).map_or(0..0, |view| view.ids(&TRACE_EVENTS));
        (ids.start, ids.end)
    }

    /// As [`Self::visible`], of transactions of runs.
    pub fn visible_transactions(&self, node: &str) -> (u64, u64) {
        let ids = self.0.views.get(node).map_or(0..0, |view| view.ids(&LATENCY_TRANSACTIONS));
        (ids.start, ids.end)
    }

    /// How far the full-text index of a node's log messages is.
    pub fn text_index(&self, node: &str) -> TextIndexState {
        let mut state = TextIndexState::default();
        let Some(view) = self.0.views.get(node) else { return state };
        for segment in view.segments(RetentionClass::Logs) {
            let ids = segment.ids(LOG_MESSAGES.table);
            state.pending += self.0.texts.pending((view.number, segment.number), &ids);
            state.rows += ids.end - ids.start;
        }
        state
    }

    /// Failures of writing or reading full-text indexes; each is tried again.
    pub fn text_index_errors(&self) -> u64 {
        self.0.texts.errors()
    }

    /// Approximate bytes on disk of all segments of a node; what is only in memory counts as 0.
    pub fn disk_bytes(&self, node: &str) -> u64 {
        let (Some(view), Some(disk)) = (self.0.views.get(node), self.0.engine.disk()) else { return 0 };
        let range = keys::all_segments(view.number);
        disk.approximate_bytes(&range.start..&range.end)
    }
}

impl NodeInfo {
    fn of(view: &NodeView) -> Self {
        let ids = view.ids(&MESSAGES);
        let segments = view.segments(RetentionClass::Records);
        let with_facts = || segments.iter().filter(|segment| segment.facts > 0);
        Self {
            name: view.name.clone(),
            first_id: ids.start,
            next_id: ids.end,
            rows: ids.end - ids.start,
            log_ids: view.ids(&LOG_MESSAGES),
            log_bytes: view.segments(RetentionClass::Logs).iter().map(|segment| segment.bytes).sum(),
            trace_ids: view.ids(&TRACE_EVENTS),
            trace_bytes: view.segments(RetentionClass::Traces).iter().map(|segment| segment.bytes).sum(),
            bytes: segments.iter().map(|segment| segment.bytes).sum(),
            facts: RetentionClass::STREAMED
                .iter()
                .flat_map(|class| view.segments(*class))
                .map(|segment| segment.facts)
                .sum(),
            segments: segments.len() as u64,
            first_time_ns: with_facts().map(|segment| segment.least_ns).min(),
            last_time_ns: with_facts().map(|segment| segment.greatest_ns).max(),
            totals: view.totals,
        }
    }
}
