//! The I/O shell of the reconciler: feeds it watch events and agent reports, and publishes its results while this
//! replica is the leader.
//!
//! Every replica keeps its reconciler up to date, so that a new leader does not have to list again. The leader publishes
//! the desired state only after all nodes, pods and Secrets have been read, because agents stop observing pods that are
//! absent from a snapshot.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use kube::runtime::watcher::Event;
use tokio::{
    sync::{mpsc, watch},
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use crate::{
    clock::{Moment, monotonic_ns},
    cluster::{
        events::EventRateLimiter,
        status::{StatusWriter, WriteOutcome},
        watch::{ObjectChange, SecretWatches},
    },
    desired::{Desired, Reports},
    metrics::{ChangeLabels, Metrics, ObjectKind, WriteLabels, WriteResult},
    reconcile::{EventRecord, Key, NodeKind, Outcome, Reconciler},
};

/// Interval of time-dependent decisions, and minimum interval between two updates of the agents' reports.
const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of changes applied between two reconciliations.
const MAX_BATCH: usize = 1024;
/// Time that a new leader waits for Secrets that have not been read.
const SECRETS_TIMEOUT: Duration = Duration::from_secs(10);

/// The controller with its inputs and outputs.
pub struct Controller {
    /// Computes the results.
    pub reconciler: Reconciler,
    /// Changes of watched objects.
    pub changes: mpsc::Receiver<ObjectChange>,
    /// Watches of the referenced Secrets.
    pub secrets: SecretWatches,
    /// Reports of the agents.
    pub reports: watch::Receiver<Arc<Reports>>,
    /// Whether this replica holds the Lease.
    pub is_leader: watch::Receiver<bool>,
    /// Receives the desired state.
    pub desired: watch::Sender<Arc<Desired>>,
    /// Receives whether this replica is the leader and `desired` is complete.
    pub serving: watch::Sender<bool>,
    /// Receives whether the initial lists are complete.
    pub synced: watch::Sender<bool>,
    /// Writes statuses.
    pub statuses: StatusWriter,
    /// Queue of Events to create.
    pub events: mpsc::Sender<EventRecord>,
    /// Metrics.
    pub metrics: Metrics,
}

/// Tracks the objects of a list, to find those that were deleted while the watch was interrupted.
#[derive(Debug, Default)]
struct ListTracker {
    /// Keys of the current list; `None` between lists.
    listed: Option<BTreeSet<Key>>,
    /// Whether a list completed.
    is_complete: bool,
}

impl ListTracker {
    /// Tracks an event. Returns the keys of all existing objects at the end of a list.
    fn track<T>(&mut self, event: &Event<(Key, T)>) -> Option<BTreeSet<Key>> {
        match event {
            Event::Init => self.listed = Some(BTreeSet::new()),
            Event::InitApply((key, _)) => {
                if let Some(listed) = &mut self.listed {
                    listed.insert(key.clone());
                }
            }
            Event::Apply(_) | Event::Delete(_) => {}
            Event::InitDone => {
                self.is_complete = true;
                return self.listed.take();
            }
        }
        None
    }
}

/// State of the control loop.
#[derive(Debug, Default)]
struct LoopState {
    nodes: ListTracker,
    traces: ListTracker,
    pods: ListTracker,
    limiter: EventRateLimiter,
    leader_since: Option<Instant>,
    /// Whether a tick has passed since the last decision.
    ticked: bool,
    /// Whether the results of this leadership term were computed without all Secrets.
    lacked_secrets: bool,
}

impl Controller {
    /// Runs until `stop` is cancelled.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut state = LoopState::default();
        let mut tick = interval(TICK_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut batch = Vec::with_capacity(MAX_BATCH);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                changed = self.is_leader.changed() => if changed.is_err() { break },
                // Before the changes: a continuous stream of changes must not delay the tick.
                _ = tick.tick() => state.ticked = true,
                count = self.changes.recv_many(&mut batch, MAX_BATCH) => if count == 0 { break },
                (key, outcome) = self.statuses.next() => self.write_completed(&key, outcome),
            }
            for change in batch.drain(..) {
                self.apply_change(change, &mut state);
            }
            self.update_leadership(&mut state);
            self.publish(&mut state);
        }
        self.serving.send_replace(false);
    }

    fn apply_change(&mut self, change: ObjectChange, state: &mut LoopState) {
        let kind = match change {
            ObjectChange::Node(kind, event) => {
                let (tracker, object_kind) = match kind {
                    NodeKind::TezosNode => (&mut state.nodes, ObjectKind::TezosNode),
                    NodeKind::NodeTrace => (&mut state.traces, ObjectKind::NodeTrace),
                };
                if let Some(listed) = tracker.track(&event) {
                    let is_deleted = |key: &&Key| key.resource().0 == kind && !listed.contains(*key);
                    let deleted: Vec<_> = self.reconciler.nodes().filter(is_deleted).cloned().collect();
                    deleted.iter().for_each(|key| self.reconciler.delete_node(key));
                    self.metrics.relists.get_or_create(&ChangeLabels { kind: object_kind }).inc();
                }
                match *event {
                    Event::InitApply((_, input)) | Event::Apply((_, input)) => self.reconciler.apply_node(input),
                    Event::Delete((key, _)) => self.reconciler.delete_node(&key),
                    Event::Init | Event::InitDone => return,
                }
                object_kind
            }
            ObjectChange::Pod(event) => {
                if let Some(listed) = state.pods.track(&event) {
                    let deleted: Vec<_> = self.reconciler.pods().filter(|key| !listed.contains(key)).cloned().collect();
                    deleted.iter().for_each(|key| self.reconciler.delete_pod(key));
                    self.metrics.relists.get_or_create(&ChangeLabels { kind: ObjectKind::Pod }).inc();
                }
                match event {
                    Event::InitApply((key, input)) | Event::Apply((key, input)) => {
                        self.reconciler.apply_pod(&key, input);
                    }
                    Event::Delete((key, _)) => self.reconciler.delete_pod(&key),
                    Event::Init | Event::InitDone => return,
                }
                ObjectKind::Pod
            }
            ObjectChange::Secret(key, input) => {
                self.reconciler.set_secret(&key, input);
                ObjectKind::Secret
            }
        };
        self.metrics.changes.get_or_create(&ChangeLabels { kind }).inc();
    }

    /// Starts or ends a leadership term.
    fn update_leadership(&mut self, state: &mut LoopState) {
        let is_complete = [&state.nodes, &state.traces, &state.pods].iter().all(|list| list.is_complete);
        self.synced.send_if_modified(|synced| std::mem::replace(synced, is_complete) != is_complete);
        let is_leader = is_complete && *self.is_leader.borrow();
        match (is_leader, state.leader_since) {
            (true, None) => {
                self.reconciler.begin(monotonic_ns());
                state.leader_since = Some(Instant::now());
                state.lacked_secrets = false;
                self.metrics.is_leader.set(1);
            }
            (false, Some(_)) => {
                state.leader_since = None;
                self.statuses.clear();
                self.serving.send_replace(false);
                self.metrics.is_leader.set(0);
            }
            _ => {}
        }
    }

    /// Reconciles and publishes the results, if this replica is the leader.
    fn publish(&mut self, state: &mut LoopState) {
        let Some(leader_since) = state.leader_since else { return };
        let ticked = std::mem::take(&mut state.ticked);
        if ticked && *self.serving.borrow() {
            let reports = Arc::clone(&self.reports.borrow_and_update());
            self.reconciler.set_reports(&reports);
        }
        let mut outcome = self.reconcile();
        if !*self.serving.borrow() {
            if self.reconciler.awaits_secrets() && leader_since.elapsed() < SECRETS_TIMEOUT {
                state.lacked_secrets = true;
                return;
            }
            if std::mem::take(&mut state.lacked_secrets) {
                self.reconciler.begin(monotonic_ns());
                outcome = self.reconcile();
            }
        }
        let Outcome { desired, statuses, events, .. } = outcome;
        if let Some(desired) = desired {
            self.desired.send_replace(desired);
        }
        self.serving.send_if_modified(|serving| !std::mem::replace(serving, true));
        if ticked {
            self.metrics.set(&self.reconciler.counts());
        }
        for status in statuses {
            self.statuses.add(status);
        }
        for event in events {
            self.emit(event, &mut state.limiter);
        }
    }

    fn reconcile(&mut self) -> Outcome {
        let began = Instant::now();
        let outcome = self.reconciler.reconcile(Moment::now());
        self.metrics.reconcile_seconds.observe(began.elapsed().as_secs_f64());
        if outcome.secrets_changed {
            self.secrets.set(self.reconciler.secrets());
        }
        outcome
    }

    fn emit(&mut self, event: EventRecord, limiter: &mut EventRateLimiter) {
        // An Event is also dropped if the queue is full: Events never delay the control loop.
        if limiter.allow(&event.node, monotonic_ns()) && self.events.try_send(event).is_ok() {
            self.metrics.events.inc();
        } else {
            self.metrics.events_dropped.inc();
        }
    }

    fn write_completed(&mut self, key: &Key, outcome: WriteOutcome) {
        let result = match outcome {
            WriteOutcome::Applied => WriteResult::Applied,
            WriteOutcome::Gone => WriteResult::Gone,
            WriteOutcome::Failed => WriteResult::Failed,
        };
        self.metrics.status_writes.get_or_create(&WriteLabels { result }).inc();
        if outcome == WriteOutcome::Failed {
            self.reconciler.write_failed(key);
        }
    }
}
