//! Reader of a BPF ring buffer (`Documentation/bpf/ringbuf.rst`).
//!
//! Minimum kernel: 5.8.
//!
//! ```text
//!  page 0            page 1             pages 2 ..                 the same again
//!  consumer position producer position  data, a power of two bytes mapped twice, so no record wraps
//!  (writable)        (read only)        (read only)
//! ```
//!
//! It replaces `aya::maps::RingBuf` because it advances the consumer position in steps of 64 KiB, not after every record:
//! the kernel reads the position at every reservation, and each change costs the watched process a cache miss. For the
//! same reason waiting is edge-triggered: the reader sleeps until the kernel wakes it for a large backlog, or until its
//! timeout, although there may be records to read.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const BUSY: u32 = 1 << 31;
const DISCARD: u32 = 1 << 30;
const RECORD_HEADER: u64 = 8;
/// Bytes after which the consumer position is advanced.
const COMMIT_BYTES: u64 = 64 << 10;

/// Sources of wake-ups.
const RING: u64 = 0;
const WAKER: u64 = 1;

/// Ends the wait of the reader of a ring, from any thread. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RingWaker(Arc<OwnedFd>);

impl RingWaker {
    /// Ends the current wait, or the next one.
    pub fn wake(&self) {
        // Fails only if 2^64 - 2 wake-ups were counted.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// Memory shared with the kernel, unmapped on drop.
struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, offset: u64, length: usize, access: ProtFlags) -> io::Result<Self> {
        // SAFETY: a new mapping at an address chosen by the kernel aliases no Rust object.
        let start = unsafe { mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, fd, offset)? };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { start, length })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to `self`, and all borrows from it are borrows from `self`.
        // munmap fails only for invalid arguments; there is nothing to recover.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// The consumer of a ring buffer.
pub(crate) struct Ring {
    consumer: Mapping,
    producer: Mapping,
    page: usize,
    size: u64,
    position: u64,
    committed: u64,
    epoll: OwnedFd,
    waker: RingWaker,
    /// Keeps the map alive.
    _map: OwnedFd,
}

// SAFETY: the mappings are plain shared memory, valid in every thread; `&mut self` guards the position.
unsafe impl Send for Ring {}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("size", &self.size).field("position", &self.position).finish_non_exhaustive()
    }
}

impl Ring {
    /// Maps the ring buffer `map` of `size` bytes.
    pub(crate) fn new(map: BorrowedFd<'_>, size: u32) -> io::Result<Self> {
        let map = map.try_clone_to_owned()?;
        let page = rustix::param::page_size();
        let data = usize::try_from(size).map_err(io::Error::other)?;
        let consumer = Mapping::new(map.as_fd(), 0, page, ProtFlags::READ | ProtFlags::WRITE)?;
        let producer = Mapping::new(map.as_fd(), page as u64, page + 2 * data, ProtFlags::READ)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &map, epoll::EventData::new_u64(RING), edge)?;
        // Never read: each write is an edge.
        let waker = RingWaker(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?));
        epoll::add(&epoll, &*waker.0, epoll::EventData::new_u64(WAKER), edge)?;
        Ok(Self { consumer, producer, page, size: u64::from(size), position: 0, committed: 0, epoll, waker, _map: map })
    }

    pub(crate) fn waker(&self) -> RingWaker {
        self.waker.clone()
    }

    /// Bytes that the kernel has reserved and that have not been read.
    pub(crate) fn backlog(&self) -> u64 {
        self.produced().saturating_sub(self.position)
    }

    /// Position after the last byte that has been read.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Waits until the kernel or a [`RingWaker`] wakes the reader, or for `timeout`. Returns whether it was the waker.
    pub(crate) fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(RING) }; 2];
        let timeout = rustix::event::Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        match epoll::wait(&self.epoll, &mut events[..], Some(&timeout)) {
            Ok(count) => Ok(events.iter().take(count).any(|event| event.data.u64() == WAKER)),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Passes every record up to the current producer position to `f`. Stops early at a record that is still being written.
    /// Returns `false` at an invalid length; the rest of the records is then skipped.
    pub(crate) fn drain(&mut self, f: &mut dyn FnMut(&[u8])) -> bool {
        let end = self.produced();
        let mut is_valid = true;
        while self.position < end {
            let at = self.position & (self.size - 1);
            let header = self.header(at);
            if header & BUSY != 0 {
                break;
            }
            let length = u64::from(header & !(BUSY | DISCARD));
            let step = (RECORD_HEADER + length).next_multiple_of(RECORD_HEADER);
            if step > end - self.position || step > self.size {
                is_valid = false;
                self.position = end;
                break;
            }
            if header & DISCARD == 0 {
                f(self.record(at, length));
            }
            self.position += step;
            if self.position - self.committed >= COMMIT_BYTES {
                self.commit();
            }
        }
        self.commit();
        is_valid
    }

    /// Position after the last byte that the kernel has reserved.
    pub(crate) fn produced(&self) -> u64 {
        // SAFETY: the producer page begins with a 64-bit position, page-aligned, that the kernel writes atomically.
        unsafe { self.producer.start.cast::<AtomicU64>().as_ref() }.load(Ordering::Acquire)
    }

    fn commit(&mut self) {
        if self.committed != self.position {
            // SAFETY: the consumer page begins with a 64-bit position, page-aligned, that only this reader writes.
            let consumer = unsafe { self.consumer.start.cast::<AtomicU64>().as_ref() };
            consumer.store(self.position, Ordering::Release);
            self.committed = self.position;
        }
    }

    fn header(&self, at: u64) -> u32 {
        // SAFETY: `at` is below `size` and a multiple of 8, so the header is within the data pages and aligned; the kernel
        // writes it atomically.
        let header = unsafe { self.producer.start.add(self.page + at as usize).cast::<AtomicU32>().as_ref() };
        // Acquire: the record was written before its busy bit was cleared.
        header.load(Ordering::Acquire)
    }

    fn record(&self, at: u64, length: u64) -> &[u8] {
        // SAFETY: `at < size` and `length <= size`, and the data is mapped twice in a row, so the range is within the
        // mapping. The kernel does not write to a record again before `commit`, which needs `&mut self`.
        unsafe {
            let start = self.producer.start.add(self.page + at as usize + RECORD_HEADER as usize);
            std::slice::from_raw_parts(start.as_ptr(), length as usize)
        }
    }
}
