//! Follows a log file through appends, rotation and truncation.
//!
//! A file is known by its device, inode and first bytes, so that a file that was renamed is the same one, and one that was
//! truncated and written anew is another. Positions are bytes from the start of a file to the end of the last line that was
//! taken.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use sha2::{Digest as _, Sha256};

/// Identity of a file, the same on every run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FileId(pub(crate) u64);

/// First bytes of a file that are part of its identity. A file is not read before it has a whole line or as many bytes.
const FINGERPRINT_BYTES: usize = 256;
/// Bytes that are read at once.
const READ_BYTES: usize = 256 << 10;
/// Greatest length of a line; a longer one is taken in several.
pub(crate) const MAX_LINE: usize = 1 << 20;
/// How long a file that was renamed or replaced is read: its writer may not have opened the new one yet.
const ROTATED_GRACE: Duration = Duration::from_secs(10);

/// A line, without its newline.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FileLine<'a> {
    pub(crate) file: FileId,
    /// Position after the line.
    pub(crate) end: u64,
    pub(crate) bytes: &'a [u8],
}

/// An open file.
#[derive(Debug)]
struct Open {
    file: File,
    key: (u64, u64),
    id: FileId,
    /// First bytes, to notice that the file was truncated and written anew.
    fingerprint: Vec<u8>,
    /// Position after the last line that was taken.
    position: u64,
    /// Since when the path has another file.
    rotated: Option<Instant>,
}

/// Follows the file at one path, and what it was rotated to.
#[derive(Debug)]
pub(crate) struct Follower {
    path: PathBuf,
    open: Vec<Open>,
    /// Positions of an earlier run.
    positions: BTreeMap<FileId, u64>,
    buffer: Vec<u8>,
}

/// What happened to a line that was offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It was recorded; the next one follows.
    Yes,
    /// There is no space for it: it is offered again.
    Later,
}

impl Follower {
    /// Follows the file at `path`, which need not exist yet. Files of which `positions` knows the position are continued;
    /// others are read from their beginning.
    pub(crate) fn new(path: PathBuf, positions: BTreeMap<FileId, u64>) -> Self {
        Self { path, open: Vec::new(), positions, buffer: Vec::new() }
    }

    /// Positions of the files that are open.
    pub(crate) fn positions(&self) -> impl Iterator<Item = (FileId, u64)> {
        self.open.iter().map(|open| (open.id, open.position))
    }

    /// Offers the lines that were appended since, oldest file first.
    ///
    /// # Errors
    /// The file cannot be opened or read. What was read before was offered; the next call tries again.
    pub(crate) fn poll(&mut self, now: Instant, take: &mut dyn FnMut(FileLine<'_>) -> Taken) -> io::Result<()> {
        self.open_files(now)?;
        let mut finished = Vec::new();
        for (index, open) in self.open.iter_mut().enumerate() {
            let is_drained = open.read(&mut self.buffer, take)?;
            if !is_drained {
                // In order: what follows waits.
                break;
            }
            if open.rotated.is_some_and(|since| now.saturating_duration_since(since) >= ROTATED_GRACE) {
                open.read_rest(take)?;
                finished.push(index);
            }
        }
        for index in finished.into_iter().rev() {
            self.open.remove(index);
        }
        Ok(())
    }

    /// Opens what is at the path, and at the start the files that it was rotated to while nobody read.
    fn open_files(&mut self, now: Instant) -> io::Result<()> {
        let current = match open_file(&self.path) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if self.open.is_empty() && !self.positions.is_empty() {
            self.open_rotated()?;
        }
        let key = current.as_ref().map(|(_, key)| *key);
        for open in &mut self.open {
            if Some(open.key) != key {
                open.rotated.get_or_insert(now);
            } else if open.was_rewritten()? {
                // Truncated: what was not read is lost with it.
                open.key = (0, 0);
                open.rotated = Some(now.checked_sub(ROTATED_GRACE).unwrap_or(now));
            }
        }
        if let Some((file, key)) = current
            && !self.open.iter().any(|open| open.key == key)
            && let Some(open) = Open::new(file, key, &self.positions)?
        {
            self.open.push(open);
        }
        Ok(())
    }

    /// Opens files beside the path that an earlier run has read in part.
    fn open_rotated(&mut self) -> io::Result<()> {
        let (Some(folder), Some(name)) = (self.path.parent(), self.path.file_name()) else { return Ok(()) };
        let mut found = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let is_rotated = entry.file_name().as_encoded_bytes().starts_with(name.as_encoded_bytes());
            if !is_rotated || entry.file_name() == name {
                continue;
            }
            // One that vanishes meanwhile is gone.
            let Ok((file, key)) = open_file(&entry.path()) else { continue };
            let modified = file.metadata()?.mtime();
            if let Some(open) = Open::new(file, key, &self.positions)?
                && self.positions.contains_key(&open.id)
            {
                found.push((modified, open));
            }
        }
        found.sort_by_key(|(modified, _)| *modified);
        self.open.extend(found.into_iter().map(|(_, open)| open));
        Ok(())
    }
}

/// Opens a regular file: a FIFO or a device would block.
fn open_file(path: &Path) -> io::Result<(File, (u64, u64))> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok((file, (metadata.dev(), metadata.ino())))
}

impl Open {
    /// None as long as the file has neither a whole line nor enough bytes to know it again.
    fn new(file: File, key: (u64, u64), positions: &BTreeMap<FileId, u64>) -> io::Result<Option<Self>> {
        let Some(fingerprint) = fingerprint(&file)? else { return Ok(None) };
        let mut hash = Sha256::new();
        hash.update(key.0.to_le_bytes());
        hash.update(key.1.to_le_bytes());
        hash.update(&fingerprint);
        let mut start = [0; 8];
        start.copy_from_slice(&hash.finalize()[..8]);
        let id = FileId(u64::from_le_bytes(start));
        let position = positions.get(&id).copied().unwrap_or(0);
        Ok(Some(Self { file, key, id, fingerprint, position, rotated: None }))
    }

    /// Whether the file begins differently or ends before the position.
    fn was_rewritten(&self) -> io::Result<bool> {
        let mut start = vec![0; self.fingerprint.len()];
        let length = read_full(&self.file, &mut start, 0)?;
        Ok(start[..length] != self.fingerprint || self.file.metadata()?.len() < self.position)
    }

    /// Offers whole lines; returns whether all were taken.
    fn read(&mut self, buffer: &mut Vec<u8>, take: &mut dyn FnMut(FileLine<'_>) -> Taken) -> io::Result<bool> {
        loop {
            buffer.resize(READ_BYTES, 0);
            let mut length = read_full(&self.file, buffer, self.position)?;
            // A line that is longer than the buffer.
            while !buffer[..length].contains(&b'\n') && length == buffer.len() && length < MAX_LINE {
                buffer.resize(buffer.len() * 2, 0);
                length = read_full(&self.file, buffer, self.position)?;
            }
            let mut rest = &buffer[..length];
            let at_most = |rest: &[u8]| rest.iter().take(MAX_LINE).position(|byte| *byte == b'\n');
            loop {
                let (line, step) = match at_most(rest) {
                    Some(end) => (&rest[..end], end + 1),
                    None if rest.len() >= MAX_LINE => (&rest[..MAX_LINE], MAX_LINE),
                    None => break,
                };
                let end = self.position + step as u64;
                if take(FileLine { file: self.id, end, bytes: line }) == Taken::Later {
                    return Ok(false);
                }
                self.position = end;
                rest = &rest[step..];
            }
            if length < buffer.len() {
                return Ok(true);
            }
        }
    }

    /// Offers what is left of a file that nobody writes any more: a line without a newline.
    fn read_rest(&mut self, take: &mut dyn FnMut(FileLine<'_>) -> Taken) -> io::Result<()> {
        let mut rest = vec![0; MAX_LINE];
        let length = read_full(&self.file, &mut rest, self.position)?;
        if length > 0 {
            let end = self.position + length as u64;
            if take(FileLine { file: self.id, end, bytes: &rest[..length] }) == Taken::Yes {
                self.position = end;
            }
        }
        Ok(())
    }
}

/// First line, or first bytes, of a file.
fn fingerprint(file: &File) -> io::Result<Option<Vec<u8>>> {
    let mut start = vec![0; FINGERPRINT_BYTES];
    let length = read_full(file, &mut start, 0)?;
    start.truncate(length);
    match start.iter().position(|byte| *byte == b'\n') {
        Some(end) => start.truncate(end + 1),
        None if length < FINGERPRINT_BYTES => return Ok(None),
        None => {}
    }
    Ok(Some(start))
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
