//! Parses the records of the ring, as declared in `trace.h`.

use super::abi::CHUNK;
use super::abi::MAX_ARGUMENTS;

const R_EVENT: u8 = 1;
const R_CHUNK: u8 = 2;

/// `struct event_header`.
const EVENT_HEADER: usize = 48;
/// `struct result`.
const RESULT: usize = 16;
/// `struct chunk_header`.
const CHUNK_HEADER: usize = 16;

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record<'a> {
    Event(EventRecord<'a>),
    Chunk(Chunk<'a>),
}

/// The end of an event: everything but its chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventRecord<'a> {
    pub(super) slot: u8,
    pub(super) location: u32,
    pub(super) time: u64,
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) cpu: u32,
    pub(super) comm: &'a [u8],
    pub(super) arguments: Vec<ArgumentRecord<'a>>,
}

/// `struct result` and its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArgumentRecord<'a> {
    pub(super) value: u64,
    pub(super) chunks: u16,
    pub(super) flags: u16,
    pub(super) data: &'a [u8],
}

/// A part of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk<'a> {
    pub(super) slot: u8,
    pub(super) argument: u8,
    pub(super) number: u32,
    pub(super) time: u64,
    pub(super) bytes: &'a [u8],
}

/// Parses a record. `None` if it is not one of the programs.
pub(super) fn parse(bytes: &[u8]) -> Option<Record<'_>> {
    match *bytes.first()? {
        R_EVENT => event(bytes).map(Record::Event),
        R_CHUNK => chunk(bytes).map(Record::Chunk),
        _ => None,
    }
}

fn event(bytes: &[u8]) -> Option<EventRecord<'_>> {
    let (header, body) = bytes.split_at_checked(EVENT_HEADER)?;
    let count = usize::from(u16_at(header, 2)?);
    if count > MAX_ARGUMENTS {
        return None;
    }
    let (results, mut data) = body.split_at_checked(count * RESULT)?;
    let mut arguments = Vec::with_capacity(count);
    for result in results.chunks_exact(RESULT) {
        let (own, rest) = data.split_at_checked(usize::try_from(u32_at(result, 8)?).ok()?)?;
        data = rest;
        let (value, chunks, flags) = (u64_at(result, 0)?, u16_at(result, 12)?, u16_at(result, 14)?);
        arguments.push(ArgumentRecord { value, chunks, flags, data: own });
    }
    let comm = header.get(32..EVENT_HEADER)?;
    let end = comm.iter().position(|byte| *byte == 0).unwrap_or(comm.len());
    Some(EventRecord {
        slot: *header.get(1)?,
        location: u32_at(header, 4)?,
        time: u64_at(header, 8)?,
        pid: u32_at(header, 16)?,
        tid: u32_at(header, 20)?,
        cpu: u32_at(header, 24)?,
        comm: comm.get(..end)?,
        arguments,
    })
}

fn chunk(bytes: &[u8]) -> Option<Chunk<'_>> {
    let (header, data) = bytes.split_at_checked(CHUNK_HEADER)?;
    Some(Chunk {
        slot: *header.get(1)?,
        argument: *header.get(2)?,
        number: u32_at(header, 4)?,
        time: u64_at(header, 8)?,
        bytes: data.get(..CHUNK)?,
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event with two arguments, the second of which has data.
    fn event_bytes() -> Vec<u8> {
        let mut bytes = vec![R_EVENT, 5, 2, 0];
        bytes.extend(9_u32.to_ne_bytes());
        bytes.extend(1234_u64.to_ne_bytes());
        bytes.extend([100_u32, 101, 1, 0].map(u32::to_ne_bytes).concat());
        bytes.extend(b"node\0stale bytes");
        for (value, length, chunks, flags) in [(7_u64, 0_u32, 0_u16, 2_u16), (8, 3, 4, 0)] {
            bytes.extend(value.to_ne_bytes());
            bytes.extend(length.to_ne_bytes());
            bytes.extend([chunks, flags].map(u16::to_ne_bytes).concat());
        }
        bytes.extend(b"abc");
        bytes
    }

    #[test]
    fn an_event() {
        let bytes = event_bytes();
        let arguments = vec![
            ArgumentRecord { value: 7, chunks: 0, flags: 2, data: &[] },
            ArgumentRecord { value: 8, chunks: 4, flags: 0, data: b"abc" },
        ];
        let expected =
            EventRecord { slot: 5, location: 9, time: 1234, pid: 100, tid: 101, cpu: 1, comm: b"node", arguments };
        assert_eq!(parse(&bytes), Some(Record::Event(expected)));
    }

    #[test]
    fn cut_records_are_refused() {
        let bytes = event_bytes();
        for length in 0..bytes.len() {
            assert_eq!(parse(&bytes[..length]), None, "{length}");
        }
        let mut too_many = bytes;
        too_many[2] = 13;
        assert_eq!(parse(&too_many), None);
        assert_eq!(parse(&[R_CHUNK; CHUNK_HEADER + CHUNK - 1]), None);
        assert!(parse(&[R_CHUNK; CHUNK_HEADER + CHUNK]).is_some());
        assert_eq!(parse(&[3; 100]), None);
    }
}
