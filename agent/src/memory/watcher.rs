//! The thread that asks the kernel: which processes are profiled, what becomes of them, and once a second what they hold.

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
use chainscope_quiet::warn_limited;
use crossbeam_channel::{Receiver, Sender, TryRecvError, TrySendError};

use super::{board::Board, probe::Probe, profile::Subject};
use crate::targets::proc::Proc;

/// How long the kernel is waited for: what the worker says is heard within this.
const POLL: Duration = Duration::from_millis(50);
/// How often what is held is read.
pub(super) const READ_EVERY: Duration = Duration::from_secs(1);
/// Readings after the end of a process until what is left of it is taken for what stays: its memory is freed while it ends.
const LAST_READINGS: u32 = 3;
/// Processes that are profiled at a time: a node that starts programs all the time has no profile for each.
const MAX_PROFILES: usize = 256;

/// What the worker says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    Watch {
        pid: u32,
        node: Arc<str>,
        label: Arc<str>,
    },
    /// The process is no longer observed. Of its end the kernel tells.
    Forget {
        pid: u32,
    },
}

/// What the naming thread is given: everything since the last.
#[derive(Debug, Default)]
pub(super) struct News {
    pub(super) began: Vec<(u32, Subject)>,
    pub(super) ended: Vec<(u32, &'static str)>,
    /// What executes something else now, and its name.
    pub(super) renamed: Vec<(u32, String)>,
    /// Processes of those that ended.
    pub(super) gone: Vec<u32>,
    /// Processes that run.
    pub(super) live: Vec<u32>,
    pub(super) reading: Option<Reading>,
}

impl News {
    fn is_empty(&self) -> bool {
        self.began.is_empty() && self.ended.is_empty() && self.gone.is_empty() && self.reading.is_none()
    }
}

/// A process that is profiled.
#[derive(Debug)]
struct Watched {
    pid: u32,
    node: Arc<str>,
    label: Arc<str>,
    parent: Option<TargetId>,
    standing: Standing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Not told of yet: a child that ends at once is nobody.
    New,
    Told,
    /// It ended; so many readings are still to come.
    Ending(u32),
    Ended,
}

/// The thread's state.
pub(super) struct Watcher<P> {
    load: Box<dyn Fn() -> Result<P, Error> + Send>,
    probe: Option<P>,
    proc: Proc,
    board: Board,
    commands: Receiver<Command>,
    names: Sender<News>,
    watched: BTreeMap<TargetId, Watched>,
    news: News,
    read: Option<Instant>,
}

impl<P: Probe> Watcher<P> {
    pub(super) fn new(
        load: Box<dyn Fn() -> Result<P, Error> + Send>,
        proc: Proc,
        board: Board,
        commands: Receiver<Command>,
        names: Sender<News>,
    ) -> Self {
        Self {
            load,
            probe: None,
            proc,
            board,
            commands,
            names,
            watched: BTreeMap::new(),
            news: News::default(),
            read: None,
        }
    }

    /// Runs until the worker is gone.
    pub(super) fn run(mut self) {
        loop {
            // Without anything to watch there is nobody to wait for but the worker.
            if self.probe.is_none() || self.watched.is_empty() {
                if !self.news.is_empty() {
                    // A naming thread that ended on a panic takes nothing.
                    let _ = self.names.send(std::mem::take(&mut self.news));
                }
                match self.commands.recv() {
                    Ok(command) => self.obey(command),
                    Err(_) => return self.finish(),
                }
            }
            loop {
                match self.commands.try_recv() {
                    Ok(command) => self.obey(command),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return self.finish(),
                }
            }
            self.round();
        }
    }

    /// Polls, and reads if it is time.
    fn round(&mut self) {
        let Some(probe) = &mut self.probe else { return };
        match probe.poll(POLL) {
            Ok(events) => events.into_iter().for_each(|event| self.event(event)),
            Err(error) => {
                warn_limited!(%error, "the memory profiler missed events");
                std::thread::park_timeout(POLL);
            }
        }
        // A naming thread that is busy gets the next one: counts are absolute.
        if !self.names.is_full() && self.read.is_none_or(|read| read.elapsed() >= READ_EVERY) {
            self.read();
            self.send();
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Watch { pid, node, label } => self.watch(pid, node, label),
            Command::Forget { pid } => self.release(pid),
        }
    }

    fn watch(&mut self, pid: u32, node: Arc<str>, label: Arc<str>) {
        if self.probe.is_none() {
            match (self.load)() {
                Ok(probe) => self.probe = Some(probe),
                Err(error) => {
                    tracing::error!(%error, "memory is not profiled");
                    self.board.fail(error.to_string());
                    return;
                }
            }
        }
        let Some(probe) = &mut self.probe else { return };
        match probe.watch(pid) {
            Ok(target) => {
                tracing::info!(%node, pid, "profiling memory");
                // As a child it may be known already: now it is what the worker says.
                self.watched.entry(target).or_insert(Watched {
                    pid,
                    node,
                    label,
                    parent: None,
                    standing: Standing::New,
                });
            }
            Err(error) => tracing::info!(%node, pid, %error, "the memory of this process is not profiled"),
        }
    }

    /// The process is no longer observed, and so are its children.
    fn release(&mut self, pid: u32) {
        let of_pid = |(target, watched): (&TargetId, &Watched)| {
            (watched.pid == pid && matches!(watched.standing, Standing::New | Standing::Told)).then_some(*target)
        };
        let Some(target) = self.watched.iter().find_map(of_pid) else { return };
        for target in self.family(target) {
            if let Some(watched) = self.watched.remove(&target) {
                self.end(target, &watched, "not observed any more");
            }
        }
        if let Some(probe) = &mut self.probe {
            probe.forget(target);
        }
    }

    /// A target and all its descendants.
    fn family(&self, target: TargetId) -> Vec<TargetId> {
        let mut family = BTreeSet::from([target]);
        // Children have greater numbers than their parents.
        for (child, watched) in &self.watched {
            if watched.parent.is_some_and(|parent| family.contains(&parent)) {
                family.insert(*child);
            }
        }
        family.into_iter().collect()
    }

    fn event(&mut self, event: MemoryEvent) {
        match event {
            MemoryEvent::Forked { target, parent, pid } => {
                let Some(of) = self.watched.get(&parent) else { return };
                if self.watched.len() >= MAX_PROFILES {
                    warn_limited!(node = %of.node, "too many processes: this child's memory is not shown");
                    return;
                }
                let (node, label) = (Arc::clone(&of.node), format!("{}, child {pid}", root_label(&of.label)).into());
                let watched = Watched { pid, node, label, parent: Some(parent), standing: Standing::New };
                self.watched.insert(target, watched);
            }
            MemoryEvent::Exited { target, .. } => {
                if let Some(watched) = self.watched.get_mut(&target) {
                    watched.standing = match watched.standing {
                        Standing::New => Standing::Ended,
                        Standing::Told => Standing::Ending(LAST_READINGS),
                        other => other,
                    };
                    self.news.gone.push(watched.pid);
                }
            }
            MemoryEvent::Executed { target, pid } => {
                if self.watched.get(&target).is_some_and(|watched| watched.standing == Standing::Told) {
                    self.news.renamed.push((target.0, name_of(&self.proc, pid)));
                }
            }
            MemoryEvent::Mapped { .. } => {}
        }
    }

    fn read(&mut self) {
        self.read = Some(Instant::now());
        let Some(probe) = &mut self.probe else { return };
        let reading = match probe.read(Scope::Changed) {
            Ok(reading) => reading,
            Err(error) => {
                warn_limited!(%error, "what processes hold cannot be read");
                return;
            }
        };
        for target in &reading.targets {
            let Some(watched) = self.watched.get_mut(&target.target) else { continue };
            match watched.standing {
                Standing::New if target.alive => {
                    watched.standing = Standing::Told;
                    let name = name_of(&self.proc, watched.pid);
                    let subject = Subject {
                        node: Arc::clone(&watched.node),
                        label: Arc::clone(&watched.label),
                        pid: watched.pid,
                        name,
                    };
                    self.news.began.push((target.target.0, subject));
                }
                Standing::Told if !target.alive => watched.standing = Standing::Ending(LAST_READINGS),
                // Page cache outlives a process; what was its own is gone when its memory is.
                Standing::Ending(left) if left > 1 && target.attributed[0] > 0 => {
                    watched.standing = Standing::Ending(left - 1);
                }
                Standing::Ending(_) => {
                    watched.standing = Standing::Ended;
                    self.news.ended.push((target.target.0, "exited"));
                }
                Standing::New | Standing::Told | Standing::Ended => {}
            }
        }
        self.news.live = self
            .watched
            .values()
            .filter(|watched| watched.standing == Standing::Told)
            .map(|watched| watched.pid)
            .collect();
        self.news.reading = Some(reading);
        self.forget_families();
    }

    /// Targets that ended are let go, with what they left in the kernel, when all their descendants ended too.
    fn forget_families(&mut self) {
        let has_ended = |watched: &Watched| watched.standing == Standing::Ended;
        let ended: Vec<TargetId> =
            self.watched.iter().filter(|(_, watched)| has_ended(watched)).map(|(target, _)| *target).collect();
        for target in ended {
            let family = self.family(target);
            // It may have gone with its parent.
            let is_over = |of: &TargetId| self.watched.get(of).is_some_and(has_ended);
            if family.iter().all(is_over) {
                family.iter().for_each(|of| {
                    self.watched.remove(of);
                });
                if let Some(probe) = &mut self.probe {
                    probe.forget(target);
                }
            }
        }
    }

    fn end(&mut self, target: TargetId, watched: &Watched, by: &'static str) {
        self.news.gone.push(watched.pid);
        if watched.standing == Standing::Told || matches!(watched.standing, Standing::Ending(_)) {
            self.news.ended.push((target.0, by));
        }
    }

    fn send(&mut self) {
        match self.names.try_send(std::mem::take(&mut self.news)) {
            Ok(()) => {}
            // Not lost: it was looked at before it was read that there is room, and nobody else sends.
            Err(TrySendError::Full(news) | TrySendError::Disconnected(news)) => self.news = news,
        }
    }

    /// The agent ends: what is held now is the last that is told.
    fn finish(mut self) {
        if !self.watched.is_empty() {
            self.read();
        }
        // A naming thread that ended on a panic takes nothing.
        let _ = self.names.send(self.news);
    }
}

/// `comm` of a process; empty if it is gone.
fn name_of(proc: &Proc, pid: u32) -> String {
    let comm = fs::read(proc.path(pid, "comm")).unwrap_or_default();
    String::from_utf8_lossy(&comm).trim_end().to_owned()
}

/// Of a child's label its parent's.
fn root_label(label: &str) -> &str {
    label.split(", child ").next().unwrap_or(label)
}
