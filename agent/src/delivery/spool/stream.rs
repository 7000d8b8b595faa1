//! The spooled stream of one node: its segments, and what is appended, acknowledged and dropped. [`super::reading`] takes
//! batches from it.

use std::{collections::VecDeque, fs, io, os::unix::fs::FileExt as _, path::PathBuf, sync::Arc};

use chainscope_proto::v1::Record;

use super::{
    files::{self, SegmentName},
    format::{self, ENTRY_HEADER_BYTES, Header},
    recover,
    segment::{ActiveFile, PendingSync, Segment},
    summary::RecordSummary,
};
use crate::delivery::stream::Dropped;

/// Where the next batch of this session begins.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cursor {
    pub(super) sequence: u64,
    /// Ordinal of the segment and offset in its file; none if it is not known yet, or before the first segment.
    pub(super) position: Option<(u64, u64)>,
}

#[derive(Debug)]
pub(super) struct SpooledStream {
    pub(super) node: String,
    pub(super) dir: PathBuf,
    pub(super) segments: VecDeque<Segment>,
    /// File of the last segment while it is appended to.
    pub(super) active: Option<ActiveFile>,
    next_ordinal: u64,
    /// Sequence of the first record that is not acknowledged; none if only the aggregator knows it.
    pub(super) base: Option<u64>,
    pub(super) cursor: Cursor,
    /// Losses that are written before the next record.
    pending_losses: RecordSummary,
    dropped: Dropped,
}

impl SpooledStream {
    /// Opens the stream in its directory, which is repaired. `is_new`: the epoch never had this stream.
    pub(super) fn open(node: String, dir: PathBuf, is_new: bool, now_ns: i64) -> io::Result<Self> {
        let recovered = recover::recover(&dir, now_ns)?;
        let first = recovered.segments.front().and_then(|segment| segment.name.first);
        let base = first.or_else(|| (is_new && recovered.segments.is_empty()).then_some(0));
        let next_ordinal = recovered.segments.back().map_or(0, |segment| segment.last_ordinal + 1);
        let mut stream = Self {
            node,
            dir,
            segments: recovered.segments,
            active: None,
            next_ordinal,
            base,
            cursor: Cursor::default(),
            pending_losses: recovered.losses,
            dropped: Dropped::default(),
        };
        stream.seek(base.unwrap_or(0));
        Ok(stream)
    }

    /// Bytes on disk.
    pub(super) fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.length).sum()
    }

    pub(super) fn base(&self) -> Option<u64> {
        self.base
    }

    /// Whether everything is acknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.pending_losses.is_empty() && self.pending() == 0
    }

    /// Records that are not acknowledged.
    pub(super) fn pending(&self) -> u64 {
        let written: u64 = self.segments.iter().map(|segment| segment.records).sum();
        let first = self.segments.front().and_then(|segment| segment.name.first);
        written - first.zip(self.base).map_or(0, |(first, base)| base.saturating_sub(first))
    }

    pub(super) fn dropped(&self) -> Dropped {
        self.dropped
    }

    pub(super) fn next_sequence(&self) -> Option<u64> {
        Some(self.base? + self.pending())
    }

    /// Time of the oldest record that is not acknowledged, or of another one in its segment.
    pub(super) fn oldest_ns(&self) -> Option<i64> {
        let base = self.base.unwrap_or(0);
        let mut unacknowledged = self.segments.iter().skip_while(|segment| segment.is_before(base));
        unacknowledged.find_map(|segment| segment.summary.earliest_ns())
    }

    /// Time of the earliest loss that is not written yet.
    pub(super) fn pending_loss_ns(&self) -> Option<i64> {
        self.pending_losses.earliest_ns()
    }

    /// Writes the pending losses and records at the end. They may be sent once they are synced. After an error none of
    /// them is in the stream.
    pub(super) fn append(&mut self, records: &[Record], segment_bytes: u64) -> io::Result<()> {
        let is_full =
            self.segments.back().is_none_or(|last| last.length >= segment_bytes && last.synced_length == last.length);
        if self.active.is_none() || is_full {
            self.begin_segment()?;
        }
        let (Some(active), Some(segment)) = (&mut self.active, self.segments.back_mut()) else { return Ok(()) };
        let losses = self.pending_losses.losses();
        let mut bytes = Vec::new();
        let mut summary = RecordSummary::default();
        for record in losses.iter().chain(records) {
            let before = bytes.len();
            format::put(&mut bytes, segment.name.ordinal, segment.length, record);
            summary.add(record, bytes.len() - before - ENTRY_HEADER_BYTES);
        }
        if let Err(error) = active.file.write_all_at(&bytes, segment.length) {
            // If this fails too: bytes after the end are overwritten, or cut off when the stream is opened.
            let _ = active.file.set_len(segment.length);
            return Err(error);
        }
        segment.records += (losses.len() + records.len()) as u64;
        segment.length += bytes.len() as u64;
        active.unsynced.merge(summary);
        self.pending_losses = RecordSummary::default();
        Ok(())
    }

    fn begin_segment(&mut self) -> io::Result<()> {
        let name = SegmentName { ordinal: self.next_ordinal, first: None };
        let file = files::create(&self.dir, name)?;
        self.next_ordinal += 1;
        self.active = Some(ActiveFile { file: Arc::new(file), is_new: true, unsynced: RecordSummary::default() });
        self.segments.push_back(Segment::empty(name));
        // The previous segment is not the active one any more: it is removed if all of it is acknowledged.
        if let Some(base) = self.base {
            self.remove_acknowledged(base);
        }
        Ok(())
    }

    /// Syncs and closes the active file, unless it has no records: records after an empty closed segment would never be
    /// sent.
    pub(super) fn seal(&mut self) -> io::Result<()> {
        if let Some(sync) = self.unsynced() {
            sync.run()?;
        }
        self.finish_sync(true);
        if self.segments.back().is_some_and(|segment| segment.records > 0) {
            self.active = None;
        }
        Ok(())
    }

    /// Counts records that could not be written as dropped.
    pub(super) fn drop_records(&mut self, records: &[Record], reason: &str) {
        let mut summary = RecordSummary::default();
        for record in records {
            summary.add(record, prost::Message::encoded_len(record));
        }
        self.add_loss(summary, reason);
    }

    /// Adds a loss for each fact and each loss of the summary, to be written before the next record.
    pub(super) fn add_loss(&mut self, summary: RecordSummary, reason: &str) {
        let (facts, bytes) = summary.facts();
        self.dropped.records += facts;
        self.dropped.bytes += bytes;
        self.pending_losses.merge(summary.dropped(reason));
    }

    /// The sync that the appended records need, if any.
    pub(super) fn unsynced(&self) -> Option<PendingSync> {
        let (active, segment) = (self.active.as_ref()?, self.segments.back()?);
        let dir = active.is_new.then(|| self.dir.clone());
        (segment.synced_length < segment.length).then(|| PendingSync { file: Arc::clone(&active.file), dir })
    }

    /// Ends a sync of everything that was written. If it failed the records are cut off and become a loss.
    pub(super) fn finish_sync(&mut self, is_synced: bool) {
        let (Some(active), Some(segment)) = (&mut self.active, self.segments.back_mut()) else { return };
        let unsynced = std::mem::take(&mut active.unsynced);
        if is_synced {
            active.is_new = false;
            segment.summary.merge(unsynced);
            (segment.synced_records, segment.synced_length) = (segment.records, segment.length);
            return;
        }
        let _ = active.file.set_len(segment.synced_length);
        (segment.records, segment.length) = (segment.synced_records, segment.synced_length);
        self.add_loss(unsynced, "write error");
    }

    /// Removes the records before `next`. The error is the sequence that would be sent next.
    pub(super) fn acknowledge(&mut self, next: u64) -> Result<(), u64> {
        if next > self.cursor.sequence {
            return Err(self.cursor.sequence);
        }
        if self.base.is_some_and(|base| next > base) {
            self.remove_acknowledged(next);
        }
        Ok(())
    }

    /// Removes the segments before sequence `next`, except the active one.
    fn remove_acknowledged(&mut self, next: u64) {
        self.base = Some(next);
        while let Some(segment) = self.segments.front() {
            let is_active = self.active.is_some() && self.segments.len() == 1;
            if !segment.is_before(next) || is_active {
                return;
            }
            if let Err(error) = fs::remove_file(segment.name.path(&self.dir)) {
                // It is sent again after a restart, and recognised by the aggregator.
                chainscope_hygiene::warn_limited!(node = %self.node, %error, "a delivered segment of the spool cannot be removed");
            }
            self.segments.pop_front();
        }
    }

    /// Closes the active segment if all records are acknowledged, so that the stream takes no space: no more records of
    /// the node are expected.
    pub(super) fn release(&mut self) {
        let Some(base) = self.base.filter(|_| self.active.is_some()) else { return };
        if self.segments.iter().all(|segment| segment.is_before(base)) {
            // All records were sent, so all are synced.
            self.active = None;
            self.remove_acknowledged(base);
        }
    }

    /// Starts a session at the aggregator's high-water mark. Returns true if the mark is outside of this stream.
    pub(super) fn restart(&mut self, mark: u64) -> io::Result<bool> {
        let sent = self.segments.iter().rev().find_map(Segment::end);
        let is_outside = match (self.base, sent) {
            (Some(base), _) if mark < base => {
                self.renumber(base, mark)?;
                true
            }
            // More than was sent is durable: a copy of this directory is in use, or a disk lost synced data.
            (Some(base), sent) if mark > sent.unwrap_or(base) => {
                self.seal()?;
                true
            }
            _ => false,
        };
        if self.base.is_none_or(|base| mark > base) {
            self.remove_acknowledged(mark);
        }
        self.seek(mark);
        Ok(is_outside)
    }

    /// Renumbers the segments that may have been sent from the mark of an aggregator that lost its database.
    fn renumber(&mut self, base: u64, mark: u64) -> io::Result<()> {
        let Some(first) = self.segments.front().and_then(|segment| segment.name.first) else {
            self.base = Some(mark);
            return Ok(());
        };
        // The acknowledged records at the start of the first segment stay before the mark, or are sent once more.
        let acknowledged = base.saturating_sub(first);
        let start = mark.checked_sub(acknowledged).unwrap_or(mark);
        recover::renumber(&self.dir, &mut self.segments, start)?;
        self.base = Some(mark);
        Ok(())
    }

    /// Replaces the oldest segments that were never sent, at least `wanted` bytes of them, by one of losses. Returns the
    /// number of bytes that became free.
    pub(super) fn drop_oldest(&mut self, wanted: u64) -> io::Result<u64> {
        let begin = self.segments.iter().take_while(|segment| segment.name.first.is_some()).count();
        let end = self.segments.len() - usize::from(self.active.is_some());
        let mut summary = RecordSummary::default();
        let (mut freed, mut count, mut has_facts) = (0, 0, false);
        for segment in self.segments.iter().skip(begin).take(end.saturating_sub(begin)) {
            freed += segment.length;
            count += 1;
            has_facts |= !segment.summary.is_losses_only(segment.records);
            summary.merge(segment.summary.clone());
            if freed >= wanted && has_facts {
                break;
            }
        }
        let (Some(head), Some(tail)) = (self.segments.get(begin), self.segments.get((begin + count).saturating_sub(1)))
        else {
            return Ok(0);
        };
        if !has_facts {
            return Ok(0);
        }
        let (facts, bytes) = summary.facts();
        let (name, last) = (head.name, tail.last_ordinal);
        let summary = summary.dropped("spool full");
        let losses = summary.losses();
        let mut length = 0;
        // There are none if the segments had only states.
        if !losses.is_empty() {
            length = files::rewrite(&self.dir, name, Header { ordinal: name.ordinal, last }, &[], &losses)?;
        }
        for (index, segment) in self.segments.drain(begin..begin + count).enumerate() {
            if index > 0 || losses.is_empty() {
                // If it cannot be removed: the header of the new segment says that it is replaced; without losses its
                // states are sent.
                let _ = fs::remove_file(segment.name.path(&self.dir));
            }
        }
        if !losses.is_empty() {
            self.segments.insert(begin, Segment::synced(name, last, losses.len() as u64, length, summary));
        }
        self.dropped.records += facts;
        self.dropped.bytes += bytes;
        Ok(freed.saturating_sub(length))
    }

    #[cfg(test)]
    pub(super) fn dir(&self) -> &std::path::Path {
        &self.dir
    }

    /// Path, synced length and length of the last segment.
    #[cfg(test)]
    pub(super) fn tail(&self) -> Option<(PathBuf, u64, u64)> {
        let segment = self.segments.back()?;
        Some((segment.name.path(&self.dir), segment.synced_length, segment.length))
    }

    #[cfg(test)]
    pub(super) fn written(&self) -> u64 {
        self.segments.iter().map(|segment| segment.records).sum()
    }
}
