//! Tells a Tezos connection from others by the first bytes of a direction.
//!
//! A connection message announces its own length twice: in the chunk's prefix, and through the chain name's. Two bytes refuse HTTP, TLS,
//! SSH and most of DNS, 88 refuse the rest.
use crate::{
    framer::{PREFIX_BYTES, content_length},
    message::ConnectionMessage,
};

/// Content of a connection message without its chain name, bytes.
const FIXED_BYTES: usize = 90;

/// What a direction's first bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// Too few to tell.
    Undecided,
    /// A whole connection message of so many bytes, length prefix included.
    Connection(usize),
    /// Shaped like a chunk, but shorter than any connection message: content of so many bytes.
    Short(usize),
    /// Nothing like it.
    Other,
}

pub(crate) fn opening(bytes: &[u8], longest: usize) -> Opening {
    let Some(length) = content_length(bytes) else { return Opening::Undecided };
    if length <= FIXED_BYTES {
        return Opening::Short(length);
    }
    if length > longest {
        return Opening::Other;
    }
    let total = PREFIX_BYTES + length;
    let Some(content) = bytes.get(PREFIX_BYTES..total) else { return Opening::Undecided };
    match ConnectionMessage::from_plain(content) {
        Ok(_) => Opening::Connection(total),
        Err(_) => Opening::Other,
    }
}

/// The protocol that bytes at the start of a call betray at once.
pub(crate) fn other_protocol(bytes: &[u8]) -> Option<&'static str> {
    if let [0x14..=0x17, 0x03, 0x00..=0x04, ..] = bytes {
        return Some("TLS");
    }
    let head = bytes.get(..16)?;
    head.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\r' | b'\n' | b'\t')).then_some("text, such as HTTP")
}
