//! What goes into a conversation and what comes out of it.
use std::sync::Arc;

use bytes::Bytes;

use crate::{Identity, message::Category};

/// Who connected, from the local node's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The local node connected out.
    Initiator,
    /// The local node accepted.
    Responder,
}

impl Role {
    /// The other side's role.
    pub const fn other(self) -> Self {
        match self {
            Self::Initiator => Self::Responder,
            Self::Responder => Self::Initiator,
        }
    }
}

/// Which way bytes go, from the local node's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// By the local node.
    Sent,
    /// By the remote one.
    Received,
}

impl Direction {
    /// As comments of a connection call it.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Sent => "outgoing",
            Self::Received => "incoming",
        }
    }
}

/// A piece of a direction's byte stream.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Which stream.
    pub direction: Direction,
    /// Position of the first byte in it, from 0.
    pub offset: u64,
    /// The bytes; none if they could not be captured.
    pub bytes: &'a [u8],
    /// Bytes of the stream that the piece stands for: as many as there are, or more if the last ones are missing.
    pub covers: u64,
    /// A read or write call began here.
    pub call_start: bool,
    /// When.
    pub time_ns: u64,
}

impl<'a> Piece<'a> {
    /// A piece whose bytes are all there, at the start of a call.
    pub fn whole(direction: Direction, offset: u64, bytes: &'a [u8], time_ns: u64) -> Self {
        Self { direction, offset, bytes, covers: bytes.len() as u64, call_start: true, time_ns }
    }
}

/// Gives a conversation the identity that it needs.
pub trait Keyring {
    /// The identity with this public key, or why there is none (a clause for people, without secrets).
    fn identity(&mut self, public_key: &[u8; 32]) -> Result<Arc<Identity>, String>;
}

/// One identity.
impl Keyring for Arc<Identity> {
    fn identity(&mut self, public_key: &[u8; 32]) -> Result<Arc<Identity>, String> {
        if self.public_key() == public_key {
            Ok(Arc::clone(self))
        } else {
            Err(format!("the node is {}, the identity is of {}", crate::hash::peer_id(public_key), self.peer_id()))
        }
    }
}

/// Bounds of what a conversation keeps and spends.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest connection message, bytes. Real ones have about 110.
    pub connection_message: usize,
    /// Bytes of a direction that wait for the other direction's connection message.
    pub held: usize,
    /// Bytes of a connection that speaks another protocol by all appearances, before it is said so.
    pub undecided: usize,
    /// Greatest length prefix of a message.
    pub message: u64,
    /// Bytes of a message that are kept for decoding; of a longer one the preview shows what these hold.
    pub message_prefix: usize,
    /// Difficulty that remotes must prove, bits. Failure is a comment only.
    pub proof_of_work: f64,
    /// Bytes that a search for the next chunk keeps. At least twice the longest chunk.
    pub search_window: usize,
    /// Counters that a search tries at most.
    pub search_counters: u64,
    /// Processing budget of a direction's searches, in units of about 0.1 µs, when full.
    pub search_units: u64,
    /// Units that come back with each byte of the stream.
    pub search_units_per_byte: u64,
    /// Units that come back each second.
    pub search_units_per_second: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connection_message: 1024,
            held: 32 << 10,
            undecided: 4 << 10,
            message: crate::message::MAX_MESSAGE_BYTES,
            message_prefix: 4 << 20,
            proof_of_work: 26.0,
            search_window: 192 << 10,
            search_counters: 1 << 18,
            search_units: 5_000_000,
            search_units_per_byte: 1,
            search_units_per_second: 200_000,
        }
    }
}

/// What the connection turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Not known yet.
    Undecided,
    /// A node's connection.
    Tezos,
    /// A DAL node's: same transport, other messages.
    Dal,
    /// Something else; nothing more will come out.
    NotTezos,
}

impl Protocol {
    /// As in records; empty where nothing is decoded.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tezos => "tezos",
            Self::Dal => "tezos-dal",
            Self::Undecided | Self::NotTezos => "",
        }
    }
}

/// What both connection messages say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identified {
    /// The remote's.
    pub peer_id: String,
    /// As the remote announced it; not UTF-8 shows as U+FFFD.
    pub chain_name: String,
    /// Nothing until the first chunk is opened, if the conversation was not told.
    pub role: Option<Role>,
    /// The remote's.
    pub public_key: [u8; 32],
    /// Tezos or Dal.
    pub protocol: Protocol,
}

/// State of the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// A connection message was seen.
    Handshake,
    /// Messages come out.
    Decoding,
    /// Chunks cannot be opened.
    Undecryptable,
    /// Chunks are recorded, but not decoded.
    Raw,
}

/// What became of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChunkState {
    /// Never encrypted.
    Clear,
    /// Decrypted.
    Opened,
    /// Not decrypted.
    Undecryptable,
}

/// A whole chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkOut {
    /// Whose.
    pub direction: Direction,
    /// Position in its direction: the connection message is 0, Metadata 1.
    pub counter: u64,
    /// As captured: length, tag, cipher text.
    pub wire: Bytes,
    /// Content without length and tag; empty if it was not opened.
    pub plain: Bytes,
    /// What became of it.
    pub state: ChunkState,
    /// When its last byte was captured.
    pub time_ns: u64,
}

/// A whole message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageOut {
    /// Whose.
    pub direction: Direction,
    /// Part of the conversation.
    pub category: Category,
    /// Filter name, one of [`crate::message::KINDS`].
    pub kind: &'static str,
    /// Of messages between peers.
    pub tag: Option<u16>,
    /// Counters of its chunks, first and last.
    pub first_chunk: u64,
    /// See `first_chunk`.
    pub last_chunk: u64,
    /// Plain bytes, the framing of messages between peers included.
    pub length: u64,
    /// SHA-256 of these bytes.
    pub sha256: [u8; 32],
    /// First bytes of its JSON; nothing if it could not be decoded.
    pub preview: Option<String>,
    /// Why it could not be decoded; empty if it could.
    pub error: String,
    /// When its last byte was captured.
    pub time_ns: u64,
}

/// A hole in a direction, reported once the next chunk is found or the direction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GapOut {
    /// Which.
    pub direction: Direction,
    /// Bytes that were never captured, as far as is known.
    pub lost_bytes: u64,
    /// Captured bytes that belong to no chunk that could be found.
    pub skipped_bytes: u64,
    /// Counter of the first chunk that is missing.
    pub first_chunk: u64,
    /// How many are; 0 if that is not known.
    pub missed_chunks: u64,
    /// The direction found its place again.
    pub recovered: bool,
}

/// What comes out of a conversation, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Another protocol: nothing more will come out, the socket can be left alone.
    NotTezos {
        /// How it was seen.
        reason: String,
    },
    /// A connection message was seen: the socket must be kept.
    Recognised,
    /// Both connection messages were. Comes again if the role becomes known later.
    Identified(Identified),
    /// A remark for people.
    Comment(String),
    /// The state changed.
    State {
        /// To this.
        state: State,
        /// Why, if there is a reason to name.
        reason: String,
        /// What would help.
        remedy: String,
    },
    /// A whole chunk.
    Chunk(ChunkOut),
    /// A whole message; its chunks came before it.
    Message(MessageOut),
    /// A hole.
    Gap(GapOut),
}
