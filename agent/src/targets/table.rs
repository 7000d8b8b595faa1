//! The table of known processes: asks the machine and the plan, lets [`transition`](super::transition) decide, and
//! returns what pillars have to do.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::Instant,
};

use super::{
    Owner, ProcessFacts, RefusedTarget, StartCause, StartedTarget, TargetChange, WatchList,
    plan::Plan,
    system::System,
    tracked::{MatchResult, TargetState, TrackedProcess},
    transition::{Action, Continuity, Match, State, on_exit, on_match},
};

/// Most processes that are held of one pod, or of one container without a pod.
const MAX_HELD_OF_POD: usize = 32;
/// Most processes that are held. The kernel watches 1,024, and as many as this before discovery knows of them.
const MAX_HELD: usize = 256;

/// Most processes of one pod, or of one entry of the configuration file, whose network is observed: no owner takes all places
/// in the kernel's table.
const MAX_OBSERVED_OF_OWNER: usize = 64;

/// An observed or held process that exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) pid: u32,
    pub(crate) was_observed: bool,
}

/// The known processes.
pub(crate) struct TargetTable<S> {
    system: S,
    plan: Plan,
    tracked: BTreeMap<u32, TrackedProcess>,
    /// Released processes that the kernel has not forgotten yet.
    settling: BTreeSet<u32>,
    /// Owners of which one more process was refused since the last one was observed.
    crowded: BTreeSet<Owner>,
    refused: Vec<RefusedTarget>,
}

impl<S: System> TargetTable<S> {
    pub(crate) fn new(system: S, plan: Plan) -> Self {
        Self {
            system,
            plan,
            tracked: BTreeMap::new(),
            settling: BTreeSet::new(),
            crowded: BTreeSet::new(),
            refused: Vec::new(),
        }
    }

    /// What probes watch in the kernel.
    pub(crate) fn watch_list(&mut self) -> WatchList {
        match &mut self.plan {
            Plan::Entries(entries) => {
                entries.resolve(&self.system);
                WatchList { ports: entries.watched_ports(), process_names: BTreeSet::new() }
            }
            Plan::Pods(pods) => WatchList {
                ports: pods.ports().into_iter().map(|port| (None, port)).collect(),
                process_names: pods.process_names(),
            },
        }
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Changes the plan and matches every known process again.
    pub(crate) fn replan(&mut self, change: impl FnOnce(&mut Plan)) -> Vec<TargetChange> {
        change(&mut self.plan);
        self.match_all()
    }

    fn match_all(&mut self) -> Vec<TargetChange> {
        let known: Vec<ProcessFacts> = self.tracked.values().map(|tracked| tracked.facts.clone()).collect();
        known.into_iter().filter_map(|facts| self.consider(facts, StartCause::Found, false)).collect()
    }

    /// Matches every process of the machine that is not known.
    pub(crate) fn scan(&mut self) -> Vec<TargetChange> {
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
        let crowded = std::mem::take(&mut self.crowded);
        self.crowded = crowded.into_iter().filter(|owner| !self.may_observe(owner)).collect();
        if let Plan::Pods(pods) = &mut self.plan {
            processes.iter().for_each(|facts| pods.saw(facts));
        }
        let unknown = processes.into_iter().filter(|facts| !self.is_known(facts)).collect::<Vec<_>>();
        unknown.into_iter().filter_map(|facts| self.consider(facts, StartCause::Found, false)).collect()
    }

    fn is_known(&self, facts: &ProcessFacts) -> bool {
        self.tracked.get(&facts.pid).is_some_and(|tracked| tracked.facts.start == facts.start)
    }

    /// A process listens on an address.
    pub(crate) fn listening(&mut self, pid: u32, netns: u32, local: SocketAddr) -> Option<TargetChange> {
        if let Some(tracked) = self.tracked.get_mut(&pid).filter(|tracked| !tracked.exit.has_exited()) {
            tracked.facts.add_listening(local);
            if !matches!(tracked.state, TargetState::Released) {
                return None;
            }
        }
        let Some(mut facts) = self.system.facts(pid) else { return Some(TargetChange::Dismissed(pid)) };
        if facts.netns == netns {
            facts.add_listening(local);
        }
        self.resolve_for(&facts);
        self.consider(facts, StartCause::Started, true)
    }

    /// A process executes another program, or does something without being known.
    pub(crate) fn executed(&mut self, pid: u32) -> Option<TargetChange> {
        self.noticed(pid, StartCause::Started)
    }

    fn noticed(&mut self, pid: u32, cause: StartCause) -> Option<TargetChange> {
        let is_captured = self.plan.is_captured_at_exec();
        let Some(facts) = self.system.facts(pid) else {
            return is_captured.then_some(TargetChange::Dismissed(pid));
        };
        self.resolve_for(&facts);
        self.consider(facts, cause, is_captured)
    }

    /// The kernel has forgotten a released process: it may match again by now.
    pub(crate) fn settled(&mut self, pid: u32) -> Option<TargetChange> {
        self.settling.remove(&pid);
        let tracked = self.tracked.get(&pid)?;
        matches!(tracked.state, TargetState::Released)
            .then(|| tracked.facts.clone())
            .and_then(|facts| self.consider(facts, StartCause::Found, false))
    }

    fn resolve_for(&mut self, facts: &ProcessFacts) {
        if let Plan::Entries(entries) = &mut self.plan {
            entries.resolve_for(facts, &self.system, Instant::now());
        }
    }

    /// Matches a process and applies the transition. `is_captured`: the kernel captures it already.
    fn consider(&mut self, facts: ProcessFacts, cause: StartCause, is_captured: bool) -> Option<TargetChange> {
        let pid = facts.pid;
        let result = match &mut self.plan {
            // An entry's process stays what it was found as.
            Plan::Entries(_) if self.tracked.contains_key(&pid) => return None,
            Plan::Entries(_) => self.plan.evaluate(&facts, &self.tracked),
            Plan::Pods(_) => {
                let before = self.tracked.remove(&pid);
                let result = self.plan.evaluate(&facts, &self.tracked);
                // Another process under a number that was used before is unknown.
                if let Some(before) = before.filter(|before| before.facts.start == facts.start) {
                    self.tracked.insert(pid, TrackedProcess { facts: facts.clone(), ..before });
                }
                result
            }
        };
        let result = self.limit(pid, result);
        let state = self.state_of(pid);
        let (next, action) = on_match(state, self.classify(&facts, &result), is_captured);
        self.apply((state, next), action, facts, result, cause).or_else(|| {
            // It exited before its exit could be watched.
            (is_captured && matches!(action, Action::Start | Action::Hold)).then_some(TargetChange::Dismissed(pid))
        })
    }

    fn apply(
        &mut self,
        (state, next): (State, State),
        action: Action,
        facts: ProcessFacts,
        result: MatchResult,
        cause: StartCause,
    ) -> Option<TargetChange> {
        let pid = facts.pid;
        match (action, result) {
            (Action::None, MatchResult::Observe(owner, assignment)) if state == State::Observed => {
                self.set(pid, TargetState::Observed(owner, assignment));
                None
            }
            (Action::Update, MatchResult::Observe(owner, assignment)) => {
                self.set(pid, TargetState::Observed(owner, assignment.clone()));
                Some(TargetChange::Changed(pid, Arc::new(assignment)))
            }
            (Action::Start, MatchResult::Observe(owner, assignment)) => {
                let facts = self.with_ports(facts);
                self.track(&facts, TargetState::Observed(owner.clone(), assignment.clone()))?;
                let (was_held, has_exited) = (false, false);
                Some(started(StartedTarget { facts, owner, assignment, cause, was_held, has_exited }))
            }
            (Action::StartHeld, MatchResult::Observe(owner, assignment)) => {
                let has_exited = next == State::Unknown;
                self.enter(pid, next, || TargetState::Observed(owner.clone(), assignment.clone()));
                let was_held = true;
                Some(started(StartedTarget { facts, owner, assignment, cause, was_held, has_exited }))
            }
            (Action::Hold, _) => {
                let facts = self.with_ports(facts);
                self.track(&facts, TargetState::Held { since: Instant::now(), exited: false })?;
                Some(TargetChange::Held(Arc::new(facts)))
            }
            (Action::Release, _) => {
                self.enter(pid, next, || TargetState::Released);
                Some(TargetChange::Released(pid))
            }
            (Action::Discard, _) => {
                self.enter(pid, next, || TargetState::Released);
                Some(TargetChange::Discarded(pid))
            }
            (Action::Dismiss, _) => Some(TargetChange::Dismissed(pid)),
            _ => None,
        }
    }

    /// The state of a process as the transition table has it.
    fn state_of(&self, pid: u32) -> State {
        match self.tracked.get(&pid).map(|tracked| &tracked.state) {
            None => State::Unknown,
            Some(TargetState::Observed(..)) => State::Observed,
            Some(TargetState::Held { exited, .. }) => State::Held { exited: *exited },
            Some(TargetState::Released) => State::Released { settling: self.settling.contains(&pid) },
        }
    }

    /// Whether another process may be held: what is not configured must not take the place of what is.
    fn may_hold(&self, facts: &ProcessFacts) -> bool {
        let held = self.tracked.values().filter(|tracked| matches!(tracked.state, TargetState::Held { .. }));
        let (mut all, mut of_pod) = (0, 0);
        for tracked in held {
            all += 1;
            of_pod += usize::from(tracked.facts.group() == facts.group());
        }
        all < MAX_HELD && of_pod < MAX_HELD_OF_POD
    }

    /// Whether another process of an owner may be observed.
    fn may_observe(&self, owner: &Owner) -> bool {
        let is_counted = |tracked: &&TrackedProcess| {
            matches!(&tracked.state, TargetState::Observed(of, assignment) if of == owner && assignment.observe.network.is_some())
                && !tracked.exit.has_exited()
        };
        self.tracked.values().filter(is_counted).count() < MAX_OBSERVED_OF_OWNER
    }

    /// Ignores a process that is one too many of its owner.
    fn limit(&mut self, pid: u32, result: MatchResult) -> MatchResult {
        let MatchResult::Observe(owner, assignment) = result else { return result };
        if assignment.observe.network.is_none() || self.state_of(pid) == State::Observed {
            return MatchResult::Observe(owner, assignment);
        }
        if self.may_observe(&owner) {
            self.crowded.remove(&owner);
            return MatchResult::Observe(owner, assignment);
        }
        if self.crowded.insert(owner.clone()) {
            let cause = format!("{MAX_OBSERVED_OF_OWNER} processes are observed already: further ones are not");
            self.refused.push(RefusedTarget { pid, owner, assignment, cause });
        }
        MatchResult::Ignore
    }

    /// Processes since the last call that are not observed although they match.
    pub(crate) fn take_refused(&mut self) -> Vec<RefusedTarget> {
        std::mem::take(&mut self.refused)
    }

    fn classify(&self, facts: &ProcessFacts, result: &MatchResult) -> Match {
        let pid = facts.pid;
        let MatchResult::Observe(owner, assignment) = result else {
            let is_held = || matches!(self.state_of(pid), State::Held { .. });
            let may_hold = *result == MatchResult::Hold && (is_held() || self.may_hold(facts));
            return if may_hold { Match::Hold } else { Match::Ignore };
        };
        Match::Observe(match self.tracked.get(&pid).map(|tracked| &tracked.state) {
            Some(TargetState::Observed(of, was)) if of == owner && was == assignment => Continuity::Same,
            // Network capture begins and ends in the kernel: so does the observation.
            Some(TargetState::Observed(of, was))
                if of == owner
                    && was.node == assignment.node
                    && was.observe.network.is_some() == assignment.observe.network.is_some() =>
            {
                Continuity::Options
            }
            _ => Continuity::New,
        })
    }

    /// A scan for pods does not say on which ports a process listens.
    fn with_ports(&self, facts: ProcessFacts) -> ProcessFacts {
        if matches!(self.plan, Plan::Pods(_)) && facts.listens.is_empty() {
            return self.system.facts(facts.pid).unwrap_or(facts);
        }
        facts
    }

    /// Adds a process; none if it is gone.
    fn track(&mut self, facts: &ProcessFacts, state: TargetState) -> Option<()> {
        let exit = self.system.watch(facts.pid)?;
        self.tracked.insert(facts.pid, TrackedProcess { facts: facts.clone(), exit, state });
        Some(())
    }

    /// Brings a known process into another state.
    fn enter(&mut self, pid: u32, next: State, state: impl FnOnce() -> TargetState) {
        if next == State::Unknown {
            self.tracked.remove(&pid);
            return;
        }
        if matches!(next, State::Released { settling: true }) {
            self.settling.insert(pid);
        }
        self.set(pid, state());
    }

    fn set(&mut self, pid: u32, state: TargetState) {
        if let Some(tracked) = self.tracked.get_mut(&pid) {
            tracked.state = state;
        }
    }

    /// Held processes whose time is over, and processes whose container is known only now.
    pub(crate) fn overdue(&mut self, now: Instant) -> Vec<TargetChange> {
        let plan = match &mut self.plan {
            Plan::Entries(entries) => {
                let due = entries.due(&self.system, now);
                return due.into_iter().filter_map(|pid| self.noticed(pid, StartCause::Found)).collect();
            }
            Plan::Pods(plan) => plan,
        };
        let hold = plan.hold();
        let mut changes = if plan.stops_waiting(now) { self.match_all() } else { Vec::new() };
        let is_over = |tracked: &&TrackedProcess| match tracked.state {
            TargetState::Held { since, .. } => now.saturating_duration_since(since) >= hold,
            _ => false,
        };
        let over: Vec<u32> = self.tracked.values().filter(is_over).map(|tracked| tracked.facts.pid).collect();
        for pid in over {
            let (next, action) = on_match(self.state_of(pid), Match::Ignore, false);
            self.enter(pid, next, || TargetState::Released);
            changes.extend((action == Action::Discard).then_some(TargetChange::Discarded(pid)));
        }
        changes
    }

    /// Observed and held processes that exited since the last call: their capture ends.
    pub(crate) fn ended(&mut self) -> Vec<Ended> {
        let is_gone = |tracked: &&TrackedProcess| {
            !matches!(tracked.state, TargetState::Held { exited: true, .. }) && tracked.exit.has_exited()
        };
        let gone: Vec<u32> = self.tracked.values().filter(is_gone).map(|tracked| tracked.facts.pid).collect();
        let mut ended = Vec::new();
        for pid in gone {
            let state = self.state_of(pid);
            let (next, action) = on_exit(state);
            match self.tracked.get_mut(&pid) {
                Some(TrackedProcess { state: TargetState::Held { exited, .. }, .. }) if next != State::Unknown => {
                    *exited = true;
                }
                _ => {
                    self.tracked.remove(&pid);
                }
            }
            ended.extend((action == Action::End).then_some(Ended { pid, was_observed: state == State::Observed }));
        }
        ended
    }

    /// Whether the plan has a part without a process.
    pub(crate) fn is_incomplete(&self) -> bool {
        match &self.plan {
            Plan::Entries(entries) => entries.is_incomplete(&self.tracked),
            Plan::Pods(pods) => pods.is_incomplete(&self.tracked),
        }
    }

    /// Nodes that records are expected of: those of the plan, and of observed processes.
    pub(crate) fn nodes(&self) -> BTreeSet<String> {
        let mut nodes = self.plan.nodes();
        let observed = self.tracked.values().filter_map(|tracked| match &tracked.state {
            TargetState::Observed(_, assignment) => Some([&assignment.node, assignment.traced_node()]),
            _ => None,
        });
        nodes.extend(observed.flatten().map(ToString::to_string));
        nodes
    }
}

fn started(target: StartedTarget) -> TargetChange {
    TargetChange::Started(Arc::new(target))
}

#[cfg(test)]
mod tests;
