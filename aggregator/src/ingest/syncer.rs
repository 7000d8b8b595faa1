//! The thread that syncs what the writer has written, and then acknowledges it. The writer appends the next batches meanwhile.

use std::{sync::Arc, time::Instant};

use chainscope_hygiene::warn_limited;
use chainscope_store::{Error as StoreError, Store};
use crossbeam_channel::Receiver;
use tokio::sync::{mpsc, oneshot};

use super::{SessionError, health::WriteHealth};
use crate::metrics::IngestMetrics;

/// Result of batches of one stream.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) node: String,
    /// Number of batches that this is the result of.
    pub(super) batches: usize,
    /// High-water mark of the stream: everything before it is durable.
    pub(super) result: Result<u64, SessionError>,
}

/// Batches of one stream and session that are not acknowledged.
pub(super) struct Group {
    pub(super) node: String,
    pub(super) batches: usize,
    /// High-water mark of the stream after them.
    pub(super) next_sequence: u64,
    pub(super) result: mpsc::UnboundedSender<Outcome>,
}

/// A request for the high-water marks of an agent's streams.
pub(super) struct MarkRequest {
    pub(super) agent: Arc<str>,
    pub(super) epoch: Arc<[u8]>,
    pub(super) nodes: Vec<String>,
    pub(super) response: oneshot::Sender<Vec<u64>>,
}

/// What waits for a sync.
#[derive(Default)]
pub(super) struct Unacknowledged {
    pub(super) groups: Vec<Group>,
    pub(super) mark_requests: Vec<MarkRequest>,
}

impl Unacknowledged {
    fn extend(&mut self, later: Self) {
        self.groups.extend(later.groups);
        self.mark_requests.extend(later.mark_requests);
    }
}

/// What the threads of the writer report.
#[derive(Clone)]
pub(super) struct Status {
    pub(super) metrics: Arc<IngestMetrics>,
    pub(super) health: Arc<WriteHealth>,
}

impl Status {
    /// Counts and logs an error of the store.
    pub(super) fn store_error(&self, error: &StoreError) -> SessionError {
        let text = error.to_string();
        self.metrics.store_errors.inc();
        warn_limited!(error = %text, "records could not be stored");
        self.health.set(text.clone());
        if matches!(error, StoreError::Failed(_)) {
            self.health.fail();
        }
        SessionError::Store(text)
    }
}

/// State of the thread.
pub(super) struct Syncer {
    pub(super) store: Store,
    /// What was written, in this order.
    pub(super) written: Receiver<Unacknowledged>,
    pub(super) status: Status,
}

impl Syncer {
    /// Runs until the writer has ended.
    pub(super) fn run(self) {
        while let Ok(mut waiting) = self.written.recv() {
            self.written.try_iter().for_each(|later| waiting.extend(later));
            let started = Instant::now();
            let synced = self.store.sync_written();
            self.status.metrics.sync_seconds.observe(started.elapsed().as_secs_f64());
            for Group { node, batches, next_sequence, result } in waiting.groups {
                let outcome = match &synced {
                    Ok(()) => Ok(next_sequence),
                    Err(error) => Err(self.status.store_error(error)),
                };
                // Fails if the session has ended; the records are stored.
                let _ = result.send(Outcome { node, batches, result: outcome });
            }
            for MarkRequest { agent, epoch, nodes, response } in waiting.mark_requests {
                let marks = nodes.iter().map(|node| self.store.durable_high_water_mark(node, &agent, &epoch)).collect();
                // Fails if the session has ended.
                let _ = response.send(marks);
            }
        }
    }
}
