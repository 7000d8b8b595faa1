//! The agent on a cluster: what to observe comes from the operator, how it goes is said back.
//!
//! ```text
//!   operator ══ config stream ══▶ client ── pod map ──▶ worker (targets, interpreter)
//!                  ▲                │  └─▶ kept on disk, without identities
//!                  └── statuses ◀───┘◀──── report ────────┘
//! ```
//!
//! The client is the only part that talks to the operator. While the operator is away the last pod map holds; after a
//! restart it is read from disk, and identities that came from Secrets are said to be missing until the operator is back.

mod client;
mod kept;
pub(crate) mod pods;
pub(crate) mod report;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use chainscope_tls::Remote;
pub(crate) use client::{Client, Report};
pub(crate) use kept::read as read_kept;

use crate::targets::pods::Watch;

/// How an agent is told what to observe by an operator.
#[derive(Debug, Clone)]
pub struct ClusterConfig {
    /// Where the operator is.
    pub operator: Remote,
    /// The token with which the agent proves on which host it runs; read anew for each connection.
    pub token_file: Option<PathBuf>,
    /// What is captured in pods before it is configured.
    pub watch: Watch,
}

/// Whether the operator is reached, for people and probes.
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
