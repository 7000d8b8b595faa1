//! What the writer does when the disk is full: it evicts the oldest records and retries, until the operation succeeds or
//! the aggregator stops.
//!
//! ```text
//!              DiskFull                     space was freed
//!   Normal ──────────────▶ Full { … } ───────────────────────▶ retry at once
//!     ▲                     │      ▲
//!     │ a commit succeeds   │      └── retry every RETRY_INTERVAL: eviction does not free space
//!     └─────────────────────┘
//! ```
//!
//! Agents keep what is not acknowledged, so waiting loses nothing in the aggregator.
//!
//! Records beyond retention are evicted first. Then the oldest segments within retention are evicted, one by one, as long
//! as each frees space: if another program fills the disk, or the engine keeps the files, evicting more frees nothing.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use chainscope_hygiene::warn_limited;
use chainscope_store::{Error as StoreError, Evicted, Store};
use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::health::WriteHealth;
use crate::clock::now_ns;

/// Interval between two attempts while the disk is full, and between two checks whether evicted space is free.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum number of [`RETRY_INTERVAL`]s until the space of evicted records is free: the engine deletes files late, and
/// none that is being read.
const MAX_SPACE_CHECKS: u32 = 6;

/// Maximum number of consecutive segments within retention that are evicted without more space becoming free.
const MAX_FUTILE_EVICTIONS: u32 = 3;

/// Whether the disk is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DiskState {
    /// No operation has failed since the last commit on a disk with free space.
    Normal,
    /// An operation failed.
    Full {
        /// The most bytes that were free since then.
        most_free: u64,
        /// Segments within retention that were evicted since `most_free` last increased.
        futile: u32,
    },
}

impl DiskState {
    /// Records the bytes that are free now. Returns the most so far.
    fn observe(&mut self, free: u64) -> u64 {
        match self {
            Self::Full { most_free, .. } if free <= *most_free => *most_free,
            _ => {
                *self = Self::Full { most_free: free, futile: 0 };
                free
            }
        }
    }

    /// Lowers the most bytes so far to those that are free now.
    fn lower(&mut self, free: u64) {
        if let Self::Full { most_free, .. } = self {
            *most_free = free.min(*most_free);
        }
    }

    fn is_futile(self) -> bool {
        matches!(self, Self::Full { futile: MAX_FUTILE_EVICTIONS.., .. })
    }

    fn count_eviction(&mut self) {
        if let Self::Full { futile, .. } = self {
            *futile += 1;
        }
    }
}

/// Result of one step of eviction.
enum Step {
    Evicted(Evicted),
    /// Nothing is beyond retention, and the disk is not full any more.
    NotNeeded,
    /// Nothing can be evicted, or evicting frees no space.
    Futile,
}

/// Retries operations of the store that fail because the disk is full.
pub(super) struct DiskFullRetry {
    store: Store,
    health: Arc<WriteHealth>,
    /// Disconnected when the aggregator stops.
    stopping: Receiver<()>,
    state: DiskState,
}

impl DiskFullRetry {
    pub(super) fn new(store: Store, health: Arc<WriteHealth>, stopping: Receiver<()>) -> Self {
        Self { store, health, stopping, state: DiskState::Normal }
    }

    /// Waits for an engine whose compaction lags. Returns the time that it waited.
    pub(super) fn wait_for_compaction(&self) -> Duration {
        let started = Instant::now();
        let mut has_waited = false;
        let waited = self.store.wait_for_compaction(|interval| {
            has_waited = true;
            self.is_stopping_within(interval)
        });
        if let Err(error) = waited {
            warn_limited!(%error, "the compaction lag is unknown");
        }
        if has_waited { started.elapsed() } else { Duration::ZERO }
    }

    /// Runs the operation until it succeeds, fails for another reason than a full disk, or the aggregator stops.
    pub(super) fn retry_on_disk_full<T>(
        &mut self,
        mut operation: impl FnMut(&Store) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        loop {
            let full = match operation(&self.store) {
                Err(error @ StoreError::DiskFull { .. }) => error,
                other => return other,
            };
            self.health.set_if_healthy(&full);
            match self.free_space(&full) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => warn_limited!(%error, "the disk is full, and old records could not be evicted"),
            }
            if self.is_stopping_within(RETRY_INTERVAL) {
                return Err(full);
            }
        }
    }

    /// A commit succeeded.
    pub(super) fn committed(&mut self) {
        self.health.clear();
        if self.state != DiskState::Normal && self.store.disk().is_ok_and(|disk| !disk.full) {
            self.state = DiskState::Normal;
        }
    }

    /// Evicts until the disk is not full any more. Returns false if evicting does not help, or the aggregator stops.
    fn free_space(&mut self, full: &StoreError) -> Result<bool, StoreError> {
        let mut is_first = true;
        loop {
            let most_free = self.state.observe(self.free_bytes()?);
            let evicted = match self.evict()? {
                Step::NotNeeded => return Ok(true),
                Step::Futile => {
                    let text = format!("{full}, and evicting old records does not help");
                    warn_limited!(error = %text, "records wait until the disk has free space");
                    self.health.set(text);
                    return Ok(false);
                }
                Step::Evicted(evicted) if evicted.segments == 0 => {
                    warn_limited!(error = %full, "there are no more records to evict");
                    return Ok(false);
                }
                Step::Evicted(evicted) => evicted,
            };
            self.health.set(full.to_string());
            warn_limited!(rows = evicted.rows, bytes = evicted.bytes, "the disk is full: old records were evicted");
            if !self.wait_for_more_than(most_free)? {
                return Ok(false);
            }
            if !self.store.disk()?.full {
                return Ok(true);
            }
            if is_first {
                // Records that waited were written with the first eviction and have taken space.
                let free = self.free_bytes()?;
                self.state.lower(free);
            }
            is_first = false;
        }
    }

    /// Evicts what is beyond retention, or else the oldest segment.
    fn evict(&mut self) -> Result<Step, StoreError> {
        match self.store.evict(now_ns()) {
            Ok(evicted) if evicted.segments > 0 => return Ok(Step::Evicted(evicted)),
            Ok(_) if !self.store.disk()?.full => return Ok(Step::NotNeeded),
            // Everything is within retention.
            Ok(_) | Err(StoreError::DiskFull { .. }) => {}
            Err(error) => return Err(error),
        }
        if self.state.is_futile() || !self.store.can_evict_for_space()? {
            return Ok(Step::Futile);
        }
        self.state.count_eviction();
        self.store.evict_for_space().map(Step::Evicted)
    }

    /// Waits, for a limited time, until more than `most_free` bytes are free. Returns false if the aggregator stops.
    fn wait_for_more_than(&self, most_free: u64) -> Result<bool, StoreError> {
        for _ in 0..MAX_SPACE_CHECKS {
            if self.is_stopping_within(RETRY_INTERVAL) {
                return Ok(false);
            }
            if self.free_bytes()? > most_free {
                break;
            }
        }
        Ok(true)
    }

    /// Bytes that are free on the disk, the ballast included.
    fn free_bytes(&self) -> Result<u64, StoreError> {
        self.store.disk().map(|disk| disk.free_bytes.saturating_add(disk.ballast_bytes))
    }

    /// Waits for the duration. Returns true at once if the aggregator stops.
    fn is_stopping_within(&self, duration: Duration) -> bool {
        self.stopping.recv_timeout(duration) == Err(RecvTimeoutError::Disconnected)
    }
}

#[cfg(test)]
mod tests {
    use super::{DiskState, MAX_FUTILE_EVICTIONS};

    #[test]
    fn evictions_are_futile_until_more_space_is_free() {
        let mut state = DiskState::Normal;
        assert_eq!(state.observe(10), 10);
        for _ in 0..MAX_FUTILE_EVICTIONS {
            assert!(!state.is_futile());
            state.count_eviction();
            assert_eq!(state.observe(10), 10);
        }
        assert!(state.is_futile());
        state.lower(5);
        assert!(state.is_futile(), "written records took space, nothing was freed");
        assert_eq!(state.observe(6), 6);
        assert!(!state.is_futile());
    }
}
