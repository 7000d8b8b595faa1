//! Puts the messages of a direction together from the plain text of its chunks.
//!
//! Octez begins each message in its own chunk; its reader takes any split, and so does this. After a hole the stream of messages is out of step:
//! it goes on at a chunk that holds whole messages and nothing else, or the beginning of one that fills a longest chunk.
use sha2::{Digest, Sha256};

use crate::{
    framer::PREFIX_BYTES,
    message::{self, Category, DecodeError, FRAME_BYTES, MAX_MESSAGE_BYTES, UNKNOWN, kind_of_tag},
    output::{Direction, Limits, MessageOut},
    reader::Cause,
    seal::MAX_PLAIN_BYTES,
};

/// Counters of the handshake's chunks.
pub(crate) const CONNECTION: u64 = 0;
pub(crate) const METADATA: u64 = 1;
pub(crate) const ACK: u64 = 2;

/// A message that goes on in the next chunk.
#[derive(Debug)]
struct Partial {
    first_chunk: u64,
    /// Bytes of the whole message, framing included; 0 while its frame is incomplete.
    length: u64,
    seen: u64,
    sha256: Sha256,
    /// The first bytes, up to [`Limits::message_prefix`].
    prefix: Vec<u8>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Assembly {
    direction: Direction,
    pub(crate) dal: bool,
    in_step: bool,
    partial: Option<Box<Partial>>,
}

impl Assembly {
    pub(crate) fn new(direction: Direction) -> Self {
        Self { direction, dal: false, in_step: true, partial: None }
    }

    /// Chunks are missing from here on.
    pub(crate) fn lose_step(&mut self) {
        self.partial = None;
        self.in_step = false;
    }

    /// A message has begun and not ended.
    pub(crate) fn is_partial(&self) -> bool {
        self.partial.is_some()
    }

    /// Takes the plain text of the next chunk. Says why the direction fell out of step, if it did.
    pub(crate) fn push(
        &mut self,
        counter: u64,
        plain: &[u8],
        time_ns: u64,
        limits: &Limits,
        out: &mut dyn FnMut(MessageOut),
    ) -> Option<String> {
        let single = |category, kind| {
            let error = message::decode(category, false, plain);
            let sha256 = Sha256::digest(plain).into();
            finish(self.direction, category, kind, None, (counter, counter), plain, sha256, error, time_ns)
        };
        match counter {
            CONNECTION => out(single(Category::Connection, message::CONNECTION_MESSAGE)),
            METADATA => out(single(Category::Meta, message::METADATA)),
            ACK => {
                out(single(Category::Ack, message::ACK_MESSAGE));
                // The first message begins in the next chunk.
                self.in_step = true;
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
        out: &mut dyn FnMut(MessageOut),
    ) -> Option<String> {
        if !self.in_step {
            if !plausible_start(plain) {
                return None;
            }
            self.in_step = true;
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
                Box::new(Partial {
                    first_chunk: counter,
                    length: 0,
                    seen: 0,
                    sha256: Sha256::new(),
                    prefix: Vec::new(),
                })
            });
            // First the frame alone, so that its length is checked before anything else is taken.
            let wanted = if partial.length == 0 { FRAME_BYTES as u64 } else { partial.length } - partial.seen;
            let taken = usize::try_from(wanted).unwrap_or(usize::MAX).min(plain.len());
            let (head, rest) = plain.split_at(taken);
            partial.take(head, limits);
            plain = rest;
            if partial.length == 0
                && let Some(length) = frame_length(&partial.prefix)
            {
                if let Err(error) = check_length(length, &partial.prefix, limits) {
                    let prefix = std::mem::take(&mut partial.prefix);
                    return Some(self.refuse(counter, &prefix, error, time_ns, out));
                }
                partial.length = length;
            }
            if partial.length != 0
                && partial.seen == partial.length
                && let Some(partial) = self.partial.take()
            {
                out(self.put_together(*partial, counter, time_ns));
            }
        }
        None
    }

    /// A message whose bytes are all there.
    fn whole(&self, chunks: (u64, u64), bytes: &[u8], sha256: [u8; 32], time_ns: u64) -> MessageOut {
        let decoded = message::decode(Category::P2p, self.dal, bytes);
        let tag = tag_of(bytes);
        let kind = self.kind(tag);
        finish(self.direction, Category::P2p, kind, tag, chunks, bytes, sha256, decoded, time_ns)
    }

    fn kind(&self, tag: Option<u16>) -> &'static str {
        tag.filter(|_| !self.dal).and_then(kind_of_tag).unwrap_or(UNKNOWN)
    }

    fn put_together(&self, partial: Partial, last_chunk: u64, time_ns: u64) -> MessageOut {
        let chunks = (partial.first_chunk, last_chunk);
        if partial.prefix.len() as u64 == partial.length {
            return self.whole(chunks, &partial.prefix, partial.sha256.finalize().into(), time_ns);
        }
        let tag = tag_of(&partial.prefix);
        let kind = self.kind(tag);
        let error = match tag {
            Some(tag) if kind == UNKNOWN => {
                DecodeError { tag: Some(tag), offset: 4, cause: if self.dal { Cause::Dal } else { Cause::UnknownTag } }
                    .to_string()
            }
            _ => String::new(),
        };
        MessageOut {
            direction: self.direction,
            category: Category::P2p,
            kind,
            tag,
            first_chunk: chunks.0,
            last_chunk: chunks.1,
            length: partial.length,
            sha256: partial.sha256.finalize().into(),
            preview: message::preview_of_prefix(Category::P2p, self.dal, &partial.prefix),
            error,
            time_ns,
        }
    }

    /// The chunk does not hold a message: it is shown as one that cannot be decoded.
    fn refuse(
        &mut self,
        counter: u64,
        bytes: &[u8],
        error: DecodeError,
        time_ns: u64,
        out: &mut dyn FnMut(MessageOut),
    ) -> String {
        let first_chunk = self.partial.as_ref().map_or(counter, |partial| partial.first_chunk);
        self.lose_step();
        let reason = error.to_string();
        let chunks = (first_chunk, counter);
        let tag = tag_of(bytes);
        let sha256 = Sha256::digest(bytes).into();
        let decoded = Err(error);
        out(finish(self.direction, Category::P2p, UNKNOWN, tag, chunks, bytes, sha256, decoded, time_ns));
        format!("{} message at chunk {counter} is not one: {reason}", self.direction.word())
    }
}

impl Partial {
    fn take(&mut self, bytes: &[u8], limits: &Limits) {
        self.seen += bytes.len() as u64;
        self.sha256.update(bytes);
        let room = limits.message_prefix.max(FRAME_BYTES).saturating_sub(self.prefix.len());
        self.prefix.extend_from_slice(bytes.get(..room.min(bytes.len())).unwrap_or_default());
    }
}

/// Length of a message with its framing, once its frame is there.
fn frame_length(bytes: &[u8]) -> Option<u64> {
    let (prefix, tag) = bytes.split_first_chunk::<4>()?;
    (tag.len() >= 2).then(|| u64::from(u32::from_be_bytes(*prefix)) + 4)
}

fn tag_of(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(4..6)?.first_chunk()?))
}

fn check_length(length: u64, bytes: &[u8], limits: &Limits) -> Result<(), DecodeError> {
    let prefix = length - 4;
    let limit = limits.message.min(MAX_MESSAGE_BYTES);
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

/// Does a chunk's plain text begin with a message? Asked only where the step is lost: the middle of a message must not pass for one.
pub(crate) fn plausible_start(plain: &[u8]) -> bool {
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
        // A message alone in its chunk may have any tag; packed ones must have known tags.
        let alone = first && length == left;
        if !(known || alone) {
            return false;
        }
        rest = usize::try_from(length).ok().and_then(|length| rest.get(length..)).unwrap_or_default();
        first = false;
    }
    !first && rest.is_empty()
}

/// Plain bytes of a chunk that another of the same message follows: as long as its sender makes them. Octez: 65,517, or a multiple of
/// 1 KiB less 18 (`--binary-chunks-size`); TezEdge: 65,504.
pub(crate) fn is_full(plain: usize) -> bool {
    plain == MAX_PLAIN_BYTES || plain == 0xffe0 || (plain + PREFIX_BYTES + 16).is_multiple_of(1024)
}

#[expect(clippy::too_many_arguments, reason = "the fields of a message, in one place")]
fn finish(
    direction: Direction,
    category: Category,
    kind: &'static str,
    tag: Option<u16>,
    (first_chunk, last_chunk): (u64, u64),
    bytes: &[u8],
    sha256: [u8; 32],
    decoded: Result<message::Decoded<'_>, DecodeError>,
    time_ns: u64,
) -> MessageOut {
    let (preview, error) = match decoded {
        Ok(decoded) => (message::preview(&decoded), String::new()),
        Err(error) => (None, error.to_string()),
    };
    MessageOut {
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
