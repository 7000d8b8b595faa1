//! The interpreter's thread: takes batches, asks the roster about processes, lets the interpreter make records, and once
//! in a while looks around: ends of processes, journal, clock, new processes, how it goes.

mod begin;
mod changes;
mod figures;
mod rounds;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Instant,
};

use chainscope_ebpf::network::{Event, ExecEvents, KernelAccount};
use chainscope_proto::v1::{Journal, Record};
use crossbeam_channel::{Receiver, Sender, never, select};
pub(crate) use figures::{Figures, NodeFigures};
use parking_lot::Mutex;
use rounds::LOOK_EVERY;
use tokio::sync::watch;

use crate::{
    Error,
    delivery::RecordStreams,
    folder::Folder,
    memory,
    network::holding::Holding,
    network::interpreter::{Interpreter, Sink},
    network::reader::{Batch, Command, ProbeEvent},
    operator::{Report, pods::PodMap, report::Ledger},
    targets::{Machine, Plan, Roster, proc::Proc},
};

impl Sink for RecordStreams {
    fn push(&mut self, node: &str, record: Record) -> bool {
        Self::push(self, node, record)
    }

    fn merge(&mut self, node: &str, record: Record) {
        Self::merge(self, node, record);
    }
}

/// The worker's ends of what connects it with the client of an operator.
pub(crate) struct Cluster {
    /// The pod maps, each with its number.
    pub(crate) maps: Receiver<(u64, Arc<PodMap>)>,
    pub(crate) reports: watch::Sender<Report>,
    /// The configuration that was kept.
    pub(crate) kept: Arc<PodMap>,
}

/// How the capture of a process ends, in the words of the records.
#[derive(Debug, Clone, Copy)]
struct End {
    by: &'static str,
    event: &'static str,
}

const EXITED: End = End { by: "process exited", event: "exited" };
const RELEASED: End = End { by: "capture ended", event: "released" };

/// An observed process, as the worker knows it.
struct Observed {
    node: Arc<str>,
    /// The pod, by uid.
    pod: Option<String>,
    /// What it sends and receives is recorded.
    network: bool,
    /// Its memory is profiled.
    memory: bool,
}

/// The thread's state.
pub(crate) struct Worker {
    interpreter: Interpreter<RecordStreams>,
    roster: Roster<Machine>,
    holding: Holding,
    proc: Proc,
    commands: Sender<Command>,
    /// To the memory profiler.
    memory: Sender<memory::Command>,
    streams: RecordStreams,
    /// Names of the configuration's nodes; on a cluster the plan has them.
    nodes: BTreeSet<String>,
    folder: Folder,
    ports: BTreeSet<(Option<u32>, u16)>,
    programs: BTreeSet<String>,
    observed: HashMap<u32, Observed>,
    /// Captures that the reader was told to end.
    ends: HashMap<u32, End>,
    /// Beginnings of observation that are told once the kernel captures: event and detail by process.
    unsaid: HashMap<u32, (&'static str, String)>,
    written: Journal,
    looked: Instant,
    noted: Instant,
    scanned: Instant,
    identities: (Instant, Instant),
    cluster: Option<Cluster>,
    /// Number of the pod map in use.
    serial: u64,
    ledger: Ledger,
    figures: Arc<Mutex<Figures>>,
    /// Room for records that are not acknowledged.
    limit_bytes: u64,
}

impl Worker {
    /// Which executions can make targets.
    pub(crate) fn exec_events(&self) -> ExecEvents {
        match self.roster.plan() {
            Plan::Entries(entries) if entries.needs_exec() => ExecEvents::All,
            Plan::Entries(_) => ExecEvents::None,
            Plan::Pods(_) => ExecEvents::Watched,
        }
    }

    /// Counts that are kept up to date, for metrics.
    pub(crate) fn figures(&self) -> Arc<Mutex<Figures>> {
        Arc::clone(&self.figures)
    }

    /// Runs until the reader ends; returns when everything was interpreted.
    ///
    /// # Errors
    /// A stream cannot be opened, or the last journal cannot be written: the data folder refuses.
    pub(crate) fn run(mut self, batches: &Receiver<Batch>, spare: &Sender<Batch>) -> Result<(), Error> {
        let mut maps = self.cluster.as_ref().map_or_else(never, |cluster| cluster.maps.clone());
        self.note();
        self.tell();
        loop {
            let pause = LOOK_EVERY.saturating_sub(self.looked.elapsed());
            select! {
                recv(batches) -> batch => match batch {
                    Ok(batch) => {
                        for event in batch.events() {
                            self.take(&event)?;
                        }
                        self.pass_verdicts();
                        // Full only if the reader has more than enough.
                        let _ = spare.try_send(batch);
                    }
                    Err(_) => break,
                },
                recv(maps) -> map => match map {
                    Ok((serial, map)) => self.configure(serial, &map)?,
                    // The client ended: what it said last holds.
                    Err(_) => maps = never(),
                },
                default(pause) => {}
            }
            if self.looked.elapsed() >= LOOK_EVERY {
                self.look()?;
            }
        }
        let journal = self.interpreter.stop();
        self.write_journal(journal)
    }

    fn take(&mut self, event: &ProbeEvent<'_>) -> Result<(), Error> {
        match event {
            ProbeEvent::Event(Event::Listening { pid, netns, port, .. }) => {
                let change = self.roster.listening(*pid, *netns, *port);
                self.apply(change, "started")?;
                self.leave_network(*pid);
            }
            ProbeEvent::Event(Event::Exec { pid, .. }) => {
                let change = self.roster.executed(*pid);
                self.apply(change, "started")?;
                self.leave_network(*pid);
            }
            ProbeEvent::Event(event) => {
                if let Event::Opened(opened) = event
                    && !self.interpreter.is_target(opened.pid)
                    && !self.holding.has(opened.pid)
                {
                    let change = self.roster.executed(opened.pid);
                    self.apply(change, "started")?;
                }
                if !self.holding.event(event) {
                    self.interpreter.event(event);
                }
            }
            ProbeEvent::Watched { pid } => {
                if let Some((event, detail)) = self.unsaid.remove(pid) {
                    self.interpreter.tell(*pid, event, detail);
                }
            }
            ProbeEvent::Refused { pid, cause } => {
                self.unsaid.remove(pid);
                self.interpreter.tell(*pid, "not captured", (*cause).to_owned());
                if let Some(uid) = self.observed.get(pid).and_then(|observed| observed.pod.as_ref()) {
                    self.ledger.refused(uid, cause);
                }
            }
            ProbeEvent::Account { pid, account } => self.interpreter.account(*pid, (*account).clone()),
            ProbeEvent::Settled { pid, account } => self.settled(*pid, *account)?,
        }
        Ok(())
    }

    /// A process did nothing after this.
    fn settled(&mut self, pid: u32, account: Option<&KernelAccount>) -> Result<(), Error> {
        // None: it was begun anew since.
        let Some(end) = self.ends.remove(&pid) else { return Ok(()) };
        if !self.holding.settle(pid, account) {
            if let Some(account) = account {
                self.interpreter.account(pid, account.clone());
            }
            self.unsaid.remove(&pid);
            self.end(pid, end);
        }
        let change = self.roster.settled(pid);
        self.apply(change, "found")
    }

    fn pass_verdicts(&mut self) {
        for (socket, verdict) in self.interpreter.take_verdicts().into_iter().chain(self.holding.take_verdicts()) {
            self.send(Command::Decide(socket, verdict));
        }
    }

    fn send(&self, command: Command) {
        // Only a reader that ended does not listen; its end is noticed elsewhere.
        let _ = self.commands.send(command);
    }

    /// Begins or ends the profile of a process's memory.
    fn profile(&self, command: memory::Command) {
        // A profiler that ended has said why.
        let _ = self.memory.send(command);
    }
}
