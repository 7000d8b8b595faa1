//! Opens the file behind a mapping: inside the process's own root, and surely the one that is mapped.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::maps::CodeMapping;

/// Why not, as a reason in a list.
pub(crate) fn open(pid: u32, mapping: &CodeMapping) -> Result<File, String> {
    let mut failed = None;
    let root = format!("/proc/{pid}/root");
    let range = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    let tries = [
        (!mapping.deleted).then(|| open_in(Path::new(&root), &mapping.path)),
        Some(File::open(format!("/proc/{pid}/exe"))),
        // Needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE.
        Some(File::open(range)),
    ];
    for found in tries.into_iter().flatten() {
        match found.and_then(|file| same(file, mapping)) {
            Ok(file) => return Ok(file),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    Err(failed.map_or_else(|| "deleted".to_owned(), |error| error.to_string()))
}

/// A path of the process: its symbolic links lead where they lead for the process, and not to our own files.
fn open_in(root: &Path, path: &Path) -> std::io::Result<File> {
    let folder = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // A pipe in the file's place must not make us wait.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    Ok(rustix::fs::openat2(&folder, path, flags, Mode::empty(), resolve)?.into())
}

/// A file system that is put together of others shows another device in `maps` than the file has, but not both another
/// device and the same inode by accident; one that has been replaced has the device and another inode.
fn same(file: File, mapping: &CodeMapping) -> std::io::Result<File> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(std::io::Error::other("not a file"));
    }
    let device = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
    if metadata.ino() != mapping.inode && (device == mapping.device || mapping.deleted) {
        return Err(std::io::Error::other("replaced by another file"));
    }
    Ok(file)
}
