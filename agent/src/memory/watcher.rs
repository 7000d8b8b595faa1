//! The thread that drives the probe: it watches processes, handles their events and reads their counts once a second.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use chainscope_ebpf::{
    Error,
    memory::{MemoryEvent, Reading, Scope, TargetId},
};
use chainscope_hygiene::warn_limited;
use crossbeam_channel::{Receiver, Sender, TryRecvError, TrySendError};

use super::{probe::Probe, profile::Subject, profile_store::ProfileStore};
use crate::targets::proc::Proc;

/// Timeout of one poll of the probe; also the maximum delay until a command is handled.
const POLL_TIMEOUT: Duration = Duration::from_millis(50);
/// Interval between readings.
pub(super) const READ_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of readings after the exit of a process before its profile ends. Memory is freed during the exit;
/// what remains afterwards is final.
const EXIT_READINGS: u32 = 3;
/// Maximum number of processes profiled at a time, which bounds the cost of a node that starts processes continuously.
const MAX_PROFILES: usize = 256;

/// A command of the discovery worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    Watch {
        pid: u32,
        node: Arc<str>,
        label: Arc<str>,
    },
    /// Stops profiling a process. The kernel reports exits.
    Unwatch {
        pid: u32,
    },
}

/// Changes since the previous update, sent to the symbolizer thread.
#[derive(Debug, Default)]
pub(super) struct ProfileUpdate {
    pub(super) started: Vec<(u32, Subject)>,
    pub(super) ended: Vec<(u32, &'static str)>,
    /// Targets that called `execve`, and their new names.
    pub(super) renamed: Vec<(u32, String)>,
    /// Pids of processes that exited or are no longer observed.
    pub(super) exited: Vec<u32>,
    /// Pids of running processes.
    pub(super) running: Vec<u32>,
    pub(super) reading: Option<Reading>,
}

impl ProfileUpdate {
    fn is_empty(&self) -> bool {
        self.started.is_empty() && self.ended.is_empty() && self.exited.is_empty() && self.reading.is_none()
    }
}

/// A watched process.
#[derive(Debug)]
struct WatchedProcess {
    pid: u32,
    node: Arc<str>,
    label: Arc<str>,
    parent: Option<TargetId>,
    state: ProcessState,
}

impl WatchedProcess {
    fn is_running(&self, pid: u32) -> bool {
        self.pid == pid && matches!(self.state, ProcessState::New | ProcessState::Profiled)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProcessState {
    /// No reading yet. A child that exits in this state has no profile.
    New,
    Profiled,
    /// The process exited; the number of readings that remain.
    Exiting(u32),
    Ended,
}

/// State of the watcher thread.
pub(super) struct Watcher<P> {
    load: Box<dyn Fn() -> Result<P, Error> + Send>,
    probe: Option<P>,
    proc: Proc,
    store: ProfileStore,
    commands: Receiver<Command>,
    updates: Sender<ProfileUpdate>,
    watched: BTreeMap<TargetId, WatchedProcess>,
    /// Processes that the probe could not watch for lack of space, with node and label; retried with each reading.
    retries: BTreeMap<u32, (Arc<str>, Arc<str>)>,
    update: ProfileUpdate,
    last_read: Option<Instant>,
}

impl<P: Probe> Watcher<P> {
    pub(super) fn new(
        load: Box<dyn Fn() -> Result<P, Error> + Send>,
        proc: Proc,
        store: ProfileStore,
        commands: Receiver<Command>,
        updates: Sender<ProfileUpdate>,
    ) -> Self {
        Self {
            load,
            probe: None,
            proc,
            store,
            commands,
            updates,
            watched: BTreeMap::new(),
            retries: BTreeMap::new(),
            update: ProfileUpdate::default(),
            last_read: None,
        }
    }

    /// Runs until the command channel is closed.
    pub(super) fn run(mut self) {
        loop {
            // With nothing to watch, block on the next command.
            if self.probe.is_none() || (self.watched.is_empty() && self.retries.is_empty()) {
                if !self.update.is_empty() {
                    // Sending fails only if the symbolizer thread panicked.
                    let _ = self.updates.send(std::mem::take(&mut self.update));
                }
                self.store.heartbeats().watcher.rest();
                match self.commands.recv() {
                    Ok(command) => {
                        self.store.heartbeats().watcher.beat();
                        self.apply(command);
                    }
                    Err(_) => return self.shut_down(),
                }
            }
            self.store.heartbeats().watcher.beat();
            loop {
                match self.commands.try_recv() {
                    Ok(command) => self.apply(command),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return self.shut_down(),
                }
            }
            self.poll_once();
        }
    }

    /// Polls the probe, and takes a reading if it is due.
    fn poll_once(&mut self) {
        let Some(probe) = &mut self.probe else { return };
        match probe.poll(POLL_TIMEOUT) {
            Ok(events) => events.into_iter().for_each(|event| self.event(event)),
            Err(error) => {
                warn_limited!(%error, "the memory profiler missed events");
                std::thread::park_timeout(POLL_TIMEOUT);
            }
        }
        // A busy symbolizer thread gets the next reading instead: counts are absolute.
        if !self.updates.is_full() && self.last_read.is_none_or(|last_read| last_read.elapsed() >= READ_INTERVAL) {
            for (pid, (node, label)) in std::mem::take(&mut self.retries) {
                self.watch(pid, node, label);
            }
            self.read();
            self.send();
        }
    }

    fn apply(&mut self, command: Command) {
        match command {
            Command::Watch { pid, node, label } => self.watch(pid, node, label),
            Command::Unwatch { pid } => self.unwatch(pid),
        }
    }

    fn watch(&mut self, pid: u32, node: Arc<str>, label: Arc<str>) {
        if self.probe.is_none() {
            match (self.load)() {
                Ok(probe) => self.probe = Some(probe),
                Err(error) => {
                    tracing::error!(%error, "memory is not profiled");
                    self.store.fail(error.to_string());
                    return;
                }
            }
        }
        // The process may be watched as a child already; the explicit assignment takes precedence.
        let is_other = |(_, watched): &(&TargetId, &WatchedProcess)| watched.is_running(pid) && watched.node != node;
        if self.watched.iter().any(|entry| is_other(&entry)) {
            self.unwatch(pid);
        }
        let Some(target) = self.start_watching(pid, &node, &label) else { return };
        let watched = WatchedProcess { pid, node, label, parent: None, state: ProcessState::New };
        if self.watched.get(&target).is_none_or(|known| known.state == ProcessState::New) {
            tracing::info!(node = %watched.node, pid, "profiling memory");
            let (node, label) = (Arc::clone(&watched.node), Arc::clone(&watched.label));
            self.watched.insert(target, watched);
            self.watch_children(pid, target, &node, &label);
        }
    }

    /// Starts watching a process in the probe.
    fn start_watching(&mut self, pid: u32, node: &Arc<str>, label: &Arc<str>) -> Option<TargetId> {
        match self.probe.as_mut()?.watch(pid) {
            Ok(target) => return Some(target),
            Err(error @ Error::NoProcess { .. }) => {
                tracing::info!(%node, pid, %error, "the memory of this process is not profiled");
            }
            Err(error) => {
                warn_limited!(%node, pid, %error, "the memory of this process is not profiled yet");
                self.retries.insert(pid, (Arc::clone(node), Arc::clone(label)));
            }
        }
        None
    }

    /// Watches existing descendants. The kernel reports later ones.
    fn watch_children(&mut self, pid: u32, parent: TargetId, node: &Arc<str>, label: &Arc<str>) {
        for child in self.proc.descendants(pid) {
            if self.watched.len() >= MAX_PROFILES || self.watched.values().any(|watched| watched.is_running(child)) {
                continue;
            }
            let Some(Ok(target)) = self.probe.as_mut().map(|probe| probe.watch(child)) else { continue };
            let label = child_label(label, child);
            let watched = WatchedProcess {
                pid: child,
                node: Arc::clone(node),
                label,
                parent: Some(parent),
                state: ProcessState::New,
            };
            self.watched.entry(target).or_insert(watched);
        }
    }

    /// Stops profiling a process and its descendants.
    fn unwatch(&mut self, pid: u32) {
        self.retries.remove(&pid);
        let of_pid = |(target, watched): (&TargetId, &WatchedProcess)| watched.is_running(pid).then_some(*target);
        let Some(target) = self.watched.iter().find_map(of_pid) else { return };
        let subtree = self.subtree(target);
        for target in &subtree {
            if let Some(watched) = self.watched.remove(target) {
                self.end(*target, &watched, "not observed any more");
            }
        }
        self.unwatch_targets(&subtree);
    }

    /// Unwatches every target explicitly, since the probe does not know the parent of processes that were running at
    /// attach.
    fn unwatch_targets(&mut self, subtree: &[TargetId]) {
        if let Some(probe) = &mut self.probe {
            subtree.iter().for_each(|target| probe.unwatch(*target));
        }
    }

    /// Returns a target and all its descendants.
    fn subtree(&self, target: TargetId) -> Vec<TargetId> {
        let mut subtree = BTreeSet::from([target]);
        // A child has a greater id than its parent.
        for (child, watched) in &self.watched {
            if watched.parent.is_some_and(|parent| subtree.contains(&parent)) {
                subtree.insert(*child);
            }
        }
        subtree.into_iter().collect()
    }

    fn event(&mut self, event: MemoryEvent) {
        match event {
            MemoryEvent::Forked { target, parent, pid } => {
                let Some(parent_process) = self.watched.get(&parent) else { return };
                if self.watched.len() >= MAX_PROFILES {
                    warn_limited!(node = %parent_process.node, "too many processes: this child's memory is not shown");
                    self.unwatch_targets(&[target]);
                    return;
                }
                let (node, label) = (Arc::clone(&parent_process.node), child_label(&parent_process.label, pid));
                let watched = WatchedProcess { pid, node, label, parent: Some(parent), state: ProcessState::New };
                self.watched.entry(target).or_insert(watched);
            }
            MemoryEvent::Exited { target, .. } => {
                if let Some(watched) = self.watched.get_mut(&target) {
                    watched.state = match watched.state {
                        ProcessState::New => ProcessState::Ended,
                        ProcessState::Profiled => ProcessState::Exiting(EXIT_READINGS),
                        other => other,
                    };
                    self.update.exited.push(watched.pid);
                }
            }
            MemoryEvent::Executed { target, pid } => {
                if self.watched.get(&target).is_some_and(|watched| watched.state == ProcessState::Profiled) {
                    self.update.renamed.push((target.0, name_of(&self.proc, pid)));
                }
            }
            MemoryEvent::Mapped { .. } => {}
        }
    }

    fn read(&mut self) {
        self.last_read = Some(Instant::now());
        let Some(probe) = &mut self.probe else { return };
        let reading = match probe.read(Scope::Changed) {
            Ok(reading) => reading,
            Err(error) => {
                warn_limited!(%error, "memory counts cannot be read");
                return;
            }
        };
        for target in &reading.targets {
            let Some(watched) = self.watched.get_mut(&target.target) else { continue };
            match watched.state {
                ProcessState::New if target.alive => {
                    watched.state = ProcessState::Profiled;
                    let name = name_of(&self.proc, watched.pid);
                    let subject = Subject {
                        node: Arc::clone(&watched.node),
                        label: Arc::clone(&watched.label),
                        pid: watched.pid,
                        name,
                    };
                    self.update.started.push((target.target.0, subject));
                }
                ProcessState::Profiled if !target.alive => watched.state = ProcessState::Exiting(EXIT_READINGS),
                // Only anonymous memory is awaited: page cache outlives the process.
                ProcessState::Exiting(left) if left > 1 && target.attributed[0] > 0 => {
                    watched.state = ProcessState::Exiting(left - 1);
                }
                ProcessState::Exiting(_) => {
                    watched.state = ProcessState::Ended;
                    self.update.ended.push((target.target.0, "exited"));
                }
                ProcessState::New | ProcessState::Profiled | ProcessState::Ended => {}
            }
        }
        self.update.running = self
            .watched
            .values()
            .filter(|watched| watched.state == ProcessState::Profiled)
            .map(|watched| watched.pid)
            .collect();
        self.update.reading = Some(reading);
        self.unwatch_exited_trees();
    }

    /// Unwatches exited targets, with their remaining kernel state, once all their descendants exited too.
    fn unwatch_exited_trees(&mut self) {
        let has_ended = |watched: &WatchedProcess| watched.state == ProcessState::Ended;
        let ended: Vec<TargetId> =
            self.watched.iter().filter(|(_, watched)| has_ended(watched)).map(|(target, _)| *target).collect();
        for target in ended {
            let subtree = self.subtree(target);
            // The target may have been removed with its parent.
            let is_finished = |member: &TargetId| self.watched.get(member).is_some_and(has_ended);
            if subtree.iter().all(is_finished) {
                subtree.iter().for_each(|member| {
                    self.watched.remove(member);
                });
                self.unwatch_targets(&subtree);
            }
        }
    }

    fn end(&mut self, target: TargetId, watched: &WatchedProcess, cause: &'static str) {
        self.update.exited.push(watched.pid);
        if watched.state == ProcessState::Profiled || matches!(watched.state, ProcessState::Exiting(_)) {
            self.update.ended.push((target.0, cause));
        }
    }

    fn send(&mut self) {
        match self.updates.try_send(std::mem::take(&mut self.update)) {
            Ok(()) => {}
            // The update is kept for the next attempt. `Full` cannot occur: this thread is the only sender and checked
            // for space.
            Err(TrySendError::Full(update) | TrySendError::Disconnected(update)) => self.update = update,
        }
    }

    /// Takes a final reading when the agent stops.
    fn shut_down(mut self) {
        if !self.watched.is_empty() {
            self.read();
        }
        // Sending fails only if the symbolizer thread panicked.
        let _ = self.updates.send(self.update);
    }
}

/// Returns the `comm` of a process; empty if it exited.
fn name_of(proc: &Proc, pid: u32) -> String {
    let comm = fs::read(proc.path(pid, "comm")).unwrap_or_default();
    String::from_utf8_lossy(&comm).trim_end().to_owned()
}

/// Returns the label of a child process. The parent may itself be a child.
fn child_label(parent: &str, pid: u32) -> Arc<str> {
    let first = parent.split(", child ").next().unwrap_or(parent);
    format!("{first}, child {pid}").into()
}
