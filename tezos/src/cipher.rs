//! Keys, nonces and the cipher of one direction (Octez `crypto_box.ml`: NaCl `crypto_box`, XSalsa20-Poly1305, tag
//! first).
//!
//! ```text
//! K    = HSalsa20(X25519(remote public key, local secret key), 0)        same for both directions and all sessions
//! N_a  = Blake2b-256(I ++ R ++ "Init -> Resp")[..24]                      I, R: connection messages of initiator and responder,
//! N_b  = Blake2b-256(I ++ R ++ "Resp -> Init")[..24]                      length prefixes included
//! ```
//! The initiator encrypts with N_b and the responder with N_a: the labels are swapped. Chunk k of a direction (Metadata
//! is 0) has nonce N + k, a big-endian number of 192 bits.
//!
//! XSalsa20 derives a subkey from the first 16 bytes of a nonce and uses the last 8 as the Salsa20 nonce. The subkey is
//! cached, so that a failed trial decryption costs one Salsa20 block and a Poly1305 over the chunk.
use poly1305::{Poly1305, universal_hash::KeyInit};
use salsa20::{
    Salsa20,
    cipher::{KeyIvInit, StreamCipher, consts::U10},
    hsalsa,
};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::{hash::blake2b_256, identity::Identity, input::Role};

/// Length of the Poly1305 tag before the cipher text, in bytes.
pub const TAG_BYTES: usize = 16;

/// A chunk could not be decrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message authentication failed")]
pub struct OpenError;

/// A nonce, as a big-endian number of 192 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce(pub [u8; 24]);

impl Nonce {
    /// This nonce + `count`, modulo 2^192.
    pub fn plus(self, count: u64) -> Self {
        let mut bytes = self.0;
        let mut carry = u128::from(count);
        for byte in bytes.iter_mut().rev() {
            carry += u128::from(*byte);
            *byte = carry as u8;
            carry >>= 8;
            if carry == 0 {
                break;
            }
        }
        Self(bytes)
    }

    /// The first 16 bytes, from which the subkey is derived, and the last 8, the Salsa20 nonce.
    fn split(&self) -> ([u8; 16], [u8; 8]) {
        let mut head = [0; 16];
        let mut tail = [0; 8];
        head.copy_from_slice(&self.0[..16]);
        tail.copy_from_slice(&self.0[16..]);
        (head, tail)
    }
}

/// First nonces of a session: of the chunks that the initiator sends, and of those that the responder sends.
///
/// Both arguments are whole connection chunks, the 2-byte length prefix included.
pub fn nonces(initiator_chunk: &[u8], responder_chunk: &[u8]) -> (Nonce, Nonce) {
    let nonce = |label: &[u8]| {
        let hash = blake2b_256(&[initiator_chunk, responder_chunk, label]);
        let mut bytes = [0; 24];
        bytes.copy_from_slice(&hash[..24]);
        Nonce(bytes)
    };
    (nonce(b"Resp -> Init"), nonce(b"Init -> Resp"))
}

/// The precomputed key of a pair of identities. Zeroized on drop.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct SharedKey([u8; 32]);

impl SharedKey {
    /// NaCl's `crypto_box_beforenm`.
    pub fn new(local: &Identity, remote_public_key: &[u8; 32]) -> Self {
        let agreed = local.agree(remote_public_key);
        Self(hsalsa::<U10>(&(*agreed).into(), &[0; 16].into()).into())
    }

    /// A precomputed key, as in test vectors.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

/// Decrypts and encrypts the chunks of one direction. Keys are zeroized on drop.
#[derive(Clone)]
pub struct Cipher {
    key: SharedKey,
    base: Nonce,
    /// First 16 bytes of the base nonce, from which `subkey` is derived.
    head: [u8; 16],
    subkey: Zeroizing<[u8; 32]>,
}

impl std::fmt::Debug for Cipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cipher").finish_non_exhaustive()
    }
}

impl Cipher {
    /// `base` is the nonce of the direction's first encrypted chunk.
    pub fn new(key: SharedKey, base: Nonce) -> Self {
        let (head, _) = base.split();
        let subkey = subkey(&key, &head);
        Self { key, base, head, subkey }
    }

    /// The ciphers of a session: of what the local node sends, and of what it receives.
    pub fn pair(key: &SharedKey, role: Role, sent_chunk: &[u8], received_chunk: &[u8]) -> (Self, Self) {
        let (initiator, responder) = match role {
            Role::Initiator => nonces(sent_chunk, received_chunk),
            Role::Responder => nonces(received_chunk, sent_chunk),
        };
        let (sent, received) = match role {
            Role::Initiator => (initiator, responder),
            Role::Responder => (responder, initiator),
        };
        (Self::new(key.clone(), sent), Self::new(key.clone(), received))
    }

    /// Key stream of chunk `index`.
    fn stream(&self, index: u64) -> Salsa20 {
        let (head, tail) = self.base.plus(index).split();
        if head == self.head {
            Salsa20::new(&(*self.subkey).into(), &tail.into())
        } else {
            Salsa20::new(&(*subkey(&self.key, &head)).into(), &tail.into())
        }
    }

    /// First 64 bytes of the key stream: the Poly1305 key, then the key stream over the first 32 bytes of plain text.
    fn first_block(&self, index: u64) -> Zeroizing<[u8; 64]> {
        let mut block = Zeroizing::new([0; 64]);
        self.stream(index).apply_keystream(block.as_mut());
        block
    }

    /// Key stream over the first 6 plain bytes of chunk `index`, as a big-endian number of 48 bits.
    pub(crate) fn head_stream(&self, index: u64) -> u64 {
        let block = self.first_block(index);
        block[32..38].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Whether `sealed` (tag, then cipher text) authenticates as chunk `index` of the direction. Does not decrypt.
    pub fn verify(&self, index: u64, sealed: &[u8]) -> bool {
        let Some((tag, text)) = sealed.split_first_chunk::<TAG_BYTES>() else { return false };
        let block = self.first_block(index);
        authenticate(&block, text) == poly1305::Tag::from(*tag)
    }

    /// Decrypts chunk `index` (0 is Metadata). `sealed` is the chunk without its length prefix: tag, then cipher text.
    pub fn open(&self, index: u64, sealed: &[u8]) -> Result<Vec<u8>, OpenError> {
        let (tag, text) = sealed.split_first_chunk::<TAG_BYTES>().ok_or(OpenError)?;
        let mut stream = self.stream(index);
        let mut block = Zeroizing::new([0; 64]);
        stream.apply_keystream(block.as_mut());
        if authenticate(&block, text) != poly1305::Tag::from(*tag) {
            return Err(OpenError);
        }
        let mut plain = text.to_vec();
        apply(&block, stream, &mut plain);
        Ok(plain)
    }

    /// Encrypts chunk `index`; returns tag, then cipher text.
    pub fn seal(&self, index: u64, plain: &[u8]) -> Vec<u8> {
        let mut stream = self.stream(index);
        let mut block = Zeroizing::new([0; 64]);
        stream.apply_keystream(block.as_mut());
        let mut sealed = vec![0; TAG_BYTES];
        sealed.extend_from_slice(plain);
        if let Some((tag, text)) = sealed.split_first_chunk_mut::<TAG_BYTES>() {
            apply(&block, stream, text);
            *tag = authenticate(&block, text).into();
        }
        sealed
    }
}

/// XSalsa20 subkey for the first 16 bytes of a nonce.
fn subkey(key: &SharedKey, head: &[u8; 16]) -> Zeroizing<[u8; 32]> {
    Zeroizing::new(hsalsa::<U10>(&key.0.into(), &(*head).into()).into())
}

/// Poly1305 tag of the cipher text, with the key in the first half of the first block.
fn authenticate(block: &[u8; 64], text: &[u8]) -> poly1305::Tag {
    let mut key = poly1305::Key::default();
    key.copy_from_slice(&block[..32]);
    let mac = Poly1305::new(&key);
    key.as_mut_slice().zeroize();
    mac.compute_unpadded(text)
}

/// Applies the key stream to a text: the second half of the first block, then the rest of the stream.
fn apply(block: &[u8; 64], mut stream: Salsa20, text: &mut [u8]) {
    let (head, rest) = text.split_at_mut(text.len().min(32));
    for (byte, key) in head.iter_mut().zip(&block[32..]) {
        *byte ^= key;
    }
    stream.apply_keystream(rest);
}
