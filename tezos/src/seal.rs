//! The sending side: what a node does to its messages. For demo nodes and tests.
use std::borrow::Cow;

use crate::{
    cipher::{Cipher, OpenError, SharedKey, TAG_BYTES},
    framer::PREFIX_BYTES,
    identity::Identity,
    message::{ConnectionMessage, DecodeError},
    output::Role,
    reader::{Cause, Reader},
};

/// Most plain bytes in a chunk: with length and tag they are 65,535 (Octez `p2p_socket.ml`).
pub const MAX_PLAIN_BYTES: usize = u16::MAX as usize - TAG_BYTES - PREFIX_BYTES;

/// What a node announces in its connection message.
#[derive(Clone, Copy, Debug)]
pub struct Announcement<'a> {
    /// P2P port, 0 for none.
    pub port: u16,
    /// Random, never twice the same.
    pub message_nonce: [u8; 24],
    /// Such as `TEZOS_MAINNET`.
    pub chain_name: &'a str,
    /// 2 today.
    pub distributed_db_version: u16,
    /// 1 today.
    pub p2p_version: u16,
}

/// The clear chunk that opens a direction.
pub fn connection_chunk(identity: &Identity, announcement: &Announcement<'_>) -> Vec<u8> {
    let mut content = announcement.port.to_be_bytes().to_vec();
    content.extend_from_slice(identity.public_key());
    content.extend_from_slice(identity.proof_of_work_stamp());
    content.extend_from_slice(&announcement.message_nonce);
    // A chunk's length bounds the name.
    let longest = usize::from(u16::MAX) - content.len() - 8;
    let name = announcement.chain_name.as_bytes();
    let name = name.get(..longest).unwrap_or(name);
    content.extend_from_slice(&u32::try_from(name.len()).unwrap_or(u32::MAX).to_be_bytes());
    content.extend_from_slice(name);
    content.extend_from_slice(&announcement.distributed_db_version.to_be_bytes());
    content.extend_from_slice(&announcement.p2p_version.to_be_bytes());
    chunk(&content)
}

/// A length prefix and the content, which must be at most 65,535 bytes (what is beyond is cut off).
fn chunk(content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap_or(u16::MAX);
    let mut chunk = length.to_be_bytes().to_vec();
    chunk.extend_from_slice(content.get(..usize::from(length)).unwrap_or(content));
    chunk
}

/// A message with its framing.
pub fn frame(tag: u16, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 2).unwrap_or(u32::MAX);
    let mut message = length.to_be_bytes().to_vec();
    message.extend_from_slice(&tag.to_be_bytes());
    message.extend_from_slice(body);
    message
}

/// Seals the chunks of one direction, in order.
#[derive(Debug)]
pub struct Sealer {
    cipher: Cipher,
    next: u64,
}

impl Sealer {
    /// The next chunk, as it goes over the wire. `plain` has at most [`MAX_PLAIN_BYTES`].
    pub fn chunk(&mut self, plain: &[u8]) -> Vec<u8> {
        let sealed = self.cipher.seal(self.next, plain);
        self.next += 1;
        chunk(&sealed)
    }

    /// The chunks of a message, each with as much as it can hold. The bytes are taken as they are: see [`frame`].
    pub fn message(&mut self, message: &[u8]) -> Vec<Vec<u8>> {
        message.chunks(MAX_PLAIN_BYTES).map(|piece| self.chunk(piece)).collect()
    }
}

/// Opens the chunks of one direction, in order.
#[derive(Debug)]
pub struct Opener {
    cipher: Cipher,
    next: u64,
}

impl Opener {
    /// The plain text of the next whole chunk. A failure does not count.
    pub fn chunk(&mut self, wire: &[u8]) -> Result<Vec<u8>, OpenError> {
        let plain = self.cipher.open(self.next, wire.get(PREFIX_BYTES..).ok_or(OpenError)?)?;
        self.next += 1;
        Ok(plain)
    }
}

/// Both directions of a session, for the side whose identity it is: what it sends, what it receives.
///
/// The chunks are whole, the remote's as it was read. Fails if it holds no connection message.
pub fn session(
    identity: &Identity,
    role: Role,
    own_chunk: &[u8],
    remote_chunk: &[u8],
) -> Result<(Sealer, Opener), DecodeError> {
    let remote = ConnectionMessage::from_plain(content(remote_chunk)?)?;
    let key = SharedKey::new(identity, remote.public_key);
    let (sent, received) = Cipher::pair(&key, role, own_chunk, remote_chunk);
    Ok((Sealer { cipher: sent, next: 0 }, Opener { cipher: received, next: 0 }))
}

/// A chunk without its length.
fn content(chunk: &[u8]) -> Result<&[u8], DecodeError> {
    chunk.get(PREFIX_BYTES..).ok_or_else(|| {
        let cause = Cause::Short { needed: PREFIX_BYTES, left: chunk.len() };
        DecodeError::new(None, Reader::new(chunk, 0).fault(cause))
    })
}

/// Bytes that may have to be copied.
pub(crate) fn into_bytes(chunk: Cow<'_, [u8]>) -> bytes::Bytes {
    match chunk {
        Cow::Borrowed(chunk) => bytes::Bytes::copy_from_slice(chunk),
        Cow::Owned(chunk) => chunk.into(),
    }
}
