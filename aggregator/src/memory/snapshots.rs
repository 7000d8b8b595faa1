//! Snapshots of the memory profiles every few minutes, and their retention.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use chainscope_hygiene::warn_limited;
use chainscope_profile::{Kind, Limits, MergeOutcome, Profile, ProfileData, encode};
use chainscope_proto::v1::MemoryState;
use chainscope_store::{Error as StoreError, MemorySnapshot, SnapshotLimits, Store};

use super::{Memory, ProcessState, Target};
use crate::{Error, clock::now_ns, nodes::Nodes, periodic::PeriodicTask};

/// Interval at which due snapshots are looked for.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Polls between two evictions.
const EVICTION_POLLS: u32 = 10;
const NS_PER_MS: i64 = 1_000_000;

/// Starts the thread that stores snapshots.
pub(crate) fn start(store: Store, nodes: Arc<Nodes>, memory: Arc<Memory>) -> Result<PeriodicTask, Error> {
    let mut task = SnapshotTask { store, nodes, memory, last: HashMap::new() };
    let mut polls = (0..EVICTION_POLLS).cycle();
    PeriodicTask::start("memory-snapshots", POLL_INTERVAL, move || {
        let now = now_ns();
        task.store_due(now);
        if polls.next() == Some(0) {
            task.evict(now);
        }
    })
}

struct SnapshotTask {
    store: Store,
    nodes: Arc<Nodes>,
    memory: Arc<Memory>,
    /// Time of the last snapshot of a node, and the profiles and sequence numbers in it.
    last: HashMap<String, (i64, BTreeSet<(u64, u64)>)>,
}

impl SnapshotTask {
    /// Stores a snapshot of every node whose interval has passed and that has new states.
    fn store_due(&mut self, now: i64) {
        for node in self.memory.nodes() {
            let Some(keep) = self.nodes.memory(&node) else {
                self.memory.remove(&node);
                self.last.remove(&node);
                continue;
            };
            let every = i64::try_from(keep.every.as_nanos()).unwrap_or(i64::MAX);
            let targets = self.memory.targets(&node);
            let states: BTreeSet<(u64, u64)> =
                targets.iter().map(|target| (target.data.profile, target.sequence)).collect();
            if !self.last.contains_key(&node)
                && let Some(newest) = self.newest(&node)
            {
                self.last.insert(node.clone(), (newest, BTreeSet::new()));
            }
            // After the clock was set back snapshots go on.
            let is_due =
                self.last.get(&node).is_none_or(|(last, kept)| *kept != states && (now - last >= every || now < *last));
            if keep.every.is_zero() || !is_due || targets.is_empty() {
                continue;
            }
            match put(&self.store, &node, &targets, now) {
                Ok(_) => {}
                Err(error @ StoreError::DiskFull { .. }) => {
                    warn_limited!(%error, node, "the disk is full: a snapshot of the memory is skipped");
                }
                Err(error) => warn_limited!(%error, node, "a snapshot of the memory could not be stored"),
            }
            self.last.insert(node, (now, states));
        }
    }

    /// The moment of the newest stored snapshot.
    fn newest(&self, node: &str) -> Option<i64> {
        match self.store.memory_at(node, i64::MAX) {
            Ok(found) => found.map(|(head, _)| head.time_ns),
            Err(error) => {
                warn_limited!(%error, node, "the snapshots of the memory cannot be read");
                None
            }
        }
    }

    fn evict(&self, now: i64) {
        for node in self.store.nodes() {
            let limits = match self.nodes.memory(&node.name) {
                Some(keep) => keep.limits,
                // The node was removed: evict all of its snapshots.
                None => SnapshotLimits { age: Some(Duration::from_nanos(1)), bytes: None },
            };
            match self.store.evict_memory(&node.name, &limits, now) {
                Ok(0) => {}
                Ok(count) => tracing::debug!(node = node.name, count, "snapshots of the memory evicted"),
                Err(error) => warn_limited!(%error, node = node.name, "snapshots of the memory could not be evicted"),
            }
        }
    }
}

/// Stores a snapshot of the current states.
fn put(store: &Store, node: &str, targets: &[Target], now: i64) -> Result<MemorySnapshot, StoreError> {
    let shown: Vec<&Arc<ProfileData>> =
        targets.iter().filter(|target| target.state != ProcessState::Ended).map(|target| &target.data).collect();
    let mut head = MemorySnapshot {
        // As responses show it, so that it is found by the shown time.
        time_ns: now.div_euclid(NS_PER_MS).saturating_mul(NS_PER_MS),
        targets: u32::try_from(shown.len()).unwrap_or(u32::MAX),
        ..MemorySnapshot::default()
    };
    let mut states = Vec::new();
    for data in shown {
        let (attributed, before) = (data.attributed(), data.before_attach());
        let kib = |kind: Kind| attributed[kind.index()].saturating_add(before[kind.index()]);
        head.anon_kib = head.anon_kib.saturating_add(kib(Kind::Anon));
        head.cache_kib = head.cache_kib.saturating_add(kib(Kind::Cache));
        head.kernel_kib = head.kernel_kib.saturating_add(kib(Kind::Kernel));
        head.stacks = head.stacks.saturating_add(data.stacks() as u64);
        states.extend(encode(data, node, 1));
    }
    store.put_memory(node, head, &states)
}

/// The processes of a snapshot, from its states. A process that cannot be decoded is skipped; states are validated before
/// they are stored.
pub(crate) fn restore(states: Vec<MemoryState>) -> Vec<Arc<ProfileData>> {
    let mut profiles: BTreeMap<usize, Profile> = BTreeMap::new();
    let mut number = 0;
    for state in states {
        // Profile numbers of several agents may be equal; the first part begins a process.
        number += usize::from(state.part == 0);
        if let MergeOutcome::KeyframeRequired(fault) =
            profiles.entry(number).or_default().merge(state, &Limits::default())
        {
            warn_limited!(%fault, "a process of a snapshot of the memory cannot be decoded");
        }
    }
    profiles.values().filter_map(|profile| Some(Arc::new(profile.data()?.clone()))).collect()
}
