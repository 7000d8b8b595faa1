//! Blake2b hashes, and their base58check encoding with the prefixes of Octez (`lib_crypto/base58.ml`).
use std::fmt;

use blake2::{
    Blake2b, Digest,
    digest::consts::{U16, U32},
};
use serde::{Serialize, Serializer};

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

/// Maximum length before encoding: prefix 3, hash 32, checksum 4.
const MAX_BYTES: usize = 39;
/// Buffer length for the encoded text: 39 bytes have at most 54 digits of base 58.
const MAX_DIGITS: usize = 56;

impl Base58<'_> {
    /// Encodes into `out` and returns the text; `None` if there are too many bytes.
    fn text<'o>(&self, out: &'o mut [u8; MAX_DIGITS]) -> Option<&'o str> {
        let prefix = self.kind.prefix();
        let length = prefix.len() + self.bytes.len();
        let mut whole = [0; MAX_BYTES];
        whole.get_mut(..prefix.len())?.copy_from_slice(prefix);
        whole.get_mut(prefix.len()..length)?.copy_from_slice(self.bytes);
        let used = bs58::encode(whole.get(..length)?).with_check().onto(&mut out[..]).ok()?;
        std::str::from_utf8(out.get(..used)?).ok()
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
