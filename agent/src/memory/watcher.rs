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
use chainscope_hygiene::warn_limited;
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

impl Watched {
    fn is_running(&self, pid: u32) -> bool {
        self.pid == pid && matches!(self.standing, Standing::New | Standing::Told)
    }
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
    /// Processes for which the kernel part had no room, their nodes and labels: it is asked again while they live.
    refused: BTreeMap<u32, (Arc<str>, Arc<str>)>,
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
            refused: BTreeMap::new(),
            news: News::default(),
            read: None,
        }
    }

    /// Runs until the worker is gone.
    pub(super) fn run(mut self) {
        loop {
            // Without anything to watch there is nobody to wait for but the worker.
            if self.probe.is_none() || (self.watched.is_empty() && self.refused.is_empty()) {
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
            for (pid, (node, label)) in std::mem::take(&mut self.refused) {
                self.watch(pid, node, label);
            }
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
        // As a child it may be known already: now it is what the worker says.
        let is_other = |(_, watched): &(&TargetId, &Watched)| watched.is_running(pid) && watched.node != node;
        if self.watched.iter().any(|entry| is_other(&entry)) {
            self.release(pid);
        }
        let Some(target) = self.admit(pid, &node, &label) else { return };
        let watched = Watched { pid, node, label, parent: None, standing: Standing::New };
        if self.watched.get(&target).is_none_or(|known| known.standing == Standing::New) {
            tracing::info!(node = %watched.node, pid, "profiling memory");
            let (node, label) = (Arc::clone(&watched.node), Arc::clone(&watched.label));
            self.watched.insert(target, watched);
            self.adopt_children(pid, target, &node, &label);
        }
    }

    /// Lets the kernel part follow a process.
    fn admit(&mut self, pid: u32, node: &Arc<str>, label: &Arc<str>) -> Option<TargetId> {
        match self.probe.as_mut()?.watch(pid) {
            Ok(target) => return Some(target),
            Err(error @ Error::NoProcess { .. }) => {
                tracing::info!(%node, pid, %error, "the memory of this process is not profiled");
            }
            Err(error) => {
                warn_limited!(%node, pid, %error, "the memory of this process is not profiled yet");
                self.refused.insert(pid, (Arc::clone(node), Arc::clone(label)));
            }
        }
        None
    }

    /// Children that it has already; of those to come the kernel tells.
    fn adopt_children(&mut self, pid: u32, parent: TargetId, node: &Arc<str>, label: &Arc<str>) {
        for child in self.proc.descendants(pid) {
            if self.watched.len() >= MAX_PROFILES || self.watched.values().any(|watched| watched.is_running(child)) {
                continue;
            }
            let Some(Ok(target)) = self.probe.as_mut().map(|probe| probe.watch(child)) else { continue };
            let label = child_label(label, child);
            let watched =
                Watched { pid: child, node: Arc::clone(node), label, parent: Some(parent), standing: Standing::New };
            self.watched.entry(target).or_insert(watched);
        }
    }

    /// The process is no longer observed, and so are its children.
    fn release(&mut self, pid: u32) {
        self.refused.remove(&pid);
        let of_pid = |(target, watched): (&TargetId, &Watched)| watched.is_running(pid).then_some(*target);
        let Some(target) = self.watched.iter().find_map(of_pid) else { return };
        let family = self.family(target);
        for target in &family {
            if let Some(watched) = self.watched.remove(target) {
                self.end(*target, &watched, "not observed any more");
            }
        }
        self.forget(&family);
    }

    /// The first of a family, and those of whose descent the kernel part does not know: they were there before.
    fn forget(&mut self, family: &[TargetId]) {
        if let Some(probe) = &mut self.probe {
            family.iter().for_each(|target| probe.unwatch(*target));
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
                    self.forget(&[target]);
                    return;
                }
                let (node, label) = (Arc::clone(&of.node), child_label(&of.label, pid));
                let watched = Watched { pid, node, label, parent: Some(parent), standing: Standing::New };
                self.watched.entry(target).or_insert(watched);
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
                self.forget(&family);
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

/// The label of a child, whose parent's may be that of a child itself.
fn child_label(parent: &str, pid: u32) -> Arc<str> {
    let first = parent.split(", child ").next().unwrap_or(parent);
    format!("{first}, child {pid}").into()
}
