//! Eviction: whole segments are dropped, oldest first.
//!
//! An eviction publishes the views without the old segments, then deletes their keys by one range. The files that hold
//! nothing else are deleted at once, but only when no reader is left whose view still names the segments.

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use crate::{
    Error, Retention, keys,
    kind::RetentionClass,
    meta::SegmentMeta,
    node::{Node, segment_key},
    writer::{Expired, Urgency, Writer},
};

/// What an eviction dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Segments, of all nodes.
    pub segments: u64,
    /// Rows in them that count against [`Retention::rows`]: messages, log messages and events of tracepoints.
    pub rows: u64,
    /// Bytes in them, before compression.
    pub bytes: u64,
}

/// The oldest segments of a class that have to be evicted, of the node at a position.
pub(crate) struct Due {
    pub(crate) node: usize,
    pub(crate) class: RetentionClass,
    pub(crate) count: usize,
}

/// How many of the oldest segments are beyond the limits. One that is open always stays; by bytes and rows, so does the
/// last one.
pub(crate) fn excess(segments: &[Arc<SegmentMeta>], retention: &Retention, now_ns: i64) -> usize {
    let Some((_, older)) = segments.split_last() else { return 0 };
    let by_age = retention.age_ns().map_or(0, |age| {
        let limit = now_ns.saturating_sub(age);
        segments.iter().take_while(|segment| segment.closed_ns != 0 && segment.newest_ns() < limit).count()
    });
    let by_size = |limit: Option<u64>, size: fn(&SegmentMeta) -> u64| {
        let sum = segments.iter().map(|segment| size(segment)).sum::<u64>();
        let mut excess = sum.saturating_sub(limit.unwrap_or(u64::MAX));
        let is_excess = |segment: &&Arc<SegmentMeta>| {
            let drop = excess > 0;
            excess = excess.saturating_sub(size(segment));
            drop
        };
        older.iter().take_while(is_excess).count()
    };
    by_age.max(by_size(retention.rows, |segment| segment.rows)).max(by_size(retention.bytes, |segment| segment.bytes))
}

impl Node {
    /// How many of the oldest segments of a class are beyond its limits.
    fn excess(&self, class: RetentionClass, now_ns: i64) -> usize {
        excess(&self.segments[class as usize], &self.retention[class as usize], now_ns)
    }

    /// Whether the open segment has to close for its age.
    fn is_open_too_long(&self, class: RetentionClass, now_ns: i64) -> bool {
        let class = class as usize;
        self.segments[class].last().is_some_and(|open| {
            let open_for = now_ns.saturating_sub(open.opened_ns);
            let age = self.retention[class].age_ns();
            open.facts > 0 && age.is_some_and(|age| open_for > age / Retention::PARTS as i64)
        })
    }
}

impl Writer {
    /// Evicts the records that retention no longer allows, and forgets streams that ended long ago.
    pub(crate) fn evict(&mut self, now_ns: i64) -> Result<Evicted, Error> {
        let is_class_due = |node: &Node, class| node.is_open_too_long(class, now_ns) || node.excess(class, now_ns) > 0;
        let is_due = |node: &Node| RetentionClass::STREAMED.iter().any(|class| is_class_due(node, *class));
        self.commit_before_eviction(self.nodes.iter().any(is_due))?;
        let mut due = Vec::new();
        for (at, node) in self.nodes.iter_mut().enumerate() {
            node.forget_streams(now_ns, &mut self.staged);
            for class in RetentionClass::STREAMED {
                // An idle node's segment must close, too, for its rows to grow old.
                if node.is_open_too_long(class, now_ns) {
                    node.roll(class, now_ns, &mut self.staged);
                }
                due.push(Due { node: at, class, count: node.excess(class, now_ns) });
            }
        }
        self.evict_segments(&due)
    }

    /// Evicts the oldest segment of what takes the most bytes: the records, the log messages or the events of tracepoints of a node.
    pub(crate) fn evict_for_space(&mut self) -> Result<Evicted, Error> {
        self.commit_before_eviction(true)?;
        let now_ns = (self.options.clock)();
        let bytes = |node: &Node, class: RetentionClass| {
            node.segments[class as usize].iter().map(|segment| segment.bytes).sum::<u64>()
        };
        let all = (0..self.nodes.len()).flat_map(|at| RetentionClass::STREAMED.map(|class| (at, class)));
        let Some((at, class)) = all.max_by_key(|(at, class)| bytes(&self.nodes[*at], *class)) else {
            return Ok(Evicted::default());
        };
        let node = &mut self.nodes[at];
        match node.segments[class as usize].as_slice() {
            [only] if only.facts > 0 => node.roll(class, now_ns, &mut self.staged),
            [] | [_] => return Ok(Evicted::default()),
            _ => {}
        }
        self.evict_segments(&[Due { node: at, class, count: 1 }])
    }

    /// Evicts the memory snapshots of a node that the limits no longer allow.
    pub(crate) fn evict_snapshots(&mut self, node: &str, limits: Retention, now_ns: i64) -> Result<Evicted, Error> {
        let Some(at) = self.find(node) else { return Ok(Evicted::default()) };
        let class = RetentionClass::Snapshots;
        self.nodes[at].retention[class as usize] = limits;
        match self.nodes[at].excess(class, now_ns) {
            0 => Ok(Evicted::default()),
            count => {
                self.commit_before_eviction(true)?;
                self.evict_segments(&[Due { node: at, class, count }])
            }
        }
    }

    /// Commits what is staged before anything is evicted. On a full disk that takes the space of the ballast, which is not
    /// touched unless something is due to be evicted.
    fn commit_before_eviction(&mut self, is_due: bool) -> Result<(), Error> {
        match self.commit(Urgency::Normal) {
            Err(Error::DiskFull { .. }) if is_due => {
                tracing::warn!("the disk is full: the ballast file is deleted so that eviction can write");
                self.ballast.release()?;
                self.commit(Urgency::Eviction)
            }
            result => result,
        }
    }

    /// Evicts the oldest segments, and writes whatever else is staged.
    fn evict_segments(&mut self, due: &[Due]) -> Result<Evicted, Error> {
        let mut evicted = Evicted::default();
        let mut nodes = Vec::new();
        for due in due.iter().filter(|due| due.count > 0) {
            let segments: Vec<_> = self.nodes[due.node].segments[due.class as usize].drain(..due.count).collect();
            evicted.add(&segments);
            nodes.push((due.node, segments));
        }
        self.stage_eviction(nodes);
        self.commit(Urgency::Eviction)?;
        self.reclaim()?;
        let spare = self.options.min_free_bytes;
        let free = self.engine.free_bytes()?;
        self.full &= free < spare;
        self.ballast.restore(free, spare)?;
        Ok(evicted)
    }

    /// Evicts one segment of the node at a position.
    pub(crate) fn evict_segment(&mut self, node: usize, class: RetentionClass, segment: usize) -> Result<(), Error> {
        let segment = self.nodes[node].segments[class as usize].remove(segment);
        self.stage_eviction(vec![(node, vec![segment])]);
        self.commit(Urgency::Eviction)
    }

    /// Publishes nodes without segments that they no longer list, and stages the deletion of these.
    fn stage_eviction(&mut self, evicted: Vec<(usize, Vec<Arc<SegmentMeta>>)>) {
        let mut ranges = Vec::new();
        let mut views = Vec::new();
        for (at, segments) in evicted {
            let node = &mut self.nodes[at];
            node.changed = true;
            for segment in &segments {
                self.staged.delete(&segment_key(node.number, segment.number));
                let totals = &mut node.meta.totals;
                let evicted = match segment.class {
                    class if class == RetentionClass::Logs as u32 => &mut totals.evicted_log_messages,
                    class if class == RetentionClass::Traces as u32 => &mut totals.evicted_trace_events,
                    // Messages: the only kind of their class that is counted.
                    _ => &mut totals.evicted_rows,
                };
                *evicted += segment.rows;
            }
            let live: BTreeSet<u32> = node.segments.iter().flatten().map(|segment| segment.number).collect();
            let numbers = segments.iter().map(|segment| segment.number);
            for numbers in gaps(&live, numbers, node.meta.next_segment) {
                let range = keys::segments(node.number, numbers);
                self.staged.delete_range(&range.start..&range.end);
                ranges.push(range.start.to_vec()..range.end.to_vec());
            }
            views.push(node.view());
        }
        if !views.is_empty() {
            let epoch = self.publish_epoch(views);
            self.expired.push(Expired { epoch, ranges });
        }
    }

    /// Reclaims the space of every epoch that has no reader left.
    ///
    /// What shares a file with newer keys, or was written so lately that compaction has not sorted it in yet, is left to
    /// the engine's compactions. They are not forced: a forced one waits for free space without end.
    fn reclaim(&mut self) -> Result<(), Error> {
        // Epochs end in order: a reader of an older one still needs what a later eviction dropped.
        while self.expired.first().is_some_and(|first| Arc::strong_count(&first.epoch) == 1) {
            let expired = self.expired.remove(0);
            if let Some(disk) = self.engine.disk() {
                disk.reclaim(&expired.ranges)?;
            }
        }
        Ok(())
    }
}

impl Evicted {
    fn add(&mut self, segments: &[Arc<SegmentMeta>]) {
        for segment in segments {
            self.segments += 1;
            self.rows += segment.rows;
            self.bytes += segment.bytes;
        }
    }
}

/// The ranges of numbers between live segments in which a dead one lies: mostly a single one, from the first number on.
fn gaps(live: &BTreeSet<u32>, dead: impl Iterator<Item = u32>, next: u32) -> Vec<Range<u32>> {
    let mut gaps: Vec<Range<u32>> = Vec::new();
    for number in dead {
        let start = live.range(..number).next_back().map_or(1, |before| before + 1);
        let end = live.range(number..).next().copied().unwrap_or(next);
        if gaps.last() != Some(&(start..end)) {
            gaps.push(start..end);
        }
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "the result is a list of ranges")]
    fn evicted_segments_are_one_range_where_no_live_one_lies_between() {
        let gaps = |live: &[u32], dead: &[u32]| gaps(&live.iter().copied().collect(), dead.iter().copied(), 20);
        assert_eq!(gaps(&[7, 9], &[3, 4, 6]), [1..7]);
        assert_eq!(gaps(&[5, 7, 9], &[3, 4, 6, 8]), [1..5, 6..7, 8..9]);
        assert_eq!(gaps(&[5], &[12]), [6..20]);
        assert_eq!(gaps(&[], &[2]), [1..20]);
        assert_eq!(gaps(&[2], &[]), []);
    }
}
