//! Snapshots of a node's memory: state at a moment, by node and time.
//!
//! A snapshot is a head, which lists show, and parts, which are states as agents send them. They are written in one batch
//! and dropped by ranges, oldest first; they are in no segment, because nothing points to them. An older build of the same
//! schema leaves both tables alone.

use std::time::Duration;

use chainscope_proto::v1::MemoryState;
use prost::Message as _;

use crate::{
    Error,
    engine::{Batch, Engine, Snapshot},
    keys,
    meta::MemorySnapshot,
    verify::Report,
    view::{NodeView, Reader},
    writer::{Urgency, Writer},
};

/// Limits on the snapshots that are kept of a node; the first that is reached counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SnapshotLimits {
    /// Age of the oldest.
    pub age: Option<Duration>,
    /// Bytes of all, before compression. The newest one stays, however large it is.
    pub bytes: Option<u64>,
}

/// Writes a snapshot; one of the same moment is replaced.
pub(crate) fn put(
    writer: &mut Writer,
    engine: &dyn Engine,
    committed: &mut Vec<NodeView>,
    node: &str,
    head: MemorySnapshot,
    parts: &[MemoryState],
) -> Result<MemorySnapshot, Error> {
    let number = writer.number(node)?;
    // The node itself, if it is a new one, goes first. What else waits becomes readable a little early.
    writer.commit(engine, committed, Urgency::Normal)?;
    let mut batch = Batch::default();
    drop_range(&mut batch, number, head.time_ns, head.time_ns.saturating_add(1));
    let before = batch.len();
    for (part, state) in (0u32..).zip(parts) {
        batch.put_with(&keys::memory_part(number, head.time_ns, part), |out| {
            // Fails only where the buffer cannot grow.
            let encoded = state.encode(out);
            debug_assert!(encoded.is_ok());
        });
    }
    let bytes = (batch.len() - before) as u64;
    let head = MemorySnapshot { parts: u32::try_from(parts.len()).unwrap_or(u32::MAX), bytes, ..head };
    batch.put(&keys::moment(keys::MEMORY, number, head.time_ns), &head.encode_to_vec());
    writer.check_space(engine, batch.len())?;
    engine.write(&batch)?;
    Ok(head)
}

/// Drops what the limits no longer allow; gives how many snapshots that were.
pub(crate) fn evict(
    reader: &Reader<'_>,
    engine: &dyn Engine,
    limits: &SnapshotLimits,
    now_ns: i64,
) -> Result<u64, Error> {
    let kept = list(reader, i64::MIN, i64::MAX)?;
    let count = too_many(&kept, limits, now_ns);
    let Some(last) = count.checked_sub(1).and_then(|last| kept.get(last)) else { return Ok(0) };
    let mut batch = Batch::default();
    drop_range(&mut batch, reader.view.number, 0, last.time_ns.saturating_add(1));
    engine.write(&batch)?;
    Ok(count as u64)
}

/// How many of the oldest have to go.
fn too_many(kept: &[MemorySnapshot], limits: &SnapshotLimits, now_ns: i64) -> usize {
    let by_age = limits.age.map_or(0, |age| {
        let least = now_ns.saturating_sub(i64::try_from(age.as_nanos()).unwrap_or(i64::MAX));
        kept.iter().take_while(|head| head.time_ns < least).count()
    });
    let Some((_, older)) = kept.split_last() else { return 0 };
    let mut excess = kept.iter().map(|head| head.bytes).sum::<u64>().saturating_sub(limits.bytes.unwrap_or(u64::MAX));
    let by_bytes = older
        .iter()
        .take_while(|head| {
            let drop = excess > 0;
            excess = excess.saturating_sub(head.bytes);
            drop
        })
        .count();
    by_age.max(by_bytes)
}

fn drop_range(batch: &mut Batch, node: u32, from_ns: i64, to_ns: i64) {
    for table in [keys::MEMORY, keys::MEMORY_PART] {
        batch.delete_range(&keys::moment(table, node, from_ns)..&keys::moment(table, node, to_ns));
    }
}

/// Heads of a time (first included, last excluded), oldest first.
pub(crate) fn list(reader: &Reader<'_>, from_ns: i64, to_ns: i64) -> Result<Vec<MemorySnapshot>, Error> {
    let node = reader.view.number;
    let (from, to) = (keys::moment(keys::MEMORY, node, from_ns), keys::moment(keys::MEMORY, node, to_ns));
    let mut heads = Vec::new();
    if from >= to {
        return Ok(heads);
    }
    let mut cursor = reader.snapshot.cursor(&from..&to);
    cursor.first()?;
    while let Some((_, value)) = cursor.entry() {
        heads.push(decode_head(value, node)?);
        cursor.next()?;
    }
    Ok(heads)
}

/// The latest snapshot at or before a moment, with its parts.
pub(crate) fn at_or_before(
    reader: &Reader<'_>,
    time_ns: i64,
) -> Result<Option<(MemorySnapshot, Vec<MemoryState>)>, Error> {
    let node = reader.view.number;
    let start = keys::node(keys::MEMORY, node);
    let end = keys::after_prefix(&keys::moment(keys::MEMORY, node, time_ns));
    let Some((_, value)) = reader.snapshot.last(&start..&end)? else { return Ok(None) };
    let head = decode_head(&value, node)?;
    Ok(Some((head, parts(&*reader.snapshot, node, &head)?)))
}

fn parts(snapshot: &dyn Snapshot, node: u32, head: &MemorySnapshot) -> Result<Vec<MemoryState>, Error> {
    let (from, to) = (
        keys::moment(keys::MEMORY_PART, node, head.time_ns),
        keys::moment(keys::MEMORY_PART, node, head.time_ns.saturating_add(1)),
    );
    let mut parts = Vec::new();
    let mut cursor = snapshot.cursor(&from..&to);
    cursor.first()?;
    while let Some((_, value)) = cursor.entry() {
        let state = MemoryState::decode(value).map_err(|error| damaged("part of a memory snapshot", node, &error))?;
        parts.push(state);
        cursor.next()?;
    }
    Ok(parts)
}

/// Every head has its parts, and no part is without a head.
pub(crate) fn verify(reader: &Reader<'_>, report: &mut Report) -> Result<(), Error> {
    let node = reader.view.number;
    let mut count = 0;
    for head in list(reader, i64::MIN, i64::MAX)? {
        let found = parts(&*reader.snapshot, node, &head)?.len() as u64;
        count += found;
        if found != u64::from(head.parts) {
            let (name, time, parts) = (&reader.view.name, head.time_ns, head.parts);
            report.problem(format!("{name}: the memory snapshot of {time} has {found} parts, not {parts}"));
        }
    }
    let start = keys::node(keys::MEMORY_PART, node);
    let mut cursor = reader.snapshot.cursor(&start..&keys::after_prefix(&start));
    cursor.first()?;
    let mut all = 0;
    while cursor.entry().is_some() {
        all += 1;
        cursor.next()?;
    }
    if all != count {
        report.problem(format!("{}: {} parts of memory snapshots are without a head", reader.view.name, all - count));
    }
    Ok(())
}

fn decode_head(value: &[u8], node: u32) -> Result<MemorySnapshot, Error> {
    MemorySnapshot::decode(value).map_err(|error| damaged("memory snapshot", node, &error))
}

fn damaged(what: &str, node: u32, error: &prost::DecodeError) -> Error {
    Error::Corrupt(format!("a {what} of node number {node} cannot be read: {error}"))
}
