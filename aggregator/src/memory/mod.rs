//! Current memory of the observed processes.
//!
//! ```text
//! session ══ MemoryState ══▶ Memory ─▶ one Profile a process ─┬─▶ http (a copy that shares the columns)
//!         ◀═ MemoryAck ════                                   └─▶ snapshots ─▶ store
//! ```
//!
//! This is state: kept in memory, and sent again by the agents after a restart of either side. A reader copies what it needs
//! and releases the lock at once, so a tree of a million nodes does not delay an agent.
//!
//! An agent that connects begins a new *session*. Processes that it does not report within a minute are dropped: they ended
//! while it was disconnected. The last states of a disconnected agent are kept and shown as `silent`.
//!
//! The bytes of all profiles are bounded, unfinished states included, and those of one agent are, too. Profiles of ended
//! processes are evicted for others; a state that does not fit all the same is refused.

mod budget;
mod sessions;
pub(crate) mod snapshots;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use chainscope_hygiene::warn_limited;
use chainscope_profile::{Limits, MergeError, MergeOutcome, Profile, ProfileData, state_bytes};
use chainscope_proto::v1::{MemoryAck, MemoryState};
use parking_lot::{Mutex, RwLock};
use prometheus_client::metrics::{counter::Counter, family::Family};

pub(crate) use self::snapshots::restore;
use self::{
    budget::{Budget, BudgetExceeded, Share},
    sessions::Sessions,
};
use crate::metrics::ReasonLabels;

/// Maximum number of processes of a node.
const MAX_TARGETS: usize = 256;
/// How long an ended process is shown.
const ENDED_TTL: Duration = Duration::from_secs(3600);
/// Time that an agent has after it connected to report its processes.
const REPORT_TIMEOUT: Duration = Duration::from_secs(60);

/// State of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ProcessState {
    /// Its agent is connected and reports it.
    Running,
    /// Its agent is disconnected.
    Silent,
    /// It ended, or is no longer observed.
    Ended,
}

impl ProcessState {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Silent => "silent",
            Self::Ended => "ended",
        }
    }
}

/// A process of a node.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// The agent that reports it.
    pub(crate) agent: Arc<str>,
    pub(crate) state: ProcessState,
    /// Sequence number of the last merged state.
    pub(crate) sequence: u64,
    pub(crate) data: Arc<ProfileData>,
}

/// A profile within a node: agent and number.
type Key = (Arc<str>, u64);

/// Processes of one node.
type Profiles = BTreeMap<Key, Arc<TrackedProcess>>;

/// Memory of all nodes.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    nodes: RwLock<BTreeMap<String, Arc<Mutex<Profiles>>>>,
    sessions: Sessions,
    limits: Limits,
    budget: Arc<Budget>,
    /// States that were refused.
    refused: Family<ReasonLabels, Counter>,
}

/// A process whose states are merged.
#[derive(Debug)]
struct TrackedProcess {
    profile: Mutex<TrackedProfile>,
    last_report: Mutex<LastReport>,
}

/// A profile and its share of the budget.
#[derive(Debug)]
struct TrackedProfile {
    profile: Profile,
    share: Share,
}

/// The last report of a process.
#[derive(Debug, Clone, Copy)]
struct LastReport {
    session: u64,
    at: Instant,
    ended: bool,
}

/// The session of a connected agent.
#[derive(Debug)]
pub(crate) struct AgentSession {
    memory: Arc<Memory>,
    agent: Arc<str>,
    number: u64,
}

impl Drop for AgentSession {
    fn drop(&mut self) {
        if self.memory.sessions.end(&self.agent, self.number) {
            self.memory.drop_pending(&self.agent);
        }
    }
}

impl Memory {
    pub(crate) fn new(refused: Family<ReasonLabels, Counter>) -> Self {
        Self { refused, ..Self::default() }
    }

    /// Begins the session of an agent that connected.
    pub(crate) fn begin(self: &Arc<Self>, agent: &Arc<str>) -> AgentSession {
        AgentSession { memory: Arc::clone(self), agent: Arc::clone(agent), number: self.sessions.begin(agent) }
    }

    /// Processes of a node, the oldest first. Drops those that ended long ago.
    pub(crate) fn targets(&self, node: &str) -> Vec<Target> {
        let Some(profiles) = self.nodes.read().get(node).cloned() else { return Vec::new() };
        let all: Vec<(Key, Arc<TrackedProcess>)> = {
            let mut profiles = profiles.lock();
            profiles.retain(|(agent, _), tracked| !self.is_expired(agent, tracked));
            profiles.iter().map(|(key, tracked)| (key.clone(), Arc::clone(tracked))).collect()
        };
        let target = |((agent, _), tracked): (Key, Arc<TrackedProcess>)| {
            let (data, sequence) = {
                let profile = &tracked.profile.lock().profile;
                (Arc::new(profile.data()?.clone()), profile.sequence())
            };
            let state = self.state(&agent, &tracked);
            Some(Target { agent, state, sequence, data })
        };
        let mut targets: Vec<Target> = all.into_iter().filter_map(target).collect();
        let age = |target: &Target| {
            let process = &target.data.process;
            let started = if process.started_ns == 0 { i64::MAX } else { process.started_ns };
            (started, process.pid, target.data.profile)
        };
        targets.sort_by_key(age);
        targets
    }

    /// Names of nodes with processes.
    pub(crate) fn nodes(&self) -> Vec<String> {
        self.nodes.read().keys().cloned().collect()
    }

    /// Whether a connected agent reports a process of the node.
    pub(crate) fn is_reported(&self, node: &str) -> bool {
        let Some(profiles) = self.nodes.read().get(node).cloned() else { return false };
        let profiles = profiles.lock();
        profiles.iter().any(|((agent, _), tracked)| self.state(agent, tracked) == ProcessState::Running)
    }

    /// Removes a node.
    pub(crate) fn remove(&self, node: &str) {
        self.nodes.write().remove(node);
    }

    fn state(&self, agent: &str, tracked: &TrackedProcess) -> ProcessState {
        let last_report = *tracked.last_report.lock();
        match self.sessions.of(agent) {
            _ if last_report.ended => ProcessState::Ended,
            Some(session) if session.is_open && last_report.session == session.number => ProcessState::Running,
            _ => ProcessState::Silent,
        }
    }

    /// Whether a process is dropped.
    fn is_expired(&self, agent: &str, tracked: &TrackedProcess) -> bool {
        let last_report = *tracked.last_report.lock();
        let is_left_out = self.sessions.of(agent).is_some_and(|session| {
            session.is_open && last_report.session != session.number && session.began.elapsed() > REPORT_TIMEOUT
        });
        is_left_out || (last_report.ended && last_report.at.elapsed() > ENDED_TTL)
    }

    /// The process of a key, created if missing; none if there are too many.
    fn process(&self, node: &str, key: &Key, session: u64) -> Option<Arc<TrackedProcess>> {
        let known = self.nodes.read().get(node).cloned();
        let profiles = match known {
            Some(profiles) => profiles,
            None => Arc::clone(self.nodes.write().entry(node.to_owned()).or_default()),
        };
        let mut profiles = profiles.lock();
        if let Some(tracked) = profiles.get(key) {
            return Some(Arc::clone(tracked));
        }
        if profiles.len() >= MAX_TARGETS {
            profiles.retain(|(agent, _), tracked| !self.is_expired(agent, tracked));
        }
        if profiles.len() >= MAX_TARGETS {
            let ended = profiles.iter().filter(|(_, tracked)| tracked.last_report.lock().ended);
            let oldest = ended.min_by_key(|(_, tracked)| tracked.last_report.lock().at).map(|(key, _)| key.clone());
            profiles.remove(&oldest?);
        }
        let last_report = LastReport { session, at: Instant::now(), ended: false };
        let profile = TrackedProfile { profile: Profile::default(), share: self.budget.share(&key.0) };
        let tracked = Arc::new(TrackedProcess { profile: Mutex::new(profile), last_report: Mutex::new(last_report) });
        profiles.insert(key.clone(), Arc::clone(&tracked));
        Some(tracked)
    }

    /// Marks older profiles of the same process as ended: a restarted agent attaches again.
    fn replace(&self, node: &str, key: &Key, pid: u32) {
        let Some(profiles) = self.nodes.read().get(node).cloned() else { return };
        let older: Vec<Arc<TrackedProcess>> = {
            let profiles = profiles.lock();
            let same = |other: &Key| other.0 == key.0 && other.1 < key.1;
            profiles.iter().filter(|(other, _)| same(other)).map(|(_, tracked)| Arc::clone(tracked)).collect()
        };
        for tracked in older {
            if tracked.profile.lock().profile.data().is_some_and(|data| data.process.pid == pid) {
                tracked.last_report.lock().ended = true;
            }
        }
    }

    /// Drops the unfinished states of an agent.
    fn drop_pending(&self, agent: &Arc<str>) {
        let nodes: Vec<Arc<Mutex<Profiles>>> = self.nodes.read().values().cloned().collect();
        for profiles in nodes {
            let of_agent: Vec<Arc<TrackedProcess>> = {
                let profiles = profiles.lock();
                let of_agent = profiles.range((Arc::clone(agent), 0)..=(Arc::clone(agent), u64::MAX));
                of_agent.map(|(_, tracked)| Arc::clone(tracked)).collect()
            };
            for tracked in of_agent {
                let TrackedProfile { profile, share } = &mut *tracked.profile.lock();
                profile.drop_pending();
                share.shrink_to(profile.bytes());
            }
        }
    }

    /// Adds bytes to a profile. Removes profiles of ended processes, the oldest first, if there is no room.
    fn grow(&self, agent: &str, share: &mut Share, bytes: usize) -> Result<(), BudgetExceeded> {
        loop {
            let Err(exceeded) = share.grow(bytes) else { return Ok(()) };
            let is_removed = match exceeded {
                BudgetExceeded::Agent => self.remove_ended(|other| other == agent),
                BudgetExceeded::Total => self.remove_ended(|_| true),
            };
            if !is_removed {
                return Err(exceeded);
            }
        }
    }

    /// Removes the profile that ended first of agents that `is_of` accepts; returns whether there was one.
    fn remove_ended(&self, is_of: impl Fn(&str) -> bool) -> bool {
        let nodes: Vec<Arc<Mutex<Profiles>>> = self.nodes.read().values().cloned().collect();
        let ended = nodes.iter().flat_map(|profiles| {
            let profiles_now = profiles.lock();
            let ended = |(key, tracked): (&Key, &Arc<TrackedProcess>)| {
                let last_report = *tracked.last_report.lock();
                (last_report.ended && is_of(&key.0)).then(|| (last_report.at, key.clone(), Arc::clone(profiles)))
            };
            profiles_now.iter().filter_map(ended).collect::<Vec<_>>()
        });
        let Some((_, key, profiles)) = ended.min_by_key(|(at, ..)| *at) else { return false };
        profiles.lock().remove(&key).is_some()
    }

    fn refuse(&self, reason: &'static str) {
        self.refused.get_or_create(&ReasonLabels { reason }).inc();
    }
}

impl AgentSession {
    /// Merges a part of a state of a known node. Returns the acknowledgement, which is none before the last part. May take
    /// some ten milliseconds.
    pub(crate) fn merge(&self, state: MemoryState) -> Option<MemoryAck> {
        let key = (Arc::clone(&self.agent), state.profile);
        let (node, profile) = (state.node.clone(), state.profile);
        let ack = |sequence| MemoryAck { node: node.clone(), profile, sequence, ..MemoryAck::default() };
        let Some(tracked) = self.memory.process(&node, &key, self.number) else {
            let refused = format!("there are {MAX_TARGETS} observed processes of this node already");
            warn_limited!(node, agent = %self.agent, "the memory of a further process is refused: {refused}");
            self.memory.refuse("processes");
            return Some(MemoryAck { refused, ..ack(0) });
        };
        let mut locked = tracked.profile.lock();
        let TrackedProfile { profile, share } = &mut *locked;
        let is_first = profile.sequence() == 0;
        if let Err(exceeded) = self.memory.grow(&self.agent, share, state_bytes(&state)) {
            // The other parts of the state are of no use.
            profile.drop_pending();
            share.shrink_to(profile.bytes());
            let sequence = profile.sequence();
            drop(locked);
            warn_limited!(node, agent = %self.agent, %exceeded, "a memory state is refused");
            self.memory.refuse(exceeded.reason());
            return Some(MemoryAck { refused: exceeded.to_string(), ..ack(sequence) });
        }
        let outcome = profile.merge(state, &self.memory.limits);
        share.shrink_to(profile.bytes());
        match outcome {
            MergeOutcome::Incomplete => None,
            MergeOutcome::Merged(sequence) => {
                let ended = profile.data().is_some_and(|data| !data.runs());
                let pid = profile.data().map(|data| data.process.pid);
                drop(locked);
                *tracked.last_report.lock() = LastReport { session: self.number, at: Instant::now(), ended };
                if let Some(pid) = pid.filter(|_| is_first) {
                    self.memory.replace(&node, &key, pid);
                }
                Some(ack(sequence))
            }
            MergeOutcome::KeyframeRequired(fault) => {
                let sequence = profile.sequence();
                drop(locked);
                // A keyframe of a profile that is too large is too large, too.
                let keyframe_wanted = !matches!(fault, MergeError::LimitExceeded { .. });
                warn_limited!(node, agent = %self.agent, %fault, keyframe_wanted, "a memory state is refused");
                self.memory.refuse(if keyframe_wanted { "invalid" } else { "profile_limit" });
                Some(MemoryAck { keyframe_wanted, refused: fault.to_string(), ..ack(sequence) })
            }
        }
    }
}

#[cfg(test)]
mod tests;
