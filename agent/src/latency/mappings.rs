//! Files that a process has mapped as code: the one whose functions are timed, and what the others bring into its calls.

use std::{
    collections::BTreeSet,
    fs::File,
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use chainscope_ebpf::memory::{CodeMapping, code_of, open_mapped_file};
use chainscope_functions::{Hazard, ReadCache};

use super::RecordError;
use crate::{
    targets::proc::Proc,
    targets::rooted::{Root, open_regular},
    trace::open,
};

/// Opens a file that a process has mapped as code: by its path in the root of the process, or by the file at the path here. The path
/// is that of the mapping.
///
/// # Errors
/// [`RecordError::NotMapped`], or the file cannot be opened.
pub(super) fn open_mapped(proc: &Proc, pid: u32, path: &Path) -> Result<(PathBuf, File), RecordError> {
    let fail = |cause: io::Error| RecordError::File { path: path.to_owned(), cause };
    let path = std::path::absolute(path).map_err(fail)?;
    let mappings = code_of(proc.root(), pid).map_err(fail)?;
    // Symbolic links lead to the path of the mapping. The same path may mean another file here than for the process.
    let root = Root::Of { pid, start: proc.start_of(pid) };
    let there = open_regular(proc, root, &path).ok().map(|(_, metadata)| (metadata.dev(), metadata.ino()));
    let here = open(&path).and_then(|file| file.metadata()).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    let opened = |mapping: &CodeMapping| open_mapped_file(proc.root(), pid, mapping);
    let is_file = |mapping: &CodeMapping, wanted: Option<(u64, u64)>| {
        let found = || opened(mapping).ok().and_then(|file| file.metadata().ok());
        wanted.is_some_and(|(_, inode)| inode == mapping.inode)
            && found().map(|metadata| (metadata.dev(), metadata.ino())) == wanted
    };
    let files = || mappings.iter().filter(|mapping| mapping.inode != 0);
    let found = files()
        .find(|mapping| mapping.path == path)
        .or_else(|| files().find(|mapping| is_file(mapping, there)))
        .or_else(|| files().find(|mapping| is_file(mapping, here)));
    let Some(mapping) = found else {
        let known = files().filter(|mapping| mapping.path.file_name() == path.file_name());
        let known = known.map(|mapping| mapping.path.clone()).next();
        return Err(RecordError::NotMapped { pid, path, known });
    };
    let file = opened(mapping).map_err(|cause| fail(io::Error::other(cause)))?;
    Ok((mapping.path.clone(), file))
}

/// The worst that files of a process bring into calls of other files; [`Hazard::Unexamined`] if one cannot be read.
pub(super) fn hazard_of(proc: &Proc, pid: u32) -> Option<Hazard> {
    let Ok(mappings) = code_of(proc.root(), pid) else { return Some(Hazard::Unexamined) };
    let mut known = BTreeSet::new();
    let files = mappings.iter().filter(|mapping| mapping.inode != 0 && known.insert((mapping.device, mapping.inode)));
    let hazards = files.map(|mapping| {
        let name = mapping.path.file_name().unwrap_or_default().to_string_lossy();
        let read = open_mapped_file(proc.root(), pid, mapping)
            .ok()
            .and_then(|file| Hazard::of_process(&name, &ReadCache::new(file)).ok());
        read.unwrap_or(Some(Hazard::Unexamined))
    });
    hazards.max().flatten()
}
