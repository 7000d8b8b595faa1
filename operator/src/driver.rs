//! The loop around the engine: changes in, and while this replica leads what follows from them out.
//!
//! Every replica keeps its engine up to date, so that a new leader has nothing to read. Only the leader decides, and it
//! publishes what agents should do only once it has seen every node, pod and Secret: a snapshot that lacks some would
//! make agents stop.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::jiff::Timestamp;
use tokio::{
    sync::{mpsc, watch},
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::{
        events::Limiter,
        watch::{Change, Secrets, Seen},
        write::{Statuses, Written},
    },
    desired::{Desired, Reports},
    metrics::{ChangeLabels, Metrics, Watched, WriteLabels, WriteResult},
    reconcile::{Engine, Happening, Key, Outcome},
};

/// How often time is looked at, and agents' reports at least lie apart.
const TICK: Duration = Duration::from_secs(1);
/// Changes that are taken at once.
const BATCH: usize = 1024;
/// How long a new leader waits for Secrets that cannot be read.
const SECRETS: Duration = Duration::from_secs(10);

/// What comes in, and where what follows goes.
pub struct Driver {
    /// The state of the decision.
    pub engine: Engine,
    /// What the watches see.
    pub changes: mpsc::Receiver<Change>,
    /// The watches of Secrets.
    pub secrets: Secrets,
    /// What the agents say.
    pub reports: watch::Receiver<Arc<Reports>>,
    /// Whether this replica leads.
    pub leading: watch::Receiver<bool>,
    /// What agents and aggregator should do.
    pub desired: watch::Sender<Arc<Desired>>,
    /// Whether `desired` is whole and this replica leads.
    pub serving: watch::Sender<bool>,
    /// Whether the first lists are complete.
    pub synced: watch::Sender<bool>,
    /// Statuses on their way.
    pub statuses: Statuses,
    /// Events on their way.
    pub events: mpsc::Sender<Happening>,
    /// Counts of what happens.
    pub metrics: Metrics,
}

/// What a list has shown so far.
#[derive(Debug, Default)]
struct Listing {
    /// In the list that is being read; none between lists.
    seen: Option<BTreeSet<Key>>,
    /// Whether one was complete.
    complete: bool,
}

impl Listing {
    /// Says what is to be done: apply, remove, or remove whatever the list lacked.
    fn note<T>(&mut self, seen: &Seen<T>) -> Option<BTreeSet<Key>> {
        match seen {
            Seen::Begin => self.seen = Some(BTreeSet::new()),
            Seen::Here(key, _) => {
                if let Some(seen) = &mut self.seen {
                    seen.insert(key.clone());
                }
            }
            Seen::Gone(_) => {}
            Seen::End => {
                self.complete = true;
                return self.seen.take();
            }
        }
        None
    }
}

/// What the loop keeps beside the engine.
#[derive(Debug, Default)]
struct Memory {
    nodes: Listing,
    pods: Listing,
    limiter: Limiter,
    leads_since: Option<Instant>,
    /// A second has passed.
    ripe: bool,
    /// What was decided so far lacked Secrets.
    lacked: bool,
}

impl Driver {
    /// Goes on until told to stop.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut memory = Memory::default();
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                changed = self.leading.changed() => if changed.is_err() { break },
                // Rare, and never late behind a flood of changes.
                _ = tick.tick() => memory.ripe = true,
                count = self.changes.recv_many(&mut batch, BATCH) => if count == 0 { break },
                (key, written) = self.statuses.next() => self.written(&key, written),
            }
            for change in batch.drain(..) {
                self.take(change, &mut memory);
            }
            self.lead(&mut memory);
            self.decide(&mut memory);
        }
        self.serving.send_replace(false);
    }

    fn take(&mut self, change: Change, memory: &mut Memory) {
        let kind = match change {
            Change::Node(seen) => {
                if let Some(listed) = memory.nodes.note(&seen) {
                    let gone: Vec<_> = self.engine.nodes().filter(|key| !listed.contains(key)).cloned().collect();
                    gone.iter().for_each(|key| self.engine.delete_node(key));
                    self.metrics.lists.get_or_create(&ChangeLabels { kind: Watched::TezosNode }).inc();
                }
                match *seen {
                    Seen::Here(_, input) => self.engine.apply_node(input),
                    Seen::Gone(key) => self.engine.delete_node(&key),
                    Seen::Begin | Seen::End => return,
                }
                Watched::TezosNode
            }
            Change::Pod(seen) => {
                if let Some(listed) = memory.pods.note(&seen) {
                    let gone: Vec<_> = self.engine.pods().filter(|key| !listed.contains(key)).cloned().collect();
                    gone.iter().for_each(|key| self.engine.delete_pod(key));
                    self.metrics.lists.get_or_create(&ChangeLabels { kind: Watched::Pod }).inc();
                }
                match seen {
                    Seen::Here(key, input) => self.engine.apply_pod(&key, input),
                    Seen::Gone(key) => self.engine.delete_pod(&key),
                    Seen::Begin | Seen::End => return,
                }
                Watched::Pod
            }
            Change::Secret(key, input) => {
                self.engine.set_secret(&key, input);
                Watched::Secret
            }
        };
        self.metrics.changes.get_or_create(&ChangeLabels { kind }).inc();
    }

    /// Begins or ceases to lead.
    fn lead(&mut self, memory: &mut Memory) {
        let complete = memory.nodes.complete && memory.pods.complete;
        self.synced.send_if_modified(|synced| std::mem::replace(synced, complete) != complete);
        let leads = complete && *self.leading.borrow();
        match (leads, memory.leads_since) {
            (true, None) => {
                self.engine.begin(now_ns());
                memory.leads_since = Some(Instant::now());
                memory.lacked = false;
                self.metrics.leading.set(1);
            }
            (false, Some(_)) => {
                memory.leads_since = None;
                self.statuses.clear();
                self.serving.send_replace(false);
                self.metrics.leading.set(0);
            }
            _ => {}
        }
    }

    fn decide(&mut self, memory: &mut Memory) {
        let Some(since) = memory.leads_since else { return };
        let ripe = std::mem::take(&mut memory.ripe);
        if ripe && *self.serving.borrow() {
            let reports = Arc::clone(&self.reports.borrow_and_update());
            self.engine.set_reports(&reports);
        }
        let mut outcome = self.reconcile();
        if !*self.serving.borrow() {
            if self.engine.awaits_secrets() && since.elapsed() < SECRETS {
                memory.lacked = true;
                return;
            }
            if std::mem::take(&mut memory.lacked) {
                self.engine.begin(now_ns());
                outcome = self.reconcile();
            }
        }
        let Outcome { desired, statuses, events, .. } = outcome;
        if let Some(desired) = desired {
            self.desired.send_replace(desired);
        }
        self.serving.send_if_modified(|serving| !std::mem::replace(serving, true));
        if ripe {
            self.metrics.set(&self.engine.counts());
        }
        for status in statuses {
            self.statuses.add(status);
        }
        for event in events {
            self.tell(event, &mut memory.limiter);
        }
    }

    fn reconcile(&mut self) -> Outcome {
        let began = Instant::now();
        let outcome = self.engine.reconcile(now_ns());
        self.metrics.reconcile_seconds.observe(began.elapsed().as_secs_f64());
        if outcome.secrets_changed {
            self.secrets.follow(self.engine.secrets());
        }
        outcome
    }

    fn tell(&mut self, event: Happening, limiter: &mut Limiter) {
        // A full queue holds back as well: Events never hold anything up.
        if limiter.may(&event.node, now_ns()) && self.events.try_send(event).is_ok() {
            self.metrics.events.inc();
        } else {
            self.metrics.events_held_back.inc();
        }
    }

    fn written(&mut self, key: &Key, written: Written) {
        let result = match written {
            Written::Stored => WriteResult::Stored,
            Written::Gone => WriteResult::Gone,
            Written::Failed => WriteResult::Failed,
        };
        self.metrics.status_writes.get_or_create(&WriteLabels { result }).inc();
        if written == Written::Failed {
            self.engine.write_failed(key);
        }
    }
}

fn now_ns() -> i64 {
    i64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}
