//! `/v3`: connections and chunks of one node, as `[key, value]` pairs.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Path, State},
    response::Response,
};
use chainscope_proto::v1::{Record, record::Kind};
use chainscope_store::{ChunkQuery, ConnectionQuery, Order};

use super::{
    app::{App, Asked},
    form::shown,
    list::{self, PAGE, Page},
    openapi::{ChunksParameters, ConnectionsParameters, NodeParameter},
    problem::Problem,
    query,
    wire::{ChunkView, ConnectionView, chunk_key, connection_key, parse_chunk_key, parse_connection_key},
};

/// Chunks in one answer at most: each may be 64 KiB, and shows twice in hex.
const MOST_CHUNKS: u64 = 1000;

/// Connections of a node, oldest first, as `[key, value]` pairs.
#[utoipa::path(get, path = "/v3/connections", params(ConnectionsParameters), responses(
    (status = 200, description = "Pairs of a key, `<seconds>.<nanoseconds>`, and what is known.",
     body = Vec<(String, ConnectionView)>),
    (status = 400, description = "A parameter is malformed, or several nodes are meant.", body = Problem),
    (status = 404, description = "There is no such node.", body = Problem),
))]
pub(crate) async fn connections(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Problem> {
    let form = asked.form();
    let limit = query::limit(&form)?;
    let from = form.text("cursor")?.map(|text| connection_of("cursor", text)).transpose()?;
    let node: Arc<str> = asked.node(&app, &form).await?.into();
    list::answer(app, (from, limit, true), move |app, place| connections_page(app, Arc::clone(&node), place)).await
}

type ConnectionPlace = (Option<u64>, u64, bool);

async fn connections_page(
    app: Arc<App>,
    node: Arc<str>,
    (from, left, is_first): ConnectionPlace,
) -> Result<Page<ConnectionPlace>, Problem> {
    let limit = left.min(PAGE);
    app.read(move |store, budget| {
        let query = ConnectionQuery { from, limit, order: Order::OldestFirst, budget };
        let connections = store.connections(&node, &query)?;
        let (rows, last) = (connections.len() as u64, connections.last().map(|connection| connection.key));
        let mut json = Vec::new();
        for (index, connection) in connections.into_iter().enumerate() {
            let row = (connection_key(connection.key), ConnectionView::new(connection));
            list::push(&mut json, is_first && index == 0, &row);
        }
        let next = last.and_then(|key| key.checked_add(1)).filter(|_| rows == limit && left > rows);
        Ok(Page { json, next: next.map(|from| (Some(from), left - rows, false)) })
    })
    .await
}

/// Chunks of a node by connection and counter, as `[key, value]` pairs; long ones are cut, and say so.
#[utoipa::path(get, path = "/v3/chunks", params(ChunksParameters), responses(
    (status = 200, description = "Pairs of a key, `<connection>-<local|remote>-<counter>`, and the chunk.",
     body = Vec<(String, ChunkView)>),
    (status = 400, description = "A parameter is malformed, or several nodes are meant.", body = Problem),
    (status = 404, description = "There is no such node.", body = Problem),
))]
pub(crate) async fn chunks(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Problem> {
    let form = asked.form();
    let limit = query::limit(&form)?;
    if limit > MOST_CHUNKS {
        return Err(Problem::parameter(
            "limit",
            format!("{limit} is more than the {MOST_CHUNKS} chunks of one answer"),
        ));
    }
    let connection = form.text("cn")?.map(|text| connection_of("cn", text)).transpose()?;
    let from = form.text("cursor")?.map(|text| chunk_of("cursor", text)).transpose()?;
    let from = from.map(|(connection, incoming, counter)| (connection, counter, incoming));
    let node = asked.node(&app, &form).await?;
    let json = app.read(move |store, budget| {
        let mut json = vec![b'['];
        for record in store.chunks(&node, &ChunkQuery { connection, from, limit, budget })? {
            if let Record { time_ns, kind: Some(Kind::Chunk(chunk)), .. } = &record {
                let is_first = json.len() == 1;
                list::push(&mut json, is_first, &(chunk_key(chunk), ChunkView::listed(*time_ns, chunk)));
            }
        }
        json.push(b']');
        Ok(json)
    });
    Ok(list::json(Body::from(json.await?)))
}

/// One chunk, whole; `null` if there is none with this key.
#[utoipa::path(get, path = "/v3/chunk/{key}", params(
    ("key" = String, Path, description = "Its key: `<connection>-<local|remote>-<counter>`."), NodeParameter,
), responses(
    (status = 200, description = "The chunk, or null.", body = Option<ChunkView>),
    (status = 400, description = "The key is malformed, or several nodes are meant.", body = Problem),
    (status = 404, description = "There is no such node.", body = Problem),
))]
pub(crate) async fn chunk(
    State(app): State<Arc<App>>,
    Path(key): Path<String>,
    asked: Asked,
) -> Result<Response, Problem> {
    let form = asked.form();
    let (connection, incoming, counter) = chunk_of("key", &key)?;
    let node = asked.node(&app, &form).await?;
    let json = app.read(move |store, _| {
        let mut json = Vec::new();
        match store.chunk(&node, connection, incoming, counter)? {
            Some(Record { time_ns, kind: Some(Kind::Chunk(chunk)), .. }) => {
                list::push(&mut json, true, &ChunkView::whole(time_ns, &chunk));
            }
            _ => json.extend_from_slice(b"null"),
        }
        Ok(json)
    });
    Ok(list::json(Body::from(json.await?)))
}

fn chunk_of(name: &str, text: &str) -> Result<(u64, bool, u64), Problem> {
    parse_chunk_key(text).ok_or_else(|| {
        Problem::parameter(name, format!("{} is not <seconds>.<nanoseconds>-<local|remote>-<counter>", shown(text)))
    })
}

fn connection_of(name: &str, text: &str) -> Result<u64, Problem> {
    parse_connection_key(text)
        .ok_or_else(|| Problem::parameter(name, format!("{} is not <seconds>.<nanoseconds>", shown(text))))
}
