//! The interpreter's thread: takes batches, asks the roster about processes, lets the interpreter make records, and once
//! in a while looks around: ends of processes, journal, clock, new processes.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::{Duration, Instant},
};

use chainscope_ebpf::Event;
use chainscope_proto::v1::{Journal, Record};
use chainscope_quiet::{Clean, warn_limited};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use prost::Message as _;

use crate::{
    Error,
    clock::Clock,
    config::Config,
    folder::Folder,
    identity::ProcessKeys,
    interpreter::{Interpreter, Sink, Target, records},
    journal::{self, Waiting},
    lanes::shared::SharedLanes,
    reader::{Batch, Command, News},
    targets::{Found, Machine, Roster, proc},
};

/// How often ends of processes are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often the journal is written and the clock sampled.
const NOTE_EVERY: Duration = Duration::from_secs(1);
/// How often every process is looked at while a node has none, and otherwise.
const SCAN_EVERY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(30));

impl Sink for SharedLanes {
    fn push(&mut self, node: &str, record: Record) -> bool {
        Self::push(self, node, record)
    }

    fn merge(&mut self, node: &str, record: Record) {
        Self::merge(self, node, record);
    }
}

/// The thread's state.
pub(crate) struct Worker {
    interpreter: Interpreter<SharedLanes>,
    roster: Roster<Machine>,
    commands: Sender<Command>,
    lanes: SharedLanes,
    folder: Folder,
    watched: BTreeSet<(Option<u32>, u16)>,
    /// Beginnings of observation that are told once the kernel captures: event and detail by process.
    unsaid: HashMap<u32, (&'static str, String)>,
    written: Journal,
    looked: Instant,
    noted: Instant,
    scanned: Instant,
}

impl Worker {
    /// Reads what the last run left behind, and tells of the time since.
    pub(crate) fn new(
        config: &Config,
        folder: Folder,
        lanes: SharedLanes,
        commands: Sender<Command>,
    ) -> Result<Self, Error> {
        let boot_id = journal::boot_id();
        let sessions = folder.journal()?.map_or_else(Vec::new, |bytes| journal::read(&bytes, &boot_id));
        if !sessions.is_empty() {
            tracing::info!(sessions = sessions.len(), "the last run left live sessions");
        }
        let clock = Clock::sampled();
        if let Some(from) = folder.settled_ns()? {
            for node in lanes.names() {
                lanes.push(&node, records::unknown_loss("agent restarted", from, clock.now()));
            }
        }
        let waiting = Waiting::new(boot_id, sessions);
        let now = Instant::now();
        Ok(Self {
            interpreter: Interpreter::new(lanes.clone(), clock, config.limits, waiting),
            roster: Roster::new(Machine, &config.nodes),
            commands,
            lanes,
            folder,
            watched: BTreeSet::new(),
            unsaid: HashMap::new(),
            written: Journal::default(),
            looked: now,
            noted: now,
            scanned: now,
        })
    }

    /// Whether programs that are executed can be targets.
    pub(crate) fn needs_exec(&self) -> bool {
        self.roster.needs_exec()
    }

    /// Runs until the reader ends; returns when everything was interpreted.
    ///
    /// # Errors
    /// A lane cannot be opened, or the last journal cannot be written: the data folder refuses.
    pub(crate) fn run(mut self, batches: &Receiver<Batch>, spare: &Sender<Batch>) -> Result<(), Error> {
        self.note();
        loop {
            let pause = LOOK_EVERY.saturating_sub(self.looked.elapsed());
            match batches.recv_timeout(pause) {
                Ok(batch) => {
                    for news in batch.news() {
                        self.take(&news)?;
                    }
                    self.pass_verdicts();
                    // Full only if the reader has more than enough.
                    let _ = spare.try_send(batch);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if self.looked.elapsed() >= LOOK_EVERY {
                self.look()?;
            }
        }
        let journal = self.interpreter.stop();
        self.write_journal(journal)
    }

    fn take(&mut self, news: &News<'_>) -> Result<(), Error> {
        match news {
            News::Event(Event::Listening { pid, netns, port, .. }) => {
                match self.roster.listening(*pid, *netns, *port) {
                    Some(found) => self.start(found, "started")?,
                    None => self.dismiss_unless_target(*pid),
                }
            }
            News::Event(Event::Exec { pid, .. }) => {
                if let Some(found) = self.roster.executed(*pid) {
                    self.start(found, "started")?;
                }
            }
            News::Event(event) => {
                if let Event::Opened(opened) = event
                    && !self.interpreter.is_target(opened.pid)
                    && let Some(found) = self.roster.executed(opened.pid)
                {
                    self.start(found, "started")?;
                }
                self.interpreter.event(event);
            }
            News::Watched { pid } => {
                if let Some((event, detail)) = self.unsaid.remove(pid) {
                    self.interpreter.tell(*pid, event, detail);
                }
            }
            News::Account { pid, account } => self.interpreter.account(*pid, (*account).clone()),
            News::Settled { pid, account } => {
                if let Some(account) = account {
                    self.interpreter.account(*pid, (*account).clone());
                }
                self.unsaid.remove(pid);
                self.interpreter.end_target(*pid, "process exited", "exited");
            }
        }
        Ok(())
    }

    /// The kernel takes every process that listens on a watched port; this one is not meant.
    fn dismiss_unless_target(&mut self, pid: u32) {
        if !self.interpreter.is_target(pid) {
            self.send(Command::RemoveProcess { pid });
        }
    }

    fn start(&mut self, found: Found, event: &'static str) -> Result<(), Error> {
        let Found { facts, node, label, entry } = found;
        let pid = facts.pid;
        self.lanes.open_lane(&node)?;
        let listens = entry.p2p_port.filter(|port| facts.listens.contains(port));
        self.send(Command::AddProcess {
            pid,
            port: entry.p2p_port,
            listens: listens.map(|port| (facts.netns, port)).into_iter().collect(),
        });
        let mut keys = ProcessKeys::new(pid, entry.identity.clone());
        keys.look();
        let exe = Clean(&facts.exe.to_string_lossy()).to_string();
        tracing::info!(%node, pid, exe, netns = facts.netns, event, "observing");
        let target = Target { node, label, pid, p2p_port: entry.p2p_port, store: entry.store, keys: Box::new(keys) };
        let detail = format!("{exe} in network namespace {}", facts.netns);
        self.unsaid.insert(pid, (event, detail));
        self.interpreter.start_target(target);
        Ok(())
    }

    fn pass_verdicts(&mut self) {
        for (socket, verdict) in self.interpreter.take_verdicts() {
            self.send(Command::Decide(socket, verdict));
        }
    }

    fn send(&self, command: Command) {
        // Only a reader that ended does not listen; its end is noticed elsewhere.
        let _ = self.commands.send(command);
    }

    fn look(&mut self) -> Result<(), Error> {
        self.looked = Instant::now();
        for pid in self.roster.ended() {
            tracing::info!(pid, "the process ended");
            self.send(Command::RemoveProcess { pid });
        }
        let pause = if self.roster.is_incomplete() { SCAN_EVERY.0 } else { SCAN_EVERY.1 };
        if self.scanned.elapsed() >= pause {
            self.watch_ports();
            self.scan()?;
        }
        // A new session at once: without its connection messages a restart could not go on with it.
        if self.interpreter.take_new_session() || self.noted.elapsed() >= NOTE_EVERY {
            self.note();
        }
        self.pass_verdicts();
        Ok(())
    }

    /// Brings the ports that the kernel watches up to date: a named namespace may have appeared.
    pub(crate) fn watch_ports(&mut self) {
        let wanted = self.roster.watched_ports();
        for (netns, port) in wanted.difference(&self.watched) {
            self.send(Command::WatchPort { netns: *netns, port: *port });
        }
        for (netns, port) in self.watched.difference(&wanted) {
            self.send(Command::UnwatchPort { netns: *netns, port: *port });
        }
        self.watched = wanted;
    }

    pub(crate) fn scan(&mut self) -> Result<(), Error> {
        for found in self.roster.scan() {
            self.start(found, "found")?;
        }
        // Sessions of the last run whose sockets are gone.
        for netns in self.interpreter.waiting_namespaces() {
            if let Some(pid) = self.roster.process_in(netns) {
                let inodes: HashSet<u64> = proc::sockets(pid).iter().map(|socket| socket.inode).collect();
                if !inodes.is_empty() {
                    self.interpreter.drop_vanished(netns, &inodes);
                }
            }
        }
        self.scanned = Instant::now();
        Ok(())
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
        let now = self.interpreter.clock.now();
        if journal != self.written {
            self.folder.set_journal(&journal.encode_to_vec())?;
            self.written = journal;
        }
        if self.interpreter.take_activity() || self.lanes.oldest_ns().is_some() {
            self.folder.set_settled_ns(self.lanes.oldest_ns().map_or(now, |oldest| oldest.min(now)))?;
        }
        Ok(())
    }
}
