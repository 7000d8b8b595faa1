//! The profiles, as the naming thread fills them and the uplink empties them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use chainscope_ebpf::memory::{Count, Health, Reading};
use chainscope_proto::v1::{MemoryAck, MemoryState};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    figures::{Figures, figures},
    profile::{Profile, Subject},
    tree::{Call, Tree},
};
use crate::clock::Clock;

/// Ended profiles that wait for an aggregator.
const MAX_ENDED: usize = 64;

/// Profiles behind a lock, with a bell for the uplink.
#[derive(Debug, Clone, Default)]
pub(crate) struct Board(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    inner: Mutex<Inner>,
    bell: Notify,
    /// This stream's aggregator takes states.
    is_taken: AtomicBool,
    /// Nothing will be added any more.
    is_closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    tree: Tree,
    /// By number of the probe's target.
    profiles: BTreeMap<u32, Profile>,
    /// The profile that was served last.
    served: u32,
    /// The last key that was given.
    key: u64,
    health: Health,
    /// Why nothing is profiled.
    error: Option<String>,
    copied_bytes: u64,
}

/// What is new. Naming takes long: it is done before the lock is taken.
#[derive(Debug, Default)]
pub(super) struct Update {
    pub(super) calls: Vec<(u32, Call)>,
    pub(super) began: Vec<(u32, Subject)>,
    pub(super) renamed: Vec<(u32, String)>,
    /// Number and why.
    pub(super) ended: Vec<(u32, &'static str)>,
    pub(super) reading: Option<Reading>,
    pub(super) copied_bytes: u64,
}

impl Board {
    /// A new stream; whether its aggregator takes states. All profiles are sent whole.
    pub(crate) fn begin_stream(&self, is_taken: bool) {
        self.0.is_taken.store(is_taken, Ordering::Release);
        self.0.inner.lock().profiles.values_mut().for_each(Profile::begin_stream);
    }

    /// The next message for the aggregator, a part of a state; the parts of a state follow one another.
    pub(crate) fn next(&self) -> Option<MemoryState> {
        if !self.0.is_taken.load(Ordering::Acquire) {
            return None;
        }
        let mut inner = self.0.inner.lock();
        let Inner { tree, profiles, served, .. } = &mut *inner;
        // The one that was begun, then the others in turn.
        let order: Vec<u32> = profiles.range(*served..).chain(profiles.range(..*served)).map(|(id, _)| *id).collect();
        for id in order {
            if let Some(message) = profiles.get_mut(&id).and_then(|profile| profile.message(tree)) {
                *served = if message.more { id } else { id.saturating_add(1) };
                return Some(message);
            }
        }
        None
    }

    pub(crate) fn acknowledge(&self, ack: &MemoryAck) {
        let mut inner = self.0.inner.lock();
        let of = |profile: &&mut Profile| profile.key() == ack.profile && *profile.subject.node == *ack.node;
        if let Some(profile) = inner.profiles.values_mut().find(of) {
            profile.acknowledge(ack);
        }
        inner.profiles.retain(|_, profile| !profile.is_over);
        drop(inner);
        self.0.bell.notify_one();
    }

    /// Nothing waits for this stream's aggregator.
    pub(crate) fn is_settled(&self) -> bool {
        !self.0.is_taken.load(Ordering::Acquire) || self.0.inner.lock().profiles.values().all(Profile::is_settled)
    }

    /// Nothing will be added any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed.load(Ordering::Acquire)
    }

    pub(crate) fn close(&self) {
        self.0.is_closed.store(true, Ordering::Release);
        self.0.bell.notify_one();
    }

    /// Waits for something that may be worth another [`Self::next`].
    pub(crate) async fn rung(&self) {
        self.0.bell.notified().await;
    }

    /// Nothing can be profiled.
    pub(super) fn fail(&self, error: String) {
        self.0.inner.lock().error = Some(error);
    }

    /// Why nothing is profiled, if so.
    pub(crate) fn error(&self) -> Option<String> {
        self.0.inner.lock().error.clone()
    }

    pub(super) fn update(&self, update: Update, clock: &Clock) {
        let mut inner = self.0.inner.lock();
        inner.tree.add(update.calls);
        inner.copied_bytes = update.copied_bytes;
        for (id, subject) in update.began {
            inner.begin(id, subject, clock);
        }
        for (id, name) in update.renamed {
            if let Some(profile) = inner.profiles.get_mut(&id) {
                profile.subject.name = name;
            }
        }
        if let Some(reading) = update.reading {
            inner.read(reading, clock);
        }
        for (id, by) in update.ended {
            inner.end(id, by, clock.now());
        }
        drop(inner);
        self.0.bell.notify_one();
    }

    /// Every profile ends: the agent does.
    pub(super) fn end_all(&self, by: &'static str, clock: &Clock) {
        let now = clock.now();
        let mut inner = self.0.inner.lock();
        let all: Vec<u32> = inner.profiles.keys().copied().collect();
        all.into_iter().for_each(|id| inner.end(id, by, now));
        drop(inner);
        self.0.bell.notify_one();
    }

    /// What metrics show.
    pub(crate) fn figures(&self) -> Figures {
        let inner = self.0.inner.lock();
        figures(inner.profiles.values(), &inner.health, inner.tree.len(), inner.copied_bytes, inner.error.as_ref())
    }
}

impl Inner {
    fn begin(&mut self, id: u32, subject: Subject, clock: &Clock) {
        self.key = u64::try_from(clock.now()).unwrap_or(0).max(self.key + 1);
        let key = self.key;
        self.profiles.entry(id).or_insert_with(|| Profile::new(subject, key));
        self.error = None;
    }

    fn read(&mut self, reading: Reading, clock: &Clock) {
        let time = clock.real(reading.at_ns);
        for Count { target, node, kind, pages } in reading.counts {
            if let Some(profile) = self.profiles.get_mut(&target.0) {
                profile.count(node.0, kind, pages);
            }
        }
        for target in &reading.targets {
            if let Some(profile) = self.profiles.get_mut(&target.target.0).filter(|profile| !profile.has_ended()) {
                profile.read(target, &reading.health, time);
            }
        }
        self.health = reading.health;
    }

    fn end(&mut self, id: u32, by: &'static str, now: i64) {
        if let Some(profile) = self.profiles.get_mut(&id) {
            profile.end(now, by);
            // Of one that nothing was told of nothing needs to be.
            if profile.is_untold() {
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
