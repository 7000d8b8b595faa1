//! The client of the operator: receives the pods to observe on this host, and reports how they are observed.
//!
//! ```text
//!   operator ══ config stream ══▶ client ── pod map ──▶ discovery
//!                  ▲                │  └─▶ kept on disk, without identities
//!                  └── statuses ◀───┘◀──── report ─── status thread
//! ```
//!
//! The client is the only part that talks to the operator. While the operator is unavailable the last pod map
//! applies; after a restart it is read from disk, and identities from Secrets are missing until the operator is connected.

mod client;
mod kept;
pub(crate) mod report;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

pub(crate) use client::{Client, Report};
pub(crate) use kept::read as read_kept;

/// Whether the operator is connected, for health endpoints and metrics.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reach {
    connected: Arc<AtomicBool>,
    configured: Arc<AtomicBool>,
}

impl Reach {
    pub(crate) fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// A configuration has been applied, also one from disk.
    pub(crate) fn is_configured(&self) -> bool {
        self.configured.load(Ordering::Relaxed)
    }

    pub(crate) fn set_connected(&self, is_connected: bool) {
        self.connected.store(is_connected, Ordering::Relaxed);
    }

    pub(crate) fn set_configured(&self) {
        self.configured.store(true, Ordering::Relaxed);
    }
}
