//! The files of one stream: names, creation, replacement. Files have mode 0600, directories 0700.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use chainscope_proto::v1::Record;
use rustix::io::Errno;

use super::format::{self, Header};

/// The name of a segment file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentName {
    pub(super) ordinal: u64,
    /// Sequence of its first record, once any of its records may have been sent.
    pub(super) first: Option<u64>,
}

impl SegmentName {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| (text.len() == 16).then(|| u64::from_str_radix(text, 16).ok()).flatten();
        if let Some(stem) = text.strip_suffix(".seg") {
            return Some(Self { ordinal: number(stem)?, first: None });
        }
        let (ordinal, first) = text.strip_suffix(".out")?.split_once('-')?;
        Some(Self { ordinal: number(ordinal)?, first: Some(number(first)?) })
    }

    pub(super) fn path(self, dir: &Path) -> PathBuf {
        dir.join(match self.first {
            None => format!("{:016x}.seg", self.ordinal),
            Some(first) => format!("{:016x}-{first:016x}.out", self.ordinal),
        })
    }
}

pub(super) fn has_segments(dir: &Path) -> bool {
    let Ok(items) = fs::read_dir(dir) else { return false };
    items.flatten().any(|item| item.file_name().to_str().is_some_and(|name| SegmentName::parse(name).is_some()))
}

pub(super) fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

pub(super) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Creates a segment file with its header, not synced.
pub(super) fn create(dir: &Path, name: SegmentName) -> io::Result<File> {
    let path = name.path(dir);
    let file = OpenOptions::new().create_new(true).read(true).write(true).mode(0o600).open(&path)?;
    let header = Header { ordinal: name.ordinal, last: name.ordinal };
    if let Err(error) = file.write_all_at(&header.encode(), 0) {
        // A file without a header would be repaired as damaged.
        let _ = fs::remove_file(&path);
        return Err(error);
    }
    Ok(file)
}

/// Replaces a file atomically and durably.
pub(super) fn replace(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let beside = dir.join(format!("{name}.tmp"));
    let written = || {
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, dir.join(name))?;
        sync_dir(dir)
    };
    written().inspect_err(|_| {
        // Its bytes are needed on a full disk.
        let _ = fs::remove_file(&beside);
    })
}

/// Replaces a segment file by one of `kept`, the valid start of a segment file, followed by `records`. Returns its length.
pub(super) fn rewrite<'a>(
    dir: &Path,
    name: SegmentName,
    header: Header,
    kept: &[u8],
    records: impl IntoIterator<Item = &'a Record>,
) -> io::Result<u64> {
    let mut bytes = header.encode().to_vec();
    bytes.extend_from_slice(kept.get(format::HEADER_BYTES..).unwrap_or_default());
    for record in records {
        format::put(&mut bytes, header.ordinal, 0, record);
    }
    let path = name.path(dir);
    let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
    replace(dir, file, &bytes)?;
    Ok(bytes.len() as u64)
}

/// Whether the disk or its file system is damaged. Other errors, such as too many open files, can end by themselves.
pub(super) fn is_disk_error(error: &io::Error) -> bool {
    let damages = [Errno::IO, Errno::BADMSG, Errno::NODATA, Errno::UCLEAN];
    damages.iter().any(|damage| error.raw_os_error() == Some(damage.raw_os_error()))
}

/// An error of a spool whose files contradict each other, or what is known of them.
pub(super) fn inconsistent(path: &Path, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display()))
}

/// A file, or its start.
pub(super) struct Contents {
    /// The bytes before the first one that the disk cannot read.
    pub(super) bytes: Bytes,
    pub(super) is_complete: bool,
}

/// Reads a file, as far as the disk can read it.
pub(super) fn read(path: &Path) -> io::Result<Contents> {
    let mut bytes = Vec::new();
    let is_complete = match File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)) {
        Ok(_) => true,
        Err(error) if is_disk_error(&error) => {
            tracing::warn!(path = %path.display(), %error, "a segment of the spool cannot be read");
            false
        }
        Err(error) => return Err(error),
    };
    Ok(Contents { bytes: bytes.into(), is_complete })
}

/// Reads `length` bytes from `offset`, or fewer if the file ends or the disk cannot read the rest.
pub(super) fn read_at(file: &File, offset: u64, length: usize) -> io::Result<Bytes> {
    let mut bytes = vec![0; length];
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_disk_error(&error) => break,
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(done);
    Ok(bytes.into())
}
