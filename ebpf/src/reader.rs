//! When the ring of a probe is read: at an interval, because each wake-up costs the watched process, or as soon as the
//! backlog is large. The programs' part is `bpf/reader.h`.

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
use crate::ring::Ring;

/// Interval at which the ring is drained while events arrive: the kernel wakes the reader only for a large backlog.
const DRAIN_INTERVAL: Duration = Duration::from_millis(10);
/// Greatest interval while no events arrive: polling is most of the cost of an idle reader.
const MAX_IDLE_INTERVAL: Duration = Duration::from_millis(40);

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
    drain_interval: Duration,
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
            drain_interval: DRAIN_INTERVAL,
        })
    }

    /// Waits until the ring is to be read, at most until the deadline.
    pub(crate) fn wait(&self, deadline: Instant) -> Result<(), Error> {
        let interval = self.drain_interval.saturating_sub(self.drained.elapsed());
        let timeout = interval.min(deadline.saturating_duration_since(Instant::now()));
        let Some(waiting) = self.state.atomic(0, offset_of!(ReaderState, waiting)) else { return Ok(()) };
        if timeout.is_zero() {
            return Ok(());
        }
        // Sequentially consistent: a program that adds to the ring sees the flag, or this thread sees what it added.
        waiting.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let waited = if self.ring.backlog() < self.wake_bytes { self.ring.wait(timeout) } else { Ok(()) };
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
            self.wait(deadline)?;
            let mut records = 0;
            let is_valid = self.ring.drain(&mut |record| {
                records += 1;
                f(record);
            });
            if !is_valid {
                return Err(Error::Ring(io::Error::other("the length of a record exceeds the ring")));
            }
            self.note(records);
            if records > 0 || Instant::now() >= deadline {
                return Ok(records);
            }
        }
    }

    /// Notes that the ring was read, and the number of events, on which the next interval depends.
    pub(crate) fn note(&mut self, events: usize) {
        self.drained = Instant::now();
        self.drain_interval =
            if events > 0 { DRAIN_INTERVAL } else { (self.drain_interval + DRAIN_INTERVAL / 4).min(MAX_IDLE_INTERVAL) };
    }
}
