//! Hashes: Blake2b, and base58check with the prefixes of Octez (`lib_crypto/base58.ml`).
use std::fmt;

use blake2::{
    Blake2b, Digest,
    digest::consts::{U16, U32},
};
use serde::{Serialize, Serializer};

/// What a hash is the hash of; decides its base58check prefix.
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

/// Blake2b with a digest of 32 bytes.
pub(crate) fn blake2b_256(parts: &[&[u8]]) -> [u8; 32] {
    let mut state = Blake2b::<U32>::new();
    for part in parts {
        state.update(part);
    }
    state.finalize().into()
}

/// A peer's name: Blake2b-128 of its public key, in base58check.
pub fn peer_id(public_key: &[u8; 32]) -> String {
    let mut state = Blake2b::<U16>::new();
    state.update(public_key);
    let digest: [u8; 16] = state.finalize().into();
    Base58 { kind: HashKind::Peer, bytes: &digest }.to_string()
}

/// Shows bytes in base58check. Bytes longer than 32 are not hashes, and show as hexadecimal.
#[derive(Clone, Copy, Debug)]
pub struct Base58<'a> {
    /// Decides the prefix.
    pub kind: HashKind,
    /// The hash itself.
    pub bytes: &'a [u8],
}

/// Prefix 3, hash 32, checksum 4.
const LONGEST: usize = 39;
/// 39 bytes have at most 54 digits of base 58.
const DIGITS: usize = 56;

impl Base58<'_> {
    /// Writes the text into `out`; returns its part that is in use, or nothing if the bytes are too many.
    fn text<'o>(&self, out: &'o mut [u8; DIGITS]) -> Option<&'o str> {
        let prefix = self.kind.prefix();
        let length = prefix.len() + self.bytes.len();
        let mut whole = [0; LONGEST];
        whole.get_mut(..prefix.len())?.copy_from_slice(prefix);
        whole.get_mut(prefix.len()..length)?.copy_from_slice(self.bytes);
        let used = bs58::encode(whole.get(..length)?).with_check().onto(&mut out[..]).ok()?;
        std::str::from_utf8(out.get(..used)?).ok()
    }
}

impl fmt::Display for Base58<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text(&mut [0; DIGITS]) {
            Some(text) => f.write_str(text),
            None => f.write_str(&hex::encode(self.bytes)),
        }
    }
}

impl Serialize for Base58<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.text(&mut [0; DIGITS]) {
            Some(text) => serializer.serialize_str(text),
            None => serializer.collect_str(self),
        }
    }
}
