//! Saved sessions: what the session journal keeps of a conversation to resume it after a restart. Nothing secret; keys
//! are derived again.
use super::{Conversation, Stage, chunk_content};
use crate::{
    half_stream::{DirectionState, HalfStream},
    input::Role,
    limits::Limits,
    message::{ConnectionMessage, DecodeError},
    reassembly::CONNECTION,
};

/// Position of one direction in a saved session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedDirection {
    /// Number of chunks up to the last whole one, the connection message included.
    pub chunks: u64,
    /// Stream offset after the last whole chunk.
    pub stream_offset: u64,
}

/// State from which [`Conversation::resume`] continues a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedSession {
    /// Role of the local node.
    pub role: Role,
    /// Connection chunk sent by the local node, length prefix included.
    pub sent_message: Vec<u8>,
    /// Connection chunk received by the local node, length prefix included.
    pub received_message: Vec<u8>,
    /// Position of the sent direction.
    pub sent: SavedDirection,
    /// Position of the received direction.
    pub received: SavedDirection,
}

/// Relation of a resumed conversation's stream offsets to the saved ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offsets {
    /// The offsets continue: the number of bytes missed in between is known.
    Continued,
    /// The offsets start anew: the number of bytes missed in between is unknown.
    Unknown,
}

impl Conversation {
    /// Resumes a saved session. The identity is requested from the keyring when the first piece arrives.
    ///
    /// # Errors
    /// If a saved connection message cannot be decoded.
    pub fn resume(saved: &SavedSession, offsets: Offsets, limits: Limits) -> Result<Self, DecodeError> {
        ConnectionMessage::from_plain(chunk_content(&saved.sent_message))?;
        ConnectionMessage::from_plain(chunk_content(&saved.received_message))?;
        let mut conversation = Self::new(Some(saved.role), limits);
        conversation.stage = Stage::Resumed;
        conversation.sent_message.clone_from(&saved.sent_message);
        conversation.received_message.clone_from(&saved.received_message);
        for (half, position) in [(&mut conversation.sent, saved.sent), (&mut conversation.received, saved.received)] {
            half.next_counter = position.chunks.max(CONNECTION + 1);
            half.boundary = (half.next_counter, position.stream_offset);
            half.next_offset = (offsets == Offsets::Continued).then_some(position.stream_offset);
            half.state = DirectionState::AwaitingKeys(Vec::new());
            // The last saved chunk may end in the middle of a message.
            half.reassembler.lose_sync();
        }
        Ok(conversation)
    }

    /// State to resume this session from; `None` until a chunk was decrypted.
    pub fn saved(&self) -> Option<SavedSession> {
        if self.stage != Stage::Session || !self.opened {
            return None;
        }
        let position = |half: &HalfStream| SavedDirection { chunks: half.boundary.0, stream_offset: half.boundary.1 };
        Some(SavedSession {
            role: self.role?,
            sent_message: self.sent_message.clone(),
            received_message: self.received_message.clone(),
            sent: position(&self.sent),
            received: position(&self.received),
        })
    }
}
