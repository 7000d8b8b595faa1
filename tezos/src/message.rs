//! Decoding of whole messages: tags, names, JSON (as in the API's `message`), previews.
//!
//! A decoded message borrows from its bytes; lists are checked once and walked again when shown. Decoding allocates nothing but errors.
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

/// Greatest value of a message's length prefix (Octez `p2p_socket.ml`).
pub const MAX_MESSAGE_BYTES: u64 = 100 << 20;

/// Bytes of a message before its body: u32 length of what follows, u16 tag.
pub const FRAME_BYTES: usize = 6;

/// Longest preview, bytes.
pub const PREVIEW_BYTES: usize = 100;

/// Part of the conversation that a message belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Category {
    /// The clear message that opens a direction.
    Connection,
    /// First encrypted chunk.
    Meta,
    /// Second encrypted chunk.
    Ack,
    /// All later ones.
    P2p,
}

impl Category {
    /// As in records and in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Meta => "meta",
            Self::Ack => "ack",
            Self::P2p => "p2p",
        }
    }

    /// From [`Category::name`].
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

/// Filter names of the handshake's messages.
pub const CONNECTION_MESSAGE: &str = "connection_message";
/// See [`CONNECTION_MESSAGE`].
pub const METADATA: &str = "metadata";
/// See [`CONNECTION_MESSAGE`].
pub const ACK_MESSAGE: &str = "ack_message";
/// Name of messages with an unknown tag, and of all messages of DAL nodes.
pub const UNKNOWN: &str = "unknown";

/// Every name that a message may have.
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

/// Name of a tag, if it is known.
pub fn kind_of_tag(tag: u16) -> Option<&'static str> {
    PEER_KINDS.iter().find(|(known, _)| *known == tag).map(|(_, name)| *name)
}

/// The name in [`KINDS`] that a filter means; takes `operation_hashes_for_block` too, as the original spelled it.
pub fn canonical_kind(name: &str) -> Option<&'static str> {
    let name = if name == "operation_hashes_for_block" { "operation_hashes_for_blocks" } else { name };
    KINDS.into_iter().find(|kind| *kind == name)
}

/// Why a message cannot be decoded, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}at byte {offset}: {cause}", tag.map(|tag| format!("tag 0x{tag:04x}: ")).unwrap_or_default())]
pub struct DecodeError {
    /// Of a message between peers, if it has got one.
    pub tag: Option<u16>,
    /// In the message, framing included.
    pub offset: usize,
    /// What is wrong there.
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
    /// See [`Category::Connection`].
    Connection(ConnectionMessage<'a>),
    /// See [`Category::Meta`].
    Metadata(Metadata),
    /// See [`Category::Ack`].
    Ack(Ack<'a>),
    /// See [`Category::P2p`].
    Peer(PeerMessage<'a>),
}

/// Decodes the plain bytes of a message, its framing included (u32 length and u16 tag; nothing for the handshake's messages).
///
/// All bytes must belong to it. `dal`: the connection is a DAL node's, whose messages (but not its handshake) have other tags.
pub fn decode(category: Category, dal: bool, plain: &[u8]) -> Result<Decoded<'_>, DecodeError> {
    read(category, dal, plain, false)
}

/// The first bytes (at most [`PREVIEW_BYTES`]) of a message's compact JSON.
pub fn preview(decoded: &Decoded<'_>) -> Option<String> {
    first_bytes(decoded, PREVIEW_BYTES)
}

/// Preview of a message of which only the first bytes are there; nothing if they do not suffice.
pub fn preview_of_prefix(category: Category, dal: bool, prefix: &[u8]) -> Option<String> {
    preview(&read(category, dal, prefix, true).ok()?)
}

fn read(category: Category, dal: bool, plain: &[u8], cut: bool) -> Result<Decoded<'_>, DecodeError> {
    if category == Category::P2p {
        return read_peer(dal, plain, cut).map(Decoded::Peer);
    }
    let mut reader = Reader::new(plain, 0);
    let message = match category {
        Category::Connection => return ConnectionMessage::from_plain(plain).map(Decoded::Connection),
        Category::Meta => Decode::decode(&mut reader).map(Decoded::Metadata),
        Category::Ack | Category::P2p => Decode::decode(&mut reader).map(Decoded::Ack),
    };
    message.and_then(|message| reader.finish().map(|()| message)).map_err(|fault| DecodeError::new(None, fault))
}

fn read_peer(dal: bool, plain: &[u8], cut: bool) -> Result<PeerMessage<'_>, DecodeError> {
    let mut frame = Reader::new(plain, 0);
    let prefix = frame.u32().map_err(|fault| DecodeError::new(None, fault))?;
    let start = frame.clone();
    let tag = frame.u16().map_err(|fault| DecodeError::new(None, fault))?;
    let error = |fault| DecodeError::new(Some(tag), fault);
    let bytes = plain.len().saturating_sub(4);
    if !cut && usize::try_from(prefix) != Ok(bytes) {
        return Err(error(Fault { offset: 0, cause: Cause::Frame { prefix, bytes } }));
    }
    if dal {
        return Err(error(start.fault(Cause::Dal)));
    }
    if kind_of_tag(tag).is_none() {
        return Err(error(start.fault(Cause::UnknownTag)));
    }
    let body = plain.get(FRAME_BYTES..).unwrap_or_default();
    let mut reader = if cut { Reader::of_prefix(body, FRAME_BYTES) } else { Reader::new(body, FRAME_BYTES) };
    let message = PeerMessage::decode(tag, &mut reader).map_err(error)?;
    reader.finish().map_err(error)?;
    Ok(message)
}

/// Finds a message in the plain bytes of its chunks, by its length and SHA-256.
///
/// Octez gives each message its own chunks, so that the bytes are the message. Another sender may pack several into one chunk.
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
