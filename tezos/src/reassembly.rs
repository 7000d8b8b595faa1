//! Reassembles the messages of a direction from the plain text of its chunks.
//!
//! Octez begins each message in a chunk of its own, but its reader accepts any split, and so does this one. After a
//! hole the stream of messages is out of sync. It is synchronised again by a chunk that holds whole messages only, or
//! the beginning of a message that fills a full chunk.
use sha2::{Digest, Sha256};

use crate::{
    framer::PREFIX_BYTES,
    input::Direction,
    limits::Limits,
    memory::{Buffer, MemoryBudget, Share},
    message::{self, Category, DecodeError, FRAME_BYTES, MAX_MESSAGE_BYTES, UNKNOWN, kind_of_tag},
    output::Message,
    reader::Cause,
    seal::MAX_PLAIN_BYTES,
};

/// Counter of the chunk with the connection message.
pub(crate) const CONNECTION: u64 = 0;
/// Counter of the chunk with the Metadata message.
pub(crate) const METADATA: u64 = 1;
/// Counter of the chunk with the Ack message.
pub(crate) const ACK: u64 = 2;

/// First bytes of a message that are kept whatever the memory budget: enough for its preview.
const MIN_PREFIX_BYTES: usize = 512;

/// A message that continues in the next chunk.
#[derive(Debug)]
struct PartialMessage {
    first_chunk: u64,
    /// Length of the whole message, frame included; 0 while its frame is incomplete.
    length: u64,
    /// Number of bytes received.
    received: u64,
    sha256: Sha256,
    /// The first bytes, up to [`Limits::max_prefix_bytes`].
    prefix: Buffer,
    /// Whether the memory budget had no room for more of them.
    is_cut: bool,
}

/// Reassembles the messages of one direction.
#[derive(Debug)]
pub(crate) struct Reassembler {
    direction: Direction,
    /// Whether the connection is a DAL node's.
    pub(crate) is_dal: bool,
    in_sync: bool,
    partial: Option<Box<PartialMessage>>,
    pub(crate) memory: MemoryBudget,
    /// Number of messages that were not decoded because the memory budget had no room for them.
    pub(crate) undecoded: u64,
}

impl Reassembler {
    pub(crate) fn new(direction: Direction) -> Self {
        Self { direction, is_dal: false, in_sync: true, partial: None, memory: MemoryBudget::default(), undecoded: 0 }
    }

    /// Chunks are missing from here on: drops the incomplete message.
    pub(crate) fn lose_sync(&mut self) {
        self.partial = None;
        self.in_sync = false;
    }

    /// Whether a message is incomplete.
    pub(crate) fn is_partial(&self) -> bool {
        self.partial.is_some()
    }

    /// Adds the plain text of the next chunk and emits the messages that it completes. Returns a comment if the chunk
    /// holds no message, after which the direction is out of sync.
    pub(crate) fn push(
        &mut self,
        counter: u64,
        plain: &[u8],
        time_ns: u64,
        limits: &Limits,
        out: &mut dyn FnMut(Message),
    ) -> Option<String> {
        let single = |category, kind| {
            let error = message::decode(category, false, plain);
            let sha256 = Sha256::digest(plain).into();
            message_out(self.direction, category, kind, None, (counter, counter), plain, sha256, error, time_ns)
        };
        match counter {
            CONNECTION => out(single(Category::Connection, message::CONNECTION_MESSAGE)),
            METADATA => out(single(Category::Meta, message::METADATA)),
            ACK => {
                out(single(Category::Ack, message::ACK_MESSAGE));
                // The first message begins in the next chunk.
                self.in_sync = true;
            }
            _ => return self.push_peer(counter, plain, time_ns, limits, out),
        }
        None
    }

    fn push_peer(
        &mut self,
        counter: u64,
        mut plain: &[u8],
        time_ns: u64,
        limits: &Limits,
        out: &mut dyn FnMut(Message),
    ) -> Option<String> {
        if !self.in_sync {
            if !plausible_start(plain) {
                return None;
            }
            self.in_sync = true;
        }
        while !plain.is_empty() {
            if self.partial.is_none()
                && let Some(length) = frame_length(plain)
            {
                if let Err(error) = check_length(length, plain, limits) {
                    return Some(self.refuse(counter, plain, error, time_ns, out));
                }
                if let Some((whole, rest)) =
                    usize::try_from(length).ok().and_then(|length| plain.split_at_checked(length))
                {
                    plain = rest;
                    out(self.whole((counter, counter), whole, Sha256::digest(whole).into(), time_ns));
                    continue;
                }
            }
            let partial = self.partial.get_or_insert_with(|| {
                Box::new(PartialMessage {
                    first_chunk: counter,
                    length: 0,
                    received: 0,
                    sha256: Sha256::new(),
                    prefix: Buffer::new(&self.memory, Share::Half, MIN_PREFIX_BYTES),
                    is_cut: false,
                })
            });
            // The frame comes first, so that its length is checked before more is buffered.
            let wanted = if partial.length == 0 { FRAME_BYTES as u64 } else { partial.length } - partial.received;
            let taken = usize::try_from(wanted).unwrap_or(usize::MAX).min(plain.len());
            let (head, rest) = plain.split_at(taken);
            partial.append(head, limits);
            plain = rest;
            if partial.length == 0
                && let Some(length) = frame_length(&partial.prefix)
            {
                if let Err(error) = check_length(length, &partial.prefix, limits) {
                    let prefix = partial.prefix.take();
                    return Some(self.refuse(counter, &prefix, error, time_ns, out));
                }
                partial.length = length;
            }
            if partial.length != 0
                && partial.received == partial.length
                && let Some(partial) = self.partial.take()
            {
                out(self.complete(*partial, counter, time_ns));
            }
        }
        None
    }

    /// A message whose bytes are all buffered.
    fn whole(&self, chunks: (u64, u64), bytes: &[u8], sha256: [u8; 32], time_ns: u64) -> Message {
        let decoded = message::decode(Category::P2p, self.is_dal, bytes);
        let tag = tag_of(bytes);
        let kind = self.kind(tag);
        message_out(self.direction, Category::P2p, kind, tag, chunks, bytes, sha256, decoded, time_ns)
    }

    /// Filter name of a tag.
    fn kind(&self, tag: Option<u16>) -> &'static str {
        tag.filter(|_| !self.is_dal).and_then(kind_of_tag).unwrap_or(UNKNOWN)
    }

    /// The message of which all bytes arrived; only the prefix of a long one is decoded.
    fn complete(&mut self, partial: PartialMessage, last_chunk: u64, time_ns: u64) -> Message {
        let chunks = (partial.first_chunk, last_chunk);
        if partial.prefix.len() as u64 == partial.length {
            return self.whole(chunks, &partial.prefix, partial.sha256.finalize().into(), time_ns);
        }
        let tag = tag_of(&partial.prefix);
        let kind = self.kind(tag);
        self.undecoded += u64::from(partial.is_cut);
        let cause = match kind {
            UNKNOWN if self.is_dal => Some((4, Cause::Dal)),
            UNKNOWN => Some((4, Cause::UnknownTag)),
            _ if partial.is_cut => Some((partial.prefix.len(), Cause::OutOfMemory { length: partial.length })),
            _ => None,
        };
        let error = cause.map(|(offset, cause)| DecodeError { tag, offset, cause }.to_string()).unwrap_or_default();
        Message {
            direction: self.direction,
            category: Category::P2p,
            kind,
            tag,
            first_chunk: chunks.0,
            last_chunk: chunks.1,
            length: partial.length,
            sha256: partial.sha256.finalize().into(),
            preview: message::preview_of_prefix(Category::P2p, self.is_dal, &partial.prefix),
            error,
            time_ns,
        }
    }

    /// Emits bytes that are no message as a message that cannot be decoded; synchronisation is lost. Returns a comment.
    fn refuse(
        &mut self,
        counter: u64,
        bytes: &[u8],
        error: DecodeError,
        time_ns: u64,
        out: &mut dyn FnMut(Message),
    ) -> String {
        let first_chunk = self.partial.as_ref().map_or(counter, |partial| partial.first_chunk);
        self.lose_sync();
        let reason = error.to_string();
        let chunks = (first_chunk, counter);
        let tag = tag_of(bytes);
        let sha256 = Sha256::digest(bytes).into();
        let decoded = Err(error);
        out(message_out(self.direction, Category::P2p, UNKNOWN, tag, chunks, bytes, sha256, decoded, time_ns));
        format!("{} message at chunk {counter} is not one: {reason}", self.direction.label())
    }
}

impl PartialMessage {
    fn append(&mut self, bytes: &[u8], limits: &Limits) {
        self.received += bytes.len() as u64;
        self.sha256.update(bytes);
        let max = limits.max_prefix_bytes.max(FRAME_BYTES);
        let first =
            |max: usize, length: usize| bytes.get(..max.saturating_sub(length).min(bytes.len())).unwrap_or_default();
        let length = usize::try_from(self.length).unwrap_or(usize::MAX);
        if !self.is_cut && !self.prefix.extend(first(max, self.prefix.len()), max.min(length.max(FRAME_BYTES))) {
            self.is_cut = true;
            self.prefix.extend(first(MIN_PREFIX_BYTES, self.prefix.len()), MIN_PREFIX_BYTES);
        }
    }
}

/// Length of a message, frame included, if its frame is complete.
fn frame_length(bytes: &[u8]) -> Option<u64> {
    let (prefix, tag) = bytes.split_first_chunk::<4>()?;
    (tag.len() >= 2).then(|| u64::from(u32::from_be_bytes(*prefix)) + 4)
}

/// Tag of a message, if its frame is complete.
fn tag_of(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(4..6)?.first_chunk()?))
}

/// Checks the length of a message (frame included) against the limits.
fn check_length(length: u64, bytes: &[u8], limits: &Limits) -> Result<(), DecodeError> {
    let prefix = length - 4;
    let limit = limits.max_message_bytes.min(MAX_MESSAGE_BYTES);
    let prefix = u32::try_from(prefix).unwrap_or(u32::MAX);
    let cause = if prefix < 2 {
        Cause::Frame { prefix, bytes: bytes.len().saturating_sub(4) }
    } else if u64::from(prefix) > limit {
        Cause::TooLong { length: prefix, limit }
    } else {
        return Ok(());
    };
    Err(DecodeError { tag: tag_of(bytes), offset: 0, cause })
}

/// Whether the plain text of a chunk begins with a message. Used out of sync only: it must not accept the middle of a
/// message.
fn plausible_start(plain: &[u8]) -> bool {
    let mut rest = plain;
    let mut first = true;
    while let Some(length) = frame_length(rest) {
        if !(6..=MAX_MESSAGE_BYTES + 4).contains(&length) {
            return false;
        }
        let known = tag_of(rest).and_then(kind_of_tag).is_some();
        let left = rest.len() as u64;
        if length > left {
            return first && known && is_full(plain.len());
        }
        // A message that is alone in its chunk may have any tag; several in one chunk must have known tags.
        let alone = first && length == left;
        if !(known || alone) {
            return false;
        }
        rest = usize::try_from(length).ok().and_then(|length| rest.get(length..)).unwrap_or_default();
        first = false;
    }
    !first && rest.is_empty()
}

/// Whether this is the number of plain bytes of a full chunk, which the next chunk of the same message follows. Octez:
/// 65,517, or a multiple of 1 KiB less 18 (`--binary-chunks-size`); TezEdge: 65,504.
pub(crate) fn is_full(plain_bytes: usize) -> bool {
    plain_bytes == MAX_PLAIN_BYTES || plain_bytes == 0xffe0 || (plain_bytes + PREFIX_BYTES + 16).is_multiple_of(1024)
}

/// A message with the result of decoding it.
#[expect(clippy::too_many_arguments, reason = "the fields of a message, in one place")]
fn message_out(
    direction: Direction,
    category: Category,
    kind: &'static str,
    tag: Option<u16>,
    (first_chunk, last_chunk): (u64, u64),
    bytes: &[u8],
    sha256: [u8; 32],
    decoded: Result<message::Decoded<'_>, DecodeError>,
    time_ns: u64,
) -> Message {
    let (preview, error) = match decoded {
        Ok(decoded) => (message::preview(&decoded), String::new()),
        Err(error) => (None, error.to_string()),
    };
    Message {
        direction,
        category,
        kind,
        tag,
        first_chunk,
        last_chunk,
        length: bytes.len() as u64,
        sha256,
        preview,
        error,
        time_ns,
    }
}
