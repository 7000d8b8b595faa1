//! Reading a small file of another process through its own root.

use std::{fs::File, io::Read as _, os::unix::fs::MetadataExt as _, path::Path};

use zeroize::Zeroizing;

pub(crate) use crate::targets::rooted::Root;
use crate::targets::{
    proc::Proc,
    rooted::{OpenError, open_regular},
};

/// Largest file that is read: an identity has about 300 bytes, a node's configuration a few thousand.
pub(crate) const MAX_BYTES: u64 = 64 << 10;

/// Distinguishes one version of a file from the next.
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
    #[error(transparent)]
    Refused(OpenError),
    #[error("{0} bytes long, at most 65536 are read")]
    TooLong(u64),
    #[error("{0}")]
    System(String),
}

impl From<OpenError> for ReadError {
    fn from(cause: OpenError) -> Self {
        match cause {
            OpenError::Missing => Self::Missing,
            OpenError::Irregular => Self::Irregular,
            OpenError::Symlink => Self::Refused(cause),
            OpenError::System(cause) => Self::System(cause),
        }
    }
}

/// An open regular file within the size limit.
#[derive(Debug)]
pub(crate) struct Opened {
    file: File,
    pub(crate) stamp: Stamp,
}

/// Opens a file without reading it.
pub(crate) fn open_in(proc: &Proc, root: Root, path: &Path) -> Result<Opened, ReadError> {
    let (file, meta) = open_regular(proc, root, path)?;
    if meta.len() > MAX_BYTES {
        return Err(ReadError::TooLong(meta.len()));
    }
    let stamp =
        Stamp { device: meta.dev(), inode: meta.ino(), size: meta.len(), modified: (meta.mtime(), meta.mtime_nsec()) };
    Ok(Opened { file, stamp })
}

impl Opened {
    /// The content; its memory is wiped when dropped, also that of a file that is no valid identity.
    pub(crate) fn content(self) -> Result<Zeroizing<Vec<u8>>, ReadError> {
        // Full capacity from the start: reallocation would leave copies behind.
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

    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, open, openat2};

    use super::*;

    fn me() -> Root {
        Root::Of { pid: std::process::id(), start: None }
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
