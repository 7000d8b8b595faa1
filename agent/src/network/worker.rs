//! The interpreter's thread: takes batches of the ring and changes of targets, lets the [`Interpreter`] make records, and
//! at intervals writes the session journal, samples the clock and publishes its counts.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use chainscope_ebpf::network::{Event, KernelAccount, Verdict};
use chainscope_hygiene::{EscapedTruncated, warn_limited};
use chainscope_proto::v1::Journal;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, never, select};
use prost::Message as _;

use super::{
    account::HOLDING_FULL,
    figures::{self, Figures},
    holding::Holding,
    interpreter::{Interpreter, Target, records},
    reader::{Batch, Command, ProbeEvent},
};
use crate::{
    Error,
    figures::LiveTally,
    folder::Folder,
    pillar::RecordSink,
    targets::{
        Assignment, Network, Notice, ReuseCheck, StartedTarget, TargetChange, WatchList,
        identity::{IdentityAnswer, IdentityReader, ProcessKeys},
        proc::Proc,
    },
    thread::Heartbeat,
};

/// How often the thread looks whether anything is due.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How often the journal is written, the clock sampled, and the counts published.
const NOTE_INTERVAL: Duration = Duration::from_secs(1);
/// How often sockets are listed while sessions of the last run wait for theirs.
const SOCKETS_INTERVAL: Duration = Duration::from_secs(5);
/// How often a missing identity of a pod is read.
const MISSING_IDENTITY_INTERVAL: Duration = Duration::from_secs(2);
/// How often an identity of a pod that was read is read again if its file changed.
const IDENTITY_INTERVAL: Duration = Duration::from_secs(30);
/// Notices that discovery has not taken, at most: further ones are dropped, and the next scan finds their processes.
const MAX_NOTICES: usize = 4096;
/// Timeout at shutdown for answers of discovery about unknown processes, and for identities.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// How the capture of a process ends, in the words of the records.
#[derive(Debug, Clone, Copy)]
struct End {
    by: &'static str,
    event: &'static str,
}

const EXITED: End = End { by: "process exited", event: "exited" };
const RELEASED: End = End { by: "capture ended", event: "released" };

/// A target as this thread knows it.
struct Known {
    node: Arc<str>,
    pod: Option<String>,
    netns: u32,
    reuse: ReuseCheck,
}

/// The ends of the channels that the thread works with.
pub(super) struct Channels {
    pub(super) commands: Sender<Command>,
    /// Wakes the reader after a command.
    pub(super) wake_reader: Box<dyn Fn() + Send>,
    pub(super) inbox: Receiver<TargetChange>,
    pub(super) notices: Sender<Notice>,
    pub(super) identity_reader: IdentityReader,
    /// Answers of the identity reader.
    pub(super) identities: Receiver<IdentityAnswer>,
}

/// The thread's state.
pub(super) struct Worker<S> {
    interpreter: Interpreter<S>,
    holding: Holding,
    proc: Proc,
    channels: Channels,
    folder: Folder,
    watched: WatchList,
    targets: BTreeMap<u32, Known>,
    /// Targets whose events are held until their identity was read for the first time.
    awaiting_identity: BTreeSet<u32>,
    /// Targets of which only other things are observed.
    without_network: HashSet<u32>,
    /// Captures whose end was requested from the reader.
    ends: HashMap<u32, End>,
    /// Starts that are recorded once the kernel captures: event and detail by process.
    unannounced: HashMap<u32, (&'static str, String)>,
    written: Journal,
    polled: Instant,
    noted: Instant,
    sockets_listed: Option<Instant>,
    identities_read: Instant,
    missing_identities_read: Instant,
    /// Identities of targets are read whether or not a session needs one: they are part of the reports.
    reports_identities: bool,
    figures: Arc<Figures>,
    heartbeat: Heartbeat,
}

impl<S: RecordSink> Worker<S> {
    pub(super) fn new(
        interpreter: Interpreter<S>,
        proc: Proc,
        channels: Channels,
        folder: Folder,
        reports_identities: bool,
        figures: Arc<Figures>,
        heartbeat: Heartbeat,
    ) -> Self {
        let now = Instant::now();
        Self {
            interpreter,
            holding: Holding::default(),
            proc,
            channels,
            folder,
            watched: WatchList::default(),
            targets: BTreeMap::new(),
            awaiting_identity: BTreeSet::new(),
            without_network: HashSet::new(),
            ends: HashMap::new(),
            unannounced: HashMap::new(),
            written: Journal::default(),
            polled: now,
            noted: now,
            sockets_listed: None,
            identities_read: now,
            missing_identities_read: now,
            reports_identities,
            figures,
            heartbeat,
        }
    }

    /// Applies the changes that are in the inbox.
    pub(super) fn drain_inbox(&mut self) {
        while let Ok(change) = self.channels.inbox.try_recv() {
            self.apply(&change);
        }
    }

    /// Runs until the reader ends; returns when everything was interpreted.
    ///
    /// # Errors
    /// The last journal cannot be written: the data directory refuses.
    pub(super) fn run(mut self, batches: &Receiver<Batch>, spare: &Sender<Batch>) -> Result<(), Error> {
        let (mut inbox, identities) = (self.channels.inbox.clone(), self.channels.identities.clone());
        self.note();
        self.publish();
        loop {
            self.heartbeat.beat();
            let pause = POLL_INTERVAL.saturating_sub(self.polled.elapsed());
            select! {
                recv(batches) -> batch => match batch {
                    Ok(batch) => {
                        for event in batch.events() {
                            self.event(&event);
                        }
                        self.send_verdicts();
                        // Full only if the reader has more than enough.
                        let _ = spare.try_send(batch);
                    }
                    Err(_) => break,
                },
                recv(inbox) -> change => match change {
                    Ok(change) => {
                        self.apply(&change);
                        self.send_verdicts();
                    }
                    // Discovery ended: its last changes stay in effect.
                    Err(_) => inbox = never(),
                },
                recv(identities) -> answer => {
                    // A sender is in the identity reader.
                    if let Ok(answer) = answer {
                        self.identity_read(answer);
                        self.send_verdicts();
                    }
                },
                default(pause) => {}
            }
            if self.polled.elapsed() >= POLL_INTERVAL {
                self.poll();
            }
        }
        self.await_answers();
        let journal = self.interpreter.stop();
        self.write_journal(journal)
    }

    /// Waits for discovery's changes of processes whose events are held, and for identities.
    fn await_answers(&mut self) {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        while self.holding.has_provisional() {
            match self.channels.inbox.recv_deadline(deadline) {
                Ok(change) => self.apply(&change),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        self.drain_inbox();
        while !self.awaiting_identity.is_empty() || self.interpreter.awaits_identities() {
            match self.channels.identities.recv_deadline(deadline) {
                Ok(answer) => self.identity_read(answer),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        for pid in std::mem::take(&mut self.awaiting_identity) {
            self.replay(pid);
        }
    }

    fn identity_read(&mut self, answer: IdentityAnswer) {
        let pid = answer.pid;
        if self.interpreter.identity_read(answer) && self.awaiting_identity.remove(&pid) {
            self.replay(pid);
        }
    }

    fn event(&mut self, event: &ProbeEvent<'_>) {
        match event {
            ProbeEvent::Event(Event::Listening { pid, netns, port, .. }) => {
                self.notify(Notice::Listening { pid: *pid, netns: *netns, port: *port });
                self.release_without_network(*pid);
            }
            ProbeEvent::Event(Event::Exec { pid, .. }) => {
                self.notify(Notice::Executed { pid: *pid });
                self.release_without_network(*pid);
            }
            ProbeEvent::Event(Event::Opened(opened))
                if self.targets.get(&opened.pid).is_some_and(|known| known.reuse.is_reused()) =>
            {
                self.send(Command::Decide(opened.socket, Verdict::LeaveAlone));
            }
            ProbeEvent::Event(event) => {
                if let Event::Opened(opened) = event
                    && !self.interpreter.is_target(opened.pid)
                    && !self.holding.has(opened.pid)
                    && self.notify(Notice::UnknownSocket { pid: opened.pid })
                {
                    self.holding.begin_provisional(opened.pid);
                }
                if !self.holding.event(event) {
                    self.interpreter.event(event);
                }
            }
            ProbeEvent::Watched { pid } => {
                if let Some((event, detail)) = self.unannounced.remove(pid) {
                    self.interpreter.report(*pid, event, detail);
                }
            }
            ProbeEvent::Refused { pid, cause } => {
                self.unannounced.remove(pid);
                self.interpreter.report(*pid, "not captured", (*cause).to_owned());
                if let Some(uid) = self.targets.get(pid).and_then(|known| known.pod.as_ref()) {
                    self.figures.refused(uid, cause);
                }
            }
            ProbeEvent::Account { pid, account } => self.interpreter.account(*pid, (*account).clone()),
            ProbeEvent::Counters(counters) => self.figures.set_kernel_counters(*counters),
            ProbeEvent::Settled { pid, account } => self.settled(*pid, *account),
        }
    }

    /// Sends discovery a notice of a process; false if too many notices are pending.
    fn notify(&self, notice: Notice) -> bool {
        if self.channels.notices.len() >= MAX_NOTICES {
            warn_limited!(?notice, "discovery is behind: a process is found at the next scan");
            return false;
        }
        self.channels.notices.send(notice).is_ok()
    }

    /// Everything that a process did has arrived.
    fn settled(&mut self, pid: u32, account: Option<&KernelAccount>) {
        // None: its capture was begun again since.
        let Some(end) = self.ends.remove(&pid) else { return };
        if !self.holding.settle(pid, account) {
            if let Some(account) = account {
                self.interpreter.account(pid, account.clone());
            }
            self.unannounced.remove(&pid);
            self.end(pid, end);
        }
        // At most one for each process that was released: these may not be lost.
        let _ = self.channels.notices.send(Notice::Settled { pid });
    }

    fn apply(&mut self, change: &TargetChange) {
        match change {
            TargetChange::Started(target) => self.start(target),
            TargetChange::Changed(pid, assignment) => self.change(*pid, assignment),
            TargetChange::Released(pid) => {
                self.without_network.remove(pid);
                self.end_wait(*pid);
                self.stop_capture(Command::ReleaseProcess { pid: *pid }, RELEASED);
            }
            TargetChange::Exited(pid) => {
                self.without_network.remove(pid);
                self.stop_capture(Command::RemoveProcess { pid: *pid }, EXITED);
            }
            TargetChange::Held(facts) => {
                let pid = facts.pid;
                tracing::debug!(pid, "held until it is configured");
                self.ends.remove(&pid);
                self.holding.hold(pid, facts.group());
                let listens = facts.listens.iter().map(|port| (facts.netns, *port)).collect();
                self.send(Command::AddProcess { pid, port: None, listens });
            }
            TargetChange::Discarded(pid) => {
                self.holding.discard(*pid);
                self.stop_capture(Command::ReleaseProcess { pid: *pid }, RELEASED);
            }
            // The kernel captures every process that listens on a watched port or executes a watched program.
            TargetChange::Dismissed(pid) if self.interpreter.is_target(*pid) => {}
            TargetChange::Dismissed(pid) => {
                self.holding.discard(*pid);
                self.stop_capture(Command::ReleaseProcess { pid: *pid }, RELEASED);
            }
            TargetChange::Unchanged(pid) => self.holding.drop_provisional(*pid),
            TargetChange::Watch(list) => self.watch(list),
        }
    }

    fn change(&mut self, pid: u32, assignment: &Assignment) {
        let Some(Network { store }) = assignment.observe.network else { return };
        self.send(Command::SetPort { pid, port: assignment.p2p_port });
        self.interpreter.update_target(pid, assignment.p2p_port, store, assignment.identity.clone());
        if !self.interpreter.is_reading_identity(pid) {
            self.end_wait(pid);
        }
    }

    /// Brings what the kernel watches up to date.
    fn watch(&mut self, list: &WatchList) {
        let before = std::mem::replace(&mut self.watched, list.clone());
        for (netns, port) in list.ports.difference(&before.ports) {
            self.send(Command::WatchPort { netns: *netns, port: *port });
        }
        for (netns, port) in before.ports.difference(&list.ports) {
            self.send(Command::UnwatchPort { netns: *netns, port: *port });
        }
        for name in list.process_names.difference(&before.process_names) {
            self.send(Command::WatchProgram(name.clone()));
        }
        for name in before.process_names.difference(&list.process_names) {
            self.send(Command::UnwatchProgram(name.clone()));
        }
    }

    /// The kernel captures every process that listens on a watched port or executes a watched program, also one of which
    /// only other things are observed.
    fn release_without_network(&self, pid: u32) {
        if self.without_network.contains(&pid) {
            self.send(Command::ReleaseProcess { pid });
        }
    }

    /// Ends the capture of a process; what it did until then still arrives.
    fn stop_capture(&mut self, command: Command, end: End) {
        if let Command::RemoveProcess { pid } | Command::ReleaseProcess { pid } = command {
            self.ends.insert(pid, end);
        }
        self.send(command);
    }

    fn start(&mut self, target: &StartedTarget) {
        let StartedTarget { facts, owner, assignment, was_held, has_exited, .. } = target;
        let pid = facts.pid;
        // The number of a process whose exit was not noticed yet.
        self.end_wait(pid);
        self.end(pid, EXITED);
        let Some(network) = assignment.observe.network else {
            self.holding.discard(pid);
            if !has_exited {
                self.ends.remove(&pid);
                self.without_network.insert(pid);
                self.release_without_network(pid);
            }
            return;
        };
        self.without_network.remove(&pid);
        if !was_held && !self.holding.is_provisional(pid) {
            self.holding.discard(pid);
        }
        if !has_exited {
            self.ends.remove(&pid);
        }
        let known = Known {
            node: Arc::clone(&assignment.node),
            pod: owner.pod().map(str::to_owned),
            netns: facts.netns,
            reuse: ReuseCheck::new(&self.proc, pid, facts.start),
        };
        self.targets.insert(pid, known);
        self.record(target, network);
        if let Some(live) = self.live(pid) {
            self.figures.started(pid, live);
        }
    }

    /// Records what a process sends and receives, beginning with what was held of it. Until the first read of its identity
    /// returns, events are held.
    fn record(&mut self, target: &StartedTarget, network: Network) {
        let StartedTarget { facts, assignment, cause, has_exited, .. } = target;
        let pid = facts.pid;
        if !has_exited {
            let listens = assignment.p2p_port.filter(|port| facts.listens.contains(port));
            self.send(Command::AddProcess {
                pid,
                port: assignment.p2p_port,
                listens: listens.map(|port| (facts.netns, port)).into_iter().collect(),
            });
        }
        let (node, source) = (Arc::clone(&assignment.node), assignment.identity.clone());
        let mut keys = ProcessKeys::new(self.channels.identity_reader.clone(), node, facts, source);
        keys.reload();
        self.interpreter.start_target(Target {
            node: Arc::clone(&assignment.node),
            label: Arc::clone(&assignment.label),
            pid,
            p2p_port: assignment.p2p_port,
            store: network.store,
            keys: Box::new(keys),
        });
        let exe = EscapedTruncated(&facts.exe.to_string_lossy()).to_string();
        let detail = format!("{exe} in network namespace {}", facts.netns);
        if *has_exited {
            self.interpreter.report(pid, cause.name(), detail);
        } else {
            self.unannounced.insert(pid, (cause.name(), detail));
        }
        if self.interpreter.is_reading_identity(pid) {
            if !self.holding.has(pid) || self.holding.is_provisional(pid) {
                self.holding.hold(pid, facts.group());
            }
            self.awaiting_identity.insert(pid);
        } else {
            self.replay(pid);
        }
    }

    /// Interprets the held events of a target without waiting for its identity any longer.
    fn end_wait(&mut self, pid: u32) {
        if self.awaiting_identity.remove(&pid) {
            self.replay(pid);
        }
    }

    /// Interprets what was held of a target.
    fn replay(&mut self, pid: u32) {
        let Some(held) = self.holding.take(pid) else { return };
        self.interpreter.add_dropped(pid, HOLDING_FULL, held.dropped_bytes);
        held.replay(&mut |event| self.interpreter.event(event));
        if let Some(account) = &held.settled {
            if let Some(account) = account {
                self.interpreter.account(pid, account.clone());
            }
            self.end(pid, EXITED);
        }
    }

    /// Ends the recording of a process, if it is recorded.
    fn end(&mut self, pid: u32, end: End) {
        let Some(known) = self.targets.remove(&pid) else { return };
        let tally = self.interpreter.end_target(pid, end.by, end.event).unwrap_or_default();
        self.figures.ended(pid, &known.node, known.pod, tally);
    }

    fn poll(&mut self) {
        self.polled = Instant::now();
        for pid in self.interpreter.expire_identities(self.polled) {
            self.end_wait(pid);
        }
        self.reload_identities();
        if self.sockets_listed.is_none_or(|listed| listed.elapsed() >= SOCKETS_INTERVAL) {
            self.drop_vanished_sessions();
        }
        // A new session at once: without its connection messages a restart could not go on with it.
        if self.interpreter.take_new_session() || self.noted.elapsed() >= NOTE_INTERVAL {
            self.note();
            self.publish();
        }
        self.send_verdicts();
    }

    fn reload_identities(&mut self) {
        if !self.reports_identities || self.missing_identities_read.elapsed() < MISSING_IDENTITY_INTERVAL {
            return;
        }
        let all = self.identities_read.elapsed() >= IDENTITY_INTERVAL;
        self.interpreter.reload_identities(all);
        self.missing_identities_read = Instant::now();
        if all {
            self.identities_read = self.missing_identities_read;
        }
    }

    /// Ends the sessions of the last run whose sockets are gone.
    fn drop_vanished_sessions(&mut self) {
        for netns in self.interpreter.waiting_namespaces() {
            let of_namespace = |(_, known): &(&u32, &Known)| known.netns == netns;
            let Some(pid) = self.targets.iter().find(of_namespace).map(|(pid, _)| *pid) else { continue };
            let inodes: HashSet<u64> = self.proc.sockets(pid).iter().map(|socket| socket.inode).collect();
            if !inodes.is_empty() {
                self.interpreter.drop_vanished(netns, &inodes);
            }
        }
        self.sockets_listed = Some(Instant::now());
    }

    /// Samples the clock and writes down what a restart would need.
    fn note(&mut self) {
        self.noted = Instant::now();
        if let Some(jump) = self.interpreter.clock.resample() {
            warn_limited!(jump_ms = jump / 1_000_000, "the clock of this host was set");
            let time = self.interpreter.clock.now();
            for node in self.interpreter.nodes() {
                let detail = format!("by {} ms", jump / 1_000_000);
                self.interpreter.push(&node, records::target_event(time, "", "clock jumped", 0, detail));
            }
        }
        let journal = self.interpreter.journal();
        // A full disk costs what a restart would need, not the recording.
        if let Err(error) = self.write_journal(journal) {
            warn_limited!(%error, "the session journal cannot be written");
        }
    }

    fn write_journal(&mut self, journal: Journal) -> Result<(), Error> {
        if journal != self.written {
            self.folder.set_journal(&journal.encode_to_vec())?;
            self.written = journal;
        }
        Ok(())
    }

    fn live(&self, pid: u32) -> Option<LiveTally> {
        let (known, tally) = (self.targets.get(&pid)?, self.interpreter.tally(pid)?);
        Some(LiveTally { node: Arc::clone(&known.node), pod: known.pod.clone(), tally })
    }

    /// Publishes the counts for metrics and reports.
    fn publish(&self) {
        let live: BTreeMap<u32, LiveTally> =
            self.targets.keys().filter_map(|pid| Some((*pid, self.live(*pid)?))).collect();
        let held = figures::HoldingFigures {
            processes: self.holding.processes(),
            bytes: self.holding.bytes(),
            discarded: self.holding.discarded(),
        };
        self.figures.update(live, held);
    }

    fn send_verdicts(&mut self) {
        for (socket, verdict) in self.interpreter.take_verdicts().into_iter().chain(self.holding.take_verdicts()) {
            self.send(Command::Decide(socket, verdict));
        }
    }

    fn send(&self, command: Command) {
        // Only a reader that ended does not receive; its end is noticed elsewhere.
        let _ = self.channels.commands.send(command);
        (self.channels.wake_reader)();
    }
}

#[cfg(test)]
mod tests;
