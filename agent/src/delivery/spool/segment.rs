//! One segment of a spooled stream as it is known without reading its file, and the one that is being written.

use std::{fs::File, io, path::PathBuf, sync::Arc};

use super::{
    files::{self, SegmentName},
    format::HEADER_BYTES,
    summary::RecordSummary,
};

/// A segment file.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) name: SegmentName,
    /// Ordinal of the last segment that this one stands for: its own, unless it replaced dropped ones.
    pub(super) last_ordinal: u64,
    /// Records that were written, and the length of the file with them.
    pub(super) records: u64,
    pub(super) length: u64,
    /// The part of them that is synced.
    pub(super) synced_records: u64,
    pub(super) synced_length: u64,
    /// Summary of the synced records.
    pub(super) summary: RecordSummary,
}

impl Segment {
    /// A segment without records.
    pub(super) fn empty(name: SegmentName) -> Self {
        let length = HEADER_BYTES as u64;
        Self::synced(name, name.ordinal, 0, length, RecordSummary::default())
    }

    /// A segment whose file is synced as a whole.
    pub(super) fn synced(
        name: SegmentName,
        last_ordinal: u64,
        records: u64,
        length: u64,
        summary: RecordSummary,
    ) -> Self {
        Self { name, last_ordinal, records, length, synced_records: records, synced_length: length, summary }
    }

    /// Whether all its records are before sequence `next`.
    pub(super) fn is_before(&self, next: u64) -> bool {
        self.end().is_some_and(|end| end <= next)
    }

    /// Sequence after its last record, if it has sequence numbers.
    pub(super) fn end(&self) -> Option<u64> {
        Some(self.name.first? + self.records)
    }
}

/// The file of the last segment while records are appended.
#[derive(Debug)]
pub(super) struct ActiveFile {
    pub(super) file: Arc<File>,
    /// The entry of the file in its directory is not synced.
    pub(super) is_new: bool,
    /// Records that were written since the last sync.
    pub(super) unsynced: RecordSummary,
}

/// A sync of what was appended to a stream, to be run without the lock of the spool.
#[derive(Debug)]
pub(crate) struct PendingSync {
    pub(super) file: Arc<File>,
    /// The directory, if its entry of the file is not synced either.
    pub(super) dir: Option<PathBuf>,
}

impl PendingSync {
    pub(crate) fn run(&self) -> io::Result<()> {
        self.file.sync_data()?;
        self.dir.as_deref().map_or(Ok(()), files::sync_dir)
    }
}
