//! The encrypting side of a session: framing, chunking and encryption as a node does them. For demo nodes and tests.
use crate::{
    cipher::{Cipher, OpenError, SharedKey, TAG_BYTES},
    framer::PREFIX_BYTES,
    identity::Identity,
    input::Role,
    message::{ConnectionMessage, DecodeError},
    reader::{Cause, Reader},
};

/// Maximum number of plain bytes in a chunk: 65,535 with length prefix and tag (Octez `p2p_socket.ml`).
pub const MAX_PLAIN_BYTES: usize = u16::MAX as usize - TAG_BYTES - PREFIX_BYTES;

/// Content of a connection message, apart from the identity.
#[derive(Clone, Copy, Debug)]
pub struct Announcement<'a> {
    /// P2P port, 0 for none.
    pub port: u16,
    /// Random nonce, used once.
    pub message_nonce: [u8; 24],
    /// Network, such as `TEZOS_MAINNET`.
    pub chain_name: &'a str,
    /// Currently 2.
    pub distributed_db_version: u16,
    /// Currently 1.
    pub p2p_version: u16,
}

/// The unencrypted chunk that begins a direction.
pub fn connection_chunk(identity: &Identity, announcement: &Announcement<'_>) -> Vec<u8> {
    let mut content = announcement.port.to_be_bytes().to_vec();
    content.extend_from_slice(identity.public_key());
    content.extend_from_slice(identity.proof_of_work_stamp());
    content.extend_from_slice(&announcement.message_nonce);
    // The maximum length of a chunk bounds the name.
    let longest = usize::from(u16::MAX) - content.len() - 8;
    let name = announcement.chain_name.as_bytes();
    let name = name.get(..longest).unwrap_or(name);
    content.extend_from_slice(&u32::try_from(name.len()).unwrap_or(u32::MAX).to_be_bytes());
    content.extend_from_slice(name);
    content.extend_from_slice(&announcement.distributed_db_version.to_be_bytes());
    content.extend_from_slice(&announcement.p2p_version.to_be_bytes());
    chunk(&content)
}

/// A length prefix and the content, truncated to 65,535 bytes.
fn chunk(content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap_or(u16::MAX);
    let mut chunk = length.to_be_bytes().to_vec();
    chunk.extend_from_slice(content.get(..usize::from(length)).unwrap_or(content));
    chunk
}

/// A message: frame (u32 length, u16 tag) and body.
pub fn frame(tag: u16, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 2).unwrap_or(u32::MAX);
    let mut message = length.to_be_bytes().to_vec();
    message.extend_from_slice(&tag.to_be_bytes());
    message.extend_from_slice(body);
    message
}

/// Encrypts the chunks of one direction, in order.
#[derive(Debug)]
pub struct Sealer {
    cipher: Cipher,
    next: u64,
}

impl Sealer {
    /// The wire bytes of the next chunk. `plain` has at most [`MAX_PLAIN_BYTES`].
    pub fn chunk(&mut self, plain: &[u8]) -> Vec<u8> {
        let sealed = self.cipher.seal(self.next, plain);
        self.next += 1;
        chunk(&sealed)
    }

    /// The chunks of a message (see [`frame`]), as few as possible.
    pub fn message(&mut self, message: &[u8]) -> Vec<Vec<u8>> {
        message.chunks(MAX_PLAIN_BYTES).map(|piece| self.chunk(piece)).collect()
    }
}

/// Decrypts the chunks of one direction, in order.
#[derive(Debug)]
pub struct Opener {
    cipher: Cipher,
    next: u64,
}

impl Opener {
    /// The plain text of the next whole chunk. After an error the counter is unchanged.
    pub fn chunk(&mut self, wire: &[u8]) -> Result<Vec<u8>, OpenError> {
        let plain = self.cipher.open(self.next, wire.get(PREFIX_BYTES..).ok_or(OpenError)?)?;
        self.next += 1;
        Ok(plain)
    }
}

/// The ciphers of a session for the side that owns `identity`: of what it sends, of what it receives.
///
/// Both connection chunks are whole, length prefix included.
///
/// # Errors
/// If the remote chunk holds no connection message.
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

/// Content of a chunk, without the length prefix.
fn content(chunk: &[u8]) -> Result<&[u8], DecodeError> {
    chunk.get(PREFIX_BYTES..).ok_or_else(|| {
        let cause = Cause::Short { needed: PREFIX_BYTES, left: chunk.len() };
        DecodeError::new(None, Reader::new(chunk, 0).fault(cause))
    })
}
