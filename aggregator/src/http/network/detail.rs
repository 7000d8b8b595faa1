//! `/v2/p2p/{id}`, `/v3/message/{id}`: one message with its bytes.
//!
//! Bytes are arrays of two-digit hex strings, five characters a byte: a message of 100 MiB makes a gigabyte of JSON. A small
//! response is built in memory on a thread of the query pool; a large one is written block by block by one of a few threads
//! that may wait for the client.

use std::{
    io::{self, Write},
    ops::ControlFlow,
    time::{Duration, Instant},
};

use axum::{
    body::{Body, Bytes},
    extract::Path,
    response::Response,
};
use chainscope_proto::v1::{Chunk, Message, record::Kind};
use chainscope_store::{Error as StoreError, Store, StoredMessage};
use prost::Message as _;
use serde::Serialize;
use tokio::{runtime::Handle, sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use utoipa::ToSchema;

use super::{
    super::{
        app::AuthorizedNode,
        code::Code,
        conditional::{Audience, EntityTag, IfNoneMatch, not_modified, tagged},
        params::{NodeParameters, Params, is_decimal},
        problem::Problem,
        response,
    },
    params::MessageParameters,
};
use crate::{access::permission::ReadMessages, json, network::decode};

/// Least bytes a second that a client takes of a large response: it occupies one of few threads.
const LEAST_RATE: u64 = 256 << 10;
/// Plain bytes up to which a response is built in memory.
const MAX_BUFFERED: u64 = 256 << 10;
/// Chunks beyond the first up to which a response is built in memory.
const MAX_BUFFERED_CHUNKS: u64 = 8;
/// Bytes of the first and the last chunk of a message that may belong to other messages.
const MAX_FOREIGN: u64 = 2 << 16;
/// Size of a block of a large response.
const BLOCK: usize = 64 << 10;
/// Blocks that may wait for the client.
const MAX_BLOCKS: usize = 4;

/// One message.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Detail {
    /// Position among the node's messages.
    id: u64,
    /// The decoded message; null if it cannot be decoded.
    message: Option<serde_json::Value>,
    /// The bytes of its chunks as on the wire, two hex digits each.
    #[schema(example = json!(["00", "12", "9c"]))]
    original_bytes: Vec<String>,
    /// The decrypted bytes, two hex digits each.
    #[schema(example = json!(["00", "00"]))]
    decrypted_bytes: Vec<String>,
    /// Why it could not be decoded.
    error: Option<String>,
}

/// One message, decoded, with its bytes; `null` if there is none with this id, or no longer.
#[utoipa::path(get, path = "/v2/p2p/{id}", params(("id" = u64, Path, description = "Id of the message."), NodeParameters), responses(
    (status = 200, description = "The message, or null.", body = Option<Detail>),
    (status = 304, description = "The client has it: `If-None-Match` lists its `ETag`."),
    (status = 400, description = "A parameter is malformed, or several nodes are meant.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(crate) async fn message(
    Path(id): Path<String>,
    // As in the original, the parameters of lists are checked and have no effect.
    Params(_): Params<MessageParameters>,
    known: IfNoneMatch,
    node: AuthorizedNode<ReadMessages>,
) -> Result<Response, Problem> {
    let id = parse_id(&id)?;
    let (response, tag) = match node.read(move |store, node, _| buffered(store, node, id, &known)).await? {
        Lookup::NotFound => return Ok(response::json(Body::from("null"))),
        Lookup::NotModified(tag) => return Ok(not_modified(&tag, Audience::Caller)),
        Lookup::Buffered(json, tag) => (response::json(Body::from(json)), tag),
        Lookup::Large(tag) => (streamed(&node, id)?, tag),
    };
    Ok(tagged(response, &tag, Audience::Caller))
}

/// The id of a message at the end of a path; anything else is no resource.
fn parse_id(text: &str) -> Result<u64, Problem> {
    is_decimal(text)
        .then(|| text.parse().ok())
        .flatten()
        .ok_or_else(|| Problem::new(Code::UnknownPath, "the path does not end in the id of a message"))
}

/// One message: the same as `/v2/p2p/{id}`.
#[utoipa::path(get, path = "/v3/message/{id}", params(("id" = u64, Path, description = "Id of the message."), NodeParameters), responses(
    (status = 200, description = "The message, or null.", body = Option<Detail>),
    (status = 304, description = "The client has it: `If-None-Match` lists its `ETag`."),
    (status = 400, description = "A parameter is malformed, or several nodes are meant.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(crate) async fn message_v3(
    path: Path<String>,
    parameters: Params<MessageParameters>,
    known: IfNoneMatch,
    node: AuthorizedNode<ReadMessages>,
) -> Result<Response, Problem> {
    message(path, parameters, known, node).await
}

/// A message as far as it was read.
enum Lookup {
    NotFound,
    /// The client has it.
    NotModified(EntityTag),
    Buffered(Vec<u8>, EntityTag),
    Large(EntityTag),
}

fn buffered(store: &Store, node: &str, id: u64, known: &IfNoneMatch) -> Result<Lookup, StoreError> {
    let Some(stored) = store.stored_message(node, id)? else { return Ok(Lookup::NotFound) };
    // A message and its chunks never change; its row, with its time and connection, tells it from that of another database.
    let tag = known.tag(&[node.as_bytes(), &stored.record().encode_to_vec()]);
    if known.has(&tag) {
        return Ok(Lookup::NotModified(tag));
    }
    let is_large = |message: &Message| {
        let further_chunks = message.last_chunk.saturating_sub(message.first_chunk);
        message.length > MAX_BUFFERED || further_chunks > MAX_BUFFERED_CHUNKS
    };
    if matches!(&stored.record().kind, Some(Kind::Message(message)) if is_large(message)) {
        return Ok(Lookup::Large(tag));
    }
    let mut json = Vec::new();
    match write(&stored, id, &mut json) {
        Ok(()) => Ok(Lookup::Buffered(json, tag)),
        Err(WriteError::Store(error)) => Err(error),
        // Memory takes everything.
        Err(WriteError::Io(error)) => Err(StoreError::Corrupt(error.to_string())),
    }
}

fn streamed(node: &AuthorizedNode<ReadMessages>, id: u64) -> Result<Response, Problem> {
    let (blocks, body) = mpsc::channel(MAX_BLOCKS);
    let mut out = BlockWriter {
        block: Vec::with_capacity(BLOCK),
        blocks,
        runtime: node.app().runtime().clone(),
        timeout: node.app().limits().client_timeout,
        waited: Duration::ZERO,
        sent: 0,
    };
    node.spawn_bulk(move |store, node| {
        let written = match store.stored_message(node, id) {
            Ok(Some(stored)) => write(&stored, id, &mut out),
            // The head of the response has the tag of the message: `null` would be kept as if it was the message.
            Ok(None) => Err(io::Error::other("the message was evicted meanwhile").into()),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = written.and_then(|()| Ok(out.flush()?)) {
            out.abort(error.into());
        }
    })?;
    Ok(response::json(Body::from_stream(ReceiverStream::new(body))))
}

#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<WriteError> for io::Error {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Io(error) => error,
            WriteError::Store(error) => Self::other(error),
        }
    }
}

fn write(stored: &StoredMessage<'_>, id: u64, out: &mut dyn Write) -> Result<(), WriteError> {
    write!(out, "{{\"id\":{id},\"message\":")?;
    let error = write_message(stored, out)?;
    out.write_all(b",\"original_bytes\":[")?;
    write_bytes(stored, out, |chunk| &chunk.wire)?;
    out.write_all(b"],\"decrypted_bytes\":[")?;
    write_bytes(stored, out, |chunk| &chunk.plain)?;
    out.write_all(b"],\"error\":")?;
    json::write(out, &error)?;
    out.write_all(b"}")?;
    Ok(())
}

/// Writes the decoded message, or null; returns the reason for null.
fn write_message(stored: &StoredMessage<'_>, out: &mut dyn Write) -> Result<Option<String>, WriteError> {
    let Some(Kind::Message(message)) = &stored.record().kind else {
        return Err(StoreError::Corrupt("a row of messages is no message".to_owned()).into());
    };
    let mut plain = Vec::new();
    let mut chunks = 0;
    each_chunk(stored, &mut |chunk| {
        chunks += 1;
        if (plain.len() as u64) < message.length.saturating_add(MAX_FOREIGN) {
            plain.extend_from_slice(&chunk.plain);
        }
        Ok(())
    })?;
    let error = match decode::write_json(message, &plain, out)? {
        Ok(()) => return Ok(None),
        Err(error) => error,
    };
    out.write_all(b"null")?;
    let wanted = message.last_chunk.saturating_sub(message.first_chunk).saturating_add(1);
    if chunks < wanted {
        return Ok(Some(format!("{chunks} of its {wanted} chunks are stored: {error}")));
    }
    Ok(Some(error))
}

/// Writes bytes of all chunks as `"00","12",…`.
fn write_bytes(
    stored: &StoredMessage<'_>,
    out: &mut dyn Write,
    of: impl Fn(&Chunk) -> &[u8],
) -> Result<(), WriteError> {
    let mut is_first = true;
    let mut text = Vec::with_capacity(5 * 4096);
    each_chunk(stored, &mut |chunk| {
        for bytes in of(chunk).chunks(4096) {
            text.clear();
            for byte in bytes {
                let digits = [b"0123456789abcdef"[usize::from(byte >> 4)], b"0123456789abcdef"[usize::from(byte & 15)]];
                text.extend_from_slice(if is_first { b"\"" } else { b",\"" });
                text.extend_from_slice(&digits);
                text.push(b'"');
                is_first = false;
            }
            out.write_all(&text)?;
        }
        Ok(())
    })
}

fn each_chunk(stored: &StoredMessage<'_>, each: &mut dyn FnMut(&Chunk) -> io::Result<()>) -> Result<(), WriteError> {
    let mut failed = None;
    stored.each_chunk(&mut |record| {
        if let Some(Kind::Chunk(chunk)) = &record.kind
            && let Err(error) = each(chunk)
        {
            failed = Some(error);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// Writes into a response body, block by block.
struct BlockWriter {
    block: Vec<u8>,
    blocks: mpsc::Sender<io::Result<Bytes>>,
    runtime: Handle,
    /// Maximum time to wait for the client, beyond that of [`LEAST_RATE`].
    timeout: Duration,
    /// Time that blocks waited for the client; the wait for a thread and reads of the store are not its fault.
    waited: Duration,
    /// Bytes that the client has taken, but for the waiting blocks.
    sent: u64,
}

impl BlockWriter {
    fn send(&mut self, block: io::Result<Bytes>) -> io::Result<()> {
        let allowed = self.timeout.saturating_add(Duration::from_secs(self.sent / LEAST_RATE));
        let left = allowed.saturating_sub(self.waited);
        self.sent = self.sent.saturating_add(block.as_ref().map_or(0, |block| block.len() as u64));
        let began = Instant::now();
        let sent = self.runtime.block_on(async { timeout(left, self.blocks.send(block)).await });
        self.waited = self.waited.saturating_add(began.elapsed());
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(io::Error::new(io::ErrorKind::BrokenPipe, "the client closed the connection")),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads too slowly")),
        }
    }

    /// Ends the body with an error, so that the client does not take a part for the whole.
    fn abort(&mut self, error: io::Error) {
        tracing::debug!(%error, "a large response was aborted");
        // Fails if the client is gone.
        let _ = self.send(Err(error));
    }
}

impl Write for BlockWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.block.extend_from_slice(bytes);
        if self.block.len() >= BLOCK {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let block = std::mem::replace(&mut self.block, Vec::with_capacity(BLOCK));
        self.send(Ok(Bytes::from(block)))
    }
}

#[cfg(test)]
mod tests {
    use std::{io::ErrorKind, thread, time::Duration};

    use axum::body::Bytes;
    use tokio::{runtime::Runtime, sync::mpsc};

    use super::BlockWriter;

    #[test]
    fn only_time_that_a_block_waits_for_the_client_counts() {
        const TIMEOUT: Duration = Duration::from_secs(1);
        let runtime = Runtime::new().unwrap();
        let (blocks, mut body) = mpsc::channel(1);
        let handle = runtime.handle().clone();
        let mut writer = BlockWriter {
            block: Vec::new(),
            blocks,
            runtime: handle,
            timeout: TIMEOUT,
            waited: Duration::ZERO,
            sent: 0,
        };
        // The wait for a thread.
        thread::sleep(TIMEOUT);
        writer.send(Ok(Bytes::from_static(b"first"))).unwrap();
        let client = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            body.blocking_recv().unwrap().unwrap();
            body
        });
        writer.send(Ok(Bytes::from_static(b"second"))).unwrap();

        assert!(writer.waited >= Duration::from_millis(10));

        let _body = client.join().unwrap();
        assert_eq!(writer.send(Ok(Bytes::from_static(b"third"))).unwrap_err().kind(), ErrorKind::TimedOut);
    }
}
