//! Repair of a stream's directory after a kill, a power cut or disk damage.
//!
//! One segment file is in memory at a time: a full spool may be as large as the memory limit of the agent.

use std::{collections::VecDeque, fs, io, iter, path::Path};

use bytes::Bytes;
use chainscope_proto::v1::{Record, record::Kind};

use super::{
    files::{self, Contents, SegmentName},
    format::{self, HEADER_BYTES, Header, Scan},
    segment::Segment,
    summary::{RecordSummary, spool_loss},
};

/// File that holds the first sequence of a renumbering that is not complete.
const RENUMBER_FILE: &str = "renumber";
/// Reason of losses that disk damage caused.
pub(super) const DAMAGED: &str = "spool damaged";
/// Maximum number of unreadable records in a row that are replaced by losses one by one. Disk damage does not cause a
/// larger gap.
const MAX_FILLED: u64 = 1 << 20;

/// A stream as its directory has it after the repair.
pub(super) struct Recovered {
    pub(super) segments: VecDeque<Segment>,
    /// Losses that are to be written before the next record.
    pub(super) losses: RecordSummary,
}

/// Damage of one segment file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    /// This number of records is unreadable between the readable ones and the next segment: their sequence numbers are
    /// known.
    MissingRecords(u64),
    /// The sequence numbers of the next segment contradict those of this one.
    Inconsistent,
    /// Unreadable records that have no sequence numbers, so that one loss can stand for all of them.
    UnreadableUnsent,
    /// An unknown number of unreadable records that may have been sent: only the aggregator knows how many.
    UnreadableSent,
    /// The last file has no valid header and nothing of it was sent: it was never synced.
    NeverSynced,
    /// The last file ends with bytes that were never synced.
    TornTail,
}

/// Where a segment is among those of its stream.
#[derive(Debug, Clone, Copy)]
struct Position {
    is_last: bool,
    /// First sequence of the next segment, if it has one.
    next_first: Option<u64>,
}

impl Damage {
    /// Damage of a segment of which `segment.length` bytes of `file_length` are readable. No length: the disk cannot read
    /// all of the file.
    fn of(segment: &Segment, file_length: Option<u64>, position: Position) -> Option<Self> {
        // Both segments have sequence numbers: all numbers in between must be there.
        if let Some((first, next)) = segment.name.first.zip(position.next_first) {
            let expected = next.saturating_sub(first);
            match expected.checked_sub(segment.records) {
                Some(0) => {}
                Some(missing) if missing <= MAX_FILLED => return Some(Self::MissingRecords(missing)),
                _ => return Some(Self::Inconsistent),
            }
        }
        let has_header = segment.length >= HEADER_BYTES as u64;
        if has_header && file_length == Some(segment.length) {
            return None;
        }
        // What the disk cannot read may have been synced.
        let ends_unsynced = position.is_last && file_length.is_some();
        Some(match (ends_unsynced, segment.name.first) {
            (false, None) => Self::UnreadableUnsent,
            (false, Some(_)) => Self::UnreadableSent,
            (true, None) if !has_header => Self::NeverSynced,
            (true, Some(_)) if !has_header => Self::UnreadableSent,
            (true, _) => Self::TornTail,
        })
    }
}

/// Reads and repairs the directory of a stream.
pub(super) fn recover(dir: &Path, now_ns: i64) -> io::Result<Recovered> {
    // Without its names the stream is damaged as a whole.
    let listing = list(dir).map_err(|error| match files::is_disk_error(&error) {
        true => io::Error::new(io::ErrorKind::InvalidData, error),
        false => error,
    })?;
    let mut found = scan_segments(dir, listing.names)?;
    check_order(dir, &found)?;
    let mut recovered = Recovered { segments: VecDeque::new(), losses: RecordSummary::default() };
    while let Some((mut segment, file_length)) = found.pop_front() {
        // During a renumbering the sequences of two segments are unrelated.
        let next_first = found.front().and_then(|(next, _)| next.name.first).filter(|_| listing.renumber.is_none());
        let position = Position { is_last: found.is_empty(), next_first };
        if let Some(damage) = Damage::of(&segment, file_length, position) {
            repair(dir, &mut segment, damage, now_ns, &mut recovered.losses)?;
        }
        if segment.records > 0 || segment.name.first.is_some() {
            recovered.segments.push_back(segment);
        } else {
            fs::remove_file(segment.name.path(dir))?;
        }
    }
    if let Some(start) = listing.renumber {
        renumber(dir, &mut recovered.segments, start)?;
    }
    files::sync_dir(dir)?;
    Ok(recovered)
}

/// Files of a stream's directory.
struct Listing {
    /// One name an ordinal, in order.
    names: Vec<SegmentName>,
    /// First sequence of a renumbering that is not complete.
    renumber: Option<u64>,
}

/// Lists the directory and removes temporary files.
fn list(dir: &Path) -> io::Result<Listing> {
    let mut names = Vec::new();
    let mut renumber = None;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let file = entry.file_name();
        let Some(text) = file.to_str() else { continue };
        if let Some(name) = SegmentName::parse(text) {
            names.push(name);
        } else if text == RENUMBER_FILE {
            renumber = fs::read_to_string(entry.path())?.trim().parse::<u64>().ok();
        } else if text.ends_with(".tmp") {
            fs::remove_file(entry.path())?;
        }
    }
    // No crash leaves two files of one segment; if there are two, the one that may have been sent is used.
    names.sort_by_key(|name| (name.ordinal, name.first.is_none()));
    names.dedup_by_key(|name| name.ordinal);
    Ok(Listing { names, renumber })
}

/// Scans the segments, without those that a segment of losses replaced; these are removed. Returns each with the length
/// of its file, or without if the disk cannot read all of it.
fn scan_segments(dir: &Path, names: Vec<SegmentName>) -> io::Result<VecDeque<(Segment, Option<u64>)>> {
    let mut segments = VecDeque::new();
    let mut replaced_to = None;
    for name in names {
        if replaced_to.is_some_and(|last| name.ordinal <= last) {
            fs::remove_file(name.path(dir))?;
            continue;
        }
        let Contents { bytes, is_complete } = files::read(&name.path(dir))?;
        let scan = format::scan(&bytes);
        let header = scan.header.filter(|header| header.ordinal == name.ordinal);
        let (scan, last) = match header {
            Some(header) => (scan, header.last),
            None => (Scan::default(), name.ordinal),
        };
        if last > name.ordinal {
            replaced_to = Some(last);
        }
        let segment = Segment::synced(name, last, scan.records, scan.valid_bytes, scan.summary);
        segments.push_back((segment, is_complete.then_some(bytes.len() as u64)));
    }
    Ok(segments)
}

/// Refuses a segment that may have been sent after one that was never sent: segments get their sequence numbers in order, so
/// those of the first one are unknown.
fn check_order(dir: &Path, segments: &VecDeque<(Segment, Option<u64>)>) -> io::Result<()> {
    let mut from_first_unsent = segments.iter().skip_while(|(segment, _)| segment.name.first.is_some());
    let Some((sent, _)) = from_first_unsent.find(|(segment, _)| segment.name.first.is_some()) else { return Ok(()) };
    Err(files::inconsistent(&sent.name.path(dir), "a segment before it has no sequence numbers"))
}

/// Repairs one segment; losses that cannot be written in its place are added to `losses`.
fn repair(
    dir: &Path,
    segment: &mut Segment,
    damage: Damage,
    now_ns: i64,
    losses: &mut RecordSummary,
) -> io::Result<()> {
    let path = segment.name.path(dir);
    if !matches!(damage, Damage::NeverSynced | Damage::TornTail) {
        tracing::warn!(path = %path.display(), ?damage, "a segment of the spool is damaged");
    }
    let bytes = match damage {
        Damage::MissingRecords(_) | Damage::UnreadableUnsent | Damage::UnreadableSent => files::read(&path)?.bytes,
        Damage::Inconsistent | Damage::NeverSynced | Damage::TornTail => Bytes::new(),
    };
    match damage {
        Damage::MissingRecords(missing) => fill_missing(dir, segment, &bytes, missing, now_ns),
        Damage::Inconsistent => Err(files::inconsistent(&path, "the next segment does not continue its sequence")),
        Damage::UnreadableUnsent => replace_unsent(dir, segment, &bytes, now_ns),
        Damage::UnreadableSent => cut_sent(dir, segment, &bytes, now_ns, losses),
        // It has no records: the caller removes the file.
        Damage::NeverSynced => Ok(()),
        Damage::TornTail => truncate(&path, segment.length),
    }
}

/// Replaces each missing record by a loss of one record under the same sequence number: that is right whether the
/// aggregator has the original or not.
fn fill_missing(dir: &Path, segment: &mut Segment, bytes: &Bytes, missing: u64, now_ns: i64) -> io::Result<()> {
    let loss = spool_loss(DAMAGED, 1, 0, (now_ns, now_ns), false);
    let record = Record { time_ns: now_ns, target: String::new(), kind: Some(Kind::Loss(loss)) };
    let count = usize::try_from(missing).unwrap_or(usize::MAX);
    rewrite(dir, segment, bytes, iter::repeat_n(&record, count), RecordSummary::default())
}

/// Replaces unreadable records without sequence numbers by one loss of unknown amount.
fn replace_unsent(dir: &Path, segment: &mut Segment, bytes: &Bytes, now_ns: i64) -> io::Result<()> {
    let loss = RecordSummary::unknown_loss(DAMAGED, now_ns);
    rewrite(dir, segment, bytes, loss.losses().iter(), loss)
}

/// Cuts off unreadable records that may have been sent. Their number is known after the next session began, so the loss
/// follows later in the stream.
fn cut_sent(
    dir: &Path,
    segment: &mut Segment,
    bytes: &Bytes,
    now_ns: i64,
    losses: &mut RecordSummary,
) -> io::Result<()> {
    losses.merge(RecordSummary::unknown_loss(DAMAGED, now_ns));
    rewrite(dir, segment, bytes, [].iter(), RecordSummary::default())
}

/// Cuts a file after its last valid record.
fn truncate(path: &Path, length: u64) -> io::Result<()> {
    let file = fs::OpenOptions::new().write(true).open(path)?;
    file.set_len(length)?;
    file.sync_all()
}

/// Rewrites the file: its readable records, then `records`, of which `summary` is the summary.
fn rewrite<'a>(
    dir: &Path,
    segment: &mut Segment,
    bytes: &Bytes,
    records: impl ExactSizeIterator<Item = &'a Record>,
    summary: RecordSummary,
) -> io::Result<()> {
    let added = records.len() as u64;
    let valid = usize::try_from(segment.length).unwrap_or(usize::MAX);
    let header = Header { ordinal: segment.name.ordinal, last: segment.last_ordinal };
    let Some(kept) = bytes.get(..valid) else {
        return Err(files::inconsistent(&segment.name.path(dir), "records that were readable are not any more"));
    };
    segment.length = files::rewrite(dir, segment.name, header, kept, records)?;
    segment.records += added;
    segment.summary.merge(summary);
    (segment.synced_records, segment.synced_length) = (segment.records, segment.length);
    Ok(())
}

/// Replaces the records of a segment that became unreadable since it was opened by losses under the same sequence
/// numbers.
pub(super) fn fill_unreadable(dir: &Path, segment: &mut Segment, bytes: &Bytes) -> io::Result<()> {
    let scan = format::scan(bytes);
    let missing = segment.records.saturating_sub(scan.records);
    if missing == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a record was unreadable and is readable again"));
    }
    tracing::warn!(path = %segment.name.path(dir).display(), missing, "a segment of the spool is damaged");
    (segment.records, segment.length, segment.summary) = (scan.records, scan.valid_bytes, scan.summary);
    fill_missing(dir, segment, bytes, missing, crate::clock::realtime_ns())
}

/// Gives the segments that may have been sent sequence numbers from `start` on. A file records this until all are renamed.
pub(super) fn renumber(dir: &Path, segments: &mut VecDeque<Segment>, start: u64) -> io::Result<()> {
    files::replace(dir, RENUMBER_FILE, start.to_string().as_bytes())?;
    let mut first = start;
    for segment in segments.iter_mut() {
        if segment.name.first.is_none() {
            break;
        }
        let name = SegmentName { first: Some(first), ..segment.name };
        fs::rename(segment.name.path(dir), name.path(dir))?;
        segment.name = name;
        first += segment.records;
    }
    files::sync_dir(dir)?;
    fs::remove_file(dir.join(RENUMBER_FILE))?;
    files::sync_dir(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Damage of a segment of 10 records in 1000 readable bytes.
    fn damage(
        first: Option<u64>,
        file_length: impl Into<Option<u64>>,
        is_last: bool,
        next_first: Option<u64>,
    ) -> Option<Damage> {
        let name = SegmentName { ordinal: 3, first };
        let segment = Segment::synced(name, 3, 10, 1_000, RecordSummary::default());
        Damage::of(&segment, file_length.into(), Position { is_last, next_first })
    }

    #[test]
    fn each_damage_is_named() {
        assert_eq!(damage(None, 1_000, false, None), None);
        assert_eq!(damage(Some(5), 1_000, false, Some(15)), None);
        assert_eq!(damage(Some(5), 1_001, false, Some(17)), Some(Damage::MissingRecords(2)));
        assert_eq!(damage(Some(5), 1_000, false, Some(14)), Some(Damage::Inconsistent));
        assert_eq!(damage(Some(5), 1_001, false, Some(16 + MAX_FILLED)), Some(Damage::Inconsistent));
        assert_eq!(damage(None, 1_001, false, None), Some(Damage::UnreadableUnsent));
        assert_eq!(damage(Some(5), 1_001, false, None), Some(Damage::UnreadableSent));
        assert_eq!(damage(Some(5), 1_001, true, None), Some(Damage::TornTail));
        for is_last in [false, true] {
            assert_eq!(damage(Some(5), None, is_last, None), Some(Damage::UnreadableSent));
            assert_eq!(damage(None, None, is_last, None), Some(Damage::UnreadableUnsent));
        }
        let headless = |first, is_last| {
            let segment = Segment::synced(SegmentName { ordinal: 3, first }, 3, 0, 0, RecordSummary::default());
            Damage::of(&segment, Some(40), Position { is_last, next_first: None })
        };
        assert_eq!(headless(None, true), Some(Damage::NeverSynced));
        assert_eq!(headless(Some(5), true), Some(Damage::UnreadableSent));
        assert_eq!(headless(None, false), Some(Damage::UnreadableUnsent));
    }
}
