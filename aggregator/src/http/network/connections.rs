//! `/v3/connections`: connections of a node, as `[key, value]` pairs.

use axum::response::Response;
use chainscope_store::{ConnectionQuery, Order};

use super::{
    super::{
        app::AuthorizedNode,
        list::{self, DEFAULT_LIMIT, PAGE, Page},
        params::{NodeParameters, Params},
        problem::Problem,
    },
    params::ConnectionsParameters,
    wire::{ConnectionView, connection_key, require_connection_key},
};
use crate::access::permission::ReadConnections;

/// Connections of a node, oldest first, as `[key, value]` pairs.
#[utoipa::path(get, path = "/v3/connections", params(NodeParameters, ConnectionsParameters), responses(
    (status = 200, description = "Pairs of a key, `<seconds>.<nanoseconds>`, and what is known.",
     body = Vec<(String, ConnectionView)>),
    (status = 400, description = "A parameter is malformed, or several nodes are meant.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(crate) async fn connections(
    Params(parameters): Params<ConnectionsParameters>,
    node: AuthorizedNode<ReadConnections>,
) -> Result<Response, Problem> {
    let from = parameters.cursor.map(|text| require_connection_key("cursor", &text)).transpose()?;
    let start = Position { from, left: parameters.limit.unwrap_or(DEFAULT_LIMIT), is_first: true };
    list::respond(node, start, page).await
}

/// Where the next page of a list begins.
struct Position {
    /// Key of the first connection to read.
    from: Option<u64>,
    /// Connections that are still wanted.
    left: u64,
    is_first: bool,
}

async fn page(node: AuthorizedNode<ReadConnections>, position: Position) -> Result<Page<Position>, Problem> {
    let Position { from, left, is_first } = position;
    let limit = left.min(PAGE);
    node.read(move |store, node, budget| {
        let query = ConnectionQuery { from, limit, order: Order::OldestFirst, budget };
        let connections = store.connections(node, &query)?;
        let (rows, last) = (connections.len() as u64, connections.last().map(|connection| connection.key));
        let mut json = Vec::new();
        for (index, connection) in connections.into_iter().enumerate() {
            let row = (connection_key(connection.key), ConnectionView::new(connection));
            list::push(&mut json, is_first && index == 0, &row);
        }
        let next = last.and_then(|key| key.checked_add(1)).filter(|_| rows == limit && left > rows);
        Ok(Page { json, next: next.map(|from| Position { from: Some(from), left: left - rows, is_first: false }) })
    })
    .await
}
