//! The one thread that writes to the store: it appends everything that waits, syncs once, then acknowledges.

use std::{
    collections::HashSet,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use chainscope_hygiene::warn_limited;
use chainscope_proto::v1::Batch;
use chainscope_store::{Error as StoreError, Store};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::SessionError;
use crate::{Error, clock::now_ns, metrics::IngestMetrics, nodes::Nodes};

/// Bytes of batches that share one sync at most, so that the first of them does not wait for ever.
const GROUP_BYTES: usize = 4 << 20;

/// Time between two tries while the disk is full.
const RETRY: Duration = Duration::from_millis(500);

/// So many times [`RETRY`] is waited for the space of what was dropped: the engine deletes files late, and none that is
/// being read.
const PAUSES: u32 = 6;

/// Time between two looks at an engine that is behind, and how often it is looked at before more is written all the same.
const LOOK: Duration = Duration::from_millis(20);
const LOOKS: u32 = 150;

/// Segments that are dropped beyond retention, one after the other, without more space than before.
const IN_VAIN: u32 = 3;

/// A batch on its way.
pub(super) struct Append {
    pub(super) agent: Arc<str>,
    pub(super) epoch: Arc<[u8]>,
    pub(super) batch: Batch,
    pub(super) bytes: usize,
    pub(super) result: mpsc::UnboundedSender<Outcome>,
    pub(super) _room: OwnedSemaphorePermit,
}

/// What became of some batches of a lane.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) node: String,
    /// How many batches this answers.
    pub(super) batches: usize,
    /// Everything before this sequence is durable.
    pub(super) result: Result<u64, SessionError>,
}

enum Command {
    Append(Box<Append>),
    Marks { agent: Arc<str>, epoch: Arc<[u8]>, nodes: Vec<String>, answer: oneshot::Sender<Vec<u64>> },
}

/// Whether records can be stored, for `/readyz` and `/v2/stats`.
#[derive(Debug, Default)]
pub(crate) struct Health {
    trouble: Mutex<Option<String>>,
}

impl Health {
    /// What keeps records from being stored, if anything.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    fn set(&self, trouble: Option<String>) {
        *self.trouble.lock() = trouble;
    }
}

/// The way to the thread.
#[derive(Debug)]
pub(crate) struct Writer {
    /// The commands, and a channel that says by its end that no more will come.
    commands: Mutex<Option<(Sender<Command>, Sender<()>)>>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
    health: Arc<Health>,
}

impl Writer {
    pub(super) fn start(store: Store, nodes: Arc<Nodes>, metrics: Arc<IngestMetrics>) -> Result<Self, Error> {
        // Bounded by the room that sessions must have for each batch.
        let (sender, commands) = unbounded();
        let (end, ending) = bounded(0);
        let health = Arc::new(Health::default());
        // What is known already has its retention.
        let known = store.nodes().into_iter().map(|node| node.name).collect();
        let mut work = Work {
            store,
            known,
            nodes,
            commands,
            ending,
            metrics,
            health: Arc::clone(&health),
            groups: Vec::new(),
            relief: None,
        };
        let name = "ingest-writer".to_owned();
        let thread = thread::Builder::new()
            .name(name.clone())
            .spawn(move || work.run())
            .map_err(|source| Error::Thread { name, source })?;
        Ok(Self { commands: Mutex::new(Some((sender, end))), thread: Mutex::new(Some(thread)), health })
    }

    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    pub(super) fn append(&self, append: Append) -> Result<(), SessionError> {
        self.send(Command::Append(Box::new(append)))
    }

    /// Where the lanes stand durably, after everything that waits now.
    pub(super) async fn marks(
        &self,
        agent: Arc<str>,
        epoch: Arc<[u8]>,
        nodes: Vec<String>,
    ) -> Result<Vec<u64>, SessionError> {
        let (answer, wait) = oneshot::channel();
        self.send(Command::Marks { agent, epoch, nodes, answer })?;
        wait.await.map_err(|_| SessionError::Ending)
    }

    fn send(&self, command: Command) -> Result<(), SessionError> {
        let commands = self.commands.lock();
        commands.as_ref().and_then(|(sender, _)| sender.send(command).ok()).ok_or(SessionError::Ending)
    }

    /// Ends the thread after what it was given.
    pub(super) async fn stop(&self) {
        self.commands.lock().take();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // The only blocking wait of the shutdown: on the last sync.
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

impl Drop for Writer {
    /// Whoever lets go of it without [`Writer::stop`] waits for the thread here, which holds the store.
    fn drop(&mut self) {
        self.commands.lock().take();
        if let Some(thread) = self.thread.lock().take() {
            // It does not panic; if it did, the hook said so.
            let _ = thread.join();
        }
    }
}

/// Batches of one lane and session in the group that is being written.
struct Group {
    agent: Arc<str>,
    epoch: Arc<[u8]>,
    node: String,
    batches: usize,
    result: mpsc::UnboundedSender<Outcome>,
}

struct Work {
    store: Store,
    /// Nodes whose retention the store has been told.
    known: HashSet<String>,
    nodes: Arc<Nodes>,
    commands: Receiver<Command>,
    ending: Receiver<()>,
    metrics: Arc<IngestMetrics>,
    health: Arc<Health>,
    groups: Vec<Group>,
    /// What dropping has brought; none while the disk is not full.
    relief: Option<Relief>,
}

/// What dropping old records has brought since the disk was found full.
#[derive(Default)]
struct Relief {
    /// The most free space that there was, the space kept aside included.
    most: u64,
    /// Segments that were dropped beyond retention since then.
    in_vain: u32,
}

impl Work {
    fn run(&mut self) {
        while let Ok(command) = self.commands.recv() {
            let mut waiting = Vec::new();
            let mut bytes = self.take(command, &mut waiting);
            while bytes < GROUP_BYTES
                && let Ok(command) = self.commands.try_recv()
            {
                bytes += self.take(command, &mut waiting);
            }
            if !self.groups.is_empty() {
                self.commit();
            }
            for (agent, epoch, nodes, answer) in waiting {
                let marks = nodes.iter().map(|node| self.store.durable_mark(node, &agent, &epoch)).collect();
                // The session may have ended meanwhile.
                let _ = answer.send(marks);
            }
        }
    }

    #[allow(clippy::type_complexity)] // the fields of Command::Marks
    fn take(
        &mut self,
        command: Command,
        waiting: &mut Vec<(Arc<str>, Arc<[u8]>, Vec<String>, oneshot::Sender<Vec<u64>>)>,
    ) -> usize {
        match command {
            Command::Append(append) => {
                let bytes = append.bytes;
                self.append(*append);
                bytes
            }
            Command::Marks { agent, epoch, nodes, answer } => {
                waiting.push((agent, epoch, nodes, answer));
                0
            }
        }
    }

    /// Tells the store how long records of a new node are kept.
    fn welcome(&mut self, node: &str) {
        if self.known.contains(node) {
            return;
        }
        self.known.insert(node.to_owned());
        if let Err(error) = self.nodes.tell_retention(&self.store, node) {
            warn_limited!(%error, node, "retention could not be set");
        }
    }

    fn append(&mut self, append: Append) {
        let Append { agent, epoch, batch, bytes, result, _room } = append;
        let Batch { node, first_sequence, records } = batch;
        self.welcome(&node);
        self.let_sort();
        let appended = self.insist(|store| store.append(&node, &agent, &epoch, first_sequence, &records).map(drop));
        match appended {
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
                    other => self.failed(&other),
                };
                // The session may have ended meanwhile; the agent learns it from its next one.
                let _ = result.send(Outcome { node, batches: 1, result: Err(error) });
            }
        }
    }

    fn commit(&mut self) {
        let began = Instant::now();
        let synced = self.insist(Store::sync);
        self.metrics.sync_seconds.observe(began.elapsed().as_secs_f64());
        if synced.is_ok() {
            self.health.set(None);
            if self.relief.is_some() && self.store.disk().is_ok_and(|disk| !disk.full) {
                self.relief = None;
            }
        }
        for Group { agent, epoch, node, batches, result } in std::mem::take(&mut self.groups) {
            let outcome = match &synced {
                Ok(()) => Ok(self.store.durable_mark(&node, &agent, &epoch)),
                Err(error) => Err(self.failed(error)),
            };
            // The session may have ended meanwhile: the records are stored all the same.
            let _ = result.send(Outcome { node, batches, result: outcome });
        }
    }

    fn failed(&self, error: &StoreError) -> SessionError {
        let text = error.to_string();
        self.metrics.store_errors.inc();
        warn_limited!(error = %text, "records could not be stored");
        self.health.set(Some(text.clone()));
        SessionError::Store(text)
    }

    /// Waits for an engine that is behind on a disk that is nearly full. On one that filled up meanwhile it could not sort in
    /// what it has, and would keep the files of everything that is dropped.
    fn let_sort(&self) {
        for _ in 0..LOOKS {
            let is_behind = self.store.is_behind().unwrap_or(false);
            if !is_behind || self.is_ending(LOOK) {
                return;
            }
        }
    }

    /// Does it; on a full disk lets the oldest records go and tries again until it works or the aggregator ends.
    fn insist(&mut self, mut act: impl FnMut(&Store) -> Result<(), StoreError>) -> Result<(), StoreError> {
        loop {
            let error = match act(&self.store) {
                Err(error @ StoreError::DiskFull { .. }) => error,
                other => return other,
            };
            if self.health.trouble().is_none() {
                self.health.set(Some(error.to_string()));
            }
            match self.let_go(&error) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => warn_limited!(%error, "the disk is full, and dropping old records failed"),
            }
            // Agents keep what is not acknowledged, so waiting loses nothing here.
            if self.is_ending(RETRY) {
                return Err(error);
            }
        }
    }

    /// Drops the oldest records until there is room again, which is true then, or until that does not help.
    ///
    /// Beyond retention it goes segment by segment, and only while there is more space each time: where somebody else
    /// fills the disk, or the engine keeps the files, everything would go and nothing be gained.
    fn let_go(&mut self, full: &StoreError) -> Result<bool, StoreError> {
        let mut is_first = true;
        loop {
            let room = self.room()?;
            let relief = self.relief.get_or_insert_default();
            if room > relief.most {
                *relief = Relief { most: room, in_vain: 0 };
            }
            let evicted = match self.store.evict(now_ns()) {
                Ok(evicted) if evicted.segments > 0 => evicted,
                Ok(_) if !self.store.disk()?.full => return Ok(true),
                // All that is kept is within the limits.
                Ok(_) | Err(StoreError::DiskFull { .. }) => {
                    if relief.in_vain >= IN_VAIN || !self.store.can_make_room()? {
                        let text = format!("{full}, and to drop old records does not help");
                        warn_limited!(error = %text, "records wait until there is room");
                        self.health.set(Some(text));
                        return Ok(false);
                    }
                    relief.in_vain += 1;
                    self.store.make_room()?
                }
                Err(error) => return Err(error),
            };
            if evicted.segments == 0 {
                warn_limited!(error = %full, "nothing is left to drop");
                return Ok(false);
            }
            let most = relief.most;
            self.health.set(Some(full.to_string()));
            warn_limited!(rows = evicted.rows, bytes = evicted.bytes, "the disk is full: old records were dropped");
            for _ in 0..PAUSES {
                if self.is_ending(RETRY) {
                    return Ok(false);
                }
                if self.room()? > most {
                    break;
                }
            }
            if !self.store.disk()?.full {
                return Ok(true);
            }
            // What waited was written with the first drop, and has taken space of its own.
            let room = self.room()?;
            if let Some(relief) = self.relief.as_mut().filter(|_| is_first) {
                relief.most = relief.most.min(room);
            }
            is_first = false;
        }
    }

    /// Bytes that are free on the disk or kept aside.
    fn room(&self) -> Result<u64, StoreError> {
        self.store.disk().map(|disk| disk.free_bytes.saturating_add(disk.ballast_bytes))
    }

    /// Waits so long; true if the aggregator ends meanwhile.
    fn is_ending(&self, wait: Duration) -> bool {
        self.ending.recv_timeout(wait) == Err(RecvTimeoutError::Disconnected)
    }
}
