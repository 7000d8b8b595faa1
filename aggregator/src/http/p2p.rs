//! `/v2/p2p`, `/v3/messages`: lists of messages.

use std::{ops::ControlFlow, sync::Arc};

use axum::{extract::State, response::Response};
use chainscope_proto::v1::record::Kind;
use chainscope_store::{MessageQuery, Order};

use super::{
    app::{App, Asked},
    list::{self, PAGE, Page},
    openapi::P2pParameters,
    problem::Problem,
    query,
    wire::Row,
};

/// Messages of a node, newest first.
///
/// All filters given must hold. Pages: give the id after the last row as `cursor`.
#[utoipa::path(get, path = "/v2/p2p", params(P2pParameters), responses(
    (status = 200, description = "The messages; possibly none.", body = Vec<Row<'static>>),
    (status = 400, description = "A parameter is malformed, or several nodes are meant.", body = Problem),
    (status = 404, description = "There is no such node.", body = Problem),
    (status = 503, description = "Too much is going on, or the query took too long.", body = Problem),
))]
pub(crate) async fn messages(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Problem> {
    let form = asked.form();
    let query = query::messages(&form)?;
    let node: Arc<str> = asked.node(&app, &form).await?.into();
    let start = Place { cursor: query.cursor, left: query.limit, is_first: true };
    list::answer(app, start, move |app, place| page(app, Arc::clone(&node), query.clone(), place)).await
}

/// Messages of a node, newest first: the same as `/v2/p2p`.
#[utoipa::path(get, path = "/v3/messages", params(P2pParameters), responses(
    (status = 200, description = "The messages; possibly none.", body = Vec<Row<'static>>),
    (status = 400, description = "A parameter is malformed, or several nodes are meant.", body = Problem),
    (status = 404, description = "There is no such node.", body = Problem),
))]
pub(crate) async fn messages_v3(state: State<Arc<App>>, asked: Asked) -> Result<Response, Problem> {
    messages(state, asked).await
}

/// How far a list is.
struct Place {
    cursor: Option<u64>,
    left: u64,
    is_first: bool,
}

async fn page(app: Arc<App>, node: Arc<str>, query: MessageQuery, place: Place) -> Result<Page<Place>, Problem> {
    let limit = place.left.min(PAGE);
    let order = query.order;
    let mut query = MessageQuery { cursor: place.cursor, limit, ..query };
    app.read(move |store, budget| {
        query.budget = budget;
        let mut json = Vec::with_capacity(usize::try_from(limit).unwrap_or(0).saturating_mul(320));
        let (mut rows, mut last) = (0, None);
        store.each_message(&node, &query, &mut |id, record| {
            if let Some(Kind::Message(message)) = &record.kind {
                list::push(&mut json, place.is_first && rows == 0, &Row::new(id, &record, message));
            }
            rows += 1;
            last = Some(id);
            ControlFlow::Continue(())
        })?;
        let left = place.left - rows;
        let cursor = last.and_then(|id| match order {
            Order::NewestFirst => id.checked_sub(1),
            Order::OldestFirst => id.checked_add(1),
        });
        let is_complete = rows < limit || left == 0 || cursor.is_none();
        let next = (!is_complete).then_some(Place { cursor, left, is_first: false });
        Ok(Page { json, next })
    })
    .await
}
