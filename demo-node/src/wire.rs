//! The sending side of the protocol's cryptography, independent of `chainscope-tezos` on purpose: if one function derived the nonces of
//! both, a mistake in it (swapped labels of the responder, for example) would cancel out and every scenario would still pass. The tests
//! compare it with the vectors of a real session.

use std::rc::Rc;

use blake2::digest::consts::{U16, U32};
use blake2::{Blake2b, Digest};
use crypto_box::aead::AeadInPlace;
use crypto_box::{Nonce, PublicKey, SalsaBox, SecretKey, Tag};
use rand::Rng;
use serde::{Deserialize, Serialize};

use crate::behaviour::Role;

/// Largest plaintext of a chunk, in bytes.
pub const MAX_PLAIN: usize = 65_517;

/// A node's identity, as in `identity.json`.
#[derive(Clone, Serialize, Deserialize)]
pub struct Identity {
    peer_id: String,
    #[serde(with = "hex::serde")]
    public_key: [u8; 32],
    #[serde(with = "hex::serde")]
    secret_key: [u8; 32],
    #[serde(with = "hex::serde")]
    proof_of_work_stamp: [u8; 24],
}

impl Identity {
    /// A new identity whose proof of work has at least `difficulty` leading zero bits; up to 20 take less than a second.
    pub fn generate(random: &mut impl Rng, difficulty: u32) -> Self {
        let secret_key: [u8; 32] = random.random();
        let public_key = *SecretKey::from(secret_key).public_key().as_bytes();
        let proof_of_work_stamp = loop {
            let stamp: [u8; 24] = random.random();
            if work(&public_key, &stamp) >= difficulty {
                break stamp;
            }
        };
        Self { peer_id: peer_id(&public_key), public_key, secret_key, proof_of_work_stamp }
    }

    /// The peer id: "id…".
    #[must_use]
    pub fn peer_id(&self) -> &str {
        &self.peer_id
    }

    /// The secret key, for tests that search for it where it must not be.
    #[must_use]
    pub fn secret_key(&self) -> &[u8; 32] {
        &self.secret_key
    }

    /// The public key.
    #[must_use]
    pub fn public_key(&self) -> &[u8; 32] {
        &self.public_key
    }

    /// A connection message of this node, with its length in front and a random nonce.
    pub fn connection_message(&self, random: &mut impl Rng, port: u16, chain_name: &[u8]) -> Vec<u8> {
        let mut message = Vec::with_capacity(92 + chain_name.len());
        let length = u16::try_from(90 + chain_name.len()).unwrap_or(u16::MAX);
        message.extend_from_slice(&length.to_be_bytes());
        message.extend_from_slice(&port.to_be_bytes());
        message.extend_from_slice(&self.public_key);
        message.extend_from_slice(&self.proof_of_work_stamp);
        message.extend_from_slice(&random.random::<[u8; 24]>());
        message.extend_from_slice(&u32::from(length - 90).to_be_bytes());
        message.extend_from_slice(chain_name);
        // distributed_db_version 2, p2p_version 1, as Octez announces.
        message.extend_from_slice(&[0, 2, 0, 1]);
        message
    }
}

/// Leading zero bits of a proof of work, its hash read as a little-endian number.
fn work(public_key: &[u8; 32], stamp: &[u8; 24]) -> u32 {
    let hash = Blake2b::<U32>::new().chain_update(public_key).chain_update(stamp).finalize();
    let zeros = hash.iter().rev().take_while(|b| **b == 0).count();
    8 * zeros as u32 + hash.iter().rev().nth(zeros).map_or(0, |b| b.leading_zeros())
}

/// base58check of the 16-byte hash of a public key.
#[must_use]
pub fn peer_id(public_key: &[u8; 32]) -> String {
    base58check(&[153, 103], &Blake2b::<U16>::digest(public_key))
}

/// base58check of the hash of a block's header.
#[must_use]
pub fn block_hash(header: &[u8]) -> String {
    base58check(&[1, 52], &Blake2b::<U32>::digest(header))
}

/// base58check of bytes with a prefix that makes the kind readable.
#[must_use]
pub fn base58check(prefix: &[u8], bytes: &[u8]) -> String {
    bs58::encode([prefix, bytes].concat()).with_check().into_string()
}

/// The public key in a connection message that includes its length.
#[must_use]
pub fn public_key_of(connection_message: &[u8]) -> Option<[u8; 32]> {
    connection_message.get(4..36)?.try_into().ok()
}

/// The cipher of one direction: key, and nonce of the next chunk.
#[derive(Clone)]
pub struct Cipher {
    key: Rc<SalsaBox>,
    nonce: [u8; 24],
}

/// The ciphers of both directions for the owner of `secret_key`.
///
/// Both connection messages include their length. `None` if one is too short to hold a public key.
#[must_use]
pub fn ciphers(secret_key: &[u8; 32], role: Role, sent: &[u8], received: &[u8]) -> Option<(Cipher, Cipher)> {
    let key = Rc::new(SalsaBox::new(&PublicKey::from(public_key_of(received)?), &SecretKey::from(*secret_key)));
    let (initiator, responder) = match role {
        Role::Initiator => (sent, received),
        Role::Responder => (received, sent),
    };
    let nonce = |label: &[u8]| {
        let hash = Blake2b::<U32>::new().chain_update(initiator).chain_update(responder).chain_update(label).finalize();
        let mut nonce = [0; 24];
        nonce.copy_from_slice(&hash[..24]);
        nonce
    };
    // The labels are swapped: messages of the initiator are sealed with "Resp -> Init". Every implementation does so.
    let by_initiator = Cipher { key: key.clone(), nonce: nonce(b"Resp -> Init") };
    let by_responder = Cipher { key, nonce: nonce(b"Init -> Resp") };
    Some(match role {
        Role::Initiator => (by_initiator, by_responder),
        Role::Responder => (by_responder, by_initiator),
    })
}

impl Cipher {
    fn advance(&mut self) -> Nonce {
        let nonce = Nonce::from(self.nonce);
        for byte in self.nonce.iter_mut().rev() {
            *byte = byte.wrapping_add(1);
            if *byte != 0 {
                break;
            }
        }
        nonce
    }

    /// Seals a chunk as on the wire. `plain` has at most [`MAX_PLAIN`] bytes.
    #[must_use]
    pub fn seal(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut chunk = Vec::with_capacity(18 + plain.len());
        let length = u16::try_from(16 + plain.len()).unwrap_or(u16::MAX);
        chunk.extend_from_slice(&length.to_be_bytes());
        chunk.extend_from_slice(&[0; 16]);
        chunk.extend_from_slice(plain);
        let nonce = self.advance();
        if let Some((head, body)) = chunk.split_at_mut_checked(18)
            && let Ok(tag) = self.key.encrypt_in_place_detached(&nonce, b"", body)
            && let Some(space) = head.get_mut(2..)
        {
            space.copy_from_slice(&tag);
        }
        chunk
    }

    /// Decrypts the next chunk, given without its length; `None` if authentication fails.
    #[must_use]
    pub fn open(&mut self, sealed: &[u8]) -> Option<Vec<u8>> {
        let (tag, body) = sealed.split_at_checked(16)?;
        let mut plain = body.to_vec();
        let nonce = self.advance();
        self.key.decrypt_in_place_detached(&nonce, b"", &mut plain, Tag::from_slice(tag)).ok()?;
        Some(plain)
    }
}

/// Splits a byte stream into chunks.
#[derive(Default)]
pub struct Chunks {
    buffer: Vec<u8>,
    start: usize,
}

impl Chunks {
    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 1 << 20 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole chunk, with its length in front.
    pub fn pop(&mut self) -> Option<&[u8]> {
        let rest = self.buffer.get(self.start..)?;
        let length = 2 + usize::from(u16::from_be_bytes([*rest.first()?, *rest.get(1)?]));
        let chunk = rest.get(..length)?;
        self.start += length;
        Some(chunk)
    }

    /// True if no byte is left over.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start == self.buffer.len()
    }
}
