//! State that all sessions share.

use std::{sync::Arc, time::Duration};

use tokio::{runtime::Handle, sync::Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{agents::Agents, hosts::HostSessions, writer::Writer};
use crate::{catalog::Catalog, memory::Memory, metrics::IngestMetrics, nodes::Nodes};

/// State that all sessions share.
pub(super) struct Shared {
    /// Version of this program, for the welcome.
    pub(super) build: String,
    pub(super) nodes: Arc<Nodes>,
    /// Which nodes have pods on which hosts; none without an operator.
    pub(super) catalog: Option<Arc<Catalog>>,
    pub(super) writer: Writer,
    /// Receives the states of memory profiles.
    pub(super) memory: Arc<Memory>,
    pub(super) agents: Agents,
    /// Limits the sessions of authenticated agents.
    pub(super) hosts: HostSessions,
    pub(super) metrics: Arc<IngestMetrics>,
    /// One permit for each KiB of memory, about, of the batches that wait for the writer.
    pub(super) queue_permits: Arc<Semaphore>,
    /// Number of all permits.
    pub(super) max_permits: u32,
    /// Maximum time until the hello of a session.
    pub(super) hello_timeout: Duration,
    /// Cancelled when the aggregator stops.
    pub(super) stop: CancellationToken,
    pub(super) sessions: TaskTracker,
    /// Runtime of the sessions: agents of this process connect from other threads.
    pub(super) runtime: Handle,
}
