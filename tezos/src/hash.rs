//! Blake2b hashes, and their base58check encoding with the prefixes of Octez (`lib_crypto/base58.ml`).
use std::fmt;

use blake2::{
    Blake2b, Digest,
    digest::consts::{U16, U32},
};
use serde::{Serialize, Serializer};

use crate::base58::{MAX_DIGITS, encode_check};

/// Kind of a hash; determines its base58check prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashKind {
    /// `B…`, 32 bytes.
    Block,
    /// `o…`, 32 bytes.
    Operation,
    /// `LLo…`, 32 bytes.
    OperationListList,
    /// `Co…`, 32 bytes.
    Context,
    /// `P…`, 32 bytes.
    Protocol,
    /// `id…`, 16 bytes.
    Peer,
    /// `Net…`, 4 bytes.
    Chain,
}

impl HashKind {
    const fn prefix(self) -> &'static [u8] {
        match self {
            Self::Block => &[1, 52],
            Self::Operation => &[5, 116],
            Self::OperationListList => &[29, 159, 109],
            Self::Context => &[79, 199],
            Self::Protocol => &[2, 170],
            Self::Peer => &[153, 103],
            Self::Chain => &[87, 82, 0],
        }
    }
}

/// Blake2b-256 of the concatenated parts.
pub(crate) fn blake2b_256(parts: &[&[u8]]) -> [u8; 32] {
    let mut state = Blake2b::<U32>::new();
    for part in parts {
        state.update(part);
    }
    state.finalize().into()
}

/// Peer id: Blake2b-128 of a public key, in base58check.
pub fn peer_id(public_key: &[u8; 32]) -> String {
    let mut state = Blake2b::<U16>::new();
    state.update(public_key);
    let digest: [u8; 16] = state.finalize().into();
    Base58 { kind: HashKind::Peer, bytes: &digest }.to_string()
}

/// Displays a hash in base58check; bytes longer than 32 are displayed as hexadecimal.
#[derive(Clone, Copy, Debug)]
pub struct Base58<'a> {
    /// Determines the prefix.
    pub kind: HashKind,
    /// Bytes of the hash.
    pub bytes: &'a [u8],
}

impl Base58<'_> {
    /// Encodes into `out` and returns the text; `None` if there are too many bytes.
    fn text<'o>(&self, out: &'o mut [u8; MAX_DIGITS]) -> Option<&'o str> {
        encode_check([self.kind.prefix(), self.bytes], out)
    }
}

impl fmt::Display for Base58<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text(&mut [0; MAX_DIGITS]) {
            Some(text) => f.write_str(text),
            None => f.write_str(&hex::encode(self.bytes)),
        }
    }
}

impl Serialize for Base58<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.text(&mut [0; MAX_DIGITS]) {
            Some(text) => serializer.serialize_str(text),
            None => serializer.collect_str(self),
        }
    }
}
