//! The processes that are known: observed, held until it is clear whose they are, or let go.
//!
//! ```text
//!             judged as a node's                      its process ends
//!   unknown ───────────────────▶ observed ─────────────────────────────▶ forgotten
//!      │                          ▲   │ no longer a node's                 ▲
//!      │ may become a node's      │   ▼                                    │
//!      └──────────▶ held ─────────┘  released ─────────────────────────────┤
//!                    │ 60 s, or not meant  ▲                               │
//!                    └─────────────────────┘    its process ends           │
//!                      (a held process that ended is kept until then) ─────┘
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use super::{Assignment, Life, System, entries::EntryPlan, matching::ProcessFacts, pods::PodPlan};

/// Who says what is observed.
#[derive(Debug)]
pub(crate) enum Plan {
    Entries(EntryPlan),
    Pods(PodPlan),
}

/// What a process is to a plan.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Judgement {
    Observe(Owner, Assignment),
    /// A configuration that is on its way may mean it.
    Hold,
    Ignore,
}

/// The part of a plan that a process belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Owner {
    /// An entry of the configuration file.
    Entry(usize),
    /// A pod, by uid.
    Pod(String),
}

/// How a known process stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Standing {
    Observed(Owner, Assignment),
    /// Captured, but not interpreted, until it is clear whose it is.
    Held {
        since: Instant,
        is_gone: bool,
    },
    /// Not captured any more.
    Released,
}

/// A process that is known.
pub(crate) struct Live {
    pub(crate) facts: ProcessFacts,
    pub(crate) life: Box<dyn Life>,
    pub(crate) standing: Standing,
}

impl Live {
    pub(crate) fn is_of(&self, uid: &str) -> bool {
        matches!(&self.standing, Standing::Observed(Owner::Pod(of), _) if of == uid)
    }
}

/// A process that begins to be observed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Found {
    pub(crate) facts: ProcessFacts,
    pub(crate) owner: Owner,
    pub(crate) assignment: Assignment,
    /// It was held: what it did so far is to be interpreted.
    pub(crate) was_held: bool,
    /// It was held and has ended since.
    pub(crate) is_gone: bool,
}

/// What is to be done about a process.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Change {
    Start(Box<Found>),
    /// Capture and keep; the ports are those on which it listens.
    Hold(Box<ProcessFacts>),
    /// It is observed as something else, of the same node.
    Update(u32, Box<Assignment>),
    /// It is observed no more.
    Release(u32),
    /// It was held and is not meant.
    Discard(u32),
    /// The kernel took it by itself, and it is not meant.
    Dismiss(u32),
}

/// A process that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) pid: u32,
    pub(crate) was_observed: bool,
}

/// The known processes.
pub(crate) struct Roster<Y> {
    system: Y,
    plan: Plan,
    live: BTreeMap<u32, Live>,
    /// Processes whose last capture is not wound up yet.
    settling: BTreeSet<u32>,
}

impl<Y: System> Roster<Y> {
    pub(crate) fn new(system: Y, plan: Plan) -> Self {
        Self { system, plan, live: BTreeMap::new(), settling: BTreeSet::new() }
    }

    /// Ports to watch in the kernel, in one network namespace or in all.
    pub(crate) fn watched_ports(&mut self) -> BTreeSet<(Option<u32>, u16)> {
        match &mut self.plan {
            Plan::Entries(entries) => {
                entries.resolve(&self.system);
                entries.watched_ports()
            }
            Plan::Pods(pods) => pods.ports().into_iter().map(|port| (None, port)).collect(),
        }
    }

    /// Programs to watch in the kernel.
    pub(crate) fn watched_programs(&self) -> BTreeSet<String> {
        match &self.plan {
            Plan::Entries(_) => BTreeSet::new(),
            Plan::Pods(pods) => pods.programs(),
        }
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Judges everything that is known anew: the plan has changed.
    pub(crate) fn replan(&mut self, change: impl FnOnce(&mut Plan)) -> Vec<Change> {
        change(&mut self.plan);
        self.judge_all()
    }

    fn judge_all(&mut self) -> Vec<Change> {
        let known: Vec<ProcessFacts> = self.live.values().map(|live| live.facts.clone()).collect();
        known.into_iter().filter_map(|facts| self.consider(facts, false)).collect()
    }

    /// Looks at every process.
    pub(crate) fn scan(&mut self) -> Vec<Change> {
        let ports = match &mut self.plan {
            Plan::Entries(entries) => {
                entries.resolve(&self.system);
                entries.ports()
            }
            Plan::Pods(pods) => {
                pods.forget_containers();
                BTreeSet::new()
            }
        };
        let processes = self.system.scan(&ports);
        if let Plan::Pods(pods) = &mut self.plan {
            processes.iter().for_each(|facts| pods.saw(facts));
        }
        let unknown = processes.into_iter().filter(|facts| !self.is_known(facts)).collect::<Vec<_>>();
        unknown.into_iter().filter_map(|facts| self.consider(facts, false)).collect()
    }

    fn is_known(&self, facts: &ProcessFacts) -> bool {
        self.live.get(&facts.pid).is_some_and(|live| live.facts.start == facts.start)
    }

    /// A process listens on a port.
    pub(crate) fn listening(&mut self, pid: u32, netns: u32, port: u16) -> Option<Change> {
        if let Some(live) = self.live.get_mut(&pid).filter(|live| !live.life.is_over()) {
            live.facts.listens.insert(port);
            if !matches!(live.standing, Standing::Released) {
                return None;
            }
        }
        let Some(mut facts) = self.system.facts(pid) else { return Some(Change::Dismiss(pid)) };
        if facts.netns == netns {
            facts.listens.insert(port);
        }
        self.resolve_for(&facts);
        self.consider(facts, true)
    }

    /// A process executes another program, or does something without being known.
    pub(crate) fn executed(&mut self, pid: u32) -> Option<Change> {
        let is_taken = matches!(self.plan, Plan::Pods(_));
        let Some(facts) = self.system.facts(pid) else { return is_taken.then_some(Change::Dismiss(pid)) };
        self.resolve_for(&facts);
        self.consider(facts, is_taken)
    }

    /// What a released process did until its release is wound up: it may be meant again by now.
    pub(crate) fn settled(&mut self, pid: u32) -> Option<Change> {
        self.settling.remove(&pid);
        let live = self.live.get(&pid)?;
        matches!(live.standing, Standing::Released)
            .then(|| live.facts.clone())
            .and_then(|facts| self.consider(facts, false))
    }

    fn resolve_for(&mut self, facts: &ProcessFacts) {
        if let Plan::Entries(entries) = &mut self.plan {
            entries.resolve_for(facts, &self.system, Instant::now());
        }
    }

    /// `is_taken`: the kernel captures it already.
    fn consider(&mut self, facts: ProcessFacts, is_taken: bool) -> Option<Change> {
        let pid = facts.pid;
        let judgement = match &mut self.plan {
            Plan::Entries(entries) => match self.live.contains_key(&pid) {
                true => return None,
                false => entries.judge(&facts, &self.live),
            },
            Plan::Pods(pods) => {
                let without = self.live.remove(&pid);
                let judgement = pods.judge(&facts, &self.live);
                // Another process under a number that was used before is unknown.
                if let Some(live) = without.filter(|live| live.facts.start == facts.start) {
                    self.live.insert(pid, Live { facts: facts.clone(), ..live });
                }
                judgement
            }
        };
        let standing = self.live.get(&pid).map(|live| live.standing.clone());
        match (standing, judgement) {
            (Some(Standing::Observed(of, was)), Judgement::Observe(owner, assignment))
                if of == owner && was.node == assignment.node && was.network == assignment.network =>
            {
                let is_new = was != assignment;
                self.stand(pid, Standing::Observed(owner, assignment.clone()));
                is_new.then(|| Change::Update(pid, Box::new(assignment)))
            }
            (Some(Standing::Observed(..)), _) => {
                self.release(pid);
                Some(Change::Release(pid))
            }
            // Not before the kernel has forgotten it.
            (Some(Standing::Released), _) if self.settling.contains(&pid) => None,
            (Some(Standing::Held { is_gone, .. }), Judgement::Observe(owner, assignment)) => {
                if is_gone {
                    self.live.remove(&pid);
                } else {
                    self.stand(pid, Standing::Observed(owner.clone(), assignment.clone()));
                }
                Some(Change::Start(Box::new(Found { facts, owner, assignment, was_held: true, is_gone })))
            }
            (Some(Standing::Held { .. }), Judgement::Hold) => None,
            (Some(Standing::Held { is_gone, .. }), Judgement::Ignore) => {
                if is_gone {
                    self.live.remove(&pid);
                } else {
                    self.release(pid);
                }
                Some(Change::Discard(pid))
            }
            (_, Judgement::Observe(owner, assignment)) => {
                let facts = self.with_ports(facts);
                let standing = Standing::Observed(owner.clone(), assignment.clone());
                if !self.know(&facts, standing) {
                    return is_taken.then_some(Change::Dismiss(pid));
                }
                Some(Change::Start(Box::new(Found { facts, owner, assignment, was_held: false, is_gone: false })))
            }
            // Once let go, only something new that it does makes it interesting again.
            (Some(Standing::Released), Judgement::Hold) if !is_taken => None,
            (_, Judgement::Hold) => {
                let facts = self.with_ports(facts);
                let standing = Standing::Held { since: Instant::now(), is_gone: false };
                if !self.know(&facts, standing) {
                    return is_taken.then_some(Change::Dismiss(pid));
                }
                Some(Change::Hold(Box::new(facts)))
            }
            (_, Judgement::Ignore) => is_taken.then_some(Change::Dismiss(pid)),
        }
    }

    /// A look around for pods does not say on which ports a process listens.
    fn with_ports(&self, facts: ProcessFacts) -> ProcessFacts {
        if matches!(self.plan, Plan::Pods(_)) && facts.listens.is_empty() {
            return self.system.facts(facts.pid).unwrap_or(facts);
        }
        facts
    }

    /// False if the process is gone.
    fn know(&mut self, facts: &ProcessFacts, standing: Standing) -> bool {
        let Some(life) = self.system.watch(facts.pid) else { return false };
        self.live.insert(facts.pid, Live { facts: facts.clone(), life, standing });
        true
    }

    fn stand(&mut self, pid: u32, standing: Standing) {
        if let Some(live) = self.live.get_mut(&pid) {
            live.standing = standing;
        }
    }

    fn release(&mut self, pid: u32) {
        self.stand(pid, Standing::Released);
        self.settling.insert(pid);
    }

    /// Held processes whose time is over, and processes whose container is known only now.
    pub(crate) fn overdue(&mut self, now: Instant) -> Vec<Change> {
        let plan = match &mut self.plan {
            Plan::Entries(entries) => {
                let due = entries.due(&self.system, now);
                return due.into_iter().filter_map(|pid| self.executed(pid)).collect();
            }
            Plan::Pods(plan) => plan,
        };
        let hold = plan.hold();
        let mut changes = if plan.loses_patience(now) { self.judge_all() } else { Vec::new() };
        let is_over = |live: &&Live| match live.standing {
            Standing::Held { since, .. } => now.saturating_duration_since(since) >= hold,
            _ => false,
        };
        let over: Vec<u32> = self.live.values().filter(is_over).map(|live| live.facts.pid).collect();
        for pid in over {
            match self.live.get(&pid).map(|live| &live.standing) {
                Some(Standing::Held { is_gone: true, .. }) => {
                    self.live.remove(&pid);
                }
                _ => self.release(pid),
            }
            changes.push(Change::Discard(pid));
        }
        changes
    }

    /// Processes that ended since the last call and whose capture is to be wound up.
    pub(crate) fn ended(&mut self) -> Vec<Ended> {
        let over: Vec<u32> = self
            .live
            .values()
            .filter(|live| !matches!(live.standing, Standing::Held { is_gone: true, .. }) && live.life.is_over())
            .map(|live| live.facts.pid)
            .collect();
        let mut ended = Vec::new();
        for pid in over {
            let Some(live) = self.live.get_mut(&pid) else { continue };
            match &mut live.standing {
                Standing::Held { is_gone, .. } => {
                    *is_gone = true;
                    ended.push(Ended { pid, was_observed: false });
                }
                Standing::Observed(..) => {
                    ended.push(Ended { pid, was_observed: true });
                    self.live.remove(&pid);
                }
                Standing::Released => {
                    self.live.remove(&pid);
                }
            }
        }
        ended
    }

    /// Whether the plan has a part without a process.
    pub(crate) fn is_incomplete(&self) -> bool {
        match &self.plan {
            Plan::Entries(entries) => entries.is_incomplete(&self.live),
            Plan::Pods(pods) => pods.is_incomplete(&self.live),
        }
    }

    /// A live process in a network namespace.
    pub(crate) fn process_in(&self, netns: u32) -> Option<u32> {
        let is_observed = |live: &&Live| matches!(live.standing, Standing::Observed(..));
        self.live.values().filter(is_observed).find(|live| live.facts.netns == netns).map(|live| live.facts.pid)
    }
}
