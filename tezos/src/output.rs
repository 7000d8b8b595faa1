//! Output of a conversation: chunks, messages, gaps, state changes and comments.
use bytes::Bytes;

use crate::{
    input::{Direction, Role},
    message::Category,
};

/// Protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Not known yet.
    Undecided,
    /// Tezos peer-to-peer.
    Tezos,
    /// Peer-to-peer protocol of Tezos DAL nodes: same transport, other messages.
    Dal,
    /// Any other protocol; there is no further output.
    NotTezos,
}

impl Protocol {
    /// Name in records; empty if messages are not decoded.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tezos => "tezos",
            Self::Dal => "tezos-dal",
            Self::Undecided | Self::NotTezos => "",
        }
    }
}

/// Content of both connection messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identified {
    /// Peer id of the remote node.
    pub peer_id: String,
    /// Chain name announced by the remote node; invalid UTF-8 is replaced by U+FFFD.
    pub chain_name: String,
    /// Role of the local node. `None` until the first chunk is opened, unless the role was given at the start.
    pub role: Option<Role>,
    /// Public key of the remote node.
    pub public_key: [u8; 32],
    /// `Tezos` or `Dal`.
    pub protocol: Protocol,
}

/// State of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// A connection message was captured.
    Handshake,
    /// Chunks are decrypted and messages decoded.
    Decoding,
    /// Chunks cannot be decrypted.
    Undecryptable,
    /// Chunks are recorded, messages are not decoded.
    Raw,
}

/// Decryption result of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChunkState {
    /// Sent unencrypted (the connection message).
    Clear,
    /// Decrypted.
    Opened,
    /// Not decrypted.
    Undecryptable,
}

/// A whole chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Direction of the chunk.
    pub direction: Direction,
    /// Position in its direction: the connection message is 0, Metadata 1.
    pub counter: u64,
    /// Captured bytes: length prefix, tag, cipher text.
    pub wire: Bytes,
    /// Content without length prefix and tag; empty if it was not decrypted.
    pub plain: Bytes,
    /// Decryption result.
    pub state: ChunkState,
    /// Capture time of the last byte.
    pub time_ns: u64,
}

/// A whole message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Direction of the message.
    pub direction: Direction,
    /// Part of the conversation.
    pub category: Category,
    /// Filter name, one of [`crate::message::KINDS`].
    pub kind: &'static str,
    /// Tag; `None` for messages of the handshake.
    pub tag: Option<u16>,
    /// Counter of the first chunk.
    pub first_chunk: u64,
    /// Counter of the last chunk.
    pub last_chunk: u64,
    /// Number of plain bytes; for messages between peers the frame is included.
    pub length: u64,
    /// SHA-256 of the plain bytes.
    pub sha256: [u8; 32],
    /// First bytes of the message's JSON; `None` if it could not be decoded.
    pub preview: Option<String>,
    /// Decoding error; empty if the message was decoded.
    pub error: String,
    /// Capture time of the last byte.
    pub time_ns: u64,
}

/// A range of a direction without chunks, reported once the next chunk is found or the direction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Direction of the gap.
    pub direction: Direction,
    /// Bytes that were not captured, as far as known.
    pub lost_bytes: u64,
    /// Captured bytes that could not be assigned to a chunk.
    pub skipped_bytes: u64,
    /// Counter of the first missing chunk.
    pub first_chunk: u64,
    /// Number of missing chunks; 0 if unknown.
    pub missed_chunks: u64,
    /// Whether the direction was resynchronised.
    pub recovered: bool,
}

/// One item of a conversation's output, in stream order.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// The connection uses another protocol. There is no further output; capture of the socket can stop.
    NotTezos {
        /// How the protocol was recognised.
        reason: String,
    },
    /// A connection message was recognised: capture of the socket must continue.
    Recognised,
    /// Both connection messages were read. Repeated when the role becomes known later.
    Identified(Identified),
    /// A comment shown to users.
    Comment(String),
    /// The state changed.
    State {
        /// New state.
        state: State,
        /// Reason of the change; may be empty.
        reason: String,
        /// Suggested remedy; may be empty.
        remedy: String,
    },
    /// A whole chunk.
    Chunk(Chunk),
    /// A whole message, after its chunks.
    Message(Message),
    /// A gap.
    Gap(Gap),
}
