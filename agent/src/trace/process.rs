//! The images of a running process.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, ErrorKind},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use chainscope_ebpf::memory::{CodeMapping, code_of, open_mapped_file};
use chainscope_unwind::ElfSegments;
use chainscope_usdt::{Image, ReadCache};

use crate::targets::{ContainerId, docker, proc::Proc};

/// Where process ids come from.
const PROC: &str = "/proc";

/// An ELF file that a process has mapped as code.
#[derive(Debug)]
pub struct MappedImage {
    /// Path as the process sees it.
    pub path: PathBuf,
    /// Whether the file was deleted or replaced since it was mapped.
    pub is_deleted: bool,
    /// Device and inode of the file.
    pub identity: ((u32, u32), u64),
    /// The file, opened; `None` if it cannot be.
    pub file: Option<File>,
    /// Its tracepoints, or why they cannot be read.
    pub image: Result<Image, String>,
    /// What is added to an address of the image to get the address in the process; `None` if it cannot be read.
    pub bias: Option<u64>,
}

/// A process cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// There is no process with this id.
    #[error("there is no process {0}")]
    Missing(u32),
    /// It ended meanwhile.
    #[error("process {0} ended while it was read")]
    Ended(u32),
    /// Its mappings cannot be read.
    #[error("the mappings of process {pid} cannot be read: {cause}")]
    Maps {
        /// Process id.
        pid: u32,
        /// The error of the system.
        cause: io::Error,
    },
}

/// Files by device and inode.
pub(super) type KnownImages = BTreeSet<((u32, u32), u64)>;

/// Reads every file that a process has mapped as code: executable, shared libraries, and those that it loaded later. Files
/// are found in the process's own mount namespace, and when they were deleted or replaced.
///
/// # Errors
/// See [`ProcessError`]. A file that cannot be read is not an error.
pub fn images_of(pid: u32) -> Result<Vec<MappedImage>, ProcessError> {
    new_images_of(pid, &mut KnownImages::default())
}

/// Reads those that are not known, and remembers them.
pub(super) fn new_images_of(pid: u32, known: &mut KnownImages) -> Result<Vec<MappedImage>, ProcessError> {
    let proc = Proc::default();
    let start = proc.start_of(pid).ok_or(ProcessError::Missing(pid))?;
    let mappings = code_of(Path::new(PROC), pid);
    let mut images = Vec::new();
    if let Ok(mappings) = &mappings {
        let files = mappings.iter().filter(|mapping| mapping.inode != 0);
        images.extend(files.filter(|file| known.insert((file.device, file.inode))).map(|file| image(pid, file)));
    }
    // Otherwise some of it may be of a later process with the same id.
    if proc.start_of(pid) != Some(start) {
        return Err(ProcessError::Ended(pid));
    }
    mappings.map_err(|cause| ProcessError::Maps { pid, cause })?;
    Ok(images)
}

fn image(pid: u32, mapping: &CodeMapping) -> MappedImage {
    let (file, image, bias) = match open_mapped_file(Path::new(PROC), pid, mapping) {
        Err(cause) => (None, Err(cause), None),
        Ok(file) => {
            let opened = file.try_clone().ok();
            let data = ReadCache::new(file);
            let segments = ElfSegments::read(&data).ok();
            let bias = segments.and_then(|segments| segments.load_bias(mapping.start, mapping.offset));
            (opened, Image::read(&data).map_err(|cause| cause.to_string()), bias)
        }
    };
    MappedImage {
        path: mapping.path.clone(),
        is_deleted: mapping.deleted,
        identity: (mapping.device, mapping.inode),
        file,
        image,
        bias,
    }
}

/// Reads a semaphore, the number of tracers that are attached, from the memory of a process.
///
/// # Errors
/// The process is gone or not accessible, or nothing is mapped at the address.
pub fn semaphore(pid: u32, address: u64) -> io::Result<u16> {
    let mut bytes = [0; 2];
    File::open(Proc::default().path(pid, "mem"))?.read_exact_at(&mut bytes, address)?;
    Ok(u16::from_ne_bytes(bytes))
}

/// The processes of a container, by its id (at least its first 12 digits) or its name in Docker; the oldest first.
///
/// # Errors
/// There is none, or Docker cannot be asked.
pub fn processes_of_container(wanted: &str) -> io::Result<Vec<u32>> {
    let pids = processes_of(&containers_named(wanted)?);
    if pids.is_empty() {
        return Err(io::Error::new(ErrorKind::NotFound, "no process runs in such a container"));
    }
    Ok(pids)
}

/// The containers with this id, or this name in Docker.
pub(super) fn containers_named(wanted: &str) -> io::Result<Vec<ContainerId>> {
    let mut running: Vec<ContainerId> = contained().into_iter().map(|(_, _, container)| container).collect();
    running.retain(|container| container.is_named(wanted));
    running.sort_unstable();
    running.dedup();
    if !running.is_empty() {
        return Ok(running);
    }
    docker::containers_named(Path::new(docker::SOCKET), wanted)
        .map_err(|cause| io::Error::new(cause.kind(), format!("no such container id, and Docker: {cause}")))
}

/// The processes of containers; the oldest first.
pub(super) fn processes_of(containers: &[ContainerId]) -> Vec<u32> {
    let of_them = contained().into_iter().filter(|(_, _, container)| containers.contains(container));
    of_them.map(|(_, pid, _)| pid).collect()
}

/// Every process in a container, with its start; the oldest first.
fn contained() -> Vec<(u64, u32, ContainerId)> {
    let processes = Proc::default().scan(&BTreeSet::new(), &|_, _| String::new());
    let mut contained: Vec<_> =
        processes.into_iter().filter_map(|process| Some((process.start, process.pid, process.container?))).collect();
    contained.sort_unstable();
    contained
}
