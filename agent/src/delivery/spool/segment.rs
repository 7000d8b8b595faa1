//! A segment file: a header, then records one after the other. Pure: bytes in, bytes out.
//!
//! ```text
//!   header  "CSSPOOL1" │ ordinal u64 │ last u64 │ crc32 u32 of these │ 0 u32          32 bytes
//!   entry   length u32 │ crc32 u32 │ record, `chainscope.v1.Record`                 8 + length bytes
//! ```
//!
//! All numbers are little-endian. The checksum of an entry is over the segment's ordinal, the entry's offset, its length
//! and its bytes, so that what a disk put in the wrong place is no entry either. `last` is above `ordinal` where the
//! segment stands for several that were dropped.

use bytes::Bytes;
use chainscope_proto::v1::Record;
use prost::Message as _;

use super::content::Content;

/// Bytes of the header.
pub(crate) const HEADER: usize = 32;
/// Bytes before each record.
pub(crate) const ENTRY: usize = 8;
/// Longest record that is read. A message's row, its longest, has its preview and error cut where it is made.
const LONGEST: usize = 64 << 20;

const MAGIC: &[u8; 8] = b"CSSPOOL1";

/// Which segments a file stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Its own place among the segments of the lane.
    pub(crate) ordinal: u64,
    /// Place of the last one that it stands for.
    pub(crate) last: u64,
}

impl Header {
    /// As in the file.
    pub(crate) fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.ordinal.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.last.to_le_bytes());
        let check = crc32fast::hash(&bytes[..24]);
        bytes[24..28].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Reads the beginning of a file; none if it is no segment's.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER] = bytes.get(..HEADER)?.try_into().ok()?;
        let header = Self { ordinal: u64_at(bytes, 8), last: u64_at(bytes, 16) };
        (header.encode() == *bytes && header.last >= header.ordinal).then_some(header)
    }
}

fn u64_at(bytes: &[u8; HEADER], place: usize) -> u64 {
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

/// Adds a record to what will be written at `offset` of a segment; `out` begins there.
pub(crate) fn put(out: &mut Vec<u8>, ordinal: u64, offset: u64, record: &Record) {
    let place = out.len();
    let at = offset + place as u64;
    out.extend_from_slice(&[0; ENTRY]);
    // Writing to memory does not fail.
    let _ = record.encode(out);
    let encoded = out.get(place + ENTRY..).unwrap_or_default();
    let length = u32::try_from(encoded.len()).unwrap_or(u32::MAX);
    let check = checksum(ordinal, at, length, encoded);
    if let Some(head) = out.get_mut(place..place + ENTRY) {
        head[..4].copy_from_slice(&length.to_le_bytes());
        head[4..].copy_from_slice(&check.to_le_bytes());
    }
}

/// What is at some place of a segment.
#[allow(clippy::large_enum_variant)] // one at a time, on the stack
#[derive(Debug)]
pub(crate) enum Found {
    /// A record, and the bytes that its entry takes.
    Record(Record, usize),
    /// The beginning of an entry of so many bytes.
    Partial(usize),
    /// Something else.
    Damaged,
}

/// Reads the entry at the beginning of `bytes`, which are those from `offset` of the segment.
pub(crate) fn entry(bytes: &Bytes, ordinal: u64, offset: u64) -> Found {
    let Some(&[a, b, c, d, e, f, g, h]) = bytes.first_chunk::<ENTRY>() else { return Found::Partial(ENTRY) };
    let length = u32::from_le_bytes([a, b, c, d]);
    let size = length as usize;
    if size > LONGEST {
        return Found::Damaged;
    }
    let Some(encoded) = bytes.get(ENTRY..ENTRY + size) else { return Found::Partial(ENTRY + size) };
    if checksum(ordinal, offset, length, encoded) != u32::from_le_bytes([e, f, g, h]) {
        return Found::Damaged;
    }
    match Record::decode(bytes.slice(ENTRY..ENTRY + size)) {
        Ok(record) => Found::Record(record, ENTRY + size),
        Err(_) => Found::Damaged,
    }
}

/// What a whole file holds.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// None if the file is no segment.
    pub(crate) header: Option<Header>,
    /// Whole records from the beginning on.
    pub(crate) records: u64,
    /// Where the last of them ends.
    pub(crate) good: u64,
    /// What they are.
    pub(crate) content: Content,
}

/// Reads a file up to the first thing that is no record.
pub(crate) fn scan(bytes: &Bytes) -> Scan {
    let Some(header) = Header::decode(bytes) else { return Scan::default() };
    let mut scan = Scan { header: Some(header), good: HEADER as u64, ..Scan::default() };
    let mut place = HEADER;
    while place < bytes.len() {
        let Found::Record(record, size) = entry(&bytes.slice(place..), header.ordinal, place as u64) else { break };
        place += size;
        scan.records += 1;
        scan.good = place as u64;
        scan.content.add(&record, size - ENTRY);
    }
    scan
}
