//! When a source is shown no longer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::signals::stop_flag;

/// A signal, and how long what was captured before it is still shown.
pub(super) struct Ending {
    stop: Arc<AtomicBool>,
    pub(super) drain: Duration,
}

impl Ending {
    /// Handles signals from now on: before anything is attached, so that none is missed that arrives with the first event.
    pub(super) fn by_signal(drain: Duration) -> anyhow::Result<Self> {
        Ok(Self { stop: stop_flag()?, drain })
    }

    /// Whether a signal has arrived.
    pub(super) fn is_requested(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
