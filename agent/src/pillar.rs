//! A pillar: one kind of observation (network, memory, logs, trace, latency), as the agent handles all of them.
//!
//! ```text
//!   discovery ── TargetChange ──▶ inbox │ pillar: probe, accounting, bounds │ ──▶ RecordSink (facts)
//!                  ◀── Notice ──────────┤                                   ├──▶ profile store (state)
//!                                       │                                   └──▶ PillarStatus: metrics, reports
//! ```
//!
//! A pillar owns its probe, its accounting and its bounds. It puts facts into record streams or keeps state for the
//! uplink, and knows neither the other pillars nor where records go. `agent.rs` has the list; shutdown, heartbeats,
//! metrics and reports go through it. A new pillar is a directory that implements these traits; `agent.rs` starts it and
//! has it in the lists of inboxes and of pillars.

use std::{fmt, sync::Arc};

use chainscope_proto::v1::Record;
use prometheus_client::registry::Registry;

use crate::{Error, figures::TargetTallies, thread::Heartbeat};

/// A running pillar.
pub(crate) trait Pillar: fmt::Debug + Send {
    /// Its part in metrics and reports.
    fn status(&self) -> Arc<dyn PillarStatus>;

    /// Ends the capture, and returns when everything that was captured is processed. Discovery is still running and
    /// answers notices.
    ///
    /// # Errors
    /// The error that ended the pillar earlier, or that of saving its state.
    fn drain(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Waits for the threads that end with the pillar's inbox.
    fn join(&mut self) {}
}

/// Status of a pillar, shared with the threads that serve metrics and reports.
pub(crate) trait PillarStatus: fmt::Debug + Send + Sync {
    /// Registers the pillar's metrics, with the values of this moment.
    fn register(&self, registry: &mut Registry);

    /// When each of its threads made progress last.
    fn heartbeats(&self) -> Vec<Heartbeat> {
        Vec::new()
    }

    /// Changes when there is something that a report should show soon.
    fn version(&self) -> u64 {
        0
    }

    /// Adds the pillar's counts by target. Ended targets are added once.
    fn tally(&self, _tallies: &mut TargetTallies) {}

    /// The error that prevents observation, if any.
    fn error(&self) -> Option<String> {
        None
    }
}

/// Receiver of a pillar's records.
pub(crate) trait RecordSink: Send {
    /// Queues a fact; false if it was dropped for lack of space.
    fn push(&mut self, node: &str, record: Record) -> bool;

    /// Queues a state record, which replaces the target's last one that has not been sent yet.
    fn merge(&mut self, node: &str, record: Record);
}
