//! `/v3/chunks`, `/v3/chunk/{key}`: chunks of a node, as `[key, value]` pairs.

use axum::{body::Body, extract::Path, response::Response};
use chainscope_proto::v1::{Record, record::Kind};
use chainscope_store::ChunkQuery;
use prost::Message as _;

use super::{
    super::{
        app::AuthorizedNode,
        conditional::{Audience, IfNoneMatch, not_modified, tagged},
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
    (status = 304, description = "The client has it: `If-None-Match` lists its `ETag`."),
    (status = 400, description = "The key is malformed, or several nodes are meant.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(crate) async fn chunk(
    Path(key): Path<String>,
    known: IfNoneMatch,
    node: AuthorizedNode<ReadChunks>,
) -> Result<Response, Problem> {
    let (connection, incoming, counter) = require_chunk_key("key", &key)?;
    let found = node.read(move |store, node, _| {
        let Some(record) = store.chunk(node, connection, incoming, counter)? else { return Ok(None) };
        let Some(Kind::Chunk(chunk)) = &record.kind else { return Ok(None) };
        // A chunk never changes. Two agents' chunks can have one key: the tag is of the one that is shown.
        let tag = known.tag(&[node.as_bytes(), &record.encode_to_vec()]);
        let json = (!known.has(&tag)).then(|| {
            let mut json = Vec::new();
            list::push(&mut json, true, &ChunkView::whole(record.time_ns, chunk));
            json
        });
        Ok(Some((json, tag)))
    });
    Ok(match found.await? {
        None => response::json(Body::from("null")),
        Some((None, tag)) => not_modified(&tag, Audience::Caller),
        Some((Some(json), tag)) => tagged(response::json(Body::from(json)), &tag, Audience::Caller),
    })
}
