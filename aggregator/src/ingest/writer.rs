//! The thread that writes to the store: it appends all waiting batches, writes them at once, and gives them to the thread that syncs
//! and acknowledges them.

use std::{collections::HashSet, mem, sync::Arc, thread};

use chainscope_hygiene::warn_limited;
use chainscope_proto::v1::Batch;
use chainscope_store::{Error as StoreError, Store};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::{
    SessionError,
    disk_full::DiskFullRetry,
    health::WriteHealth,
    syncer::{Group, MarkRequest, Outcome, Status, Syncer, Unacknowledged},
};
use crate::{Error, metrics::IngestMetrics, nodes::Nodes};

/// Maximum bytes of batches that are written at once, so that the first of them is acknowledged in time.
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

enum Command {
    Append(Box<Append>),
    Marks(MarkRequest),
}

/// Handle of the threads that write and sync.
#[derive(Debug)]
pub(super) struct Writer {
    /// The command channel, and one whose end signals the stop.
    commands: Mutex<Option<(Sender<Command>, Sender<()>)>>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
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
        let status = Status { metrics, health: Arc::clone(&health) };
        // One is synced, one waits: what is longer waits for the writer, where permits bound it.
        let (to_sync, written) = bounded(1);
        let syncer = Syncer { store: store.clone(), written, status: status.clone() };
        let mut worker = Worker {
            disk: DiskFullRetry::new(store.clone(), Arc::clone(&health), stopping),
            store,
            with_retention,
            nodes,
            commands,
            to_sync,
            status,
            unacknowledged: Unacknowledged::default(),
        };
        let threads =
            vec![spawn("ingest-syncer", move || syncer.run())?, spawn("ingest-writer", move || worker.run())?];
        Ok(Self { commands: Mutex::new(Some((sender, stop))), threads: Mutex::new(threads), health })
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

    /// Ends the threads after all queued commands.
    pub(super) async fn stop(&self) {
        self.commands.lock().take();
        let threads = mem::take(&mut *self.threads.lock());
        // The last sync blocks.
        let _ = tokio::task::spawn_blocking(move || join(threads)).await;
    }
}

impl Drop for Writer {
    /// Without [`Writer::stop`] this waits for the threads, which hold the store.
    fn drop(&mut self) {
        self.commands.lock().take();
        join(mem::take(&mut *self.threads.lock()));
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<thread::JoinHandle<()>, Error> {
    let builder = thread::Builder::new().name(name.to_owned());
    builder.spawn(run).map_err(|source| Error::Thread { name: name.to_owned(), source })
}

fn join(threads: Vec<thread::JoinHandle<()>>) {
    for thread in threads {
        // The panic hook has printed a panic of the thread.
        let _ = thread.join();
    }
}

/// State of the writer thread.
struct Worker {
    store: Store,
    disk: DiskFullRetry,
    /// Nodes whose retention is set in the store.
    with_retention: HashSet<String>,
    nodes: Arc<Nodes>,
    commands: Receiver<Command>,
    to_sync: Sender<Unacknowledged>,
    status: Status,
    unacknowledged: Unacknowledged,
}

impl Worker {
    fn run(&mut self) {
        while let Ok(first) = self.commands.recv() {
            let mut bytes = 0;
            let mut next = Some(first);
            while let Some(command) = next {
                match command {
                    Command::Append(append) => {
                        bytes += append.bytes;
                        self.append(*append);
                    }
                    Command::Marks(request) => self.unacknowledged.mark_requests.push(request),
                }
                next = if bytes < MAX_GROUP_BYTES { self.commands.try_recv().ok() } else { None };
            }
            self.write();
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
        self.status.metrics.compaction_wait_seconds.inc_by(self.disk.wait_for_compaction().as_secs_f64());
        let append = |store: &Store| store.append(&node, &agent, &epoch, first_sequence, &records);
        match self.disk.retry_on_disk_full(append) {
            Ok(next_sequence) => {
                self.status.metrics.batch(bytes, &records);
                let same = |group: &&mut Group| group.node == node && group.result.same_channel(&result);
                let groups = &mut self.unacknowledged.groups;
                match groups.iter_mut().find(same) {
                    Some(group) => {
                        group.batches += 1;
                        group.next_sequence = next_sequence;
                    }
                    None => groups.push(Group { node, batches: 1, next_sequence, result }),
                }
            }
            Err(error) => {
                let error = match error {
                    StoreError::Hole { node, expected, found } => SessionError::Hole { node, expected, found },
                    other => self.status.store_error(&other),
                };
                // Fails if the session has ended; the agent sends the batch again in the next one.
                let _ = result.send(Outcome { node, batches: 1, result: Err(error) });
            }
        }
    }

    /// Writes what was appended. The thread that syncs it acknowledges it.
    fn write(&mut self) {
        let mut waiting = mem::take(&mut self.unacknowledged);
        if !waiting.groups.is_empty() {
            match self.disk.retry_on_disk_full(Store::write_appended) {
                Ok(()) => self.disk.committed(),
                Err(error) => {
                    for Group { node, batches, result, .. } in waiting.groups.drain(..) {
                        let error = self.status.store_error(&error);
                        // Fails if the session has ended; the agent sends the batches again in the next one.
                        let _ = result.send(Outcome { node, batches, result: Err(error) });
                    }
                }
            }
        }
        // Fails if that thread has panicked: sessions end without an acknowledgement.
        let _ = self.to_sync.send(waiting);
    }
}
