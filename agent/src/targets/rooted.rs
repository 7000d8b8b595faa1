//! Opening a file of another process through its own root.
//!
//! The path is resolved with `openat2(RESOLVE_IN_ROOT)` on `/proc/<pid>/root`: absolute symbolic links and `..` stay
//! inside the process's root, so a container cannot make the agent read a file of the host. A path of the host may lead into
//! a volume that a container writes to: no symbolic link is followed there. Minimum kernel 5.6.

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
    /// The root of this process. `start`: the clock ticks from boot to its start, if known; a later process with the same
    /// id is refused.
    Of { pid: u32, start: Option<u64> },
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
    #[error("a symbolic link: a path of the host must have none")]
    Symlink,
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
        Root::Of { pid, start } => {
            let top = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let top = open(proc.path(pid, "root"), top, Mode::empty())?;
            // Read after the root was opened: the process ran then, so the root is its own.
            if start.is_some() && proc.start_of(pid) != start {
                return Err(OpenError::Missing);
            }
            openat2(top, path, flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)?
        }
        Root::Host => match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
            Err(Errno::LOOP) => return Err(OpenError::Symlink),
            opened => opened?,
        },
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn symbolic_links_on_the_host_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("identity.json"), dir.path().join("link"));
        std::fs::write(&file, "secret").unwrap();
        symlink(&file, &link).unwrap();
        symlink(dir.path(), dir.path().join("folder")).unwrap();
        let opened = |path: &Path| open_regular(&Proc::default(), Root::Host, path).map(|(_, meta)| meta.len());
        assert_eq!(opened(&file), Ok(6));
        assert_eq!(opened(&link), Err(OpenError::Symlink));
        assert_eq!(opened(&dir.path().join("folder/identity.json")), Err(OpenError::Symlink));
        let own = Root::Of { pid: std::process::id(), start: None };
        assert!(open_regular(&Proc::default(), own, &link).is_ok(), "inside the root of a process they are");
    }

    #[test]
    fn a_later_process_with_the_same_id_is_refused() {
        let (proc, pid) = (Proc::default(), std::process::id());
        let path = std::env::current_exe().unwrap();
        let start = proc.start_of(pid).unwrap();
        let opened = |start| open_regular(&proc, Root::Of { pid, start }, &path).map(|_| ());
        assert_eq!(opened(Some(start)), Ok(()));
        assert_eq!(opened(Some(start - 1)), Err(OpenError::Missing));
    }
}
