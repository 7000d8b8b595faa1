//! Reading a file of another process through its own root.
//!
//! The path is resolved with `openat2(RESOLVE_IN_ROOT)` on `/proc/<pid>/root`: absolute symbolic links and `..` stay
//! inside the process's root, so a container cannot make the agent read a file of the host. Minimum kernel 5.6.

use std::{fs::File, io::Read as _, os::unix::fs::MetadataExt as _, path::Path};

use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, open, openat2},
    io::Errno,
};
use zeroize::Zeroizing;

use crate::targets::proc::Proc;

/// Largest file that is read: an identity has about 300 bytes, a node's configuration a few thousand.
pub(crate) const MAX_BYTES: u64 = 64 << 10;

/// What tells one state of a file from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

/// Why a file could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("not found")]
    Missing,
    #[error("not a regular file")]
    Irregular,
    #[error("{0} bytes long, at most 65536 are read")]
    TooLong(u64),
    #[error("{0}")]
    System(String),
}

impl From<Errno> for ReadError {
    fn from(cause: Errno) -> Self {
        match cause {
            // A folder on the way that is a file, or a process that is gone, is no file either.
            Errno::NOENT | Errno::NOTDIR | Errno::SRCH => Self::Missing,
            other => Self::System(std::io::Error::from(other).to_string()),
        }
    }
}

/// A file that is open and known to be a regular one of harmless size.
#[derive(Debug)]
pub(crate) struct Opened {
    file: File,
    pub(crate) stamp: Stamp,
}

/// Which root a path is meant in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Root {
    /// The root of this process.
    Of(u32),
    /// The agent's own.
    Host,
}

/// Opens a file without reading it.
pub(crate) fn open_in(proc: &Proc, root: Root, path: &Path) -> Result<Opened, ReadError> {
    // Non-blocking and without a terminal: the path may lead to a pipe or a device.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = match root {
        Root::Of(pid) => {
            let top = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let top = open(proc.path(pid, "root"), top, Mode::empty())?;
            openat2(top, path, flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)?
        }
        Root::Host => rustix::fs::openat(CWD, path, flags, Mode::empty())?,
    };
    let file = File::from(fd);
    let meta = file.metadata().map_err(|cause| ReadError::System(cause.to_string()))?;
    if !meta.is_file() {
        return Err(ReadError::Irregular);
    }
    if meta.len() > MAX_BYTES {
        return Err(ReadError::TooLong(meta.len()));
    }
    let stamp =
        Stamp { device: meta.dev(), inode: meta.ino(), size: meta.len(), modified: (meta.mtime(), meta.mtime_nsec()) };
    Ok(Opened { file, stamp })
}

impl Opened {
    /// The content; memory that held it is wiped, also that of an identity file which turns out to be none.
    pub(crate) fn content(self) -> Result<Zeroizing<Vec<u8>>, ReadError> {
        // Of full size from the start: growing would leave copies behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_BYTES as usize + 1));
        self.file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|cause| ReadError::System(cause.to_string()))?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(ReadError::TooLong(bytes.len() as u64));
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn me() -> Root {
        Root::Of(std::process::id())
    }

    #[test]
    fn a_file_is_read_and_its_stamp_changes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("identity.json");
        assert_eq!(open_in(&Proc::default(), me(), &path).unwrap_err(), ReadError::Missing);
        fs::write(&path, "one").unwrap();
        let first = open_in(&Proc::default(), me(), &path).unwrap();
        let stamp = first.stamp;
        assert_eq!(first.content().unwrap().as_slice(), b"one");
        assert_eq!(open_in(&Proc::default(), me(), &path).unwrap().stamp, stamp);
        fs::write(dir.path().join("new"), "two").unwrap();
        fs::rename(dir.path().join("new"), &path).unwrap();
        assert_ne!(open_in(&Proc::default(), me(), &path).unwrap().stamp, stamp);
        // A path below a file.
        assert_eq!(open_in(&Proc::default(), me(), &path.join("x")).unwrap_err(), ReadError::Missing);
    }

    #[test]
    fn what_is_no_small_regular_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(open_in(&Proc::default(), me(), dir.path()).unwrap_err(), ReadError::Irregular);
        assert_eq!(open_in(&Proc::default(), me(), Path::new("/dev/zero")).unwrap_err(), ReadError::Irregular);
        let path = dir.path().join("long");
        fs::write(&path, vec![b' '; 70_000]).unwrap();
        assert_eq!(open_in(&Proc::default(), me(), &path).unwrap_err(), ReadError::TooLong(70_000));
        // A file that says it is empty and is not: the limit holds while reading too.
        rustix::fs::mknodat(CWD, dir.path().join("pipe"), rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .unwrap();
        assert_eq!(open_in(&Proc::default(), me(), &dir.path().join("pipe")).unwrap_err(), ReadError::Irregular);
    }

    #[test]
    fn links_stay_inside_the_root() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("data")).unwrap();
        fs::write(dir.path().join("kept.json"), "inside").unwrap();
        symlink("/kept.json", dir.path().join("data/identity.json")).unwrap();
        symlink("/proc/self/root/etc/passwd", dir.path().join("data/magic.json")).unwrap();
        let top = open(dir.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        // The same call as for a process, with a folder as its root.
        let flags = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let fd = openat2(&top, "/data/identity.json", OFlags::RDONLY, Mode::empty(), flags).unwrap();
        let mut text = String::new();
        File::from(fd).read_to_string(&mut text).unwrap();
        assert_eq!(text, "inside");
        assert!(openat2(&top, "../../etc/passwd", OFlags::RDONLY, Mode::empty(), flags).is_err());
        assert!(openat2(&top, "/data/magic.json", OFlags::RDONLY, Mode::empty(), flags).is_err());
    }
}
