//! `/v2/p2p`, `/v3/messages`, `/v2/p2p/stream`: messages between the node and its peers.

use std::ops::ControlFlow;

use axum::{http::HeaderMap, response::Response};
use chainscope_proto::v1::record::Kind;
use chainscope_store::{Error as StoreError, MessageQuery, Order, Store};

use super::{
    super::{
        app::AuthorizedNode,
        params::{NodeParameters, Params},
        problem::Problem,
        rows::{self, Part, Rows},
        stream,
    },
    params::MessageParameters,
    wire::Row,
};
use crate::{access::permission::ReadMessages, json};

/// Messages of a node, newest first.
///
/// All filters given must hold. Pages: give the id after the last row as `cursor`.
#[utoipa::path(get, path = "/v2/p2p", params(NodeParameters, MessageParameters), responses(
    (status = 200, description = "The messages; possibly none.", body = Vec<Row<'static>>),
    (status = 400, description = "A parameter is malformed, several nodes are meant, or the query takes too long.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(crate) async fn messages(
    Params(parameters): Params<MessageParameters>,
    node: AuthorizedNode<ReadMessages>,
) -> Result<Response, Problem> {
    rows::respond(node, parameters.query()?).await
}

/// Messages of a node, newest first: the same as `/v2/p2p`.
#[utoipa::path(get, path = "/v3/messages", params(NodeParameters, MessageParameters), responses(
    (status = 200, description = "The messages; possibly none.", body = Vec<Row<'static>>),
    (status = 400, description = "A parameter is malformed, several nodes are meant, or the query takes too long.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(crate) async fn messages_v3(
    parameters: Params<MessageParameters>,
    node: AuthorizedNode<ReadMessages>,
) -> Result<Response, Problem> {
    messages(parameters, node).await
}

/// Messages of a node as they are recorded.
///
/// Server-sent events: `id` is the message's, `data` a row as in `/v2/p2p`. Begins with the next message, or at `cursor`; the
/// header `Last-Event-ID` resumes after that message. `limit` ends the stream after that number of events. A last event called
/// `error`, whose data is a problem, says why a stream cannot go on.
#[utoipa::path(get, path = "/v2/p2p/stream", operation_id = "stream_messages", params(NodeParameters, MessageParameters), responses(
    (status = 200, description = "The events.", content_type = "text/event-stream", body = String),
    (status = 400, description = "A parameter is malformed, or several nodes are meant.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Too many streams are open.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(crate) async fn stream_messages(
    headers: HeaderMap,
    Params(parameters): Params<MessageParameters>,
    node: AuthorizedNode<ReadMessages>,
) -> Result<Response, Problem> {
    let limit = parameters.limit;
    stream::respond(&headers, node, parameters.query()?, limit).await
}

impl Rows for MessageQuery {
    type Policy = ReadMessages;

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
        store.visible(node).1
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
        store.each_message(node, &query, &mut |id, record| {
            let Some(Kind::Message(message)) = &record.kind else { return ControlFlow::Continue(()) };
            row.clear();
            // Writing to memory does not fail.
            let _ = json::write(&mut row, &Row::new(id, &record, message));
            each(id, &row)
        })
    }
}
