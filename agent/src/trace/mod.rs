//! Tracepoints of files and of running processes: the ELF images that a process executes, wherever their files are, the
//! semaphores in its memory, and the events of tracepoints that a probe is attached to ([`ProbeSource`]). `pillar` records them.

mod attach;
mod follow;
pub(crate) mod pillar;
mod process;
mod reader;
mod source;
mod values;

use std::{fs::File, io, path::Path};

use chainscope_usdt::{Image, ReadCache};
use rustix::fs::{Mode, OFlags};

pub use attach::{AttachError, Observed, Skipped, Wanted};
pub use chainscope_ebpf::trace::{MAX_PAYLOAD, MAX_STRING, TraceOptions};
pub use process::{MappedImage, ProcessError, images_of, processes_of_container, semaphore};
pub use source::ProbeSource;

/// Reads the tracepoints of a file.
///
/// # Errors
/// The file cannot be opened, is not a regular file, or not an ELF file.
pub fn image_of_file(path: &Path) -> io::Result<Image> {
    Image::read(&ReadCache::new(open(path)?)).map_err(io::Error::other)
}

pub(crate) fn open(path: &Path) -> io::Result<File> {
    // Non-blocking and without a terminal: the path may lead to a pipe or a device.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    Ok(file)
}
