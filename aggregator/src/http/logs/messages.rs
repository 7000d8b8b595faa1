//! `/v2/log`, `/v3/logs`, `/v2/log/stream`: log messages.

use std::ops::ControlFlow;

use axum::{http::HeaderMap, response::Response};
use chainscope_proto::v1::record::Kind;
use chainscope_store::{Error as StoreError, LogQuery, Order, Store};

use super::{
    super::{
        app::AuthorizedNode,
        params::NodeParameters,
        problem::Problem,
        rows::{self, Part, Rows},
        stream,
    },
    params::LogParameters,
    row::LogRow,
};
use crate::{access::permission::ReadLogs, json};

/// Log messages of a node, newest first.
///
/// All filters given must hold, `query` among them. Pages: give the id after the last row as `cursor`.
#[utoipa::path(get, path = "/v2/log", params(NodeParameters, LogParameters), responses(
    (status = 200, description = "The log messages; possibly none.", body = Vec<LogRow>),
    (status = 400, description = "A parameter is malformed, several nodes are meant, or the query takes too long.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(super) async fn log_messages(
    parameters: LogParameters,
    node: AuthorizedNode<ReadLogs>,
) -> Result<Response, Problem> {
    rows::respond(node, parameters.query()?).await
}

/// Log messages of a node, newest first: the same as `/v2/log`.
#[utoipa::path(get, path = "/v3/logs", params(NodeParameters, LogParameters), responses(
    (status = 200, description = "The log messages; possibly none.", body = Vec<LogRow>),
    (status = 400, description = "A parameter is malformed, several nodes are meant, or the query takes too long.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(super) async fn log_messages_v3(
    parameters: LogParameters,
    node: AuthorizedNode<ReadLogs>,
) -> Result<Response, Problem> {
    log_messages(parameters, node).await
}

/// Log messages of a node as they are recorded.
///
/// Server-sent events: `id` is the log message's, `data` a row as in `/v2/log`. Begins with the next log message, or at
/// `cursor`; the header `Last-Event-ID` resumes after that one. `limit` ends the stream after that number of events. A last
/// event called `error`, whose data is a problem, says why a stream cannot go on.
#[utoipa::path(get, path = "/v2/log/stream", params(NodeParameters, LogParameters), responses(
    (status = 200, description = "The events.", content_type = "text/event-stream", body = String),
    (status = 400, description = "A parameter is malformed, or several nodes are meant.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Too many streams are open.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(super) async fn stream_log_messages(
    headers: HeaderMap,
    parameters: LogParameters,
    node: AuthorizedNode<ReadLogs>,
) -> Result<Response, Problem> {
    let limit = parameters.limit;
    stream::respond(&headers, node, parameters.query()?, limit).await
}

impl Rows for LogQuery {
    type Policy = ReadLogs;

    fn cursor(&self) -> Option<u64> {
        self.cursor
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn order(&self) -> Order {
        self.order
    }

    fn next_id(store: &Store, node: &str) -> u64 {
        store.visible_logs(node).1
    }

    fn each(
        self,
        store: &Store,
        node: &str,
        Part { cursor, limit, order, budget }: Part,
        each: &mut dyn FnMut(u64, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let query = Self { cursor, limit, order, budget, ..self };
        let mut row = Vec::new();
        store.each_log_message(node, &query, &mut |id, record| {
            let Some(Kind::LogMessage(message)) = &record.kind else { return ControlFlow::Continue(()) };
            row.clear();
            // Writing to memory does not fail.
            let _ = json::write(&mut row, &LogRow::new(id, record.time_ns, message));
            each(id, &row)
        })
    }
}
