//! `/v2/trace`, `/v2/trace/stream`: events of tracepoints.

use std::ops::ControlFlow;

use axum::{http::HeaderMap, response::Response};
use chainscope_proto::v1::{Record, record::Kind};
use chainscope_store::{Error as StoreError, Order, Store, TraceQuery};
use chainscope_trace::{Condition, record::Decoder};

use super::{
    super::{
        app::AuthorizedNode,
        params::NodeParameters,
        problem::Problem,
        rows::{self, Part, Rows},
        stream,
    },
    params::{Events, TraceParameters},
    row::TraceRow,
};
use crate::{access::permission::ReadTrace, json};

/// Events of a node's tracepoints, newest first.
///
/// All filters given must hold. Pages: give the id after the last row as `cursor`. A value that was not captured whole is marked
/// beside the arguments. `filter` is compared with each event that the other filters select: give a range of time or a tracepoint
/// beside it.
#[utoipa::path(get, path = "/v2/trace", params(NodeParameters, TraceParameters), responses(
    (status = 200, description = "The events; possibly none.", body = Vec<TraceRow>),
    (status = 400, description = "A parameter is malformed, several nodes are meant, or the query takes too long.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(super) async fn trace_events(
    parameters: TraceParameters,
    node: AuthorizedNode<ReadTrace>,
) -> Result<Response, Problem> {
    rows::respond(node, parameters.events()?).await
}

/// Events of a node's tracepoints as they are recorded.
///
/// Server-sent events: `id` is the event's, `data` a row as in `/v2/trace`. Begins with the next event, or at `cursor`; the header
/// `Last-Event-ID` resumes after that one. `limit` ends the stream after that number of events. A last event called `error`, whose
/// data is a problem, says why a stream cannot go on.
#[utoipa::path(get, path = "/v2/trace/stream", params(NodeParameters, TraceParameters), responses(
    (status = 200, description = "The events.", content_type = "text/event-stream", body = String),
    (status = 400, description = "A parameter is malformed, or several nodes are meant.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Too many streams are open.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(super) async fn stream_trace_events(
    headers: HeaderMap,
    parameters: TraceParameters,
    node: AuthorizedNode<ReadTrace>,
) -> Result<Response, Problem> {
    let limit = parameters.limit;
    stream::respond(&headers, node, parameters.events()?, limit).await
}

impl Rows for Events {
    type Policy = ReadTrace;

    fn cursor(&self) -> Option<u64> {
        self.query.cursor
    }

    fn limit(&self) -> u64 {
        self.query.limit
    }

    fn order(&self) -> Order {
        self.query.order
    }

    fn next_id(store: &Store, node: &str) -> u64 {
        store.visible_traces(node).1
    }

    fn each(
        self,
        store: &Store,
        node: &str,
        Part { cursor, limit, order, budget }: Part,
        each: &mut dyn FnMut(u64, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let Self { query, patterns, conditions, with_payload } = self;
        if limit == 0 {
            return Ok(());
        }
        // What the indexes do not decide is not counted by the store.
        let is_narrowed = !patterns.is_empty() || !conditions.is_empty();
        let examined = if is_narrowed { u64::MAX } else { limit };
        let query = TraceQuery { cursor, limit: examined, order, budget, ..query };
        let (mut decoder, mut row, mut left) = (Decoder::default(), Vec::new(), limit);
        store.each_trace_event(node, &query, &mut |id, record| {
            let Record { time_ns, target, kind: Some(Kind::TraceEvent(event)) } = record else {
                return ControlFlow::Continue(());
            };
            if !patterns.is_empty() && !patterns.iter().any(|pattern| pattern.matches(&event.provider, &event.name)) {
                return ControlFlow::Continue(());
            }
            let decoded = decoder.event(id, time_ns, event.clone());
            // Of an event that cannot be read, nothing holds.
            let holds = |condition: &Condition| decoded.as_ref().is_ok_and(|event| condition.holds(event));
            if !conditions.iter().all(holds) {
                return ControlFlow::Continue(());
            }
            row.clear();
            let shown = match decoded {
                Ok(event) => TraceRow::new(target, &event, with_payload),
                Err(error) => TraceRow::unreadable(id, time_ns, target, event, error),
            };
            // Writing to memory does not fail.
            let _ = json::write(&mut row, &shown);
            left -= 1;
            if each(id, &row).is_break() || left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    }
}
