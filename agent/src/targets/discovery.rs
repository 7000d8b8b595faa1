//! The discovery thread: finds targets, notices their exits, and puts every change into the inboxes of the pillars.
//!
//! Everything that reads other processes to decide what is observed begins here, apart from identities. A process or
//! daemon that does not answer is skipped after a timeout ([`super::system`]).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use chainscope_hygiene::{EscapedTruncated, warn_limited};
use crossbeam_channel::{Receiver, never, select};
use parking_lot::Mutex;

use super::{
    Inbox, Notice, Plan, StartedTarget, TargetChange, TargetsView, WatchList, pod_map::PodMap, system::System,
    table::TargetTable,
};
use crate::{Error, clock::Clock, thread::Heartbeat};

/// How often exits of processes are polled.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How often every process of the machine is matched while a node has none.
const SEARCH_INTERVAL: Duration = Duration::from_secs(5);
/// How often it is while every node has one.
const RESCAN_INTERVAL: Duration = Duration::from_secs(30);

/// The thread's state.
pub(crate) struct Discovery<S> {
    table: TargetTable<S>,
    inboxes: Vec<Box<dyn Inbox>>,
    notices: Receiver<Notice>,
    /// Pod maps of the operator, numbered.
    maps: Receiver<(u64, Arc<PodMap>)>,
    view: Arc<Mutex<TargetsView>>,
    watch_list: WatchList,
    polled: Instant,
    scanned: Instant,
    heartbeat: Heartbeat,
}

impl<S: System> Discovery<S> {
    pub(crate) fn new(
        system: S,
        plan: Plan,
        inboxes: Vec<Box<dyn Inbox>>,
        notices: Receiver<Notice>,
        maps: Option<Receiver<(u64, Arc<PodMap>)>>,
    ) -> Self {
        let now = Instant::now();
        let discovery = Self {
            table: TargetTable::new(system, plan),
            inboxes,
            notices,
            maps: maps.unwrap_or_else(never),
            view: Arc::default(),
            watch_list: WatchList::default(),
            polled: now,
            scanned: now,
            heartbeat: Heartbeat::new("discovery"),
        };
        discovery.publish(|_| ());
        discovery
    }

    /// What reports show of the targets.
    pub(crate) fn view(&self) -> Arc<Mutex<TargetsView>> {
        Arc::clone(&self.view)
    }

    pub(crate) fn heartbeat(&self) -> Heartbeat {
        self.heartbeat.clone()
    }

    /// Runs until [`Notice::Stop`] arrives, or no pillar is left that could send one.
    ///
    /// # Errors
    /// A target cannot be observed because of the agent's data directory.
    pub(crate) fn run(mut self) -> Result<(), Error> {
        let (notices, mut maps) = (self.notices.clone(), self.maps.clone());
        loop {
            self.heartbeat.beat();
            let pause = POLL_INTERVAL.saturating_sub(self.polled.elapsed());
            select! {
                recv(notices) -> notice => match notice {
                    Ok(Notice::Stop) | Err(_) => return Ok(()),
                    Ok(notice) => self.notice(notice)?,
                },
                recv(maps) -> map => match map {
                    Ok((serial, map)) => self.configure(serial, &map)?,
                    // The client ended: its last configuration holds.
                    Err(_) => maps = never(),
                },
                default(pause) => {}
            }
            if self.polled.elapsed() >= POLL_INTERVAL {
                self.poll()?;
            }
        }
    }

    fn notice(&mut self, notice: Notice) -> Result<(), Error> {
        let (pid, change) = match notice {
            Notice::Listening { pid, netns, local } => (pid, self.table.listening(pid, netns, local)),
            Notice::Executed { pid } | Notice::UnknownSocket { pid } => (pid, self.table.executed(pid)),
            Notice::Settled { pid } => {
                let change = self.table.settled(pid);
                return self.emit(change);
            }
            Notice::Captured { pid } => {
                self.publish(|view| view.captured(pid));
                return Ok(());
            }
            Notice::Stop => return Ok(()),
        };
        // Every notice of the other kinds is answered: a pillar may keep events until then.
        self.emit(Some(change.unwrap_or(TargetChange::Unchanged(pid))))
    }

    /// The operator's configuration changed.
    fn configure(&mut self, serial: u64, map: &Arc<PodMap>) -> Result<(), Error> {
        let changes = self.table.replan(|plan| {
            if let Plan::Pods(pods) = plan {
                pods.set(Arc::clone(map));
            }
        });
        self.emit(changes)?;
        self.update_watch_list()?;
        // Processes that matched nothing are not in the table: they are looked for again.
        if self.table.is_incomplete() {
            self.scan()?;
        }
        self.publish(|view| view.serial = serial);
        Ok(())
    }

    fn poll(&mut self) -> Result<(), Error> {
        self.polled = Instant::now();
        for ended in self.table.ended() {
            tracing::info!(pid = ended.pid, observed = ended.was_observed, "the process exited");
            self.emit([TargetChange::Exited(ended.pid)])?;
        }
        let overdue = self.table.overdue(self.polled);
        self.emit(overdue)?;
        let interval = if self.table.is_incomplete() { SEARCH_INTERVAL } else { RESCAN_INTERVAL };
        if self.scanned.elapsed() >= interval {
            self.update_watch_list()?;
            self.scan()?;
        }
        Ok(())
    }

    /// Sends the watch list if it changed: a configuration may name other ports, and a named namespace may have appeared.
    pub(crate) fn update_watch_list(&mut self) -> Result<(), Error> {
        let watch_list = self.table.watch_list();
        if watch_list != self.watch_list {
            self.watch_list = watch_list.clone();
            self.emit([TargetChange::Watch(Arc::new(watch_list))])?;
        }
        Ok(())
    }

    /// Matches every process of the machine.
    pub(crate) fn scan(&mut self) -> Result<(), Error> {
        let changes = self.table.scan();
        self.scanned = Instant::now();
        self.emit(changes)?;
        self.publish(|_| ());
        Ok(())
    }

    /// Puts changes into all inboxes, and into the view; after them what the table refused.
    fn emit(&mut self, changes: impl IntoIterator<Item = TargetChange>) -> Result<(), Error> {
        let refused = self.table.take_refused().into_iter().map(|refused| TargetChange::Refused(Arc::new(refused)));
        for change in changes.into_iter().chain(refused) {
            self.inboxes.iter_mut().try_for_each(|inbox| inbox.put(&change))?;
            self.note(&change);
        }
        Ok(())
    }

    fn note(&self, change: &TargetChange) {
        match change {
            TargetChange::Started(target) => {
                let StartedTarget { facts, assignment, cause, was_held, .. } = &**target;
                let exe = EscapedTruncated(&facts.exe.to_string_lossy()).to_string();
                let (node, pid, netns, event) = (&assignment.node, facts.pid, facts.netns, cause.name());
                tracing::info!(%node, pid, exe, netns, event, held = was_held, "observing");
                let has_exited = target.has_exited;
                if let Some(uid) = target.owner.pod() {
                    let started_ns = Clock::of_ticks(target.facts.start);
                    self.publish(|view| {
                        view.started(uid, target.facts.pid, started_ns);
                        if has_exited {
                            view.ended(target.facts.pid);
                        }
                    });
                } else {
                    self.publish(|_| ());
                }
            }
            TargetChange::Exited(pid) | TargetChange::Released(pid) => self.publish(|view| view.ended(*pid)),
            TargetChange::Refused(refused) => {
                let (node, pid, cause) = (&refused.assignment.node, refused.pid, &refused.cause);
                warn_limited!(%node, pid, cause, "not observed");
            }
            TargetChange::Held(_) | TargetChange::Discarded(_) => self.publish(|_| ()),
            _ => {}
        }
    }

    fn publish(&self, edit: impl FnOnce(&mut TargetsView)) {
        let mut view = self.view.lock();
        edit(&mut view);
        view.version += 1;
        view.nodes = self.table.nodes();
        if let Plan::Pods(plan) = self.table.plan() {
            view.with_container = plan.pods_with_container();
            view.map = Some(Arc::clone(plan.map()));
        }
        view.prune();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crossbeam_channel::{Sender, bounded};

    use super::{super::any_address, super::system::ExitWatch, super::*, *};
    use crate::config::NodeConfig;

    /// A machine with these processes.
    #[derive(Default)]
    struct Machine {
        processes: Vec<ProcessFacts>,
        /// They cannot be read until it is allowed, as those whose `mmap_lock` is held.
        allowed: Option<Receiver<()>>,
    }

    struct Running;

    impl ExitWatch for Running {
        fn has_exited(&self) -> bool {
            false
        }
    }

    impl System for Machine {
        fn facts(&self, pid: u32) -> Option<ProcessFacts> {
            if let Some(allowed) = &self.allowed {
                let _ = allowed.recv();
            }
            self.processes.iter().find(|facts| facts.pid == pid).cloned()
        }

        fn scan(&self, _: &std::collections::BTreeSet<u16>) -> Vec<ProcessFacts> {
            self.processes.clone()
        }

        fn netns(&self, _: &Path) -> Option<u32> {
            None
        }

        fn containers(&self, _: &str) -> Vec<ContainerId> {
            Vec::new()
        }

        fn watch(&self, _: u32) -> Option<Box<dyn ExitWatch>> {
            Some(Box::new(Running))
        }
    }

    fn process(pid: u32) -> ProcessFacts {
        ProcessFacts {
            pid,
            start: 10,
            exe: "/usr/bin/octez-node".into(),
            netns: 1,
            container: None,
            location: None,
            parent: 1,
            argument: String::new(),
            listens: [any_address(9732)].into(),
        }
    }

    #[test]
    fn processes_of_an_entry_are_limited_and_pillars_learn_of_the_refusal() {
        let scanned = |is_network_disabled| {
            let node = NodeConfig {
                name: "n".to_owned(),
                p2p_port: Some(9732),
                memory: is_network_disabled,
                is_network_disabled,
                ..NodeConfig::default()
            };
            let (inbox, changes) = bounded(1024);
            let (_notices, noticed) = bounded(16);
            let machine = Machine { processes: (10..80).map(process).collect(), ..Machine::default() };
            let mut discovery = Discovery::new(machine, Plan::entries(&[node]), vec![Box::new(inbox)], noticed, None);
            discovery.scan().unwrap();
            discovery.scan().unwrap();
            let changes: Vec<TargetChange> = changes.try_iter().collect();
            let started = changes.iter().filter(|change| matches!(change, TargetChange::Started(_))).count();
            let refused = changes.into_iter().filter_map(|change| match change {
                TargetChange::Refused(refused) => Some((refused.pid, refused.owner.clone(), refused.cause.clone())),
                _ => None,
            });
            (started, refused.collect::<Vec<_>>())
        };
        let cause = "64 processes are observed already: further ones are not".to_owned();
        assert_eq!(scanned(false), (64, vec![(74, Owner::Entry(0), cause)]), "reported once");
        assert_eq!(scanned(true), (70, vec![]), "they take no places of the network's table");
    }

    fn start(allowed: Receiver<()>) -> (Sender<Notice>, Receiver<TargetChange>, std::thread::JoinHandle<()>) {
        let processes = vec![ProcessFacts { listens: [].into(), ..process(10) }];
        let node = NodeConfig { name: "n".to_owned(), p2p_port: Some(9732), ..NodeConfig::default() };
        let (notices, noticed) = bounded(16);
        let (inbox, changes) = bounded(16);
        let plan = Plan::entries(&[node]);
        let machine = Machine { processes, allowed: Some(allowed) };
        let mut discovery = Discovery::new(machine, plan, vec![Box::new(inbox)], noticed, None);
        discovery.update_watch_list().unwrap();
        let thread = std::thread::spawn(move || discovery.run().unwrap());
        (notices, changes, thread)
    }

    #[test]
    fn every_notice_is_answered_in_order_and_stop_ends_the_thread() {
        let (allow, allowed) = bounded(16);
        let (notices, changes, thread) = start(allowed);
        assert!(matches!(changes.recv().unwrap(), TargetChange::Watch(list) if list.ports == [(None, 9732)].into()));
        notices.send(Notice::UnknownSocket { pid: 10 }).unwrap();
        notices.send(Notice::Listening { pid: 10, netns: 1, local: any_address(9732) }).unwrap();
        notices.send(Notice::Listening { pid: 10, netns: 1, local: any_address(9732) }).unwrap();
        // Who waits for an answer finds the inbox empty, not a blocked sender.
        assert!(changes.try_recv().is_err());
        drop(allow);
        assert_eq!(changes.recv().unwrap(), TargetChange::Unchanged(10));
        let TargetChange::Started(target) = changes.recv().unwrap() else { panic!() };
        assert_eq!((target.facts.pid, target.cause), (10, StartCause::Started));
        assert_eq!(changes.recv().unwrap(), TargetChange::Unchanged(10));
        notices.send(Notice::Stop).unwrap();
        thread.join().unwrap();
    }
}
