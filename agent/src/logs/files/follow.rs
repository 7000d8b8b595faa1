//! Lines of the files of one source, through appends, rotation, truncation and compression.

use std::{collections::BTreeMap, fs, io, time::Instant};

use super::{
    location::{Inode, Listed, LogLocation},
    open::{Lines, Open, Stop, key_at},
};

/// Bytes that one poll reads: then other sources have their turn.
const POLL_BYTES: usize = 4 << 20;

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

/// Key and origin of a file.
type Identity = (u64, String);

/// Follows the files of one location.
#[derive(Debug)]
pub(crate) struct Follower {
    location: LogLocation,
    /// Oldest first.
    open: Vec<Open>,
    /// Files that were read to their end, with their lengths.
    finished: BTreeMap<Inode, u64>,
    /// The last of them.
    last: Option<Identity>,
    has_polled: bool,
}

impl Follower {
    pub(crate) fn new(location: LogLocation) -> Self {
        Self { location, open: Vec::new(), finished: BTreeMap::new(), last: None, has_polled: false }
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
            note(failed, open.identify(&self.location, false, lines));
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
            let stop = open.read(&self.location, &mut budget, lines);
            was_busy |= open.start > before;
            let stop = match stop {
                Ok(stop) => stop,
                Err(error) => {
                    note(failed, Err(error));
                    if !open.is_compressed() {
                        previous = None;
                        index += 1;
                        continue;
                    }
                    // A compressed file that is damaged, or not written completely, ends with its last whole line.
                    open.drop_partial_line();
                    Stop::AtEnd
                }
            };
            match stop {
                Stop::Full => return Progress::Full,
                Stop::Budget => return Progress::More,
                Stop::AtEnd if open.is_over(now) => {
                    let was_known = open.key.is_some();
                    note(failed, open.identify(&self.location, true, lines));
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

    /// The files are no longer written: passes on what is left, whether there is space or not.
    pub(crate) fn finish(&mut self, lines: &mut dyn Lines) -> io::Result<()> {
        for open in &mut self.open {
            open.identify(&self.location, true, lines)?;
            let mut budget = usize::MAX;
            while open.read(&self.location, &mut budget, lines)? != Stop::AtEnd {}
            open.take_rest(lines);
        }
        self.open.clear();
        Ok(())
    }

    fn close(&mut self, index: usize) -> io::Result<()> {
        let open = self.open.remove(index);
        let length = open.length();
        self.last = open.key.map(|key| (key, open.origin));
        self.finished.insert(open.inode, length?);
        Ok(())
    }

    /// Opens what is new, and notices what was renamed, deleted or truncated.
    fn refresh(&mut self, now: Instant, lines: &mut dyn Lines) -> io::Result<()> {
        let mut listed = self.location.list()?;
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
                Err(error) if self.location.is_container() && error.kind() == io::ErrorKind::NotFound => {}
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
                    open.finish_rewritten(&self.location, lines);
                    let open = self.open.remove(index);
                    if self.location.is_container() {
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
            let opened = Open::new(&self.location, &file, now).and_then(|open| self.add(open, lines));
            note(&mut failed, opened);
        }
        failed
    }

    fn add(&mut self, mut open: Open, lines: &mut dyn Lines) -> io::Result<()> {
        open.identify(&self.location, false, lines)?;
        // A copy of a file that is still read: its turn comes when that one is closed.
        let is_copy = open.key.is_some() && self.open.iter().any(|other| other.key == open.key);
        if !is_copy {
            self.open.push(open);
        }
        Ok(())
    }

    /// What a plain file was rotated to while nobody read it: from the oldest file on that was read in part.
    fn missed(&self, lines: &dyn Lines) -> io::Result<Vec<Listed>> {
        let mut rotated = self.location.rotated()?;
        let is_known = |file: &Listed| matches!(key_at(&self.location, &file.path), Ok(Some(key)) if lines.knows(key));
        let first = rotated.iter().position(is_known).unwrap_or(rotated.len());
        Ok(rotated.split_off(first))
    }
}

/// Keeps the first error.
fn note(failed: &mut io::Result<()>, result: io::Result<()>) {
    if failed.is_ok() {
        *failed = result;
    }
}
