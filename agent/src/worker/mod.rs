//! The interpreter's thread: takes batches, asks the roster about processes, lets the interpreter make records, and once
//! in a while looks around: ends of processes, journal, clock, new processes, how it goes.

mod changes;
mod figures;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use chainscope_ebpf::{Event, ExecEvents, KernelAccount};
use chainscope_proto::v1::{Journal, Record};
use chainscope_quiet::warn_limited;
use crossbeam_channel::{Receiver, Sender, never, select};
pub(crate) use figures::{Figures, NodeFigures};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::watch;

use crate::{
    Error,
    clock::Clock,
    cluster::{Report, pods::PodMap, report::Ledger},
    config::Config,
    folder::Folder,
    holding::Holding,
    interpreter::{Interpreter, Sink, records},
    journal::{self, Waiting},
    lanes::{LaneStatus, shared::SharedLanes},
    memory,
    reader::{Batch, Command, News},
    targets::{Machine, Plan, Roster, entries::EntryPlan, pods::PodPlan, proc::Proc},
};

/// How often ends of processes are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often the journal is written, the clock sampled, and it is said how it goes.
const NOTE_EVERY: Duration = Duration::from_secs(1);
/// How often every process is looked at while a node has none, and otherwise.
const SCAN_EVERY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(30));
/// How often a missing identity of a pod is looked for, and one that is there is looked at.
const IDENTITIES_EVERY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));

impl Sink for SharedLanes {
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
    interpreter: Interpreter<SharedLanes>,
    roster: Roster<Machine>,
    holding: Holding,
    proc: Proc,
    commands: Sender<Command>,
    /// To the memory profiler.
    memory: Sender<memory::Command>,
    lanes: SharedLanes,
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
    /// Reads what the last run left behind, and tells of the time since.
    pub(crate) fn new(
        config: &Config,
        folder: Folder,
        lanes: SharedLanes,
        commands: Sender<Command>,
        memory: Sender<memory::Command>,
        cluster: Option<Cluster>,
    ) -> Result<Self, Error> {
        let boot_id = journal::boot_id();
        let sessions = folder.journal()?.map_or_else(Vec::new, |bytes| journal::read(&bytes, &boot_id));
        if !sessions.is_empty() {
            tracing::info!(sessions = sessions.len(), "the last run left live sessions");
        }
        let clock = Clock::sampled();
        let nodes = match &cluster {
            Some(cluster) => nodes_of(&cluster.kept),
            None => config.nodes.iter().map(|node| node.name.clone()).collect(),
        };
        lanes.expect(&nodes);
        if let Some(from) = folder.settled_ns()? {
            // Where no configuration was kept nobody knows whose lanes are out of use.
            let is_any = cluster.as_ref().is_some_and(|cluster| cluster.kept.generation == 0);
            for lane in lanes.status().iter().filter(|lane| is_any || missed_something(lane, &nodes)) {
                lanes.push(&lane.node, records::unknown_loss("agent restarted", from, clock.now()));
            }
        }
        let plan = match (&config.cluster, &cluster) {
            (Some(config), Some(cluster)) => {
                let mut plan = PodPlan::new(config.watch.clone());
                plan.set(Arc::clone(&cluster.kept));
                Plan::Pods(plan)
            }
            _ => Plan::Entries(EntryPlan::new(&config.nodes)),
        };
        let proc = Proc::at(&config.host_proc);
        let waiting = Waiting::new(boot_id, sessions);
        let now = Instant::now();
        Ok(Self {
            interpreter: Interpreter::new(lanes.clone(), clock, config.limits, waiting),
            roster: Roster::new(Machine { proc: proc.clone() }, plan),
            holding: Holding::default(),
            proc,
            commands,
            memory,
            lanes,
            nodes,
            folder,
            ports: BTreeSet::new(),
            programs: BTreeSet::new(),
            observed: HashMap::new(),
            ends: HashMap::new(),
            unsaid: HashMap::new(),
            written: Journal::default(),
            looked: now,
            noted: now,
            scanned: now,
            identities: (now, now),
            cluster,
            serial: 0,
            ledger: Ledger::default(),
            figures: Arc::default(),
            limit_bytes: config.spool_bytes.unwrap_or(config.queue_bytes as u64),
        })
    }

    /// Nodes that records are expected of: of the configuration, and of processes whose capture has not ended yet.
    fn expected_nodes(&self) -> BTreeSet<String> {
        let mut nodes = match self.roster.plan() {
            Plan::Pods(plan) => nodes_of(plan.map()),
            Plan::Entries(_) => self.nodes.clone(),
        };
        nodes.extend(self.observed.values().map(|observed| observed.node.to_string()));
        nodes
    }

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
    /// A lane cannot be opened, or the last journal cannot be written: the data folder refuses.
    pub(crate) fn run(mut self, batches: &Receiver<Batch>, spare: &Sender<Batch>) -> Result<(), Error> {
        let mut maps = self.cluster.as_ref().map_or_else(never, |cluster| cluster.maps.clone());
        self.note();
        self.tell();
        loop {
            let pause = LOOK_EVERY.saturating_sub(self.looked.elapsed());
            select! {
                recv(batches) -> batch => match batch {
                    Ok(batch) => {
                        for news in batch.news() {
                            self.take(&news)?;
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

    fn take(&mut self, news: &News<'_>) -> Result<(), Error> {
        match news {
            News::Event(Event::Listening { pid, netns, port, .. }) => {
                let change = self.roster.listening(*pid, *netns, *port);
                self.apply(change, "started")?;
                self.leave_network(*pid);
            }
            News::Event(Event::Exec { pid, .. }) => {
                let change = self.roster.executed(*pid);
                self.apply(change, "started")?;
                self.leave_network(*pid);
            }
            News::Event(event) => {
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
            News::Watched { pid } => {
                if let Some((event, detail)) = self.unsaid.remove(pid) {
                    self.interpreter.tell(*pid, event, detail);
                }
            }
            News::Refused { pid, cause } => {
                self.unsaid.remove(pid);
                self.interpreter.tell(*pid, "not captured", (*cause).to_owned());
                if let Some(uid) = self.observed.get(pid).and_then(|observed| observed.pod.as_ref()) {
                    self.ledger.refused(uid, cause);
                }
            }
            News::Account { pid, account } => self.interpreter.account(*pid, (*account).clone()),
            News::Settled { pid, account } => self.settled(*pid, *account)?,
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

    fn look(&mut self) -> Result<(), Error> {
        self.looked = Instant::now();
        for ended in self.roster.ended() {
            tracing::info!(pid = ended.pid, observed = ended.was_observed, "the process ended");
            self.wind_up(Command::RemoveProcess { pid: ended.pid }, EXITED);
        }
        for change in self.roster.overdue(self.looked) {
            self.apply(Some(change), "found")?;
        }
        let pause = if self.roster.is_incomplete() { SCAN_EVERY.0 } else { SCAN_EVERY.1 };
        if self.scanned.elapsed() >= pause {
            self.watch();
            self.scan()?;
        }
        self.look_for_identities();
        // A new session at once: without its connection messages a restart could not go on with it.
        if self.interpreter.take_new_session() || self.noted.elapsed() >= NOTE_EVERY {
            self.note();
        }
        self.tell();
        self.pass_verdicts();
        Ok(())
    }

    /// Of pods: their identities are reported, whether or not a session needs one.
    fn look_for_identities(&mut self) {
        if self.cluster.is_none() || self.identities.0.elapsed() < IDENTITIES_EVERY.0 {
            return;
        }
        let all = self.identities.1.elapsed() >= IDENTITIES_EVERY.1;
        self.interpreter.look_for_identities(all);
        self.identities.0 = Instant::now();
        if all {
            self.identities.1 = self.identities.0;
        }
    }

    /// Brings the ports and programs that the kernel watches up to date: a named namespace may have appeared.
    pub(crate) fn watch(&mut self) {
        let ports = self.roster.watched_ports();
        for (netns, port) in ports.difference(&self.ports) {
            self.send(Command::WatchPort { netns: *netns, port: *port });
        }
        for (netns, port) in self.ports.difference(&ports) {
            self.send(Command::UnwatchPort { netns: *netns, port: *port });
        }
        let programs = self.roster.watched_programs();
        for name in programs.difference(&self.programs) {
            self.send(Command::WatchProgram(name.clone()));
        }
        for name in self.programs.difference(&programs) {
            self.send(Command::UnwatchProgram(name.clone()));
        }
        (self.ports, self.programs) = (ports, programs);
    }

    pub(crate) fn scan(&mut self) -> Result<(), Error> {
        for change in self.roster.scan() {
            self.apply(Some(change), "found")?;
        }
        // Sessions of the last run whose sockets are gone.
        for netns in self.interpreter.waiting_namespaces() {
            if let Some(pid) = self.roster.process_in(netns) {
                let inodes: HashSet<u64> = self.proc.sockets(pid).iter().map(|socket| socket.inode).collect();
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

fn nodes_of(map: &PodMap) -> BTreeSet<String> {
    map.pods.values().map(|pod| pod.assignment.node.to_string()).collect()
}

/// Whether records of a lane are missing while no agent runs: its node is configured, or it still has records to send.
/// The others are of nodes that were deleted, and a record would make them appear again.
fn missed_something(lane: &LaneStatus, nodes: &BTreeSet<String>) -> bool {
    // One entry can have several processes: the further ones are named NODE@NAMESPACE.
    let entry = lane.node.rsplit_once('@').map_or("", |(entry, _)| entry);
    nodes.contains(&lane.node) || nodes.contains(entry) || lane.pending_records > 0
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::unbounded;

    use super::*;
    use crate::{
        cluster::pods::tests::{pod, snapshot},
        config::NodeConfig,
    };

    /// Lanes with records after an agent restarted, of these.
    fn told(nodes: &[&str], pods: Option<Arc<PodMap>>, lanes: &[&str]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        let open = || SharedLanes::open(&folder, 1 << 20, Some(1 << 20), lanes.iter().copied()).unwrap();
        let before = open();
        assert!(before.push("pending", records::unknown_loss("test", 1, 2)));
        before.close();
        drop(before);
        folder.set_settled_ns(1).unwrap();
        let named = |name: &&str| NodeConfig { name: (*name).to_owned(), ..NodeConfig::default() };
        let config = Config::new(dir.path().to_owned(), nodes.iter().map(named).collect());
        let cluster = pods.map(|kept| Cluster { maps: never(), reports: watch::channel(Report::default()).0, kept });
        let lanes = open();
        Worker::new(&config, folder.clone(), lanes.clone(), unbounded().0, unbounded().0, cluster).unwrap();
        lanes.close();
        let told = lanes.status().into_iter().filter(|lane| lane.pending_records > 0);
        told.map(|lane| format!("{} {}", lane.node, lane.pending_records)).collect()
    }

    #[test]
    fn a_restart_is_no_news_of_nodes_that_are_gone() {
        let lanes = ["default/octez", "default/gone", "pending"];
        let kept = |generation| {
            let mut map = PodMap::default();
            map.apply(snapshot(generation, vec![pod("a", 'a')]), true).unwrap();
            Arc::new(map)
        };
        assert_eq!(told(&[], Some(kept(1)), &lanes), ["default/octez 1", "pending 2"]);
        let all = ["default/gone 1", "default/octez 1", "pending 2"];
        assert_eq!(told(&[], Some(Arc::default()), &lanes), all, "nobody knows which are gone");
        let lanes = ["9732", "9732@4026531840", "gone", "gone@4026531840", "pending"];
        assert_eq!(told(&["9732", "new"], None, &lanes), ["9732 1", "9732@4026531840 1", "pending 2"]);
    }
}
