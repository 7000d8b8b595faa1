//! Decoding of whole messages: tags, names, JSON (as in the API's `message`), previews.
//!
//! A decoded message borrows from its bytes; lists are validated once and decoded again when serialised. Only errors
//! allocate.
pub mod handshake;
pub mod parts;
pub mod peer;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::{
    json::first_bytes,
    reader::{Cause, Decode, Fault, Reader},
};
pub use handshake::{Ack, ConnectionMessage, Metadata, Motive, Version};
pub use peer::PeerMessage;

/// Maximum value of a message's length prefix (Octez `p2p_socket.ml`).
pub const MAX_MESSAGE_BYTES: u64 = 100 << 20;

/// Length of a message's frame: u32 length of the rest, u16 tag.
pub const FRAME_BYTES: usize = 6;

/// Maximum length of a preview, in bytes.
pub const PREVIEW_BYTES: usize = 100;

/// Part of the conversation that a message belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Category {
    /// The unencrypted message that begins a direction.
    Connection,
    /// First encrypted chunk.
    Meta,
    /// Second encrypted chunk.
    Ack,
    /// Messages in all later chunks.
    P2p,
}

impl Category {
    /// Name in records and in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Meta => "meta",
            Self::Ack => "ack",
            Self::P2p => "p2p",
        }
    }

    /// The category with this [name](Category::name).
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Connection, Self::Meta, Self::Ack, Self::P2p].into_iter().find(|c| c.name() == name)
    }
}

/// Tags and filter names of the messages between peers.
pub const PEER_KINDS: [(u16, &str); 26] = [
    (0x01, "disconnect"),
    (0x02, "bootstrap"),
    (0x03, "advertise"),
    (0x04, "swap_request"),
    (0x05, "swap_ack"),
    (0x10, "get_current_branch"),
    (0x11, "current_branch"),
    (0x12, "deactivate"),
    (0x13, "get_current_head"),
    (0x14, "current_head"),
    (0x20, "get_block_headers"),
    (0x21, "block_header"),
    (0x30, "get_operations"),
    (0x31, "operation"),
    (0x40, "get_protocols"),
    (0x41, "protocol"),
    (0x50, "get_operation_hashes_for_blocks"),
    (0x51, "operation_hashes_for_blocks"),
    (0x60, "get_operations_for_blocks"),
    (0x61, "operations_for_blocks"),
    (0x70, "get_checkpoint"),
    (0x71, "checkpoint"),
    (0x80, "get_protocol_branch"),
    (0x81, "protocol_branch"),
    (0x90, "get_predecessor_header"),
    (0x91, "predecessor_header"),
];

/// Filter name of the connection message.
pub const CONNECTION_MESSAGE: &str = "connection_message";
/// Filter name of the Metadata message.
pub const METADATA: &str = "metadata";
/// Filter name of the Ack message.
pub const ACK_MESSAGE: &str = "ack_message";
/// Filter name of messages with an unknown tag, and of all messages of DAL nodes.
pub const UNKNOWN: &str = "unknown";

/// All filter names.
pub const KINDS: [&str; 30] = {
    let mut kinds = [UNKNOWN; 30];
    kinds[0] = CONNECTION_MESSAGE;
    kinds[1] = METADATA;
    kinds[2] = ACK_MESSAGE;
    let mut at = 0;
    while at < PEER_KINDS.len() {
        kinds[3 + at] = PEER_KINDS[at].1;
        at += 1;
    }
    kinds
};

/// Filter name of a tag; `None` for an unknown tag.
pub fn kind_of_tag(tag: u16) -> Option<&'static str> {
    PEER_KINDS.iter().find(|(known, _)| *known == tag).map(|(_, name)| *name)
}

/// The name in [`KINDS`] for a filter name of a user; also accepts `operation_hashes_for_block`, the spelling of the
/// TezEdge debugger.
pub fn canonical_kind(name: &str) -> Option<&'static str> {
    let name = if name == "operation_hashes_for_block" { "operation_hashes_for_blocks" } else { name };
    KINDS.into_iter().find(|kind| *kind == name)
}

/// Error of decoding a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}at byte {offset}: {cause}", tag.map(|tag| format!("tag 0x{tag:04x}: ")).unwrap_or_default())]
pub struct DecodeError {
    /// Tag of the message; `None` for messages of the handshake and incomplete frames.
    pub tag: Option<u16>,
    /// Offset of the error in the message, frame included.
    pub offset: usize,
    /// Kind of the error.
    pub cause: Cause,
}

impl DecodeError {
    pub(crate) fn new(tag: Option<u16>, fault: Fault) -> Self {
        Self { tag, offset: fault.offset, cause: fault.cause }
    }
}

/// A decoded message; serialises to the JSON of the API's `message`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Decoded<'a> {
    /// Connection message.
    Connection(ConnectionMessage<'a>),
    /// Metadata message.
    Metadata(Metadata),
    /// Ack message.
    Ack(Ack<'a>),
    /// Message between peers.
    Peer(PeerMessage<'a>),
}

/// Decodes the plain bytes of a message, frame included (messages of the handshake have none).
///
/// `is_dal`: the connection is a DAL node's, whose messages after the handshake have other tags.
///
/// # Errors
/// If the message is malformed, its tag is unknown, or bytes follow its end.
pub fn decode(category: Category, is_dal: bool, plain: &[u8]) -> Result<Decoded<'_>, DecodeError> {
    read(category, is_dal, plain, false)
}

/// The first bytes (at most [`PREVIEW_BYTES`]) of a message's compact JSON.
pub fn preview(decoded: &Decoded<'_>) -> Option<String> {
    first_bytes(decoded, PREVIEW_BYTES)
}

/// Preview of a message from its first bytes; `None` if they do not suffice.
pub fn preview_of_prefix(category: Category, is_dal: bool, prefix: &[u8]) -> Option<String> {
    preview(&read(category, is_dal, prefix, true).ok()?)
}

fn read(category: Category, is_dal: bool, plain: &[u8], truncated: bool) -> Result<Decoded<'_>, DecodeError> {
    if category == Category::P2p {
        return read_peer(is_dal, plain, truncated).map(Decoded::Peer);
    }
    let mut reader = Reader::new(plain, 0);
    let message = match category {
        Category::Connection => return ConnectionMessage::from_plain(plain).map(Decoded::Connection),
        Category::Meta => Decode::decode(&mut reader).map(Decoded::Metadata),
        Category::Ack | Category::P2p => Decode::decode(&mut reader).map(Decoded::Ack),
    };
    message.and_then(|message| reader.finish().map(|()| message)).map_err(|fault| DecodeError::new(None, fault))
}

fn read_peer(is_dal: bool, plain: &[u8], truncated: bool) -> Result<PeerMessage<'_>, DecodeError> {
    let mut frame = Reader::new(plain, 0);
    let prefix = frame.u32().map_err(|fault| DecodeError::new(None, fault))?;
    let start = frame.clone();
    let tag = frame.u16().map_err(|fault| DecodeError::new(None, fault))?;
    let error = |fault| DecodeError::new(Some(tag), fault);
    let bytes = plain.len().saturating_sub(4);
    if !truncated && usize::try_from(prefix) != Ok(bytes) {
        return Err(error(Fault { offset: 0, cause: Cause::Frame { prefix, bytes } }));
    }
    if is_dal {
        return Err(error(start.fault(Cause::Dal)));
    }
    if kind_of_tag(tag).is_none() {
        return Err(error(start.fault(Cause::UnknownTag)));
    }
    let body = plain.get(FRAME_BYTES..).unwrap_or_default();
    let mut reader = if truncated { Reader::of_prefix(body, FRAME_BYTES) } else { Reader::new(body, FRAME_BYTES) };
    let message = PeerMessage::decode(tag, &mut reader).map_err(error)?;
    reader.finish().map_err(error)?;
    Ok(message)
}

/// Finds a message in the plain bytes of its chunks, by its length and SHA-256.
///
/// Octez does not share chunks between messages, so that the bytes are the message. Other senders may put several
/// messages into one chunk.
pub fn locate<'a>(plain: &'a [u8], length: u64, sha256: &[u8; 32]) -> Option<&'a [u8]> {
    let length = usize::try_from(length).ok()?;
    let prefix = u32::try_from(length.checked_sub(4)?).ok().map(u32::to_be_bytes);
    if plain.len() == length {
        return Some(plain);
    }
    let starts = plain.len().checked_sub(length)?;
    (0..=starts)
        .filter_map(|start| plain.get(start..start + length))
        .filter(|bytes| bytes.first_chunk::<4>().copied() == prefix)
        .find(|bytes| <[u8; 32]>::from(Sha256::digest(bytes)) == *sha256)
}
