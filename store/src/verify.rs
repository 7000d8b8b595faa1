//! The invariants of a database, checked on all of it. Used by tests; a production database is checked by
//! [`crate::Store::verify`] as well.
//!
//! Of every kind of fact, as it is declared:
//! - ids are dense from the first to the next one, and each row lies in the segment that its id says;
//! - every posting has exactly the ids whose rows have its value: nothing missing, nothing dangling;
//! - every zone is the least and greatest time of its block;
//! - rows that are grouped have distinct ids, which ascend from segment to segment.
//!
//! And:
//! - a message's chunks are in its own segment, unless they are nowhere;
//! - every memory snapshot has its parts;
//! - no key lies in a segment that is not listed.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Error, Report, keys,
    kind::{FactKind, RetentionClass, decode_row},
    memory,
    meta::{SegmentMeta, Zone},
    network,
    posting::{Bits, block_of},
    schema::{Schema, of_class},
    view::Reader,
};

/// Postings of one segment: by index, value and block.
type Postings = BTreeMap<(usize, Vec<u8>, u64), Bits>;

/// Checks one node. `progress` is called after each segment of a kind.
pub(crate) fn node(
    reader: &Reader<'_>,
    schema: Schema,
    report: &mut Report,
    progress: &mut dyn FnMut(&Report),
) -> Result<(), Error> {
    report.nodes += 1;
    report.segments +=
        RetentionClass::STREAMED.map(|class| reader.view.segments(class).len() as u64).iter().sum::<u64>();
    for class in RetentionClass::ALL {
        for kind in of_class(schema, class) {
            match kind.group {
                None => check_kind(reader, kind, report, progress)?,
                Some(_) => check_grouped(reader, kind, report)?,
            }
        }
    }
    for segment in reader.records() {
        report.chunks += count(reader, network::CHUNKS, segment)?;
        progress(report);
    }
    check_outside(reader, report)?;
    memory::verify(reader, report)
}

/// Checks rows, zones and postings of a kind.
fn check_kind(
    reader: &Reader<'_>,
    kind: &FactKind,
    report: &mut Report,
    progress: &mut dyn FnMut(&Report),
) -> Result<(), Error> {
    let (name, what) = (&reader.view.name, kind.name);
    let segments = reader.view.segments(kind.retention);
    let mut expected_id = reader.view.ids(kind).start;
    for segment in segments {
        let (number, ids) = (segment.number, segment.ids(kind.table));
        if ids.start != expected_id {
            report.problem(format!("{name}: {what} {} begins segment {number} instead of {expected_id}", ids.start));
        }
        // The snapshot may be newer than the view, so that it holds later rows of the open segment.
        let open = segments.last().is_some_and(|last| last.number == number);
        let (rows, zones, postings) = rows(reader, kind, segment, report)?;
        let listed = ids.end - ids.start;
        if rows < listed || (rows > listed && !open) {
            report.problem(format!("{name}: segment {number} has {rows} rows of kind {what}, not {listed}"));
        }
        expected_id = ids.end;
        check_zones(reader, kind, segment, zones, report)?;
        check_postings(reader, kind, segment, postings, report)?;
        progress(report);
    }
    let next_id = reader.view.ids(kind).end;
    if expected_id != next_id {
        report.problem(format!("{name}: {what} rows end at {expected_id}, the next id is {next_id}"));
    }
    Ok(())
}

/// Reads the rows of a segment, and computes what its zones and postings must be.
fn rows(
    reader: &Reader<'_>,
    kind: &FactKind,
    segment: &SegmentMeta,
    report: &mut Report,
) -> Result<(u64, BTreeMap<u64, Zone>, Postings), Error> {
    let (name, what) = (&reader.view.name, kind.name);
    let range = keys::table_range(reader.view.number, segment.number, kind.table);
    let mut cursor = reader.snapshot.cursor(&range.start..&range.end);
    let mut rows = 0;
    let mut zones = BTreeMap::new();
    let mut postings = Postings::new();
    let first_id = segment.ids(kind.table).start;
    cursor.first()?;
    while let Some((key, value)) = cursor.entry() {
        let id = keys::last_number(key).unwrap_or(u64::MAX);
        if id != first_id + rows {
            report.problem(format!("{name}: {what} {id} where {} should be", first_id + rows));
        }
        rows += 1;
        report.rows += 1;
        match decode_row(value) {
            Ok((agent, record)) if (kind.accepts)(&record) => {
                let block = block_of(id);
                zones.entry(block).or_insert(Zone::NONE).add((kind.time)(&record));
                for (at, index) in kind.indexes.iter().enumerate() {
                    (index.values)(&record, &mut |value| {
                        postings.entry((at, keys::cut(value).to_vec(), block)).or_default().insert(id);
                    });
                }
                network::verify(reader, segment, id, (agent, &record), report)?;
            }
            Ok(_) => report.problem(format!("{name}: row {id} is no {what}")),
            Err(error) => report.problem(format!("{name}: {what} {id} cannot be read: {error}")),
        }
        cursor.next()?;
    }
    Ok((rows, zones, postings))
}

fn check_zones(
    reader: &Reader<'_>,
    kind: &FactKind,
    segment: &SegmentMeta,
    mut expected: BTreeMap<u64, Zone>,
    report: &mut Report,
) -> Result<(), Error> {
    let (name, number) = (&reader.view.name, segment.number);
    let range = keys::table_range(reader.view.number, number, kind.zones());
    let mut cursor = reader.snapshot.cursor(&range.start..&range.end);
    cursor.first()?;
    while let Some((key, value)) = cursor.entry() {
        let block = keys::last_number(key).unwrap_or(u64::MAX);
        let (is, should) = (Zone::decode(value), expected.remove(&block));
        if is.is_none() || is != should {
            report.problem(format!("{name}: zone {block} of segment {number} is {is:?}, not {should:?}"));
        }
        cursor.next()?;
    }
    for block in expected.keys() {
        report.problem(format!("{name}: zone {block} of segment {number} is missing"));
    }
    Ok(())
}

fn check_postings(
    reader: &Reader<'_>,
    kind: &FactKind,
    segment: &SegmentMeta,
    mut expected: Postings,
    report: &mut Report,
) -> Result<(), Error> {
    let name = &reader.view.name;
    for index in 0..kind.indexes.len() {
        let range = keys::table_range(reader.view.number, segment.number, kind.index_table(index));
        let mut cursor = reader.snapshot.cursor(&range.start..&range.end);
        cursor.first()?;
        while let Some((key, value)) = cursor.entry() {
            report.postings += 1;
            let (is, should) = match keys::posting_of(key) {
                Some((text, block)) => (Bits::decode(value), expected.remove(&(index, text.to_vec(), block))),
                None => (None, None),
            };
            if is.is_none() || is != should {
                report.problem(format!("{name}: posting {key:02x?} has {is:?}, its rows say {should:?}"));
            }
            cursor.next()?;
        }
    }
    for (index, value, block) in expected.keys() {
        let (value, what) = (String::from_utf8_lossy(value), kind.name);
        report.problem(format!("{name}: posting {value:?} of index {index} of {what} and block {block} is missing"));
    }
    Ok(())
}

/// Ids of grouped rows ascend from segment to segment, each used once.
fn check_grouped(reader: &Reader<'_>, kind: &FactKind, report: &mut Report) -> Result<(), Error> {
    let (name, what) = (&reader.view.name, kind.name);
    let mut greatest: Option<u64> = None;
    for segment in reader.view.segments(kind.retention) {
        let range = keys::table_range(reader.view.number, segment.number, kind.table);
        let mut cursor = reader.snapshot.cursor(&range.start..&range.end);
        let mut ids = Vec::new();
        cursor.first()?;
        while let Some((key, value)) = cursor.entry() {
            ids.extend(keys::last_number(key));
            if let Err(error) = decode_row(value) {
                report.problem(format!("{name}: key {key:02x?} cannot be read: {error}"));
            }
            cursor.next()?;
        }
        ids.sort_unstable();
        for id in ids {
            if greatest >= Some(id) {
                report.problem(format!("{name}: {what} {id} twice or out of order"));
            }
            greatest = Some(id);
        }
    }
    Ok(())
}

/// No key may lie in a segment that is not listed (any more).
fn check_outside(reader: &Reader<'_>, report: &mut Report) -> Result<(), Error> {
    let node = reader.view.number;
    let listed: BTreeSet<u32> = reader.view.segments.iter().flatten().map(|segment| segment.number).collect();
    // The snapshot may be newer than the view: later segments are not looked at.
    let Some(last) = listed.last() else { return Ok(()) };
    let range = keys::segments(node, 1..*last);
    let mut cursor = reader.snapshot.cursor(&range.start..&range.end);
    cursor.first()?;
    while let Some((key, _)) = cursor.entry() {
        let number = keys::segment_of(key).unwrap_or_default();
        if !listed.contains(&number) {
            report.problem(format!("{}: key {key:02x?} outlived its segment", reader.view.name));
        }
        cursor.seek(&keys::segment(node, number + 1))?;
    }
    Ok(())
}

fn count(reader: &Reader<'_>, table: u8, segment: &SegmentMeta) -> Result<u64, Error> {
    let range = keys::table_range(reader.view.number, segment.number, table);
    let mut cursor = reader.snapshot.cursor(&range.start..&range.end);
    let mut count = 0;
    cursor.first()?;
    while cursor.entry().is_some() {
        count += 1;
        cursor.next()?;
    }
    Ok(count)
}
