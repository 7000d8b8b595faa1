//! The invariants of a database, checked on all of it. Used by tests; a production database is checked by
//! [`crate::Store::verify`] as well.
//!
//! - ids of messages are dense from `first_id` to `next_id`, and each lies in the segment that its id says;
//! - every posting has exactly the ids whose rows have its value: nothing missing, nothing dangling;
//! - every zone is the least and greatest time of its block;
//! - a row's chunks are in its own segment, unless they are nowhere;
//! - events, losses and target events have distinct, ascending ids;
//! - every memory snapshot has its parts, and no part is without one.

use std::collections::BTreeMap;

use chainscope_proto::v1::{Message, Record, record::Kind};
use prost::Message as _;

use crate::{
    Error, index,
    keys::{self, ChunkPlace},
    memory,
    meta::{SegmentMeta, Zone},
    posting::{Bits, block_of},
    view::Reader,
    writer::each_chunk,
};

/// Problems listed in words; more are only counted.
const MOST_LISTED: usize = 100;

/// What a check of the database found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Nodes checked.
    pub nodes: u64,
    /// Segments checked.
    pub segments: u64,
    /// Messages checked.
    pub rows: u64,
    /// Postings checked.
    pub postings: u64,
    /// Chunks stored.
    pub chunks: u64,
    /// Chunks that rows name and that never came: lost before the store.
    pub chunks_absent: u64,
    /// Contradictions found.
    pub problem_count: u64,
    /// The first of them, in words.
    pub problems: Vec<String>,
}

impl Report {
    /// Whether nothing contradicts anything.
    pub fn is_sound(&self) -> bool {
        self.problem_count == 0
    }

    pub(crate) fn problem(&mut self, text: String) {
        self.problem_count += 1;
        if self.problems.len() < MOST_LISTED {
            self.problems.push(text);
        }
    }
}

/// Postings of one segment: by table, value and block.
type Postings = BTreeMap<(u8, Vec<u8>, u64), Bits>;

/// Checks one node.
pub(crate) fn node(reader: &Reader<'_>, report: &mut Report) -> Result<(), Error> {
    let view = &reader.view;
    let name = &view.name;
    report.nodes += 1;
    let mut expected_id = view.first_id;
    for segment in &view.segments {
        report.segments += 1;
        if segment.first_id != expected_id {
            report.problem(format!(
                "{name}: segment {} begins at {} instead of {expected_id}",
                segment.number, segment.first_id
            ));
        }
        // The snapshot may be newer than the view, so that it holds later rows of the open segment.
        let open = view.segments.last().is_some_and(|last| last.number == segment.number);
        let (rows, zones, postings) = self::rows(reader, segment, report)?;
        if rows < segment.rows || (rows > segment.rows && !open) {
            report.problem(format!("{name}: segment {} has {rows} rows, not {}", segment.number, segment.rows));
        }
        expected_id = segment.end_id();
        check_zones(reader, segment, zones, report)?;
        check_postings(reader, segment, postings, report)?;
        report.chunks += count(reader, keys::CHUNK, segment)?;
    }
    if expected_id != view.next_id {
        report.problem(format!("{name}: rows end at {expected_id}, the next id is {}", view.next_id));
    }
    for table in [keys::CONNECTION, keys::LOSS, keys::TARGET_EVENT] {
        check_numbers(reader, table, report)?;
    }
    check_outside(reader, report)?;
    memory::verify(reader, report)
}

/// Reads the rows of a segment, and computes what its zones and postings must be.
fn rows(
    reader: &Reader<'_>,
    segment: &SegmentMeta,
    report: &mut Report,
) -> Result<(u64, BTreeMap<u64, Zone>, Postings), Error> {
    let (node, name) = (reader.view.number, &reader.view.name);
    let range = keys::segment_range(keys::MESSAGE, node, segment.number);
    let mut cursor = reader.snapshot.cursor(&range.start..&range.end);
    let mut rows = 0;
    let mut zones = BTreeMap::new();
    let mut postings = Postings::new();
    cursor.first()?;
    while let Some((key, value)) = cursor.entry() {
        let id = keys::last_number(key).unwrap_or(u64::MAX);
        if id != segment.first_id + rows {
            report.problem(format!("{name}: row {id} where {} should be", segment.first_id + rows));
        }
        rows += 1;
        report.rows += 1;
        match Record::decode(value) {
            Ok(Record { time_ns, target, kind: Some(Kind::Message(message)) }) => {
                let block = block_of(id);
                zones.entry(block).or_insert(Zone::NONE).add(time_ns);
                index::values(&target, &message, |at, value| {
                    let table = keys::INDEXES.get(at).copied().unwrap_or_default();
                    postings.entry((table, value.to_vec(), block)).or_default().insert(id);
                });
                check_chunks(reader, segment, id, &message, report)?;
            }
            Ok(_) => report.problem(format!("{name}: row {id} is not a message")),
            Err(error) => report.problem(format!("{name}: row {id} cannot be read: {error}")),
        }
        cursor.next()?;
    }
    Ok((rows, zones, postings))
}

/// A chunk that is not in the row's own segment must not be in another either.
fn check_chunks(
    reader: &Reader<'_>,
    segment: &SegmentMeta,
    id: u64,
    message: &Message,
    report: &mut Report,
) -> Result<(), Error> {
    let node = reader.view.number;
    let Some(last) = message.last_chunk.checked_sub(message.first_chunk) else { return Ok(()) };
    let mut present = 0;
    let mut have = Vec::new();
    each_chunk(&*reader.snapshot, node, segment.number, message, |counter, _| {
        present += 1;
        have.push(counter);
        true
    })?;
    let wanted = last.saturating_add(1);
    if present >= wanted {
        return Ok(());
    }
    report.chunks_absent += wanted - present;
    // Only as many as a message of 100 MiB has: a range may be nonsense.
    for counter in
        (message.first_chunk..=message.last_chunk).take(4096).filter(|counter| have.binary_search(counter).is_err())
    {
        let place = ChunkPlace { connection: message.connection, counter, incoming: message.incoming };
        for other in reader.view.segments.iter().take_while(|other| other.number < segment.number) {
            if reader.snapshot.get(&keys::chunk(node, other.number, place))?.is_some() {
                report.problem(format!(
                    "{}: chunk {counter} of row {id} is in segment {}, not in {}",
                    reader.view.name, other.number, segment.number
                ));
                break;
            }
        }
    }
    Ok(())
}

fn check_zones(
    reader: &Reader<'_>,
    segment: &SegmentMeta,
    mut expected: BTreeMap<u64, Zone>,
    report: &mut Report,
) -> Result<(), Error> {
    let name = &reader.view.name;
    let range = keys::segment_range(keys::ZONE, reader.view.number, segment.number);
    let mut cursor = reader.snapshot.cursor(&range.start..&range.end);
    cursor.first()?;
    while let Some((key, value)) = cursor.entry() {
        let block = keys::last_number(key).unwrap_or(u64::MAX);
        let (is, should) = (Zone::decode(value), expected.remove(&block));
        if is.is_none() || is != should {
            report.problem(format!("{name}: zone {block} of segment {} is {is:?}, not {should:?}", segment.number));
        }
        cursor.next()?;
    }
    for block in expected.keys() {
        report.problem(format!("{name}: zone {block} of segment {} is missing", segment.number));
    }
    Ok(())
}

fn check_postings(
    reader: &Reader<'_>,
    segment: &SegmentMeta,
    mut expected: Postings,
    report: &mut Report,
) -> Result<(), Error> {
    let name = &reader.view.name;
    for table in keys::INDEXES {
        let range = keys::segment_range(table, reader.view.number, segment.number);
        let mut cursor = reader.snapshot.cursor(&range.start..&range.end);
        cursor.first()?;
        while let Some((key, value)) = cursor.entry() {
            report.postings += 1;
            let (is, should) = match keys::posting_of(key) {
                Some((text, block)) => (Bits::decode(value), expected.remove(&(table, text.to_vec(), block))),
                None => (None, None),
            };
            if is.is_none() || is != should {
                report.problem(format!("{name}: posting {key:02x?} has {is:?}, its rows say {should:?}"));
            }
            cursor.next()?;
        }
    }
    for (table, value, block) in expected.keys() {
        let value = String::from_utf8_lossy(value);
        report.problem(format!("{name}: posting {value:?} of table {table} and block {block} is missing"));
    }
    Ok(())
}

/// Numbers of events and losses grow from segment to segment, each used once.
fn check_numbers(reader: &Reader<'_>, table: u8, report: &mut Report) -> Result<(), Error> {
    let mut greatest: Option<u64> = None;
    for segment in &reader.view.segments {
        let range = keys::segment_range(table, reader.view.number, segment.number);
        let mut cursor = reader.snapshot.cursor(&range.start..&range.end);
        let mut numbers = Vec::new();
        cursor.first()?;
        while let Some((key, value)) = cursor.entry() {
            numbers.extend(keys::last_number(key));
            if let Err(error) = Record::decode(value) {
                report.problem(format!("{}: key {key:02x?} cannot be read: {error}", reader.view.name));
            }
            cursor.next()?;
        }
        numbers.sort_unstable();
        for number in numbers {
            if greatest >= Some(number) {
                report.problem(format!("{}: number {number} of table {table} twice or out of order", reader.view.name));
            }
            greatest = Some(number);
        }
    }
    Ok(())
}

/// Nothing may lie in a segment that does not exist (any more).
fn check_outside(reader: &Reader<'_>, report: &mut Report) -> Result<(), Error> {
    let Some(first) = reader.view.segments.first() else { return Ok(()) };
    for table in keys::SEGMENTED {
        let start = keys::segment(table, reader.view.number, 0);
        let end = keys::segment(table, reader.view.number, first.number);
        let mut cursor = reader.snapshot.cursor(&start..&end);
        cursor.first()?;
        if let Some((key, _)) = cursor.entry() {
            report.problem(format!("{}: key {key:02x?} outlived its segment", reader.view.name));
        }
    }
    Ok(())
}

fn count(reader: &Reader<'_>, table: u8, segment: &SegmentMeta) -> Result<u64, Error> {
    let range = keys::segment_range(table, reader.view.number, segment.number);
    let mut cursor = reader.snapshot.cursor(&range.start..&range.end);
    let mut count = 0;
    cursor.first()?;
    while cursor.entry().is_some() {
        count += 1;
        cursor.next()?;
    }
    Ok(count)
}
