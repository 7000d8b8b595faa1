//! Memory of the observed processes, as it is now.
//!
//! ```text
//! session ══ MemoryState ══▶ Memory ─▶ one Profile a process ─┬─▶ http (a copy that shares the columns)
//!         ◀═ MemoryAck ════                                   └─▶ snapshots ─▶ store
//! ```
//!
//! It is state: kept in memory, and told anew by the agents after a restart of either side. Who reads takes what is there
//! and lets go of the lock at once, so a tree of a million nodes does not keep an agent waiting.
//!
//! An agent that connects begins a new *round*. What it does not tell of within a minute is gone: processes that ended while
//! nobody looked. What an agent that is away told last is kept and shown as `silent`.

mod rounds;
pub(crate) mod snapshots;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use chainscope_hygiene::warn_limited;
use chainscope_profile::{Limits, MergeError, MergeOutcome, Profile, ProfileData};
use chainscope_proto::v1::{MemoryAck, MemoryState};
use parking_lot::{Mutex, RwLock};

use self::rounds::Rounds;
pub(crate) use self::snapshots::restore;

/// Processes of one node that are kept.
const MOST_TARGETS: usize = 256;
/// How long a process that ended is shown.
const KEEP_ENDED: Duration = Duration::from_secs(3600);
/// How long an agent has to tell of what it observes after it connected.
const GRACE: Duration = Duration::from_secs(60);

/// How a process stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    /// Its agent tells of it.
    Running,
    /// Its agent is away.
    Silent,
    /// It ended, or is no longer observed.
    Ended,
}

impl Standing {
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
    /// The agent that tells of it.
    pub(crate) agent: Arc<str>,
    pub(crate) standing: Standing,
    /// The last state that was merged.
    pub(crate) sequence: u64,
    pub(crate) data: Arc<ProfileData>,
}

/// What names a profile within a node.
type Key = (Arc<str>, u64);

/// Processes of one node.
type Profiles = BTreeMap<Key, Arc<Live>>;

/// Memory of all nodes.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    nodes: RwLock<HashMap<String, Arc<Mutex<Profiles>>>>,
    rounds: Rounds,
    limits: Limits,
}

/// A process that is kept up to date.
#[derive(Debug)]
struct Live {
    profile: Mutex<Profile>,
    heard: Mutex<Heard>,
}

/// When a process was told of last.
#[derive(Debug, Clone, Copy)]
struct Heard {
    round: u64,
    at: Instant,
    ended: bool,
}

/// An agent's session; what it tells of belongs to its round.
#[derive(Debug)]
pub(crate) struct Round {
    memory: Arc<Memory>,
    agent: Arc<str>,
    number: u64,
}

impl Drop for Round {
    fn drop(&mut self) {
        self.memory.rounds.end(&self.agent, self.number);
    }
}

impl Memory {
    /// An agent connected.
    pub(crate) fn begin(self: &Arc<Self>, agent: &Arc<str>) -> Round {
        Round { memory: Arc::clone(self), agent: Arc::clone(agent), number: self.rounds.begin(agent) }
    }

    /// Processes of a node, the oldest first; those that ended long ago are forgotten.
    pub(crate) fn targets(&self, node: &str) -> Vec<Target> {
        let Some(profiles) = self.nodes.read().get(node).cloned() else { return Vec::new() };
        let all: Vec<(Key, Arc<Live>)> = {
            let mut profiles = profiles.lock();
            profiles.retain(|(agent, _), live| !self.is_over(agent, live));
            profiles.iter().map(|(key, live)| (key.clone(), Arc::clone(live))).collect()
        };
        let target = |((agent, _), live): (Key, Arc<Live>)| {
            let (data, sequence) = {
                let profile = live.profile.lock();
                (Arc::new(profile.data()?.clone()), profile.sequence())
            };
            let standing = self.standing(&agent, &live);
            Some(Target { agent, standing, sequence, data })
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

    /// Names of nodes that something is known of.
    pub(crate) fn nodes(&self) -> Vec<String> {
        self.nodes.read().keys().cloned().collect()
    }

    /// Whether an agent tells of a process of the node now.
    pub(crate) fn is_told_of(&self, node: &str) -> bool {
        let Some(profiles) = self.nodes.read().get(node).cloned() else { return false };
        let profiles = profiles.lock();
        profiles.iter().any(|((agent, _), live)| self.standing(agent, live) == Standing::Running)
    }

    /// Forgets a node.
    pub(crate) fn forget(&self, node: &str) {
        self.nodes.write().remove(node);
    }

    fn standing(&self, agent: &str, live: &Live) -> Standing {
        let heard = *live.heard.lock();
        match self.rounds.of(agent) {
            _ if heard.ended => Standing::Ended,
            Some(round) if round.is_open && heard.round == round.number => Standing::Running,
            _ => Standing::Silent,
        }
    }

    /// Whether a process need not be shown any more.
    fn is_over(&self, agent: &str, live: &Live) -> bool {
        let heard = *live.heard.lock();
        let is_left_out = self
            .rounds
            .of(agent)
            .is_some_and(|round| round.is_open && heard.round != round.number && round.began.elapsed() > GRACE);
        is_left_out || (heard.ended && heard.at.elapsed() > KEEP_ENDED)
    }

    /// Where a profile is kept; none if there are too many.
    fn place(&self, node: &str, key: &Key, round: u64) -> Option<Arc<Live>> {
        let known = self.nodes.read().get(node).cloned();
        let profiles = match known {
            Some(profiles) => profiles,
            None => Arc::clone(self.nodes.write().entry(node.to_owned()).or_default()),
        };
        let mut profiles = profiles.lock();
        if let Some(live) = profiles.get(key) {
            return Some(Arc::clone(live));
        }
        if profiles.len() >= MOST_TARGETS {
            profiles.retain(|(agent, _), live| !self.is_over(agent, live));
        }
        if profiles.len() >= MOST_TARGETS {
            let ended = profiles.iter().filter(|(_, live)| live.heard.lock().ended);
            let oldest = ended.min_by_key(|(_, live)| live.heard.lock().at).map(|(key, _)| key.clone());
            profiles.remove(&oldest?);
        }
        let heard = Heard { round, at: Instant::now(), ended: false };
        let live = Arc::new(Live { profile: Mutex::default(), heard: Mutex::new(heard) });
        profiles.insert(key.clone(), Arc::clone(&live));
        Some(live)
    }

    /// A new profile of the same process takes the place of older ones: an agent that starts again attaches anew.
    fn replace(&self, node: &str, key: &Key, pid: u32) {
        let Some(profiles) = self.nodes.read().get(node).cloned() else { return };
        let older: Vec<Arc<Live>> = {
            let profiles = profiles.lock();
            let same = |other: &Key| other.0 == key.0 && other.1 < key.1;
            profiles.iter().filter(|(other, _)| same(other)).map(|(_, live)| Arc::clone(live)).collect()
        };
        for live in older {
            if live.profile.lock().data().is_some_and(|data| data.process.pid == pid) {
                live.heard.lock().ended = true;
            }
        }
    }
}

impl Round {
    /// Takes a part of a state, of a node that is known; gives what the agent is told, which is nothing before the last
    /// part. May take some ten milliseconds.
    pub(crate) fn take(&self, state: MemoryState) -> Option<MemoryAck> {
        let key = (Arc::clone(&self.agent), state.profile);
        let (node, profile) = (state.node.clone(), state.profile);
        let ack = |sequence| MemoryAck { node: node.clone(), profile, sequence, ..MemoryAck::default() };
        let Some(live) = self.memory.place(&node, &key, self.number) else {
            let refused = format!("there are {MOST_TARGETS} observed processes of this node already");
            warn_limited!(node, agent = %self.agent, "the memory of one more process is not taken: {refused}");
            return Some(MemoryAck { refused, ..ack(0) });
        };
        let mut profile = live.profile.lock();
        let is_first = profile.sequence() == 0;
        match profile.merge(state, &self.memory.limits) {
            MergeOutcome::Incomplete => None,
            MergeOutcome::Merged(sequence) => {
                let ended = profile.data().is_some_and(|data| !data.runs());
                let pid = profile.data().map(|data| data.process.pid);
                drop(profile);
                *live.heard.lock() = Heard { round: self.number, at: Instant::now(), ended };
                if let Some(pid) = pid.filter(|_| is_first) {
                    self.memory.replace(&node, &key, pid);
                }
                Some(ack(sequence))
            }
            MergeOutcome::KeyframeRequired(fault) => {
                let sequence = profile.sequence();
                drop(profile);
                // Of what is too much a keyframe is too much, too.
                let keyframe_wanted = !matches!(fault, MergeError::LimitExceeded { .. });
                warn_limited!(node, agent = %self.agent, %fault, keyframe_wanted, "a state of the memory is not taken");
                Some(MemoryAck { keyframe_wanted, refused: fault.to_string(), ..ack(sequence) })
            }
        }
    }
}

#[cfg(test)]
mod tests;
