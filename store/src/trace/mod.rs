//! Events of tracepoints: by tracepoint, process and peer.

mod query;

use std::ops::ControlFlow;

use chainscope_proto::v1::{Record, TraceEvent, record::Kind};
pub use query::TraceQuery;

use crate::{
    Error, Store,
    kind::{FactKind, Index, RetentionClass},
};

/// Events of tracepoints of nodes.
pub(crate) static TRACE_EVENTS: FactKind = FactKind {
    name: "trace event",
    table: 128,
    accepts: |record| matches!(record.kind, Some(Kind::TraceEvent(_))),
    time: |record| record.time_ns,
    indexes: &[BY_PROVIDER, BY_NAME, BY_PID, BY_PEER, BY_TARGET],
    text: None,
    position: None,
    group: None,
    retention: RetentionClass::Traces,
    counted: true,
    total: |totals, _| totals.trace_events += 1,
};

/// Positions in the list of indexes of [`TRACE_EVENTS`].
mod index {
    pub(super) const PROVIDER: usize = 0;
    pub(super) const NAME: usize = 1;
    pub(super) const PID: usize = 2;
    pub(super) const PEER: usize = 3;
    pub(super) const TARGET: usize = 4;
}

const BY_PROVIDER: Index = Index { values: |record, add| with(record, |event| add(event.provider.as_bytes())) };
const BY_NAME: Index = Index { values: |record, add| with(record, |event| add(event.name.as_bytes())) };
const BY_PID: Index = Index { values: |record, add| with(record, |event| add(&event.pid.to_be_bytes())) };
const BY_PEER: Index =
    Index { values: |record, add| with(record, |event| event.peers.iter().for_each(|peer| add(peer.as_bytes()))) };
const BY_TARGET: Index = Index { values: |record, add| add(record.target.as_bytes()) };

fn with(record: &Record, add: impl FnOnce(&TraceEvent)) {
    if let Some(Kind::TraceEvent(event)) = &record.kind {
        add(event);
    }
}

impl Store {
    /// Events of tracepoints with their ids.
    ///
    /// # Errors
    /// The query's budget is used up or its deadline passed: nothing is cut silently. Damage.
    pub fn trace_events(&self, node: &str, query: &TraceQuery) -> Result<Vec<(u64, Record)>, Error> {
        self.facts(node, &TRACE_EVENTS, &query.query())
    }

    /// As [`Self::trace_events`], one by one, until `each` breaks off.
    ///
    /// # Errors
    /// As [`Self::trace_events`].
    pub fn each_trace_event(
        &self,
        node: &str,
        query: &TraceQuery,
        each: &mut dyn FnMut(u64, Record) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.each_fact(node, &TRACE_EVENTS, &query.query(), each)
    }
}
