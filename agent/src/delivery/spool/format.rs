//! Format of a segment file: a header, then records. No I/O.
//!
//! ```text
//!   header  "CSSPOOL1" │ ordinal u64 │ last u64 │ crc32 u32 of these │ 0 u32          32 bytes
//!   entry   length u32 │ crc32 u32 │ record, `chainscope.v1.Record`                 8 + length bytes
//! ```
//!
//! All numbers are little-endian. The checksum of an entry is over the segment's ordinal, the entry's offset, its length
//! and its bytes, so that an entry at the wrong place is invalid. `last` is greater than `ordinal` if the segment
//! replaces several that were dropped.

use bytes::Bytes;
use chainscope_proto::v1::Record;
use prost::Message as _;

use super::summary::RecordSummary;

/// Bytes of the header of a file.
pub(crate) const HEADER_BYTES: usize = 32;
/// Bytes before each record.
pub(crate) const ENTRY_HEADER_BYTES: usize = 8;
/// Maximum encoded bytes of a record. The longest one is a message's row, whose preview and error are limited where it is
/// created.
const MAX_RECORD_BYTES: usize = 64 << 20;

const MAGIC: &[u8; 8] = b"CSSPOOL1";

/// Which segments a file replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Its own position among the segments of the stream.
    pub(crate) ordinal: u64,
    /// Position of the last one that it replaces; its own if it replaces none.
    pub(crate) last: u64,
}

impl Header {
    /// Encodes the header.
    pub(crate) fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.ordinal.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.last.to_le_bytes());
        let check = crc32fast::hash(&bytes[..24]);
        bytes[24..28].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Decodes the start of a file; none if it is no valid header.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER_BYTES] = bytes.get(..HEADER_BYTES)?.try_into().ok()?;
        let header = Self { ordinal: u64_at(bytes, 8), last: u64_at(bytes, 16) };
        (header.encode() == *bytes && header.last >= header.ordinal).then_some(header)
    }
}

fn u64_at(bytes: &[u8; HEADER_BYTES], place: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[place..place + 8]);
    u64::from_le_bytes(number)
}

fn checksum(ordinal: u64, offset: u64, length: u32, record: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&ordinal.to_le_bytes());
    hasher.update(&offset.to_le_bytes());
    hasher.update(&length.to_le_bytes());
    hasher.update(record);
    hasher.finalize()
}

/// Appends an entry to `out`, whose first byte will be written at `offset` of the segment.
pub(crate) fn put(out: &mut Vec<u8>, ordinal: u64, offset: u64, record: &Record) {
    let place = out.len();
    let at = offset + place as u64;
    out.extend_from_slice(&[0; ENTRY_HEADER_BYTES]);
    // Writing to memory does not fail.
    let _ = record.encode(out);
    let encoded = out.get(place + ENTRY_HEADER_BYTES..).unwrap_or_default();
    let length = u32::try_from(encoded.len()).unwrap_or(u32::MAX);
    let check = checksum(ordinal, at, length, encoded);
    if let Some(head) = out.get_mut(place..place + ENTRY_HEADER_BYTES) {
        head[..4].copy_from_slice(&length.to_le_bytes());
        head[4..].copy_from_slice(&check.to_le_bytes());
    }
}

/// The bytes at an offset of a segment.
#[expect(clippy::large_enum_variant, reason = "one value at a time, on the stack")]
#[derive(Debug)]
pub(crate) enum Entry {
    /// A record and the length of its entry.
    Record(Record, usize),
    /// The start of an entry of this length.
    Partial(usize),
    /// No valid entry.
    Damaged,
}

/// Decodes the entry at the start of `bytes`, which begin at `offset` of the segment.
pub(crate) fn entry(bytes: &Bytes, ordinal: u64, offset: u64) -> Entry {
    let Some(&[a, b, c, d, e, f, g, h]) = bytes.first_chunk::<ENTRY_HEADER_BYTES>() else {
        return Entry::Partial(ENTRY_HEADER_BYTES);
    };
    let length = u32::from_le_bytes([a, b, c, d]);
    let size = length as usize;
    if size > MAX_RECORD_BYTES {
        return Entry::Damaged;
    }
    let Some(encoded) = bytes.get(ENTRY_HEADER_BYTES..ENTRY_HEADER_BYTES + size) else {
        return Entry::Partial(ENTRY_HEADER_BYTES + size);
    };
    if checksum(ordinal, offset, length, encoded) != u32::from_le_bytes([e, f, g, h]) {
        return Entry::Damaged;
    }
    match Record::decode(bytes.slice(ENTRY_HEADER_BYTES..ENTRY_HEADER_BYTES + size)) {
        Ok(record) => Entry::Record(record, ENTRY_HEADER_BYTES + size),
        Err(_) => Entry::Damaged,
    }
}

/// The valid part of a file.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// None if the file has no valid header.
    pub(crate) header: Option<Header>,
    /// Records before the first invalid entry.
    pub(crate) records: u64,
    /// Offset at which the last of them ends.
    pub(crate) valid_bytes: u64,
    /// Their summary.
    pub(crate) summary: RecordSummary,
}

/// Decodes a file up to the first invalid entry.
pub(crate) fn scan(bytes: &Bytes) -> Scan {
    let Some(header) = Header::decode(bytes) else { return Scan::default() };
    let mut scan = Scan { header: Some(header), valid_bytes: HEADER_BYTES as u64, ..Scan::default() };
    let mut place = HEADER_BYTES;
    while place < bytes.len() {
        let Entry::Record(record, size) = entry(&bytes.slice(place..), header.ordinal, place as u64) else { break };
        place += size;
        scan.records += 1;
        scan.valid_bytes = place as u64;
        scan.summary.add(&record, size - ENTRY_HEADER_BYTES);
    }
    scan
}
