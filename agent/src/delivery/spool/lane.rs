//! The segments of one node.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    path::PathBuf,
    sync::Arc,
};

use chainscope_proto::v1::Record;

use super::{
    content::Content,
    files::{self, Name},
    recover,
    segment::{self, ENTRY, HEADER, Header},
};
use crate::delivery::lanes::Dropped;

/// One segment as it is known without reading it.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) name: Name,
    /// Ordinal of the last one that it stands for.
    pub(super) last: u64,
    /// Records and bytes that were written.
    pub(super) records: u64,
    pub(super) length: u64,
    /// … and of these, what is synced.
    pub(super) synced_records: u64,
    pub(super) synced_length: u64,
    pub(super) content: Content,
}

/// The last segment while it is being written.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) file: Arc<File>,
    /// The folder does not know it for certain.
    is_new: bool,
    /// What was written since the last sync.
    unsynced: Content,
}

/// What is to be synced of a lane: done without the lock.
#[derive(Debug)]
pub(crate) struct Unsynced {
    file: Arc<File>,
    dir: Option<PathBuf>,
}

impl Unsynced {
    pub(crate) fn run(&self) -> io::Result<()> {
        self.file.sync_data()?;
        self.dir.as_deref().map_or(Ok(()), files::sync_dir)
    }
}

/// Where the next batch of this stream begins.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cursor {
    pub(super) sequence: u64,
    /// Segment and place in it; none before the first segment.
    pub(super) place: Option<(u64, u64)>,
}

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) node: String,
    pub(super) dir: PathBuf,
    pub(super) segments: VecDeque<Segment>,
    pub(super) active: Option<Active>,
    next_ordinal: u64,
    /// Sequence of the first record that is not acknowledged; none if only the aggregator knows.
    pub(super) base: Option<u64>,
    pub(super) cursor: Cursor,
    /// Losses that are told before the next record.
    owed: Content,
    dropped: Dropped,
}

impl Lane {
    /// A lane that has its folder; what is in it is brought in order.
    pub(super) fn open(node: String, dir: PathBuf, is_new: bool, now_ns: i64) -> io::Result<Self> {
        let recovered = recover::recover(&dir, now_ns)?;
        let first = recovered.segments.front().and_then(|segment| segment.name.first);
        let base = first.or_else(|| (is_new && recovered.segments.is_empty()).then_some(0));
        let next_ordinal = recovered.segments.back().map_or(0, |segment| segment.last + 1);
        let mut lane = Self {
            node,
            dir,
            segments: recovered.segments,
            active: None,
            next_ordinal,
            base,
            cursor: Cursor::default(),
            owed: recovered.owed,
            dropped: Dropped::default(),
        };
        lane.seek(base.unwrap_or(0));
        Ok(lane)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.length).sum()
    }

    pub(super) fn base(&self) -> Option<u64> {
        self.base
    }

    /// Everything is acknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.owed.is_empty() && self.pending() == 0
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

    /// Time of the oldest record that is not acknowledged, or of one in the same segment.
    pub(super) fn oldest_ns(&self) -> Option<i64> {
        let base = self.base.unwrap_or(0);
        let is_over = |segment: &&Segment| segment.name.first.is_some_and(|first| first + segment.records <= base);
        self.segments.iter().skip_while(is_over).find_map(|segment| segment.content.earliest_ns())
    }

    /// Time of the earliest loss that is not written yet.
    pub(super) fn owed_ns(&self) -> Option<i64> {
        self.owed.earliest_ns()
    }

    /// Writes records at the end; they count once they are synced. On an error nothing of them is there.
    pub(super) fn append(&mut self, records: &[Record], segment_bytes: u64) -> io::Result<()> {
        let is_full =
            self.segments.back().is_none_or(|last| last.length >= segment_bytes && last.synced_length == last.length);
        if self.active.is_none() || is_full {
            self.begin_segment()?;
        }
        let (Some(active), Some(segment)) = (&mut self.active, self.segments.back_mut()) else { return Ok(()) };
        let owed = self.owed.losses();
        let mut bytes = Vec::new();
        let mut content = Content::default();
        for record in owed.iter().chain(records) {
            let before = bytes.len();
            segment::put(&mut bytes, segment.name.ordinal, segment.length, record);
            content.add(record, bytes.len() - before - ENTRY);
        }
        if let Err(error) = active.file.write_all_at(&bytes, segment.length) {
            // What is left of it behind the end is overwritten, or cut when the lane is opened.
            let _ = active.file.set_len(segment.length);
            return Err(error);
        }
        segment.records += (owed.len() + records.len()) as u64;
        segment.length += bytes.len() as u64;
        active.unsynced.merge(content);
        self.owed = Content::default();
        Ok(())
    }

    fn begin_segment(&mut self) -> io::Result<()> {
        let name = Name { ordinal: self.next_ordinal, first: None };
        let file = files::create(&self.dir, name)?;
        self.next_ordinal += 1;
        self.active = Some(Active { file: Arc::new(file), is_new: true, unsynced: Content::default() });
        let length = HEADER as u64;
        self.segments.push_back(Segment {
            name,
            last: name.ordinal,
            records: 0,
            length,
            synced_records: 0,
            synced_length: length,
            content: Content::default(),
        });
        // The one before may have been acknowledged to its end.
        if let Some(base) = self.base {
            self.forget(base);
        }
        Ok(())
    }

    /// Ends the segment that is being written.
    pub(super) fn seal(&mut self) -> io::Result<()> {
        if let Some(sync) = self.unsynced() {
            sync.run()?;
        }
        self.synced(true);
        self.active = None;
        Ok(())
    }

    /// Counts records that could not be written.
    pub(super) fn lose(&mut self, records: &[Record], reason: &str) {
        let mut content = Content::default();
        for record in records {
            content.add(record, prost::Message::encoded_len(record));
        }
        self.owe(content, reason);
    }

    pub(super) fn owe(&mut self, content: Content, reason: &str) {
        let (facts, bytes) = content.facts();
        self.dropped.records += facts;
        self.dropped.bytes += bytes;
        self.owed.merge(content.dropped(reason));
    }

    /// What is to be synced, if anything.
    pub(super) fn unsynced(&self) -> Option<Unsynced> {
        let (active, segment) = (self.active.as_ref()?, self.segments.back()?);
        let dir = active.is_new.then(|| self.dir.clone());
        (segment.synced_length < segment.length).then(|| Unsynced { file: Arc::clone(&active.file), dir })
    }

    /// Everything that was written is synced, or will never be: then it is cut off and lost.
    pub(super) fn synced(&mut self, is_done: bool) {
        let (Some(active), Some(segment)) = (&mut self.active, self.segments.back_mut()) else { return };
        let unsynced = std::mem::take(&mut active.unsynced);
        if is_done {
            active.is_new = false;
            segment.content.merge(unsynced);
            (segment.synced_records, segment.synced_length) = (segment.records, segment.length);
            return;
        }
        let _ = active.file.set_len(segment.synced_length);
        (segment.records, segment.length) = (segment.synced_records, segment.synced_length);
        self.owe(unsynced, "write error");
    }

    /// Forgets what is before `next`. The error is the sequence that would be sent next.
    pub(super) fn acknowledge(&mut self, next: u64) -> Result<(), u64> {
        if next > self.cursor.sequence {
            return Err(self.cursor.sequence);
        }
        if self.base.is_some_and(|base| next > base) {
            self.forget(next);
        }
        Ok(())
    }

    fn forget(&mut self, next: u64) {
        self.base = Some(next);
        while let Some(segment) = self.segments.front() {
            let is_over = segment.name.first.is_some_and(|first| first + segment.records <= next);
            let is_active = self.active.is_some() && self.segments.len() == 1;
            if !is_over || is_active {
                return;
            }
            if let Err(error) = fs::remove_file(segment.name.path(&self.dir)) {
                // The aggregator recognises it when it is sent again.
                chainscope_hygiene::warn_limited!(node = %self.node, %error, "a delivered part of the spool cannot be removed");
            }
            self.segments.pop_front();
        }
    }

    /// Nobody is expected to write here: what is acknowledged goes, also the segment that would be written on.
    pub(super) fn vacate(&mut self) {
        let Some(base) = self.base.filter(|_| self.active.is_some()) else { return };
        let is_over = |segment: &Segment| segment.name.first.is_some_and(|first| first + segment.records <= base);
        if self.segments.iter().all(is_over) {
            // Only what is synced was sent, so nothing of it waits for a sync.
            self.active = None;
            self.forget(base);
        }
    }

    /// Begins a stream at the aggregator's mark; true if it counts otherwise than this lane.
    pub(super) fn welcome(&mut self, mark: u64) -> io::Result<bool> {
        let sent = self.segments.iter().rev().find_map(|segment| Some(segment.name.first? + segment.records));
        let is_other = match (self.base, sent) {
            (Some(base), _) if mark < base => {
                self.renumber(base, mark)?;
                true
            }
            // More than was ever sent is durable: a copy of this folder is in use, or a disk lost what it had synced.
            (Some(base), sent) if mark > sent.unwrap_or(base) => {
                self.seal()?;
                true
            }
            _ => false,
        };
        if self.base.is_none_or(|base| mark > base) {
            self.forget(mark);
        }
        self.seek(mark);
        Ok(is_other)
    }

    /// The aggregator lost what it had: what is still here gets numbers from its mark on.
    fn renumber(&mut self, base: u64, mark: u64) -> io::Result<()> {
        let Some(first) = self.segments.front().and_then(|segment| segment.name.first) else {
            self.base = Some(mark);
            return Ok(());
        };
        // The acknowledged ones at the beginning of the first segment keep their distance, or are sent once more.
        let acknowledged = base.saturating_sub(first);
        let start = mark.checked_sub(acknowledged).unwrap_or(mark);
        recover::renumber(&self.dir, &mut self.segments, start)?;
        self.base = Some(mark);
        Ok(())
    }

    /// Lets the oldest go that were never sent, at least so many bytes; returns how many bytes became free.
    pub(super) fn drop_oldest(&mut self, wanted: u64) -> io::Result<u64> {
        let begin = self.segments.iter().take_while(|segment| segment.name.first.is_some()).count();
        let end = self.segments.len() - usize::from(self.active.is_some());
        let mut content = Content::default();
        let (mut freed, mut count, mut is_of_use) = (0, 0, false);
        for segment in self.segments.iter().skip(begin).take(end.saturating_sub(begin)) {
            freed += segment.length;
            count += 1;
            is_of_use |= !segment.content.is_losses_only(segment.records);
            content.merge(segment.content.clone());
            if freed >= wanted && is_of_use {
                break;
            }
        }
        let (Some(head), Some(tail)) = (self.segments.get(begin), self.segments.get((begin + count).saturating_sub(1)))
        else {
            return Ok(0);
        };
        if !is_of_use {
            return Ok(0);
        }
        let (facts, bytes) = content.facts();
        let (name, last) = (head.name, tail.last);
        let content = content.dropped("spool full");
        let losses = content.losses();
        let mut length = 0;
        // Where there were newer states only nothing needs to be told.
        if !losses.is_empty() {
            length = files::rewrite(&self.dir, name, Header { ordinal: name.ordinal, last }, &[], &losses)?;
        }
        for (index, segment) in self.segments.drain(begin..begin + count).enumerate() {
            if index > 0 || losses.is_empty() {
                // If it stays, it is known to be replaced, or told of twice: not lost.
                let _ = fs::remove_file(segment.name.path(&self.dir));
            }
        }
        if !losses.is_empty() {
            let records = losses.len() as u64;
            let (synced_records, synced_length) = (records, length);
            let segment = Segment { name, last, records, length, synced_records, synced_length, content };
            self.segments.insert(begin, segment);
        }
        self.dropped.records += facts;
        self.dropped.bytes += bytes;
        Ok(freed.saturating_sub(length))
    }

    #[cfg(test)]
    pub(super) fn dir(&self) -> &std::path::Path {
        &self.dir
    }

    /// Records of the newest segment that are written and not synced.
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
