//! A node's identity: the file `identity.json` of its data directory (Octez `p2p_identity.ml`).
//!
//! Secrets do not leave this module: errors name a field and never quote its value, `Debug` shows the peer id only,
//! memory is zeroized on drop.
use std::fmt;

use curve25519_dalek::montgomery::MontgomeryPoint;
use serde::Deserialize;
use zeroize::{Zeroize, Zeroizing};

use crate::{hash::peer_id, pow::STAMP_BYTES};

/// Error of reading an `identity.json`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Invalid JSON. The parser's message is not included, because it may quote the file.
    #[error("identity.json is not valid JSON: line {line}, column {column}")]
    Json {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// A missing field.
    #[error("identity.json has no field {0}")]
    Missing(&'static str),
    /// A field of the wrong length or not in hexadecimal.
    #[error("field {field} of identity.json is not {digits} hexadecimal digits")]
    Hex {
        /// Name of the field.
        field: &'static str,
        /// Required number of digits.
        digits: usize,
    },
    /// The public key is not that of the secret key.
    #[error("public_key of identity.json does not belong to its secret_key")]
    KeyMismatch,
    /// The stated peer id is not the hash of the public key.
    #[error("peer_id of identity.json is not the hash of its public_key, which is {0}")]
    PeerMismatch(String),
}

/// Keys of a node, validated.
#[derive(Clone)]
pub struct Identity {
    public_key: [u8; 32],
    secret_key: Zeroizing<[u8; 32]>,
    stamp: [u8; STAMP_BYTES],
    peer_id: String,
}

/// Fields of the file; the secret is zeroized on drop.
#[derive(Deserialize)]
struct File {
    peer_id: Option<String>,
    public_key: Option<String>,
    secret_key: Option<String>,
    proof_of_work_stamp: Option<String>,
}

impl Drop for File {
    fn drop(&mut self) {
        self.secret_key.zeroize();
    }
}

impl Identity {
    /// Reads the content of an `identity.json` and checks that its fields match each other.
    ///
    /// # Errors
    /// If the JSON is invalid, a field is missing or malformed, or fields do not match.
    pub fn from_json(json: &[u8]) -> Result<Self, IdentityError> {
        let file: File = serde_json::from_slice(json)
            .map_err(|error| IdentityError::Json { line: error.line(), column: error.column() })?;
        let public_key: [u8; 32] = *hex_field("public_key", file.public_key.as_deref())?;
        let secret_key: Zeroizing<[u8; 32]> = hex_field("secret_key", file.secret_key.as_deref())?;
        let stamp = *hex_field("proof_of_work_stamp", file.proof_of_work_stamp.as_deref())?;
        let identity = Self::from_secret_key(*secret_key, stamp);
        if identity.public_key != public_key {
            return Err(IdentityError::KeyMismatch);
        }
        match &file.peer_id {
            Some(stated) if *stated != identity.peer_id => Err(IdentityError::PeerMismatch(identity.peer_id)),
            _ => Ok(identity),
        }
    }

    /// The identity of a secret key. The proof of work is not checked.
    pub fn from_secret_key(secret_key: [u8; 32], proof_of_work_stamp: [u8; STAMP_BYTES]) -> Self {
        let secret_key = Zeroizing::new(secret_key);
        let public_key = MontgomeryPoint::mul_base_clamped(*secret_key).to_bytes();
        Self { public_key, secret_key, stamp: proof_of_work_stamp, peer_id: peer_id(&public_key) }
    }

    /// X25519 public key.
    pub fn public_key(&self) -> &[u8; 32] {
        &self.public_key
    }

    /// Peer id in base58check, `id…`.
    pub fn peer_id(&self) -> &str {
        &self.peer_id
    }

    /// Proof-of-work stamp.
    pub fn proof_of_work_stamp(&self) -> &[u8; STAMP_BYTES] {
        &self.stamp
    }

    /// X25519 with a remote node's public key: the raw shared secret.
    pub(crate) fn agree(&self, remote: &[u8; 32]) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(MontgomeryPoint(*remote).mul_clamped(*self.secret_key).to_bytes())
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("peer_id", &self.peer_id).finish_non_exhaustive()
    }
}

/// Decodes a hexadecimal field of `N` bytes.
fn hex_field<const N: usize>(field: &'static str, text: Option<&str>) -> Result<Zeroizing<[u8; N]>, IdentityError> {
    let mut bytes = Zeroizing::new([0; N]);
    hex::decode_to_slice(text.ok_or(IdentityError::Missing(field))?, bytes.as_mut())
        .map_err(|_| IdentityError::Hex { field, digits: 2 * N })?;
    Ok(bytes)
}
