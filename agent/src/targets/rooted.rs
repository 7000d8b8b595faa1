//! Opening a file of another process through its own root.
//!
//! The path is resolved with `openat2(RESOLVE_IN_ROOT)` on `/proc/<pid>/root`: absolute symbolic links and `..` stay
//! inside the process's root, so a container cannot make the agent read a file of the host. Minimum kernel 5.6.

use std::{
    fs::{File, Metadata},
    path::Path,
};

use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, open, openat2},
    io::Errno,
};

use crate::targets::proc::Proc;

/// The root in which a path is resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Root {
    /// The root of this process.
    Of(u32),
    /// The agent's own.
    Host,
}

/// Why a file could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("not found")]
    Missing,
    #[error("not a regular file")]
    Irregular,
    #[error("{0}")]
    System(String),
}

impl From<Errno> for OpenError {
    fn from(cause: Errno) -> Self {
        match cause {
            // A directory of the path is a file, or the process is gone.
            Errno::NOENT | Errno::NOTDIR | Errno::SRCH => Self::Missing,
            other => Self::System(std::io::Error::from(other).to_string()),
        }
    }
}

/// Opens a regular file for reading. Anything else that the path leads to is closed again at once.
pub(crate) fn open_regular(proc: &Proc, root: Root, path: &Path) -> Result<(File, Metadata), OpenError> {
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
    regular(File::from(fd))
}

/// Opens the executable of a process, which may have been deleted or replaced since it began.
pub(crate) fn open_executable(proc: &Proc, pid: u32) -> Result<(File, Metadata), OpenError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    regular(File::from(open(proc.path(pid, "exe"), flags, Mode::empty())?))
}

fn regular(file: File) -> Result<(File, Metadata), OpenError> {
    let meta = file.metadata().map_err(|cause| OpenError::System(cause.to_string()))?;
    if meta.is_file() { Ok((file, meta)) } else { Err(OpenError::Irregular) }
}
