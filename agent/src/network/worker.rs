//! The interpreter's thread: takes batches of the ring and changes of targets, lets the [`Interpreter`] make records, and
//! at intervals writes the session journal, samples the clock and publishes its counts.

mod periodic;
mod targets;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, hash_map::Entry},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use chainscope_ebpf::network::{Event, KernelAccount, Verdict};
use chainscope_hygiene::warn_limited;
use chainscope_proto::v1::Journal;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, never, select};

use super::{
    figures::Figures,
    holding::Holding,
    interpreter::Interpreter,
    reader::{Batch, Command, ProbeEvent},
};
use crate::{
    Error,
    folder::Folder,
    pillar::RecordSink,
    targets::{
        Notice, ReuseCheck, TargetChange, WatchList,
        identity::{IdentityAnswer, IdentityReader},
        proc::Proc,
    },
    thread::Heartbeat,
};

/// How often the thread looks whether anything is due.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Notices that discovery has not taken, at most: further ones are dropped, and the next scan finds their processes.
const MAX_NOTICES: usize = 4096;
/// Of one process: whatever processes do that are not configured, of which the kernel captures at most 256, the others have
/// the rest.
const MAX_NOTICES_OF_PROCESS: usize = 8;
/// How often the kernel is asked again to capture the targets that it refused, unless a process is released before.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
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
    p2p_port: Option<u16>,
    /// Its listening sockets when it started; the kernel knows of later ones.
    listens: BTreeSet<SocketAddr>,
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
    /// Notices of each process that discovery has not answered.
    unanswered: HashMap<u32, usize>,
    /// Captures whose end was requested from the reader.
    ends: HashMap<u32, End>,
    /// Starts that are recorded once the kernel captures: event and detail by process.
    unannounced: HashMap<u32, (&'static str, String)>,
    /// Targets that the kernel refused to capture, with the cause.
    refused: BTreeMap<u32, String>,
    /// When they were tried last; none: they are tried at the next poll, because the kernel forgot a process.
    retried: Option<Instant>,
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
            unanswered: HashMap::new(),
            ends: HashMap::new(),
            unannounced: HashMap::new(),
            refused: BTreeMap::new(),
            retried: Some(now),
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
            ProbeEvent::Event(Event::Listening { pid, netns, local, .. }) => {
                self.notify(*pid, Notice::Listening { pid: *pid, netns: *netns, local: *local });
                self.release_without_network(*pid);
            }
            ProbeEvent::Event(Event::Exec { pid, .. }) => {
                self.notify(*pid, Notice::Executed { pid: *pid });
                self.release_without_network(*pid);
            }
            ProbeEvent::Event(Event::Opened(opened))
                if self.targets.get(&opened.pid).is_some_and(|known| known.reuse.is_reused()) =>
            {
                self.send(Command::Decide(opened.socket, Verdict::LeaveAlone));
            }
            ProbeEvent::Event(event) => {
                // Without its opening nothing of the connection could be interpreted.
                if let Event::Opened(opened) = event
                    && self.awaiting_identity.contains(&opened.pid)
                    && !self.holding.fits_connection(opened.pid)
                {
                    self.end_wait(opened.pid);
                }
                if let Event::Opened(opened) = event
                    && !self.interpreter.is_target(opened.pid)
                    && !self.holding.has(opened.pid)
                    && self.notify(opened.pid, Notice::UnknownSocket { pid: opened.pid })
                {
                    self.holding.begin_provisional(opened.pid);
                }
                if !self.holding.event(event) {
                    self.interpreter.event(event);
                }
            }
            ProbeEvent::Watched { pid } => {
                self.captured(*pid);
                if let Some((event, detail)) = self.unannounced.remove(pid) {
                    self.interpreter.report(*pid, event, detail);
                }
            }
            ProbeEvent::Refused { pid, cause } => self.capture_refused(*pid, cause),
            ProbeEvent::Account { pid, account } => self.interpreter.account(*pid, (*account).clone()),
            ProbeEvent::Counters(counters) => self.figures.set_kernel_counters(*counters),
            ProbeEvent::Settled { pid, account } => self.settled(*pid, *account),
        }
    }

    /// Sends discovery a notice of a process, unless too many are pending. Returns whether an answer about the process will
    /// arrive.
    fn notify(&mut self, pid: u32, notice: Notice) -> bool {
        let unanswered = self.unanswered.get(&pid).copied().unwrap_or(0);
        if unanswered >= MAX_NOTICES_OF_PROCESS || self.channels.notices.len() >= MAX_NOTICES {
            warn_limited!(?notice, "discovery is behind: what this notice says is found at the next scan");
        } else if self.channels.notices.send(notice).is_ok() {
            self.unanswered.insert(pid, unanswered + 1);
            return true;
        }
        unanswered > 0
    }

    /// Discovery has answered a notice of the process, or has said something else about it.
    fn answered(&mut self, pid: u32) {
        if let Entry::Occupied(mut unanswered) = self.unanswered.entry(pid) {
            match unanswered.get() {
                0 | 1 => drop(unanswered.remove()),
                more => *unanswered.get_mut() = more - 1,
            }
        }
    }

    /// Everything that a process did has arrived.
    fn settled(&mut self, pid: u32, account: Option<&KernelAccount>) {
        // None: its capture was begun again since.
        let Some(end) = self.ends.remove(&pid) else { return };
        self.refused.remove(&pid);
        if !self.holding.settle(pid, account) {
            if let Some(account) = account {
                self.interpreter.account(pid, account.clone());
            }
            self.end(pid, end);
        }
        self.retried = None;
        // At most one for each process that was released: these may not be lost.
        let _ = self.channels.notices.send(Notice::Settled { pid });
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
