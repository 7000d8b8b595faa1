//! `/v2/p2p`, `/v3/messages`: lists of messages.

use std::ops::ControlFlow;

use axum::response::Response;
use chainscope_proto::v1::record::Kind;
use chainscope_store::{MessageQuery, Order};

use super::{
    super::{
        app::AuthorizedNode,
        list::{self, PAGE, Page},
        params::{NodeParameters, Params},
        problem::Problem,
    },
    params::MessageParameters,
    wire::Row,
};
use crate::access::permission::ReadMessages;

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
    let query = parameters.query()?;
    let start = Position { cursor: query.cursor, left: query.limit, is_first: true };
    list::respond(node, start, move |node, position| page(node, query.clone(), position)).await
}

/// Messages of a node, newest first: the same as `/v2/p2p`.
#[utoipa::path(get, path = "/v3/messages", params(NodeParameters, MessageParameters), responses(
    (status = 200, description = "The messages; possibly none.", body = Vec<Row<'static>>),
    (status = 400, description = "A parameter is malformed, or several nodes are meant.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(crate) async fn messages_v3(
    parameters: Params<MessageParameters>,
    node: AuthorizedNode<ReadMessages>,
) -> Result<Response, Problem> {
    messages(parameters, node).await
}

/// Where the next page of a list begins.
struct Position {
    /// Id of the first row to read.
    cursor: Option<u64>,
    /// Rows that are still wanted.
    left: u64,
    is_first: bool,
}

async fn page(
    node: AuthorizedNode<ReadMessages>,
    query: MessageQuery,
    position: Position,
) -> Result<Page<Position>, Problem> {
    let limit = position.left.min(PAGE);
    let order = query.order;
    let mut query = MessageQuery { cursor: position.cursor, limit, ..query };
    node.read(move |store, node, budget| {
        query.budget = budget;
        let mut json = Vec::with_capacity(usize::try_from(limit).unwrap_or(0).saturating_mul(320));
        let (mut rows, mut last) = (0, None);
        store.each_message(node, &query, &mut |id, record| {
            if let Some(Kind::Message(message)) = &record.kind {
                list::push(&mut json, position.is_first && rows == 0, &Row::new(id, &record, message));
            }
            rows += 1;
            last = Some(id);
            ControlFlow::Continue(())
        })?;
        let left = position.left - rows;
        let cursor = last.and_then(|id| match order {
            Order::NewestFirst => id.checked_sub(1),
            Order::OldestFirst => id.checked_add(1),
        });
        let is_complete = rows < limit || left == 0 || cursor.is_none();
        let next = (!is_complete).then_some(Position { cursor, left, is_first: false });
        Ok(Page { json, next })
    })
    .await
}
