//! `/v3/chunks`, `/v3/chunk/{key}`: chunks of a node, as `[key, value]` pairs.

use axum::{body::Body, extract::Path, response::Response};
use chainscope_proto::v1::{Record, record::Kind};
use chainscope_store::ChunkQuery;

use super::{
    super::{
        app::AuthorizedNode,
        list::{self, DEFAULT_LIMIT, Page},
        params::{NodeParameters, Params},
        problem::Problem,
        response,
    },
    params::ChunksParameters,
    wire::{ChunkView, chunk_key, require_chunk_key, require_connection_key},
};
use crate::access::permission::ReadChunks;

/// Maximum number of chunks in a response: each may be 64 KiB, and is shown twice in hex.
const MAX_CHUNKS: u64 = 1000;

/// Chunks read at a time: a mebibyte of JSON.
const PAGE: u64 = 4;

/// Chunks of a node by connection and counter, as `[key, value]` pairs; long ones are cut, and say so.
#[utoipa::path(get, path = "/v3/chunks", params(NodeParameters, ChunksParameters), responses(
    (status = 200, description = "Pairs of a key, `<connection>-<local|remote>-<counter>`, and the chunk.",
     body = Vec<(String, ChunkView)>),
    (status = 400, description = "A parameter is malformed, or several nodes are meant.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(crate) async fn chunks(
    Params(parameters): Params<ChunksParameters>,
    node: AuthorizedNode<ReadChunks>,
) -> Result<Response, Problem> {
    let limit = parameters.limit.unwrap_or(DEFAULT_LIMIT);
    if limit > MAX_CHUNKS {
        return Err(Problem::parameter("limit", format!("{limit} is more than the maximum, {MAX_CHUNKS} chunks")));
    }
    let connection = parameters.cn.map(|text| require_connection_key("cn", &text)).transpose()?;
    let from = parameters.cursor.map(|text| require_chunk_key("cursor", &text)).transpose()?;
    let from = from.map(|(connection, incoming, counter)| (connection, counter, incoming));
    let start = Position { from, left: limit, is_first: true };
    list::respond(node, start, move |node, position| page(node, connection, position)).await
}

/// Where the next page of a list begins.
struct Position {
    /// Connection, counter, and whether the remote sent it.
    from: Option<(u64, u64, bool)>,
    /// Chunks that are still wanted.
    left: u64,
    is_first: bool,
}

async fn page(
    node: AuthorizedNode<ReadChunks>,
    connection: Option<u64>,
    position: Position,
) -> Result<Page<Position>, Problem> {
    let Position { from, left, is_first } = position;
    node.read(move |store, node, budget| {
        // One more than is shown: the next page begins with it.
        let limit = left.min(PAGE) + 1;
        let mut chunks = store.chunks(node, &ChunkQuery { connection, from, limit, budget })?;
        let key = |record: &Record| match &record.kind {
            Some(Kind::Chunk(chunk)) => Some((chunk.connection, chunk.counter, chunk.incoming)),
            _ => None,
        };
        let next = if chunks.len() as u64 == limit { chunks.pop().as_ref().and_then(key) } else { None };
        // Chunks of two agents can have one key: they come in one page.
        if next.is_some() && left > PAGE && chunks.first().map(key) != Some(next) {
            chunks.retain(|chunk| key(chunk) != next);
        }
        let mut json = Vec::new();
        for (index, record) in chunks.iter().enumerate() {
            if let Record { time_ns, kind: Some(Kind::Chunk(chunk)), .. } = record {
                let row = (chunk_key(chunk), ChunkView::listed(*time_ns, chunk));
                list::push(&mut json, is_first && index == 0, &row);
            }
        }
        let left = left.saturating_sub(chunks.len() as u64);
        let next = next.filter(|_| left > 0);
        Ok(Page { json, next: next.map(|next| Position { from: Some(next), left, is_first: false }) })
    })
    .await
}

/// One chunk, whole; `null` if there is none with this key.
#[utoipa::path(get, path = "/v3/chunk/{key}", params(
    ("key" = String, Path, description = "Key of the chunk: `<connection>-<local|remote>-<counter>`."), NodeParameters,
), responses(
    (status = 200, description = "The chunk, or null.", body = Option<ChunkView>),
    (status = 400, description = "The key is malformed, or several nodes are meant.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(crate) async fn chunk(Path(key): Path<String>, node: AuthorizedNode<ReadChunks>) -> Result<Response, Problem> {
    let (connection, incoming, counter) = require_chunk_key("key", &key)?;
    let json = node.read(move |store, node, _| {
        let mut json = Vec::new();
        match store.chunk(node, connection, incoming, counter)? {
            Some(Record { time_ns, kind: Some(Kind::Chunk(chunk)), .. }) => {
                list::push(&mut json, true, &ChunkView::whole(time_ns, &chunk));
            }
            _ => json.extend_from_slice(b"null"),
        }
        Ok(json)
    });
    Ok(response::json(Body::from(json.await?)))
}
