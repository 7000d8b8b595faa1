//! Opens the file of a mapping inside the root of the process, and verifies that it is the mapped file.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::proc_maps::CodeMapping;

/// `O_NONBLOCK`: a FIFO or a device at a path must not block.
const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Opens the file of a mapping of a process of this proc file system.
///
/// # Errors
/// The reason as text.
pub fn open(proc: &Path, pid: u32, mapping: &CodeMapping) -> Result<File, String> {
    let mut failed = None;
    let process = proc.join(pid.to_string());
    let range = format!("map_files/{:x}-{:x}", mapping.start, mapping.end);
    let tries = [
        (!mapping.deleted).then(|| open_in(&process.join("root"), &mapping.path)),
        Some(open_link(&process.join("exe"))),
        // Needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE.
        Some(open_link(&process.join(range))),
    ];
    for found in tries.into_iter().flatten() {
        match found.and_then(|file| verify(file, mapping)) {
            Ok(file) => return Ok(file),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    Err(failed.map_or_else(|| "deleted".to_owned(), |error| error.to_string()))
}

/// Opens a path inside the root of the process: symbolic links are resolved as the process resolves them.
fn open_in(root: &Path, path: &Path) -> std::io::Result<File> {
    let folder = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    Ok(rustix::fs::openat2(&folder, path, FLAGS, Mode::empty(), resolve)?.into())
}

/// Opens the file that a link of `/proc` leads to.
fn open_link(path: &Path) -> std::io::Result<File> {
    Ok(rustix::fs::open(path, FLAGS, Mode::empty())?.into())
}

/// Checks that the file is the mapped one. On an overlay file system `maps` may show another device than `stat`, with the
/// same inode; a file that was replaced has the same device and another inode.
fn verify(file: File, mapping: &CodeMapping) -> std::io::Result<File> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifo_is_opened_without_waiting_and_refused() {
        let path = std::env::temp_dir().join(format!("chainscope-fifo-{}", std::process::id()));
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let (sender, opened) = std::sync::mpsc::sync_channel(1);
        let fifo = path.clone();
        // On a thread of its own: without `O_NONBLOCK` it waits for a writer, for ever.
        std::thread::spawn(move || sender.send([open_link(&fifo), open_in(Path::new("/"), &fifo)]));
        let opened = opened.recv_timeout(std::time::Duration::from_secs(60));
        std::fs::remove_file(&path).unwrap();
        for file in opened.expect("the FIFO was opened without a writer") {
            assert!(!file.unwrap().metadata().unwrap().is_file());
        }
    }
}
