//! When the ring of a probe is read: at an interval, because each wake-up costs the watched process, or as soon as the
//! backlog is large; after a while without events, at the next one. The programs' part is `bpf/reader.h`.

use std::fmt;
use std::io;
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::maps::Map;

use crate::error::Error;
use crate::load::{missing_map, mmap_array};
use crate::mmap_array::MmapArray;
use crate::ring::{Ring, RingWaker};

/// Interval at which the ring is drained while events arrive: the kernel wakes the reader only for a large backlog.
const DRAIN_INTERVAL: Duration = Duration::from_millis(10);
/// Drains without an event after which the kernel wakes the reader for the next event: polling is most of the cost of an idle
/// reader.
const IDLE_DRAINS: u32 = 5;
/// Interval at which the ring is drained then.
const IDLE_INTERVAL: Duration = Duration::from_millis(250);

/// `enum waiting`.
const FOR_BACKLOG: u32 = 1;
const FOR_RECORD: u32 = 2;

/// `struct reader`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct ReaderState {
    waiting: u32,
    pad: u32,
}

// SAFETY: a repr(C) struct of integers without padding, so every bit pattern is a value.
unsafe impl aya::Pod for ReaderState {}

/// The ring of a probe.
pub struct RingReader {
    pub(crate) ring: Ring,
    state: MmapArray<ReaderState>,
    wake_bytes: u64,
    drained: Instant,
    /// Drains in a row without an event.
    idle_drains: u32,
}

impl fmt::Debug for RingReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingReader").field("ring", &self.ring).finish_non_exhaustive()
    }
}

impl RingReader {
    /// Takes the maps `ring` and `readers` out of a loaded object. The programs wake the reader at a backlog of `wake_bytes`.
    ///
    /// # Errors
    /// [`Error::Ring`], or the object does not have these maps.
    pub fn new(bpf: &mut Ebpf, ring_bytes: u32, wake_bytes: u32) -> Result<Self, Error> {
        let ring = match bpf.take_map("ring") {
            Some(Map::RingBuf(map)) => Ring::new(map.fd().as_fd(), ring_bytes).map_err(Error::Ring)?,
            _ => return Err(missing_map("ring")),
        };
        Ok(Self {
            ring,
            state: mmap_array(bpf, "readers", 1)?,
            wake_bytes: u64::from(wake_bytes),
            drained: Instant::now(),
            idle_drains: 0,
        })
    }

    /// Ends the current or the next wait of [`RingReader::poll`], from another thread.
    pub(crate) fn waker(&self) -> RingWaker {
        self.ring.waker()
    }

    /// Waits until the ring is to be read, at most until the deadline. Returns whether a [`RingWaker`] ended the wait.
    pub(crate) fn wait(&self, deadline: Instant) -> Result<bool, Error> {
        let (wanted, backlog, interval) = if self.idle_drains < IDLE_DRAINS {
            (FOR_BACKLOG, self.wake_bytes, DRAIN_INTERVAL)
        } else {
            (FOR_RECORD, 1, IDLE_INTERVAL)
        };
        let timeout =
            interval.saturating_sub(self.drained.elapsed()).min(deadline.saturating_duration_since(Instant::now()));
        let Some(waiting) = self.state.atomic(0, offset_of!(ReaderState, waiting)) else { return Ok(false) };
        if timeout.is_zero() {
            return Ok(false);
        }
        // Sequentially consistent: a program that adds to the ring sees the flag, or this thread sees what it added. A program
        // that decides before it adds (`bpf_ringbuf_output`) may do neither; `interval` bounds how long its record waits.
        waiting.store(wanted, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let waited = if self.ring.backlog() < backlog { self.ring.wait(timeout) } else { Ok(false) };
        waiting.store(0, Ordering::SeqCst);
        waited.map_err(Error::Ring)
    }

    /// Passes pending records to `f` and returns their number. If there are none, waits for them for at most `timeout`.
    ///
    /// # Errors
    /// [`Error::Ring`].
    pub fn poll(&mut self, timeout: Duration, f: &mut dyn FnMut(&[u8])) -> Result<usize, Error> {
        let deadline = Instant::now() + timeout;
        loop {
            let is_woken = self.wait(deadline)?;
            let mut records = 0;
            let is_valid = self.ring.drain(&mut |record| {
                records += 1;
                f(record);
            });
            if !is_valid {
                return Err(Error::Ring(io::Error::other("the length of a record exceeds the ring")));
            }
            self.note(records);
            if records > 0 || is_woken || Instant::now() >= deadline {
                return Ok(records);
            }
        }
    }

    /// Notes that the ring was read, and the number of events, on which the next interval depends.
    pub(crate) fn note(&mut self, events: usize) {
        self.drained = Instant::now();
        // A record that is still being written is an event that comes soon.
        let is_idle = events == 0 && self.ring.backlog() == 0;
        self.idle_drains = if is_idle { self.idle_drains.saturating_add(1) } else { 0 };
    }
}
