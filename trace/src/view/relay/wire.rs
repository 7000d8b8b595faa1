//! What messages say about blocks: as much of the P2P protocols of Bitcoin (BIP 130, BIP 152) and Tapyrus as relay takes.
//!
//! Payloads are untrusted, and may be captured in part: what is there is read.

use sha2::{Digest as _, Sha256};

use crate::content::Protocol;

/// A block's hash in the order of the protocol.
pub(super) type Hash = [u8; 32];

/// Size of a block header of Bitcoin.
const HEADER: usize = 80;
/// Size of a block header of Tapyrus up to the type of its extra field: features, three hashes, time.
const TAPYRUS_HEADER: usize = 4 + 3 * 32 + 4;
/// Size of an element of an inventory: a type and a hash.
const INVENTORY: usize = 36;
/// Most headers of an announcement; with more a peer answers a request (`MAX_BLOCKS_TO_ANNOUNCE`).
const MAX_ANNOUNCED: u64 = 8;
/// The types of an inventory that are blocks, without their flags: whole, filtered, compact.
const BLOCK_TYPES: std::ops::RangeInclusive<u32> = 2..=4;
const TYPE_FLAGS: u32 = 0xc000_0000;

/// What a message does for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It tells that there is the block.
    Announced,
    /// It asks for the block or a part of it.
    Requested,
    /// It has the block, or the last part of it.
    Delivered,
    /// It has the header and identifies the transactions: an announcement, and all of the block if these are known.
    Compact,
}

/// The blocks of a message, with what it does for them. A protocol that is not known is taken for one with Bitcoin's headers.
pub(super) fn blocks(protocol: Protocol, message_type: &str, is_inbound: bool, payload: &[u8]) -> Vec<(Step, Hash)> {
    let of = |step, hash: Option<Hash>| hash.map(|hash| (step, hash)).into_iter().collect();
    match (message_type, is_inbound) {
        ("inv", true) => inventory(payload).map(|hash| (Step::Announced, hash)).collect(),
        ("getdata", false) => inventory(payload).map(|hash| (Step::Requested, hash)).collect(),
        ("headers", true) => headers(protocol, payload).into_iter().map(|hash| (Step::Announced, hash)).collect(),
        ("cmpctblock", true) => of(Step::Compact, first_header(protocol, payload)),
        ("block", true) => of(Step::Delivered, first_header(protocol, payload)),
        ("getblocktxn", false) => of(Step::Requested, first_hash(payload)),
        ("blocktxn", true) => of(Step::Delivered, first_hash(payload)),
        _ => Vec::new(),
    }
}

fn inventory(payload: &[u8]) -> impl Iterator<Item = Hash> {
    let (count, rest) = compact_size(payload).unwrap_or((0, &[]));
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    rest.chunks_exact(INVENTORY).take(count).filter_map(|element| {
        let (kind, hash) = element.split_first_chunk::<4>()?;
        BLOCK_TYPES.contains(&(u32::from_le_bytes(*kind) & !TYPE_FLAGS)).then(|| first_hash(hash)).flatten()
    })
}

/// The hashes of announced headers, each followed by a count of transactions, which is 0; those before the first that is none.
fn headers(protocol: Protocol, payload: &[u8]) -> Vec<Hash> {
    let (count, mut rest) = compact_size(payload).filter(|(count, _)| *count <= MAX_ANNOUNCED).unwrap_or((0, &[]));
    let mut hashes = Vec::new();
    for _ in 0..count {
        let Some((header, after)) = split_header(protocol, rest) else { break };
        let Some((0, after)) = compact_size(after) else { break };
        hashes.push(double_sha256(header));
        rest = after;
    }
    hashes
}

/// The hash of the header that begins a message.
fn first_header(protocol: Protocol, bytes: &[u8]) -> Option<Hash> {
    split_header(protocol, bytes).map(|(header, _)| double_sha256(header))
}

/// Splits off the header of a block, all of which is hashed.
fn split_header(protocol: Protocol, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    if protocol != Protocol::Tapyrus {
        return bytes.split_at_checked(HEADER);
    }
    let (kind, after) = bytes.get(TAPYRUS_HEADER..)?.split_first()?;
    // The extra field (`xfield.h`): none, the federation's public key, the maximum size of a block. Then the signature.
    let after = match kind {
        0 => after,
        1 => skip_bytes(after)?,
        2 => after.get(size_of::<u32>()..)?,
        _ => return None,
    };
    let rest = skip_bytes(after)?;
    bytes.split_at_checked(bytes.len() - rest.len())
}

/// What follows bytes that are preceded by their number.
fn skip_bytes(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = compact_size(bytes)?;
    rest.get(usize::try_from(length).ok()?..)
}

fn double_sha256(bytes: &[u8]) -> Hash {
    Sha256::digest(Sha256::digest(bytes)).into()
}

fn first_hash(bytes: &[u8]) -> Option<Hash> {
    bytes.first_chunk().copied()
}

/// A number of 1, 3, 5 or 9 bytes, and what follows it.
fn compact_size(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (first, rest) = bytes.split_first()?;
    let length = match first {
        0xfd => 2,
        0xfe => 4,
        0xff => 8,
        small => return Some((u64::from(*small), rest)),
    };
    let (number, rest) = rest.split_at_checked(length)?;
    let number = number.iter().rev().fold(0, |sum, byte| (sum << 8) | u64::from(*byte));
    Some((number, rest))
}
