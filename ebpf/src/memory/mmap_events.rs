//! Processes that map code: `PERF_RECORD_MMAP` records of every CPU (`perf_event_open(2)`), which the kernel writes when a
//! mapping becomes executable.
//!
//! Minimum kernel: 2.6.31.
//!
//! ```text
//!  page 0                        pages 1 ..  a power of two bytes
//!  data_head, data_tail: u64     records: type u32, misc u16, size u16, then of a mapping: pid u32, ..
//!  at 1024    at 1032
//! ```
//!
//! The records do not wake the reader, as a busy host writes many. They are read at every poll; the unwinder reports code
//! that it finds earlier ([`NoticeKind::Unmapped`](super::notice::NoticeKind::Unmapped)).

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Size of the data area of each CPU, in bytes.
const DATA_BYTES: usize = 32 << 10;
const HEAD: usize = 1024;
const TAIL: usize = 1032;
const RECORD_MMAP: u32 = 1;
const RECORD_LOST: u32 = 2;

/// `struct perf_event_attr` (`linux/perf_event.h`, version 5), as far as it is used.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample: [u64; 3],
    flags: u64,
    wakeup_watermark: u32,
    bp_type: u32,
    rest: [u64; 7],
}

const _: () = assert!(size_of::<Attributes>() == 112);

const SOFTWARE: u32 = 1;
/// `PERF_COUNT_SW_DUMMY`: an event without samples, for its mapping records.
const DUMMY: u64 = 9;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const MMAP: u64 = 1 << 8;
const WATERMARK: u64 = 1 << 14;
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;

/// Processes that have mapped code.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Mapped {
    /// Process ids with new mappings.
    pub(crate) pids: BTreeSet<u32>,
    /// Records were lost, or their process is unknown: other processes may have new mappings as well.
    pub(crate) lost: bool,
}

/// The mapping records of all CPUs.
pub(crate) struct MmapEvents {
    rings: Vec<Ring>,
    has_own_ids: bool,
}

impl MmapEvents {
    /// Opens an event on each of the CPUs 0 to `cpus`; offline CPUs are left out. The records have process ids of the pid
    /// namespace of this process; unless `has_own_ids`, those of the targets are of another one.
    pub(crate) fn open(cpus: u32, has_own_ids: bool) -> io::Result<Self> {
        let mut rings = Vec::new();
        for cpu in 0..cpus {
            match Ring::new(cpu) {
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                ring => rings.push(ring?),
            }
        }
        Ok(Self { rings, has_own_ids })
    }

    /// Takes the records since the last call.
    pub(crate) fn take(&mut self) -> Mapped {
        let mut mapped = Mapped::default();
        self.rings.iter_mut().for_each(|ring| ring.drain(&mut mapped));
        if !self.has_own_ids {
            mapped.lost |= !mapped.pids.is_empty();
            mapped.pids.clear();
        }
        mapped
    }
}

struct Ring {
    start: NonNull<u8>,
    bytes: usize,
    position: u64,
    _event: OwnedFd,
}

// SAFETY: the mapping is plain shared memory, valid in every thread; `&mut self` guards the position.
unsafe impl Send for Ring {}

impl Ring {
    fn new(cpu: u32) -> io::Result<Self> {
        let attributes = Attributes {
            kind: SOFTWARE,
            size: size_of::<Attributes>() as u32,
            config: DUMMY,
            flags: EXCLUDE_KERNEL | MMAP | WATERMARK,
            wakeup_watermark: DATA_BYTES as u32,
            ..Attributes::default()
        };
        let (any_process, no_group) = (-1, -1);
        // SAFETY: the structure has the size in its `size` field and outlives the call.
        let fd = unsafe {
            libc::syscall(libc::SYS_perf_event_open, &raw const attributes, any_process, cpu, no_group, CLOSE_ON_EXEC)
        };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: a new file descriptor without another owner.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        let bytes = rustix::param::page_size() + DATA_BYTES;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address chosen by the kernel aliases no Rust object.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, event.as_fd(), 0)? };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { start, bytes, position: 0, _event: event })
    }

    fn counter(&self, at: usize) -> &AtomicU64 {
        // SAFETY: within the first page and aligned; the kernel reads and writes it atomically.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(at).cast()) }
    }

    /// The aligned 32-bit word at a position of the data area.
    fn word(&self, position: u64) -> u32 {
        let at = (position as usize & (DATA_BYTES - 1) & !3) + self.bytes - DATA_BYTES;
        // SAFETY: within the data pages and aligned; the kernel does not write there before the tail is advanced.
        unsafe { self.start.as_ptr().add(at).cast::<u32>().read_volatile() }
    }

    fn drain(&mut self, mapped: &mut Mapped) {
        let head = self.counter(HEAD).load(Ordering::Acquire);
        while self.position < head {
            let kind = self.word(self.position);
            let size = u64::from(self.word(self.position + 4) >> 16);
            match kind {
                RECORD_MMAP => {
                    mapped.pids.insert(self.word(self.position + 8));
                }
                RECORD_LOST => mapped.lost = true,
                _ => {}
            }
            if size < 8 {
                mapped.lost = true;
                self.position = head;
                break;
            }
            self.position += size;
        }
        self.counter(TAIL).store(self.position, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to `self`, and all borrows from it are borrows from `self`.
        // munmap fails only for invalid arguments; there is nothing to recover.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_executable_mapping_of_this_process_is_reported() {
        let mut mmap_events =
            MmapEvents::open(aya::util::online_cpus().expect("processors").len() as u32, true).expect("root");
        // SAFETY: a new mapping that nothing refers to.
        unsafe {
            let code = ProtFlags::READ | ProtFlags::EXEC;
            let start =
                rustix::mm::mmap_anonymous(std::ptr::null_mut(), 4096, code, MapFlags::PRIVATE).expect("memory");
            munmap(start, 4096).expect("a mapping");
        }
        assert!(mmap_events.take().pids.contains(&std::process::id()));
        assert!(!mmap_events.take().lost);
    }
}
