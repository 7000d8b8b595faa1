//! The client of the operator: receives the pods to observe on this host, and reports how they are observed.
//!
//! ```text
//!   operator ══ config stream ══▶ client ── pod map ──▶ discovery
//!                  ▲                │  └─▶ kept on disk, without identities
//!                  └── statuses ◀───┘◀──── report ─── status thread
//! ```
//!
//! The client is the only part that talks to the operator. While the operator is away the last pod map holds; after a
//! restart it is read from disk, and identities that came from Secrets are said to be missing until the operator is back.

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

    /// Some configuration was taken over, be it the kept one.
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
