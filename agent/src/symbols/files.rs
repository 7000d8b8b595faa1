//! Opens mapped files and their debug files within the root of the process.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::Read as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::{
    MappedFile,
    elf::{DebugLink, Elf},
};
use crate::{
    targets::proc::Proc,
    targets::rooted::{Root, open_executable, open_regular},
};

/// Directory of separate debug files.
const DEBUG_DIR: &str = "/usr/lib/debug";
/// Maximum length of a debug file whose checksum is computed, in bytes.
const MAX_DEBUG_FILE: u64 = 4 << 30;

/// Files are verified by inode, build ID or checksum, so that the start of the process is not compared.
fn root_of(mapped: &MappedFile) -> Root {
    Root::Of { pid: mapped.pid, start: None }
}

/// The file opened for a mapping.
#[derive(Debug)]
pub(super) struct OpenedFile {
    pub(super) file: File,
    /// Whether the file is the mapped one.
    pub(super) is_same_file: bool,
}

/// Opens a mapped file: the file at its path if the inode matches, else the executable if its inode matches, else the
/// unverified file at its path.
pub(super) fn open_mapped(proc: &Proc, mapped: &MappedFile) -> Option<OpenedFile> {
    let at_path = if mapped.path.is_absolute() && !mapped.is_deleted {
        open_regular(proc, root_of(mapped), &mapped.path).ok()
    } else {
        None
    };
    if let Some((file, meta)) = at_path {
        if mapped.inode == 0 || meta.ino() == mapped.inode {
            return Some(OpenedFile { file, is_same_file: true });
        }
        return open_as_executable(proc, mapped).or(Some(OpenedFile { file, is_same_file: false }));
    }
    open_as_executable(proc, mapped)
}

fn open_as_executable(proc: &Proc, mapped: &MappedFile) -> Option<OpenedFile> {
    let (file, meta) = open_executable(proc, mapped.pid).ok()?;
    (meta.ino() == mapped.inode).then_some(OpenedFile { file, is_same_file: true })
}

/// Returns whether a mapped file is the executable of its process.
pub(super) fn is_executable(proc: &Proc, mapped: &MappedFile) -> bool {
    let link = proc.path(mapped.pid, "exe");
    match fs::metadata(&link) {
        Ok(meta) if mapped.inode != 0 => meta.ino() == mapped.inode,
        _ => fs::read_link(&link).is_ok_and(|path| path == mapped.path),
    }
}

/// Opens the separate debug file, by build ID or else by debug link.
pub(super) fn open_debug(proc: &Proc, mapped: &MappedFile, elf: &Elf) -> Option<(File, Elf)> {
    if let Some(path) = build_id_path(&elf.build_id)
        && let Ok((file, _)) = open_regular(proc, root_of(mapped), &path)
        && let Ok(debug) = Elf::read(&file)
        && debug.build_id == elf.build_id
    {
        return Some((file, debug));
    }
    let link = elf.debug_link.as_ref()?;
    let paths = link_paths(link, mapped.path.parent()?);
    paths.into_iter().filter(|path| *path != mapped.path).find_map(|path| {
        let (mut file, meta) = open_regular(proc, root_of(mapped), &path).ok()?;
        if meta.len() > MAX_DEBUG_FILE || crc(&mut file)? != link.crc {
            return None;
        }
        let debug = Elf::read(&file).ok()?;
        Some((file, debug))
    })
}

/// `.build-id/ab/cdef….debug`
fn build_id_path(id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = id.split_first().filter(|(_, rest)| !rest.is_empty() && rest.len() <= 64)?;
    let mut path = format!("{DEBUG_DIR}/.build-id/{first:02x}/");
    for byte in rest {
        write!(path, "{byte:02x}").ok()?;
    }
    path.push_str(".debug");
    Some(path.into())
}

/// Search order of gdb for a debug link.
fn link_paths(link: &DebugLink, dir: &Path) -> [PathBuf; 3] {
    let below = dir.strip_prefix("/").unwrap_or(dir);
    [dir.join(&link.name), dir.join(".debug").join(&link.name), Path::new(DEBUG_DIR).join(below).join(&link.name)]
}

fn crc(file: &mut File) -> Option<u32> {
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).ok()? {
            0 => return Some(hasher.finalize()),
            length => hasher.update(buffer.get(..length)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_file_paths_follow_the_gdb_search_order() {
        let path = build_id_path(&[0xab, 0xcd, 0xef]).unwrap();
        assert_eq!(path, Path::new("/usr/lib/debug/.build-id/ab/cdef.debug"));
        assert_eq!(build_id_path(&[]), None);
        let link = DebugLink { name: "a.debug".to_owned(), crc: 0 };
        let paths = link_paths(&link, Path::new("/usr/bin"));
        assert_eq!(paths[1], Path::new("/usr/bin/.debug/a.debug"));
        assert_eq!(paths[2], Path::new("/usr/lib/debug/usr/bin/a.debug"));
    }
}
