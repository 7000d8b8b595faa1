//! Lines of the files of one source, through appends, rotation, truncation and compression.
//!
//! The identity of a file (its *key*) is a hash of its first line and of where it is from: device and inode for a plain file,
//! which keeps both when it is renamed; the container for that of a runtime, whose lines begin with a time, so that a
//! compressed copy is the same file. Positions are bytes from the start of the uncompressed file.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::FileExt as _,
    time::{Duration, Instant},
};

use flate2::read::MultiGzDecoder;
use sha2::{Digest as _, Sha256};

use super::place::{Inode, Listed, Place};

/// First bytes of a file that are part of its identity. A file is not read before it has a whole line or as many bytes.
const FINGERPRINT_BYTES: usize = 256;
/// Bytes before the position that must not have changed: otherwise the file was truncated and written anew.
const TAIL_BYTES: usize = 64;
/// Bytes that are read at once.
const READ_BYTES: usize = 256 << 10;
/// Bytes that one poll reads: then other sources have their turn.
const POLL_BYTES: usize = 4 << 20;
/// Greatest length of a line; a longer one is taken in several.
pub(crate) const MAX_LINE: usize = 1 << 20;
/// How long a file that was renamed or replaced is read: its writer may not have opened the new one yet.
const ROTATED_GRACE: Duration = Duration::from_secs(10);

/// Receiver of the lines.
pub(crate) trait Lines {
    /// Whether something of the file was taken before.
    fn knows(&self, key: u64) -> bool;

    /// A file is opened. `length` is that of one that is not compressed. Returns the position from which it is read.
    fn begin(&mut self, key: u64, length: Option<u64>) -> u64;

    /// The lines of a file continue those of another, which was read to its end.
    fn follows(&mut self, key: u64, previous: u64);

    /// Takes the line from `start` to `end`, without its newline. Returns whether the next one can be taken, too.
    fn line(&mut self, key: u64, start: u64, end: u64, bytes: &[u8]) -> bool;

    /// Nobody writes to the file any more, and all of its lines were taken. The last ones may go on in the next file.
    fn end(&mut self, key: u64);

    /// No other file continues the last lines of the file, which has ended.
    fn complete(&mut self, key: u64);

    /// The file was truncated and written anew.
    fn rewritten(&mut self, key: u64);
}

/// What a poll found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// All lines were taken; whether there were any.
    Idle { was_busy: bool },
    /// There is more to read.
    More,
    /// The receiver takes no more lines now.
    Full,
}

/// An open file.
#[derive(Debug)]
struct Open {
    content: Content,
    inode: Inode,
    /// None as long as the file has no whole line.
    key: Option<u64>,
    origin: String,
    is_current: bool,
    /// Since when nobody should write to it.
    rotated: Option<Instant>,
    /// Bytes that were read and not taken, and the position of the first of them.
    carry: Vec<u8>,
    start: u64,
    /// Bytes before the end of `carry`.
    tail: Vec<u8>,
}

#[derive(Debug)]
enum Content {
    Plain(File),
    Gzip(Box<MultiGzDecoder<File>>),
}

/// Key and origin of a file.
type Identity = (u64, String);

/// How the reading of one file ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    AtEnd,
    Full,
    Budget,
}

/// Follows the files of one place.
#[derive(Debug)]
pub(crate) struct Follower {
    place: Place,
    /// Oldest first.
    open: Vec<Open>,
    /// Files that were read to their end, with their lengths.
    finished: BTreeMap<Inode, u64>,
    /// The last of them.
    last: Option<Identity>,
    has_polled: bool,
}

impl Follower {
    pub(crate) fn new(place: Place) -> Self {
        Self { place, open: Vec::new(), finished: BTreeMap::new(), last: None, has_polled: false }
    }

    /// Opens what is new, and passes on the lines that were appended since, oldest file first, if there is space for them. The
    /// error is that of a file which cannot be opened or read; the next call tries again.
    pub(crate) fn poll(&mut self, now: Instant, has_space: bool, lines: &mut dyn Lines) -> (Progress, io::Result<()>) {
        let refreshed = self.refresh(now, lines);
        if !has_space {
            return (Progress::Full, refreshed);
        }
        let mut failed = refreshed;
        let progress = self.read(now, lines, &mut failed);
        (progress, failed)
    }

    fn read(&mut self, now: Instant, lines: &mut dyn Lines, failed: &mut io::Result<()>) -> Progress {
        let mut budget = POLL_BYTES;
        let mut was_busy = false;
        let mut index = 0;
        let mut previous = self.last.clone();
        while let Some(open) = self.open.get_mut(index) {
            let before = open.start;
            note(failed, open.identify(&self.place, false, lines));
            match (open.key, previous) {
                (Some(key), Some((previous, origin))) if origin == open.origin => lines.follows(key, previous),
                // The container was started again. The first file that is open follows one that is closed.
                (Some(_), Some((previous, _))) if index == 0 => {
                    lines.complete(previous);
                    self.last = None;
                }
                _ => {}
            }
            previous = open.key.map(|key| (key, open.origin.clone()));
            let stop = open.read(&self.place, &mut budget, lines);
            was_busy |= open.start > before;
            let stop = match stop {
                Ok(stop) => stop,
                Err(error) => {
                    note(failed, Err(error));
                    if matches!(open.content, Content::Plain(_)) {
                        previous = None;
                        index += 1;
                        continue;
                    }
                    // A compressed file that is damaged, or not written completely, ends with its last whole line.
                    open.carry.clear();
                    Stop::AtEnd
                }
            };
            match stop {
                Stop::Full => return Progress::Full,
                Stop::Budget => return Progress::More,
                Stop::AtEnd if open.is_over(now) => {
                    let was_known = open.key.is_some();
                    note(failed, open.identify(&self.place, true, lines));
                    if was_known || open.key.is_none() {
                        open.take_rest(lines);
                        let closed = self.close(index);
                        note(failed, closed);
                    }
                }
                Stop::AtEnd => index += 1,
            }
        }
        Progress::Idle { was_busy }
    }

    /// Nobody writes to the files any more: passes on what is left, whether there is space or not.
    pub(crate) fn finish(&mut self, lines: &mut dyn Lines) -> io::Result<()> {
        for open in &mut self.open {
            open.identify(&self.place, true, lines)?;
            let mut budget = usize::MAX;
            while open.read(&self.place, &mut budget, lines)? != Stop::AtEnd {}
            open.take_rest(lines);
        }
        self.open.clear();
        Ok(())
    }

    fn close(&mut self, index: usize) -> io::Result<()> {
        let open = self.open.remove(index);
        self.last = open.key.map(|key| (key, open.origin));
        self.finished.insert(open.inode, open.content.file().metadata()?.len());
        Ok(())
    }

    /// Opens what is new, and notices what was renamed, deleted or truncated.
    fn refresh(&mut self, now: Instant, lines: &mut dyn Lines) -> io::Result<()> {
        let mut listed = self.place.list()?;
        if !self.has_polled {
            listed.splice(0..0, self.missed(&*lines)?);
            self.has_polled = true;
        }
        // One that is missing was renamed just now, or does not exist yet.
        let mut failed = Ok(());
        let mut present = Vec::new();
        for file in listed {
            match fs::metadata(&file.path) {
                Ok(metadata) => present.push((file, Inode::of(&metadata), metadata.len())),
                Err(error) if self.place.is_container() && error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => note(&mut failed, Err(error)),
            }
        }
        self.finished.retain(|inode, _| present.iter().any(|(_, listed, _)| listed == inode));
        let mut index = 0;
        while let Some(open) = self.open.get_mut(index) {
            let of = present.iter().find(|(_, inode, _)| *inode == open.inode);
            open.is_current = of.is_some_and(|(file, ..)| file.is_current);
            if !open.is_current {
                open.rotated.get_or_insert(now);
            }
            match open.was_rewritten() {
                Ok(true) => {
                    open.finish_rewritten(&self.place, lines);
                    let open = self.open.remove(index);
                    if self.place.is_container() {
                        self.last = open.key.map(|key| (key, open.origin));
                    }
                }
                other => {
                    note(&mut failed, other.map(|_| ()));
                    index += 1;
                }
            }
        }
        for (file, inode, length) in present {
            let is_known = self.finished.get(&inode).is_some_and(|finished| *finished == length)
                || self.open.iter().any(|open| open.inode == inode);
            if is_known {
                continue;
            }
            let opened = Open::new(&self.place, &file, now).and_then(|open| self.add(open, lines));
            note(&mut failed, opened);
        }
        failed
    }

    fn add(&mut self, mut open: Open, lines: &mut dyn Lines) -> io::Result<()> {
        open.identify(&self.place, false, lines)?;
        // A copy of a file that is still read: its turn comes when that one is closed.
        let is_copy = open.key.is_some() && self.open.iter().any(|other| other.key == open.key);
        if !is_copy {
            self.open.push(open);
        }
        Ok(())
    }

    /// What a plain file was rotated to while nobody read it: from the oldest file on that was read in part.
    fn missed(&self, lines: &dyn Lines) -> io::Result<Vec<Listed>> {
        let mut rotated = self.place.rotated()?;
        let is_known = |file: &Listed| {
            let file = self.place.open(&file.path).ok()?;
            let key = key_of(&self.place, "", &file, &fingerprint(&file, false).ok()??).ok()?;
            Some(lines.knows(key))
        };
        let first = rotated.iter().position(|file| is_known(file) == Some(true)).unwrap_or(rotated.len());
        Ok(rotated.split_off(first))
    }
}

/// Keeps the first error.
fn note(failed: &mut io::Result<()>, result: io::Result<()>) {
    if failed.is_ok() {
        *failed = result;
    }
}

impl Open {
    fn new(place: &Place, listed: &Listed, now: Instant) -> io::Result<Self> {
        let file = place.open(&listed.path)?;
        let inode = Inode::of(&file.metadata()?);
        let content =
            if listed.is_gzip { Content::Gzip(Box::new(MultiGzDecoder::new(file))) } else { Content::Plain(file) };
        Ok(Self {
            content,
            inode,
            key: None,
            origin: listed.origin.clone(),
            is_current: listed.is_current,
            rotated: (!listed.is_current).then_some(now),
            carry: Vec::new(),
            start: 0,
            tail: Vec::new(),
        })
    }

    /// Determines the key, once the file has a whole line or if that is not awaited any more, and the position to read from.
    fn identify(&mut self, place: &Place, is_final: bool, lines: &mut dyn Lines) -> io::Result<()> {
        if self.key.is_some() {
            return Ok(());
        }
        let (fingerprint, length) = match &mut self.content {
            Content::Plain(file) => (fingerprint(file, is_final)?, Some(file.metadata()?.len())),
            Content::Gzip(decoder) => {
                read_into(decoder, &mut self.carry, FINGERPRINT_BYTES)?;
                (first_line(&self.carry, true), None)
            }
        };
        let Some(fingerprint) = fingerprint else { return Ok(()) };
        let key = key_of(place, &self.origin, self.content.file(), &fingerprint)?;
        self.key = Some(key);
        self.start = lines.begin(key, length);
        if let Content::Gzip(decoder) = &mut self.content {
            // The bytes of the fingerprint were read already.
            let mut skip = self.start;
            while skip > self.carry.len() as u64 {
                skip -= self.carry.len() as u64;
                self.carry.clear();
                if read_into(decoder, &mut self.carry, READ_BYTES)? == 0 {
                    break;
                }
            }
            self.carry.drain(..usize::try_from(skip).unwrap_or(usize::MAX).min(self.carry.len()));
        }
        Ok(())
    }

    /// Position after the bytes that were read.
    fn read_to(&self) -> u64 {
        self.start + self.carry.len() as u64
    }

    /// Whether the file ends before the position, or other bytes are before it.
    fn was_rewritten(&self) -> io::Result<bool> {
        let Content::Plain(file) = &self.content else { return Ok(false) };
        if file.metadata()?.len() < self.read_to() {
            return Ok(true);
        }
        let mut bytes = vec![0; self.tail.len()];
        let length = read_full(file, &mut bytes, self.read_to() - self.tail.len() as u64)?;
        Ok(bytes[..length] != self.tail)
    }

    /// Passes on whole lines.
    fn read(&mut self, place: &Place, budget: &mut usize, lines: &mut dyn Lines) -> io::Result<Stop> {
        self.identify(place, false, lines)?;
        let Some(key) = self.key else { return Ok(Stop::AtEnd) };
        loop {
            let mut taken = 0;
            let mut is_full = false;
            while let Some((length, step)) = next_line(&self.carry[taken..]) {
                let end = self.start + step as u64;
                let goes_on = lines.line(key, self.start, end, &self.carry[taken..taken + length]);
                (self.start, taken) = (end, taken + step);
                if !goes_on {
                    is_full = true;
                    break;
                }
            }
            self.carry.drain(..taken);
            if is_full {
                return Ok(Stop::Full);
            }
            if *budget == 0 {
                return Ok(Stop::Budget);
            }
            let read = match &mut self.content {
                Content::Plain(file) => {
                    let (from, held) = (self.start + self.carry.len() as u64, self.carry.len());
                    self.carry.resize(held + READ_BYTES, 0);
                    let read = read_full(file, &mut self.carry[held..], from)?;
                    self.carry.truncate(held + read);
                    read
                }
                Content::Gzip(decoder) => {
                    let held = self.carry.len();
                    match read_into(decoder, &mut self.carry, READ_BYTES) {
                        // What precedes a fault is taken before it is returned.
                        Err(error) if self.carry.len() == held => return Err(error),
                        _ => self.carry.len() - held,
                    }
                }
            };
            if read == 0 {
                return Ok(Stop::AtEnd);
            }
            *budget = budget.saturating_sub(read);
            self.tail.extend_from_slice(&self.carry[self.carry.len() - read.min(TAIL_BYTES)..]);
            self.tail.drain(..self.tail.len().saturating_sub(TAIL_BYTES));
        }
    }

    /// Whether nothing more is expected of the file.
    fn is_over(&self, now: Instant) -> bool {
        let is_compressed = matches!(self.content, Content::Gzip(_));
        is_compressed || self.rotated.is_some_and(|since| now.saturating_duration_since(since) >= ROTATED_GRACE)
    }

    /// Passes on what was read of a file that began anew meanwhile.
    fn finish_rewritten(&mut self, place: &Place, lines: &mut dyn Lines) {
        self.take_rest(lines);
        // Lines of containers begin with a time: a file that begins anew has another identity.
        if let (Some(key), false) = (self.key, place.is_container()) {
            lines.rewritten(key);
        }
    }

    /// Passes on a last line without a newline.
    fn take_rest(&mut self, lines: &mut dyn Lines) {
        let Some(key) = self.key else { return };
        if !self.carry.is_empty() {
            let end = self.read_to();
            lines.line(key, self.start, end, &std::mem::take(&mut self.carry));
            self.start = end;
        }
        lines.end(key);
    }
}

impl Content {
    fn file(&self) -> &File {
        match self {
            Self::Plain(file) => file,
            Self::Gzip(decoder) => decoder.get_ref(),
        }
    }
}

fn key_of(place: &Place, origin: &str, file: &File, fingerprint: &[u8]) -> io::Result<u64> {
    let mut hash = Sha256::new();
    match place {
        Place::File(_) => hash.update(Inode::of(&file.metadata()?).bytes()),
        Place::Container { .. } => hash.update(origin),
    }
    hash.update(fingerprint);
    Ok(first_u64(&hash.finalize()))
}

/// The first bytes of a hash as a number.
pub(crate) fn first_u64(hash: &[u8]) -> u64 {
    hash.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// First line of a file, or its first bytes.
fn fingerprint(file: &File, is_final: bool) -> io::Result<Option<Vec<u8>>> {
    let mut start = vec![0; FINGERPRINT_BYTES];
    let length = read_full(file, &mut start, 0)?;
    Ok(first_line(&start[..length], is_final))
}

fn first_line(start: &[u8], is_final: bool) -> Option<Vec<u8>> {
    match start.iter().position(|byte| *byte == b'\n') {
        Some(end) => Some(start[..=end].to_vec()),
        None if start.len() >= FINGERPRINT_BYTES => Some(start[..FINGERPRINT_BYTES].to_vec()),
        None => (is_final && !start.is_empty()).then(|| start.to_vec()),
    }
}

/// Lengths of the first line and of the line with its end.
fn next_line(bytes: &[u8]) -> Option<(usize, usize)> {
    match bytes.iter().take(MAX_LINE).position(|byte| *byte == b'\n') {
        Some(end) => Some((end, end + 1)),
        None => (bytes.len() >= MAX_LINE).then_some((MAX_LINE, MAX_LINE)),
    }
}

/// Reads until the buffer is full or the file ends.
fn read_full(file: &File, buffer: &mut [u8], from: u64) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read_at(&mut buffer[length..], from + length as u64) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

/// Appends at most `count` bytes.
fn read_into(decoder: &mut MultiGzDecoder<File>, buffer: &mut Vec<u8>, count: usize) -> io::Result<usize> {
    decoder.by_ref().take(count as u64).read_to_end(buffer)
}
