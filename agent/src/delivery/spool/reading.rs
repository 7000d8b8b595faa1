//! Batches from the segments of a spooled stream.

use std::{
    fs::{self, File},
    io,
    path::Path,
    sync::Arc,
};

use chainscope_proto::v1::Record;

use super::{
    files::{self, SegmentName},
    format::{self, Entry, HEADER_BYTES},
    recover,
    stream::{Cursor, SpooledStream},
};

impl SpooledStream {
    /// The next records to send, with the sequence of the first.
    pub(super) fn take(&mut self, limit: usize, window: u64) -> io::Result<Option<(u64, Vec<Record>)>> {
        if self.base.is_none() {
            return Ok(None);
        }
        if self.cursor.position.is_none() {
            self.locate()?;
        }
        if !self.find_next(window)? {
            return Ok(None);
        }
        let Some((ordinal, offset)) = self.cursor.position else { return Ok(None) };
        let Some(segment) = self.segments.iter().find(|segment| segment.name.ordinal == ordinal) else {
            return Ok(None);
        };
        let (name, end) = (segment.name, segment.synced_length);
        let file = match &self.active {
            Some(active) if self.segments.back().is_some_and(|last| last.name == name) => Arc::clone(&active.file),
            _ => Arc::new(File::open(name.path(&self.dir))?),
        };
        let left = usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut wanted = limit.min(left);
        let mut bytes = files::read_at(&file, offset, wanted)?;
        let (mut records, mut place) = (Vec::new(), 0);
        loop {
            match format::entry(&bytes.slice(place..), ordinal, offset + place as u64) {
                Entry::Record(record, size) => {
                    records.push(record);
                    place += size;
                    if place >= left {
                        break;
                    }
                }
                Entry::Partial(size) if records.is_empty() && size <= left && size > wanted => {
                    wanted = size;
                    bytes = files::read_at(&file, offset, wanted)?;
                }
                Entry::Partial(_) | Entry::Damaged if !records.is_empty() => break,
                Entry::Partial(_) | Entry::Damaged => {
                    self.fill_unreadable(ordinal)?;
                    return self.take(limit, window);
                }
            }
        }
        let first = self.cursor.sequence;
        self.cursor =
            Cursor { sequence: first + records.len() as u64, position: Some((ordinal, offset + place as u64)) };
        Ok(Some((first, records)))
    }

    /// Moves the cursor to a record that may be sent. Returns false if there is none yet.
    fn find_next(&mut self, window: u64) -> io::Result<bool> {
        loop {
            let index = match self.cursor.position {
                None => 0,
                Some((ordinal, _)) => {
                    let here = self.segments.iter().position(|segment| segment.name.ordinal >= ordinal);
                    let Some(index) = here else { return Ok(false) };
                    match self.segments.get(index) {
                        Some(segment) if segment.name.ordinal == ordinal => {
                            let end = segment.name.first.unwrap_or(0) + segment.synced_records;
                            if self.cursor.sequence < end {
                                return Ok(true);
                            }
                            index + 1
                        }
                        _ => index,
                    }
                }
            };
            let unacknowledged: u64 =
                self.segments.iter().take_while(|segment| segment.name.first.is_some()).map(|s| s.length).sum();
            let is_after_another = index > 0;
            let Some(segment) = self.segments.get_mut(index) else { return Ok(false) };
            match segment.name.first {
                Some(first) if first != self.cursor.sequence => {
                    return Err(out_of_sequence(&segment.name.path(&self.dir), self.cursor.sequence));
                }
                Some(_) => {}
                None if segment.synced_records == 0 => return Ok(false),
                None if is_after_another && unacknowledged > window => return Ok(false),
                None => {
                    // From here on its sequence numbers are fixed, also after a restart.
                    let name = SegmentName { first: Some(self.cursor.sequence), ..segment.name };
                    fs::rename(segment.name.path(&self.dir), name.path(&self.dir))?;
                    segment.name = name;
                    files::sync_dir(&self.dir)?;
                }
            }
            self.cursor.position = Some((segment.name.ordinal, HEADER_BYTES as u64));
        }
    }

    /// Replaces the records of a segment that became unreadable since it was opened by losses under the same sequence
    /// numbers.
    fn fill_unreadable(&mut self, ordinal: u64) -> io::Result<()> {
        if self.segments.back().is_some_and(|last| last.name.ordinal == ordinal) {
            self.seal()?;
        }
        let sequence = self.cursor.sequence;
        let Some(segment) = self.segments.iter_mut().find(|segment| segment.name.ordinal == ordinal) else {
            return Ok(());
        };
        let bytes = files::read(&segment.name.path(&self.dir))?.bytes;
        recover::fill_unreadable(&self.dir, segment, &bytes)?;
        self.seek(sequence);
        Ok(())
    }

    /// Moves the cursor to the first record that is not acknowledged.
    pub(super) fn rewind(&mut self) {
        self.seek(self.base.unwrap_or(0));
    }

    /// Moves the cursor to a record of a segment that may have been sent, or after all of them. Its position in the files is
    /// found before the next batch.
    pub(super) fn seek(&mut self, sequence: u64) {
        self.cursor = Cursor { sequence, position: None };
    }

    /// Finds the position of the cursor in the segments that may have been sent. After an error it stays unknown, and
    /// nothing is sent: records would be sent under the sequence numbers of others.
    fn locate(&mut self) -> io::Result<()> {
        let sequence = self.cursor.sequence;
        let mut position = None;
        for segment in &self.segments {
            let Some(first) = segment.name.first else { break };
            let ordinal = segment.name.ordinal;
            if sequence >= first + segment.records {
                position = Some((ordinal, segment.length));
                continue;
            }
            let path = segment.name.path(&self.dir);
            let before = sequence.checked_sub(first).ok_or_else(|| out_of_sequence(&path, sequence))?;
            let Some(offset) = offset_after(before, &path, ordinal)? else {
                self.fill_unreadable(ordinal)?;
                return self.locate();
            };
            position = Some((ordinal, offset));
            break;
        }
        self.cursor.position = position;
        Ok(())
    }
}

/// Offset after the first `count` records of a segment file; none if one of them is unreadable.
fn offset_after(count: u64, path: &Path, ordinal: u64) -> io::Result<Option<u64>> {
    let mut offset = HEADER_BYTES;
    if count > 0 {
        let bytes = files::read(path)?.bytes;
        for _ in 0..count {
            let rest = bytes.slice(bytes.len().min(offset)..);
            let Entry::Record(_, size) = format::entry(&rest, ordinal, offset as u64) else { return Ok(None) };
            offset += size;
        }
    }
    Ok(Some(offset as u64))
}

fn out_of_sequence(path: &Path, sequence: u64) -> io::Error {
    files::inconsistent(path, &format!("the record to send next has sequence {sequence}"))
}
