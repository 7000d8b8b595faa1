//! Retention: whole segments go, oldest first.
//!
//! An eviction publishes the views without the old segments, then deletes their keys by one range a table. The files
//! that hold nothing else are given back at once, but only when no reader is left whose view still names the segments.

use std::{ops::Range, sync::Arc};

use crate::{
    Error, Retention,
    engine::{Batch, Engine},
    keys,
    meta::SegmentMeta,
    node::Node,
    view::{NodeView, Views},
    writer::{Urgency, Writer},
};

/// What an eviction dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Segments, of all nodes.
    pub segments: u64,
    /// Messages in them.
    pub rows: u64,
    /// Bytes in them, before compression.
    pub bytes: u64,
}

/// Key ranges whose space can be given back when an era is over.
pub(crate) struct Expired {
    era: Arc<()>,
    ranges: Vec<Range<Vec<u8>>>,
}

/// How many of the oldest segments a node has to let go. The last one, which is open, always stays.
pub(crate) fn too_many(segments: &[SegmentMeta], retention: &Retention, now_ns: i64) -> usize {
    let Some((_, closed)) = segments.split_last() else { return 0 };
    let by_age = retention.age_ns().map_or(0, |age| {
        let limit = now_ns.saturating_sub(age);
        // A clock that was wrong may have left times in the future: no record is newer than its segment's end.
        let newest = |segment: &SegmentMeta| match segment.facts {
            0 => segment.closed_ns,
            _ => segment.greatest_ns.min(segment.closed_ns),
        };
        closed.iter().take_while(|segment| newest(segment) < limit).count()
    });
    let by_size = |limit: Option<u64>, size: fn(&SegmentMeta) -> u64| {
        let mut excess = segments.iter().map(size).sum::<u64>().saturating_sub(limit.unwrap_or(u64::MAX));
        closed
            .iter()
            .take_while(|segment| {
                let drop = excess > 0;
                excess = excess.saturating_sub(size(segment));
                drop
            })
            .count()
    };
    by_age.max(by_size(retention.rows, |segment| segment.rows)).max(by_size(retention.bytes, |segment| segment.bytes))
}

/// Whether the open segment has to close for its age.
fn ages(node: &Node, now_ns: i64) -> bool {
    node.segments.last().is_some_and(|open| {
        let open_for = now_ns.saturating_sub(open.opened_ns);
        open.facts > 0 && node.retention.age_ns().is_some_and(|age| open_for > age / Retention::PARTS as i64)
    })
}

/// Drops what retention no longer allows.
pub(crate) fn by_retention(
    writer: &mut Writer,
    engine: &dyn Engine,
    views: &Views,
    expired: &mut Vec<Expired>,
    now_ns: i64,
) -> Result<Evicted, Error> {
    let due =
        writer.nodes.iter().any(|node| ages(node, now_ns) || too_many(&node.segments, &node.retention, now_ns) > 0);
    settle(writer, engine, views, due)?;
    let (nodes, staged) = writer.parts();
    let mut plan = Vec::new();
    for (at, node) in nodes.iter_mut().enumerate() {
        // An idle node's segment must close, too, for its rows to grow old.
        if ages(node, now_ns) {
            node.roll(now_ns, staged);
        }
        let count = too_many(&node.segments, &node.retention, now_ns);
        if count > 0 {
            plan.push((at, count));
        }
    }
    drop_segments(writer, engine, views, expired, &plan)
}

/// Drops the oldest segment of the node that takes the most bytes.
pub(crate) fn to_make_room(
    writer: &mut Writer,
    engine: &dyn Engine,
    views: &Views,
    expired: &mut Vec<Expired>,
) -> Result<Evicted, Error> {
    settle(writer, engine, views, true)?;
    let now_ns = (writer.options.clock)();
    let (nodes, staged) = writer.parts();
    let bytes = |node: &Node| node.segments.iter().map(|segment| segment.bytes).sum::<u64>();
    let Some((at, node)) = nodes.iter_mut().enumerate().max_by_key(|(_, node)| bytes(node)) else {
        return Ok(Evicted::default());
    };
    match node.segments.as_slice() {
        [only] if only.facts > 0 => node.roll(now_ns, staged),
        [] | [_] => return Ok(Evicted::default()),
        _ => {}
    }
    drop_segments(writer, engine, views, expired, &[(at, 1)])
}

/// Commits what is staged before anything is dropped. On a full disk that takes the space kept aside, which is not
/// touched unless something is `due` to be dropped.
fn settle(writer: &mut Writer, engine: &dyn Engine, views: &Views, due: bool) -> Result<(), Error> {
    let mut committed = Vec::new();
    let mut result = writer.commit(engine, &mut committed, Urgency::Normal);
    if let Err(Error::DiskFull { .. }) = result
        && due
    {
        tracing::warn!("the disk is full: the ballast file is deleted so that eviction can write");
        writer.ballast.release()?;
        result = writer.commit(engine, &mut committed, Urgency::Eviction);
    }
    views.publish(committed);
    result
}

fn drop_segments(
    writer: &mut Writer,
    engine: &dyn Engine,
    views: &Views,
    expired: &mut Vec<Expired>,
    plan: &[(usize, usize)],
) -> Result<Evicted, Error> {
    let mut evicted = Evicted::default();
    if !plan.is_empty() {
        let (nodes, staged) = writer.parts();
        let mut ranges = Vec::new();
        let mut moved: Vec<NodeView> = Vec::new();
        for &(at, count) in plan {
            let Some(node) = nodes.get_mut(at) else { continue };
            stage_drop(node, count, staged, &mut evicted, &mut ranges);
            moved.push(node.view());
        }
        let era = views.publish_era(moved);
        expired.push(Expired { era, ranges });
    }
    // Also what closing segments staged.
    let mut committed = Vec::new();
    let result = writer.commit(engine, &mut committed, Urgency::Eviction);
    views.publish(committed);
    result?;
    reclaim(engine, expired)?;
    let spare = writer.options.min_free_bytes;
    let free = engine.free_bytes()?;
    writer.full &= free < spare;
    writer.ballast.restore(free, spare)?;
    Ok(evicted)
}

fn stage_drop(
    node: &mut Node,
    count: usize,
    staged: &mut Batch,
    evicted: &mut Evicted,
    ranges: &mut Vec<Range<Vec<u8>>>,
) {
    node.changed = true;
    for segment in node.segments.drain(..count) {
        evicted.segments += 1;
        evicted.rows += segment.rows;
        evicted.bytes += segment.bytes;
        node.meta.totals.evicted_rows += segment.rows;
        let mut key = keys::node(keys::SEGMENT, node.number).to_vec();
        key.extend_from_slice(&segment.number.to_be_bytes());
        staged.delete(&key);
    }
    // From the very first segment on: files given back may have held the deletion of older keys in files that were
    // not.
    for table in keys::SEGMENTED {
        let range = keys::segment(table, node.number, 0)..keys::segment(table, node.number, node.oldest());
        staged.delete_range(&range.start..&range.end);
        ranges.push(range.start.to_vec()..range.end.to_vec());
    }
}

/// Gives back the space of every era that nobody reads any more.
///
/// What shares a file with newer keys, or was written so lately that it is not sorted in yet, is left to the engine's
/// compactions. They are not forced: a forced one waits for free space for ever.
fn reclaim(engine: &dyn Engine, expired: &mut Vec<Expired>) -> Result<(), Error> {
    // Eras end in order: a reader of an older one still needs what a later eviction dropped.
    while expired.first().is_some_and(|first| Arc::strong_count(&first.era) == 1) {
        let ranges = expired.remove(0).ranges;
        if let Some(disk) = engine.disk() {
            disk.reclaim(&ranges)?;
        }
    }
    Ok(())
}
