//! Bringing a lane's folder in order after whatever ended the last process.

use std::{collections::VecDeque, fs, io, path::Path};

use bytes::Bytes;
use chainscope_proto::v1::{Record, record::Kind};

use super::{
    content::{Content, spool_loss},
    files::{self, Name},
    lane::Segment,
    segment::{self, HEADER, Header, Scan},
};

/// Name of the file that says from where segments are being numbered anew.
const RENUMBER: &str = "renumber";
/// Reason of what a disk did not give back.
const DAMAGED: &str = "spool damaged";
/// Numbers in a row that are filled with losses at most; a hole that long is none that a disk makes.
const MOST_FILLED: u64 = 1 << 20;

pub(super) struct Recovered {
    pub(super) segments: VecDeque<Segment>,
    /// Told before the next record.
    pub(super) owed: Content,
}

pub(super) fn recover(dir: &Path, now_ns: i64) -> io::Result<Recovered> {
    let mut names = Vec::new();
    let mut renumber = None;
    for item in fs::read_dir(dir)? {
        let item = item?;
        let file = item.file_name();
        let Some(text) = file.to_str() else { continue };
        if let Some(name) = Name::parse(text) {
            names.push(name);
        } else if text == RENUMBER {
            renumber = fs::read_to_string(item.path())?.trim().parse::<u64>().ok();
        } else if text.ends_with(".tmp") {
            fs::remove_file(item.path())?;
        }
    }
    // Of two files of one segment, which no crash leaves, the one that may have been sent counts.
    names.sort_by_key(|name| (name.ordinal, name.first.is_none()));
    names.dedup_by_key(|name| name.ordinal);

    let mut found: VecDeque<(Segment, Bytes)> = VecDeque::new();
    let mut replaced_to = None;
    for name in names {
        if replaced_to.is_some_and(|last| name.ordinal <= last) {
            fs::remove_file(name.path(dir))?;
            continue;
        }
        let bytes = files::read(&name.path(dir))?;
        let scan = segment::scan(&bytes);
        let header = scan.header.filter(|header| header.ordinal == name.ordinal);
        let (scan, last) = match header {
            Some(header) => (scan, header.last),
            None => (Scan::default(), name.ordinal),
        };
        if last > name.ordinal {
            replaced_to = Some(last);
        }
        found.push_back((
            Segment {
                name,
                last,
                records: scan.records,
                length: scan.good,
                synced_records: scan.records,
                synced_length: scan.good,
                content: scan.content,
            },
            bytes,
        ));
    }
    let mut segments = VecDeque::new();
    let mut owed = Content::default();
    while let Some((mut segment, bytes)) = found.pop_front() {
        let is_last = found.is_empty();
        // While numbers are being changed they say nothing about each other.
        let next = found.front().and_then(|(next, _)| next.name.first).filter(|_| renumber.is_none());
        mend(dir, &mut segment, &bytes, (is_last, next), now_ns, &mut owed)?;
        if segment.records > 0 || segment.name.first.is_some() {
            segments.push_back(segment);
        } else {
            fs::remove_file(segment.name.path(dir))?;
        }
    }
    if let Some(start) = renumber {
        self::renumber(dir, &mut segments, start)?;
    }
    files::sync_dir(dir)?;
    Ok(Recovered { segments, owed })
}

/// Makes a segment whole: the last one is cut behind its last record, another one gets losses for what is missing.
fn mend(
    dir: &Path,
    segment: &mut Segment,
    bytes: &Bytes,
    (is_last, next): (bool, Option<u64>),
    now_ns: i64,
    owed: &mut Content,
) -> io::Result<()> {
    let is_whole = segment.length == bytes.len() as u64 && segment.length >= HEADER as u64;
    let name = segment.name;
    let known_end = name.first.zip(next).map(|(first, next)| next.saturating_sub(first));
    match known_end {
        // Sent, and so is the next: the numbers in between are known and must all be there.
        Some(records) if records != segment.records => {
            if records < segment.records || records - segment.records > MOST_FILLED {
                let what = format!("{}: followed by a segment that does not fit", name.path(dir).display());
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            tracing::warn!(path = %name.path(dir).display(), "a part of the spool is damaged");
            fill(dir, segment, bytes, records - segment.records, now_ns)
        }
        _ if is_whole => Ok(()),
        _ if !is_last => {
            tracing::warn!(path = %name.path(dir).display(), "a part of the spool is damaged");
            let loss = Content::unknown(DAMAGED, now_ns);
            if name.first.is_none() {
                return put(dir, segment, bytes, &loss.losses(), loss);
            }
            // How many of it were sent is not known: after the next welcome it is.
            owed.merge(loss);
            put(dir, segment, bytes, &[], Content::default())
        }
        // The end that was not synced: nobody was told that it had been there.
        _ if segment.length < HEADER as u64 && name.first.is_none() => Ok(()),
        _ if segment.length < HEADER as u64 => {
            owed.merge(Content::unknown(DAMAGED, now_ns));
            put(dir, segment, bytes, &[], Content::default())
        }
        _ => {
            let file = fs::OpenOptions::new().write(true).open(name.path(dir))?;
            file.set_len(segment.length)?;
            file.sync_all()
        }
    }
}

/// Adds a loss of one record for each number that is missing.
fn fill(dir: &Path, segment: &mut Segment, bytes: &Bytes, missing: u64, now_ns: i64) -> io::Result<()> {
    let loss = spool_loss(DAMAGED, 1, 0, (now_ns, now_ns), false);
    let record = Record { time_ns: now_ns, target: String::new(), kind: Some(Kind::Loss(loss)) };
    let count = usize::try_from(missing).unwrap_or(usize::MAX);
    put(dir, segment, bytes, &vec![record; count], Content::default())
}

fn put(dir: &Path, segment: &mut Segment, bytes: &Bytes, records: &[Record], content: Content) -> io::Result<()> {
    let good = usize::try_from(segment.length).unwrap_or(usize::MAX);
    let header = Header { ordinal: segment.name.ordinal, last: segment.last };
    let kept = bytes.get(..good).unwrap_or_default();
    segment.length = files::rewrite(dir, segment.name, header, kept, records)?;
    segment.records += records.len() as u64;
    segment.content.merge(content);
    (segment.synced_records, segment.synced_length) = (segment.records, segment.length);
    Ok(())
}

/// What cannot be read any more of a segment whose records are numbered.
pub(super) fn patch(dir: &Path, segment: &mut Segment, bytes: &Bytes) -> io::Result<()> {
    let scan = segment::scan(bytes);
    let missing = segment.records.saturating_sub(scan.records);
    if missing == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "what could not be read can be read now"));
    }
    tracing::warn!(path = %segment.name.path(dir).display(), missing, "a part of the spool is damaged");
    (segment.records, segment.length, segment.content) = (scan.records, scan.good, scan.content);
    fill(dir, segment, bytes, missing, crate::clock::realtime_ns())
}

/// Numbers the segments that may have been sent from `start` on. A file says so until all are renamed.
pub(super) fn renumber(dir: &Path, segments: &mut VecDeque<Segment>, start: u64) -> io::Result<()> {
    files::replace(dir, RENUMBER, start.to_string().as_bytes())?;
    let mut first = start;
    for segment in segments.iter_mut() {
        if segment.name.first.is_none() {
            break;
        }
        let name = Name { first: Some(first), ..segment.name };
        fs::rename(segment.name.path(dir), name.path(dir))?;
        segment.name = name;
        first += segment.records;
    }
    files::sync_dir(dir)?;
    fs::remove_file(dir.join(RENUMBER))?;
    files::sync_dir(dir)
}
