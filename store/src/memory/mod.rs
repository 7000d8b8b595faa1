//! Snapshots of a node's memory: state at a moment, by node and time.
//!
//! A snapshot is a head, which lists show, and parts, which are states as agents send them. It is a segment of its own,
//! closed from the beginning, so that it is evicted as segments of records are.

use std::{sync::Arc, time::Duration};

use chainscope_proto::v1::MemoryState;
use prost::Message as _;

use crate::{
    Error, Retention,
    engine::Batch,
    keys,
    kind::{RetentionClass, encode},
    meta::{MemorySnapshot, SegmentMeta},
    node::stage_segment,
    report::Report,
    view::Reader,
    writer::{Urgency, Writer},
};

/// The table of the head.
pub(crate) const HEAD: u8 = 96;
/// The table of the parts.
const PARTS: u8 = 97;

/// Limits on the snapshots that are kept of a node; the first that is reached counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SnapshotLimits {
    /// Age of the oldest.
    pub age: Option<Duration>,
    /// Bytes of all, before compression. The newest one stays, however large it is.
    pub bytes: Option<u64>,
}

impl From<SnapshotLimits> for Retention {
    fn from(limits: SnapshotLimits) -> Self {
        Self { rows: None, bytes: limits.bytes, age: limits.age }
    }
}

fn part_key(node: u32, segment: u32, part: u32) -> Vec<u8> {
    let mut key = keys::table(node, segment, PARTS).to_vec();
    key.extend_from_slice(&part.to_be_bytes());
    key
}

/// Writes a snapshot; one of the same moment is replaced. If it fails, nothing is written.
pub(crate) fn put(
    writer: &mut Writer,
    node: &str,
    head: MemorySnapshot,
    parts: &[MemoryState],
) -> Result<MemorySnapshot, Error> {
    // The node itself, if it is a new one, goes first. What else is staged becomes readable a little early.
    let at = writer.find_or_add(node)?;
    writer.commit(Urgency::Normal)?;
    let (number, segment) = (writer.nodes[at].number, writer.nodes[at].meta.next_segment);
    let mut batch = Batch::default();
    for (part, state) in (0u32..).zip(parts) {
        batch.put_with(&part_key(number, segment, part), |out| encode(state, out));
    }
    let bytes = batch.len() as u64;
    let head = MemorySnapshot { parts: u32::try_from(parts.len()).unwrap_or(u32::MAX), bytes, ..head };
    batch.put_with(&keys::table(number, segment, HEAD), |out| encode(&head, out));
    let now_ns = (writer.options.clock)().max(1);
    let meta = SegmentMeta {
        number: segment,
        class: RetentionClass::Snapshots as u32,
        bytes,
        facts: 1,
        least_ns: head.time_ns,
        greatest_ns: head.time_ns,
        opened_ns: now_ns,
        closed_ns: now_ns,
        ..SegmentMeta::default()
    };
    stage_segment(&mut batch, number, &meta);
    let mut node_meta = writer.nodes[at].meta.clone();
    node_meta.next_segment += 1;
    batch.put_with(&keys::state(number, keys::NODE, &[]), |out| encode(&node_meta, out));
    writer.check_space(batch.len())?;
    writer.engine.write(&batch)?;

    let node = &mut writer.nodes[at];
    node.take_segment_number();
    let segments = &mut node.segments[RetentionClass::Snapshots as usize];
    let replaced = segments.iter().position(|segment| segment.least_ns == head.time_ns);
    segments.push(Arc::new(meta));
    match replaced {
        Some(replaced) => writer.evict_segment(at, RetentionClass::Snapshots, replaced)?,
        None => writer.publish(vec![writer.nodes[at].view()]),
    }
    Ok(head)
}

/// Heads of a time (first included, last excluded), oldest first.
pub(crate) fn list(reader: &Reader<'_>, from_ns: i64, to_ns: i64) -> Result<Vec<MemorySnapshot>, Error> {
    let snapshots = reader.view.segments(RetentionClass::Snapshots).iter();
    let mut found: Vec<_> = snapshots.filter(|segment| (from_ns..to_ns).contains(&segment.least_ns)).collect();
    // A clock that was set back leaves snapshots out of order; keys are read in order.
    found.sort_by_key(|segment| segment.number);
    let keys: Vec<_> =
        found.iter().map(|segment| keys::table(reader.view.number, segment.number, HEAD).to_vec()).collect();
    let values = reader.snapshot.get_many(&keys)?;
    let heads = found.iter().zip(values).map(|(segment, value)| decode_head(value, reader, segment));
    let mut heads = heads.collect::<Result<Vec<_>, _>>()?;
    heads.sort_by_key(|head| head.time_ns);
    Ok(heads)
}

/// The latest snapshot at or before a moment, with its parts.
pub(crate) fn at_or_before(
    reader: &Reader<'_>,
    time_ns: i64,
) -> Result<Option<(MemorySnapshot, Vec<MemoryState>)>, Error> {
    let snapshots = reader.view.segments(RetentionClass::Snapshots).iter();
    let Some(segment) = snapshots.filter(|segment| segment.least_ns <= time_ns).max_by_key(|segment| segment.least_ns)
    else {
        return Ok(None);
    };
    let value = reader.snapshot.get(&keys::table(reader.view.number, segment.number, HEAD))?;
    Ok(Some((decode_head(value, reader, segment)?, parts(reader, segment)?)))
}

fn parts(reader: &Reader<'_>, segment: &SegmentMeta) -> Result<Vec<MemoryState>, Error> {
    let range = keys::table_range(reader.view.number, segment.number, PARTS);
    let mut parts = Vec::new();
    let mut cursor = reader.snapshot.cursor(&range.start..&range.end);
    cursor.first()?;
    while let Some((_, value)) = cursor.entry() {
        parts.push(MemoryState::decode(value).map_err(|_| damaged("part", reader, segment))?);
        cursor.next()?;
    }
    Ok(parts)
}

/// Every snapshot has its head and its parts.
pub(crate) fn verify(reader: &Reader<'_>, report: &mut Report) -> Result<(), Error> {
    let (name, node) = (&reader.view.name, reader.view.number);
    for segment in reader.view.segments(RetentionClass::Snapshots) {
        let found = parts(reader, segment)?.len();
        let head = reader.snapshot.get(&keys::table(node, segment.number, HEAD))?;
        let Some(head) = head.and_then(|value| MemorySnapshot::decode(&*value).ok()) else {
            report.problem(format!("{name}: {found} parts of memory snapshots are without a head"));
            continue;
        };
        if found as u64 != u64::from(head.parts) {
            let (time, parts) = (head.time_ns, head.parts);
            report.problem(format!("{name}: the memory snapshot of {time} has {found} parts, not {parts}"));
        }
    }
    Ok(())
}

fn decode_head(value: Option<Vec<u8>>, reader: &Reader<'_>, segment: &SegmentMeta) -> Result<MemorySnapshot, Error> {
    let head = value.and_then(|value| MemorySnapshot::decode(&*value).ok());
    head.ok_or_else(|| damaged("head", reader, segment))
}

fn damaged(what: &str, reader: &Reader<'_>, segment: &SegmentMeta) -> Error {
    let (node, number) = (reader.view.number, segment.number);
    Error::Corrupt(format!(
        "the {what} of the memory snapshot in segment {number} of node number {node} cannot be read"
    ))
}
