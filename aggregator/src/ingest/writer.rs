//! The thread that writes to the store: it appends all waiting batches, syncs once, and then acknowledges.

use std::{collections::HashSet, sync::Arc, thread, time::Instant};

use chainscope_hygiene::warn_limited;
use chainscope_proto::v1::Batch;
use chainscope_store::{Error as StoreError, Store};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::{SessionError, disk_full::DiskFullRetry, health::WriteHealth};
use crate::{Error, metrics::IngestMetrics, nodes::Nodes};

/// Maximum bytes of batches that share one sync, so that the first of them is acknowledged in time.
const MAX_GROUP_BYTES: usize = 4 << 20;

/// A batch to append.
pub(super) struct Append {
    pub(super) agent: Arc<str>,
    pub(super) epoch: Arc<[u8]>,
    pub(super) batch: Batch,
    /// Encoded length of the batch.
    pub(super) bytes: usize,
    /// Receives the outcome.
    pub(super) result: mpsc::UnboundedSender<Outcome>,
    /// Its share of the bytes that may wait for the writer.
    pub(super) _permit: OwnedSemaphorePermit,
}

/// Result of batches of one stream.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) node: String,
    /// Number of batches that this is the result of.
    pub(super) batches: usize,
    /// High-water mark of the stream: everything before it is durable.
    pub(super) result: Result<u64, SessionError>,
}

/// A request for the high-water marks of an agent's streams.
struct MarkRequest {
    agent: Arc<str>,
    epoch: Arc<[u8]>,
    nodes: Vec<String>,
    response: oneshot::Sender<Vec<u64>>,
}

enum Command {
    Append(Box<Append>),
    Marks(MarkRequest),
}

/// Handle of the writer thread.
#[derive(Debug)]
pub(super) struct Writer {
    /// The command channel, and one whose end signals the stop.
    commands: Mutex<Option<(Sender<Command>, Sender<()>)>>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
    health: Arc<WriteHealth>,
}

impl Writer {
    pub(super) fn start(store: Store, nodes: Arc<Nodes>, metrics: Arc<IngestMetrics>) -> Result<Self, Error> {
        #[expect(clippy::disallowed_methods, reason = "bounded by the permits that sessions acquire for each batch")]
        let (sender, commands) = unbounded();
        let (stop, stopping) = bounded(0);
        let health = Arc::new(WriteHealth::default());
        // The retention of existing nodes is set at the start of the aggregator.
        let with_retention = store.nodes().into_iter().map(|node| node.name).collect();
        let mut worker = Worker {
            disk: DiskFullRetry::new(store.clone(), Arc::clone(&health), stopping),
            store,
            with_retention,
            nodes,
            commands,
            metrics,
            health: Arc::clone(&health),
            groups: Vec::new(),
        };
        let name = "ingest-writer".to_owned();
        let thread = thread::Builder::new()
            .name(name.clone())
            .spawn(move || worker.run())
            .map_err(|source| Error::Thread { name, source })?;
        Ok(Self { commands: Mutex::new(Some((sender, stop))), thread: Mutex::new(Some(thread)), health })
    }

    pub(super) fn health(&self) -> &WriteHealth {
        &self.health
    }

    pub(super) fn append(&self, append: Append) -> Result<(), SessionError> {
        self.send(Command::Append(Box::new(append)))
    }

    /// The high-water marks of the streams, after everything that is queued now.
    pub(super) async fn marks(
        &self,
        agent: Arc<str>,
        epoch: Arc<[u8]>,
        nodes: Vec<String>,
    ) -> Result<Vec<u64>, SessionError> {
        let (response, marks) = oneshot::channel();
        self.send(Command::Marks(MarkRequest { agent, epoch, nodes, response }))?;
        marks.await.map_err(|_| SessionError::Stopping)
    }

    fn send(&self, command: Command) -> Result<(), SessionError> {
        let commands = self.commands.lock();
        commands.as_ref().and_then(|(sender, _)| sender.send(command).ok()).ok_or(SessionError::Stopping)
    }

    /// Ends the thread after all queued commands.
    pub(super) async fn stop(&self) {
        self.commands.lock().take();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // The last sync blocks.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

impl Drop for Writer {
    /// Without [`Writer::stop`] this waits for the thread, which holds the store.
    fn drop(&mut self) {
        self.commands.lock().take();
        if let Some(thread) = self.thread.lock().take() {
            // The panic hook has printed a panic of the thread.
            let _ = thread.join();
        }
    }
}

/// Batches of one stream and session that are appended and not synced.
struct Group {
    agent: Arc<str>,
    epoch: Arc<[u8]>,
    node: String,
    batches: usize,
    result: mpsc::UnboundedSender<Outcome>,
}

/// State of the writer thread.
struct Worker {
    store: Store,
    disk: DiskFullRetry,
    /// Nodes whose retention is set in the store.
    with_retention: HashSet<String>,
    nodes: Arc<Nodes>,
    commands: Receiver<Command>,
    metrics: Arc<IngestMetrics>,
    health: Arc<WriteHealth>,
    groups: Vec<Group>,
}

impl Worker {
    fn run(&mut self) {
        while let Ok(first) = self.commands.recv() {
            let mut mark_requests = Vec::new();
            let mut bytes = 0;
            let mut next = Some(first);
            while let Some(command) = next {
                match command {
                    Command::Append(append) => {
                        bytes += append.bytes;
                        self.append(*append);
                    }
                    Command::Marks(request) => mark_requests.push(request),
                }
                next = if bytes < MAX_GROUP_BYTES { self.commands.try_recv().ok() } else { None };
            }
            if !self.groups.is_empty() {
                self.commit();
            }
            for MarkRequest { agent, epoch, nodes, response } in mark_requests {
                let marks = nodes.iter().map(|node| self.store.durable_high_water_mark(node, &agent, &epoch)).collect();
                // Fails if the session has ended.
                let _ = response.send(marks);
            }
        }
    }

    /// Sets the retention of a new node in the store.
    fn ensure_retention(&mut self, node: &str) {
        if self.with_retention.contains(node) {
            return;
        }
        self.with_retention.insert(node.to_owned());
        if let Err(error) = self.nodes.apply_retention(&self.store, node) {
            warn_limited!(%error, node, "retention could not be set");
        }
    }

    fn append(&mut self, append: Append) {
        let Append { agent, epoch, batch, bytes, result, _permit } = append;
        let Batch { node, first_sequence, records } = batch;
        self.ensure_retention(&node);
        self.disk.wait_for_compaction();
        let append = |store: &Store| store.append(&node, &agent, &epoch, first_sequence, &records).map(drop);
        match self.disk.retry_on_disk_full(append) {
            Ok(()) => {
                self.metrics.batch(bytes, &records);
                let same = |group: &&mut Group| group.node == node && group.result.same_channel(&result);
                match self.groups.iter_mut().find(same) {
                    Some(group) => group.batches += 1,
                    None => self.groups.push(Group { agent, epoch, node, batches: 1, result }),
                }
            }
            Err(error) => {
                let error = match error {
                    StoreError::Hole { node, expected, found } => SessionError::Hole { node, expected, found },
                    other => self.store_error(&other),
                };
                // Fails if the session has ended; the agent sends the batch again in the next one.
                let _ = result.send(Outcome { node, batches: 1, result: Err(error) });
            }
        }
    }

    fn commit(&mut self) {
        let started = Instant::now();
        let synced = self.disk.retry_on_disk_full(Store::sync);
        self.metrics.sync_seconds.observe(started.elapsed().as_secs_f64());
        if synced.is_ok() {
            self.disk.committed();
        }
        for Group { agent, epoch, node, batches, result } in std::mem::take(&mut self.groups) {
            let outcome = match &synced {
                Ok(()) => Ok(self.store.durable_high_water_mark(&node, &agent, &epoch)),
                Err(error) => Err(self.store_error(error)),
            };
            // Fails if the session has ended; the records are stored.
            let _ = result.send(Outcome { node, batches, result: outcome });
        }
    }

    /// Counts and logs an error of the store.
    fn store_error(&self, error: &StoreError) -> SessionError {
        let text = error.to_string();
        self.metrics.store_errors.inc();
        warn_limited!(error = %text, "records could not be stored");
        self.health.set(text.clone());
        SessionError::Store(text)
    }
}
