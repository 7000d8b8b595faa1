//! Profiles shared by the symbolizer thread, which updates them, and the uplink, which sends them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use chainscope_ebpf::memory::{Count, Health, Reading};
use chainscope_hygiene::{EscapedTruncated, warn_limited};
use chainscope_proto::v1::{MemoryAck, MemoryState};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    metrics::{self, MemoryMetrics},
    profile::{Profile, Subject},
    tree::{Call, Tree},
};
use crate::{clock::Clock, thread::Heartbeat};

/// Maximum number of ended profiles kept until an aggregator acknowledges them.
const MAX_ENDED: usize = 64;

/// Profiles behind a lock, with a notification for the uplink.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProfileStore(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    inner: Mutex<Inner>,
    changed: Notify,
    /// Whether the aggregator of the current stream accepts memory states.
    accepts_states: AtomicBool,
    /// Whether the symbolizer thread has ended: no further updates follow.
    is_closed: AtomicBool,
    heartbeats: Heartbeats,
}

/// Heartbeats of the pillar's threads, which read the address spaces and executables of the profiled processes.
#[derive(Debug)]
pub(super) struct Heartbeats {
    pub(super) watcher: Heartbeat,
    pub(super) symbolizer: Heartbeat,
    /// Those of the pools that read files and memory of the processes.
    pub(super) calls: Vec<Heartbeat>,
}

impl Default for Heartbeats {
    fn default() -> Self {
        Self {
            watcher: Heartbeat::of_foreign_calls("memory watcher"),
            symbolizer: Heartbeat::of_foreign_calls("memory symbolizer"),
            calls: Vec::new(),
        }
    }
}

#[derive(Debug, Default)]
struct Inner {
    tree: Tree,
    /// Profiles by target id of the probe.
    profiles: BTreeMap<u32, Profile>,
    /// Target id at which the next search for a message starts.
    next_target: u32,
    /// The last profile key assigned.
    key: u64,
    health: Health,
    /// Error that prevents profiling.
    error: Option<String>,
    copied_bytes: u64,
    late_files: u64,
}

/// Changes to apply to the store. Calls are symbolized before the lock is taken, since that takes long.
#[derive(Debug, Default)]
pub(super) struct SymbolizedUpdate {
    pub(super) calls: Vec<(u32, Call)>,
    pub(super) started: Vec<(u32, Subject)>,
    pub(super) renamed: Vec<(u32, String)>,
    /// Target id and cause of the end.
    pub(super) ended: Vec<(u32, &'static str)>,
    pub(super) reading: Option<Reading>,
    pub(super) copied_bytes: u64,
    /// Number of times that a file was not opened or read in time.
    pub(super) late_files: u64,
}

impl ProfileStore {
    /// A store that shows the heartbeats of these pools, too.
    pub(super) fn with_heartbeats(calls: Vec<Heartbeat>) -> Self {
        let heartbeats = Heartbeats { calls, ..Heartbeats::default() };
        Self(Arc::new(Shared { heartbeats, ..Shared::default() }))
    }

    pub(super) fn heartbeats(&self) -> &Heartbeats {
        &self.0.heartbeats
    }

    /// Starts a new stream and schedules a keyframe of every profile. `accepts_states`: whether its aggregator accepts
    /// memory states.
    pub(crate) fn begin_stream(&self, accepts_states: bool) {
        self.0.accepts_states.store(accepts_states, Ordering::Release);
        self.0.inner.lock().profiles.values_mut().for_each(Profile::begin_stream);
    }

    /// Returns the next message to send: one part of a state. The parts of a state are returned in sequence.
    pub(crate) fn next(&self) -> Option<MemoryState> {
        if !self.0.accepts_states.load(Ordering::Acquire) {
            return None;
        }
        let mut inner = self.0.inner.lock();
        let Inner { tree, profiles, next_target, .. } = &mut *inner;
        // A partially sent profile first, then the others in round-robin order.
        let order: Vec<u32> =
            profiles.range(*next_target..).chain(profiles.range(..*next_target)).map(|(id, _)| *id).collect();
        for id in order {
            if let Some(message) = profiles.get_mut(&id).and_then(|profile| profile.next_message(tree)) {
                *next_target = if message.more { id } else { id.saturating_add(1) };
                return Some(message);
            }
        }
        None
    }

    pub(crate) fn acknowledge(&self, ack: &MemoryAck) {
        let mut inner = self.0.inner.lock();
        let is_acknowledged =
            |profile: &&mut Profile| profile.key() == ack.profile && *profile.subject.node == *ack.node;
        if let Some(profile) = inner.profiles.values_mut().find(is_acknowledged) {
            profile.acknowledge(ack);
        }
        inner.profiles.retain(|_, profile| !profile.is_finished);
        drop(inner);
        self.0.changed.notify_one();
    }

    /// Returns whether every state is acknowledged, or the aggregator accepts none.
    pub(crate) fn is_settled(&self) -> bool {
        !self.0.accepts_states.load(Ordering::Acquire) || self.0.inner.lock().profiles.values().all(Profile::is_settled)
    }

    /// Whether the symbolizer thread has ended: no further updates follow.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed.load(Ordering::Acquire)
    }

    pub(crate) fn close(&self) {
        self.0.is_closed.store(true, Ordering::Release);
        self.0.changed.notify_one();
    }

    /// Waits until [`Self::next`] may return another message.
    pub(crate) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// Records the error that prevents profiling.
    pub(super) fn fail(&self, error: String) {
        self.0.inner.lock().error = Some(error);
    }

    /// Returns the error that prevents profiling, if any.
    pub(crate) fn error(&self) -> Option<String> {
        self.0.inner.lock().error.clone()
    }

    pub(super) fn update(&self, update: SymbolizedUpdate, clock: &Clock) {
        let mut inner = self.0.inner.lock();
        inner.tree.add(update.calls);
        inner.copied_bytes = update.copied_bytes;
        inner.late_files = update.late_files;
        for (id, subject) in update.started {
            inner.start(id, subject, clock);
        }
        for (id, name) in update.renamed {
            if let Some(profile) = inner.profiles.get_mut(&id) {
                profile.subject.name = name;
            }
        }
        if let Some(reading) = update.reading {
            inner.apply_reading(reading, clock);
        }
        for (id, cause) in update.ended {
            inner.end(id, cause, clock.now());
        }
        drop(inner);
        self.0.changed.notify_one();
    }

    /// Ends every profile on shutdown of the agent.
    pub(super) fn end_all(&self, cause: &'static str, clock: &Clock) {
        let now = clock.now();
        let mut inner = self.0.inner.lock();
        let all: Vec<u32> = inner.profiles.keys().copied().collect();
        all.into_iter().for_each(|id| inner.end(id, cause, now));
        drop(inner);
        self.0.changed.notify_one();
    }

    /// Returns a snapshot for metrics.
    pub(crate) fn metrics(&self) -> MemoryMetrics {
        let inner = self.0.inner.lock();
        let snapshot = metrics::snapshot(
            inner.profiles.values(),
            &inner.health,
            inner.tree.len(),
            inner.copied_bytes,
            inner.error.as_ref(),
        );
        MemoryMetrics { late_files: inner.late_files, ..snapshot }
    }
}

impl Inner {
    fn start(&mut self, id: u32, subject: Subject, clock: &Clock) {
        self.key = u64::try_from(clock.now()).unwrap_or(0).max(self.key + 1);
        let key = self.key;
        self.profiles.entry(id).or_insert_with(|| Profile::new(subject, key));
        self.error = None;
    }

    fn apply_reading(&mut self, reading: Reading, clock: &Clock) {
        let time = clock.real(reading.at_ns);
        for Count { target, node, kind, pages } in reading.counts {
            if let Some(profile) = self.profiles.get_mut(&target.0) {
                profile.set_pages(node.0, kind, pages);
            }
        }
        for target in &reading.targets {
            if let Some(profile) = self.profiles.get_mut(&target.target.0).filter(|profile| !profile.has_ended()) {
                profile.update_totals(target, &reading.health, time);
            }
        }
        for (path, cause) in reading.health.refused.iter().skip(self.health.refused.len()) {
            let path = path.to_string_lossy();
            let (path, cause) = (EscapedTruncated(&path), EscapedTruncated(cause));
            warn_limited!(%path, %cause, "unwind table missing or incomplete: stacks may end in code of this file");
        }
        self.health = reading.health;
        // A profile that has ended is sent again until it is acknowledged.
        let ended = self.profiles.values().filter(|profile| profile.has_ended());
        self.tree.remove(reading.removed_nodes.iter().map(|node| node.0), ended.flat_map(Profile::calls));
    }

    fn end(&mut self, id: u32, cause: &'static str, now: i64) {
        if let Some(profile) = self.profiles.get_mut(&id) {
            profile.end(now, cause);
            // No state of this profile was built, so no final state is needed.
            if profile.is_unsent() {
                self.profiles.remove(&id);
            }
        }
        let ended: Vec<u32> =
            self.profiles.iter().filter(|(_, profile)| profile.has_ended()).map(|(id, _)| *id).collect();
        for id in ended.iter().take(ended.len().saturating_sub(MAX_ENDED)) {
            self.profiles.remove(id);
        }
    }
}
