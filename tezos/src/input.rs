//! Input of a conversation: pieces of its byte streams and the local node's identity.
use std::{sync::Arc, task::Poll};

use crate::Identity;

/// Which side opened the connection, from the local node's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The local node connected.
    Initiator,
    /// The local node accepted.
    Responder,
}

impl Role {
    /// The remote node's role.
    pub const fn other(self) -> Self {
        match self {
            Self::Initiator => Self::Responder,
            Self::Responder => Self::Initiator,
        }
    }
}

/// Direction of a byte stream, from the local node's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Sent by the local node.
    Sent,
    /// Received by the local node.
    Received,
}

impl Direction {
    /// The opposite direction.
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Sent => Self::Received,
            Self::Received => Self::Sent,
        }
    }

    /// The word for this direction in comments and reasons.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Sent => "outgoing",
            Self::Received => "incoming",
        }
    }
}

/// A captured part of one direction's byte stream.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Stream that the bytes belong to.
    pub direction: Direction,
    /// Offset of the first byte in the stream, from 0.
    pub offset: u64,
    /// Captured bytes; empty if none could be captured.
    pub bytes: &'a [u8],
    /// Number of stream bytes that the piece represents: the length of `bytes`, or more if the last ones were not
    /// captured.
    pub covers: u64,
    /// Whether a read or write call of the node begins with the first byte.
    pub call_start: bool,
    /// Time of capture.
    pub time_ns: u64,
}

impl<'a> Piece<'a> {
    /// A piece that was captured whole, at the start of a call.
    pub fn whole(direction: Direction, offset: u64, bytes: &'a [u8], time_ns: u64) -> Self {
        Self { direction, offset, bytes, covers: bytes.len() as u64, call_start: true, time_ns }
    }

    /// Offset after the captured bytes.
    pub(crate) fn captured_end(&self) -> u64 {
        self.offset.saturating_add(self.bytes.len() as u64)
    }
}

/// Source of the local node's identity.
pub trait Keyring {
    /// Returns the identity with this public key. The error is the reason why there is none, as a clause to show to users,
    /// without secrets. `Pending`: it is not known yet; the answer follows by
    /// [`Conversation::set_identity`](crate::Conversation::set_identity).
    fn identity(&mut self, public_key: &[u8; 32]) -> Poll<Result<Arc<Identity>, String>>;
}

/// A keyring of one identity.
impl Keyring for Arc<Identity> {
    fn identity(&mut self, public_key: &[u8; 32]) -> Poll<Result<Arc<Identity>, String>> {
        Poll::Ready(if self.public_key() == public_key {
            Ok(Arc::clone(self))
        } else {
            Err(format!("the node is {}, the identity is of {}", crate::hash::peer_id(public_key), self.peer_id()))
        })
    }
}
