//! One open file: its identity, and its lines from a position on.
//!
//! The identity of a file (its *key*) is a hash of its first line and of where it is from: device and inode for a plain file,
//! which keeps both when it is renamed; the container for that of a runtime, whose lines begin with a time, so that a
//! compressed copy is the same file. Positions are bytes from the start of the uncompressed file.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::FileExt as _,
    path::Path,
    time::{Duration, Instant},
};

use flate2::read::MultiGzDecoder;
use sha2::{Digest as _, Sha256};

use super::location::{Inode, Listed, LogLocation};

/// First bytes of a file that are part of its identity. A file is not read before it has a whole line or as many bytes.
const FINGERPRINT_BYTES: usize = 256;
/// Bytes before the position that must not have changed: otherwise the file was truncated and written anew.
const TAIL_BYTES: usize = 64;
/// Bytes that are read at once.
const READ_BYTES: usize = 256 << 10;
/// Greatest length of a line; a longer one is taken in several.
const MAX_LINE: usize = 1 << 20;
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

    /// The file is no longer written, and all of its lines were taken. The last ones may go on in the next file.
    fn end(&mut self, key: u64);

    /// No other file continues the last lines of the file, which has ended.
    fn complete(&mut self, key: u64);

    /// The file was truncated and written anew.
    fn rewritten(&mut self, key: u64);
}

/// An open file.
#[derive(Debug)]
pub(super) struct Open {
    content: Content,
    pub(super) inode: Inode,
    /// None as long as the file has no whole line.
    pub(super) key: Option<u64>,
    pub(super) origin: String,
    pub(super) is_current: bool,
    /// When its rotation was noticed.
    pub(super) rotated: Option<Instant>,
    /// Bytes that were read and not taken, and the position of the first of them.
    carry: Vec<u8>,
    pub(super) start: u64,
    /// Bytes before the end of `carry`.
    tail: Vec<u8>,
}

#[derive(Debug)]
enum Content {
    Plain(File),
    Gzip(Box<MultiGzDecoder<File>>),
}

/// How the reading of one file ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    AtEnd,
    Full,
    Budget,
}

impl Open {
    pub(super) fn new(location: &LogLocation, listed: &Listed, now: Instant) -> io::Result<Self> {
        let file = location.open(&listed.path)?;
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
    pub(super) fn identify(&mut self, location: &LogLocation, is_final: bool, lines: &mut dyn Lines) -> io::Result<()> {
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
        let key = key_of(location, &self.origin, self.content.file(), &fingerprint)?;
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
    pub(super) fn was_rewritten(&self) -> io::Result<bool> {
        let Content::Plain(file) = &self.content else { return Ok(false) };
        if file.metadata()?.len() < self.read_to() {
            return Ok(true);
        }
        let mut bytes = vec![0; self.tail.len()];
        let length = read_full(file, &mut bytes, self.read_to() - self.tail.len() as u64)?;
        Ok(bytes[..length] != self.tail)
    }

    /// Passes on whole lines.
    pub(super) fn read(
        &mut self,
        location: &LogLocation,
        budget: &mut usize,
        lines: &mut dyn Lines,
    ) -> io::Result<Stop> {
        self.identify(location, false, lines)?;
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

    pub(super) fn is_compressed(&self) -> bool {
        matches!(self.content, Content::Gzip(_))
    }

    /// Length of the file as it is stored, in bytes.
    pub(super) fn length(&self) -> io::Result<u64> {
        Ok(self.content.file().metadata()?.len())
    }

    /// Drops what was read after the last whole line.
    pub(super) fn drop_partial_line(&mut self) {
        self.carry.clear();
    }

    /// Whether nothing more is expected of the file.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.is_compressed() || self.rotated.is_some_and(|since| now.saturating_duration_since(since) >= ROTATED_GRACE)
    }

    /// Passes on what was read of a file that began anew meanwhile.
    pub(super) fn finish_rewritten(&mut self, location: &LogLocation, lines: &mut dyn Lines) {
        self.take_rest(lines);
        // Lines of containers begin with a time: a file that begins anew has another identity.
        if let (Some(key), false) = (self.key, location.is_container()) {
            lines.rewritten(key);
        }
    }

    /// Passes on a last line without a newline.
    pub(super) fn take_rest(&mut self, lines: &mut dyn Lines) {
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

/// Key of the plain file at a path; `None` if it has no whole line.
pub(super) fn key_at(location: &LogLocation, path: &Path) -> io::Result<Option<u64>> {
    let file = location.open(path)?;
    fingerprint(&file, false)?.map(|fingerprint| key_of(location, "", &file, &fingerprint)).transpose()
}

fn key_of(location: &LogLocation, origin: &str, file: &File, fingerprint: &[u8]) -> io::Result<u64> {
    let mut hash = Sha256::new();
    match location {
        LogLocation::File(_) => hash.update(Inode::of(&file.metadata()?).bytes()),
        LogLocation::Container { .. } => hash.update(origin),
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
