//! Recognises a Tezos connection by the first bytes of a direction.
//!
//! A connection message states its own length twice: in the chunk's length prefix and through the length of the chain
//! name. The two bytes of the prefix exclude HTTP, TLS, SSH and most DNS traffic; the first 88 bytes exclude everything
//! else.
use crate::{
    framer::{PREFIX_BYTES, content_length},
    message::ConnectionMessage,
};

/// Length of a connection message's content without the chain name.
const FIXED_BYTES: usize = 90;

/// Classification of the first bytes of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamStart {
    /// Too few bytes to decide.
    Incomplete,
    /// A whole connection message of this length, length prefix included.
    ConnectionMessage(usize),
    /// Framed like a chunk, but shorter than any connection message: the length of its content.
    TooShort(usize),
    /// No connection message.
    Other,
}

/// Classifies the first bytes of a direction.
pub(crate) fn classify(bytes: &[u8], max_bytes: usize) -> StreamStart {
    let Some(length) = content_length(bytes) else { return StreamStart::Incomplete };
    if length <= FIXED_BYTES {
        return StreamStart::TooShort(length);
    }
    if length > max_bytes {
        return StreamStart::Other;
    }
    let total = PREFIX_BYTES + length;
    let Some(content) = bytes.get(PREFIX_BYTES..total) else { return StreamStart::Incomplete };
    match ConnectionMessage::from_plain(content) {
        Ok(_) => StreamStart::ConnectionMessage(total),
        Err(_) => StreamStart::Other,
    }
}

/// Recognises another protocol by the first bytes of a read or write call.
pub(crate) fn other_protocol(bytes: &[u8]) -> Option<&'static str> {
    if let [0x14..=0x17, 0x03, 0x00..=0x04, ..] = bytes {
        return Some("TLS");
    }
    let head = bytes.get(..16)?;
    head.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\r' | b'\n' | b'\t')).then_some("text, such as HTTP")
}
