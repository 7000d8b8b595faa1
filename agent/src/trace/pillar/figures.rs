//! Counts of the tracepoints pillar: by process for reports, by node and tracepoint for metrics.

use std::{collections::BTreeMap, sync::Arc};

use chainscope_hygiene::EscapedTruncated;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;

use crate::{
    figures::{LiveTally, Tally, TargetTallies},
    openmetrics::{counters, gauges, node},
    pillar::PillarStatus,
    thread::Heartbeat,
    workers::Subject,
};

/// Tracepoints of a node that have metrics of their own; those of the others are one. Names come from the node's files.
const MAX_TRACEPOINTS: usize = 256;
/// The name of the others.
const OTHERS: &str = "other";

/// Hits of a tracepoint: `hits = recorded + filtered + dropped`, plus what is on its way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) hits: u64,
    /// Events that were added to the record stream.
    pub(super) recorded: u64,
    /// Events that no rule selects.
    pub(super) filtered: u64,
    /// Events that were lost, by reason.
    pub(super) dropped: BTreeMap<String, u64>,
    /// Time of the newest recorded event.
    pub(super) last_ns: i64,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.recorded += other.recorded;
        self.filtered += other.filtered;
        for (reason, count) in &other.dropped {
            *self.dropped.entry(reason.clone()).or_default() += count;
        }
        self.last_ns = self.last_ns.max(other.last_ns);
    }
}

/// Shared by the tracers and the threads that serve metrics and reports.
#[derive(Debug, Default)]
pub(super) struct Figures(Mutex<Inner>);

type ByTracepoint = BTreeMap<String, Counts>;

#[derive(Debug, Default)]
struct Inner {
    processes: BTreeMap<u32, Process>,
    /// Of processes that ended, by node.
    ended: BTreeMap<Arc<str>, ByTracepoint>,
    /// Of processes of pods that ended since the last report.
    pods_ended: Vec<(String, Tally)>,
    /// Counts changes that a report should show soon.
    version: u64,
}

#[derive(Debug)]
struct Process {
    subject: Subject,
    /// Locations that the probe is attached to.
    attached: u32,
    /// Why it is not attached, or not to all.
    error: Option<String>,
    counts: ByTracepoint,
    heartbeat: Option<Heartbeat>,
}

impl Process {
    fn tally(&self) -> Tally {
        let counts = || self.counts.values();
        Tally {
            trace_events: counts().map(|counts| counts.recorded).sum(),
            trace_events_lost: counts().flat_map(|counts| counts.dropped.values()).sum(),
            trace_attached: self.attached,
            trace_error: self.error.clone().unwrap_or_default(),
            last_record_ns: counts().map(|counts| counts.last_ns).max().unwrap_or(0),
            ..Tally::default()
        }
    }
}

impl Figures {
    /// A process is to be traced.
    pub(super) fn start(&self, subject: &Subject, heartbeat: Option<Heartbeat>) {
        let mut inner = self.0.lock();
        inner.retire(subject.pid);
        let process =
            Process { subject: subject.clone(), attached: 0, error: None, counts: ByTracepoint::new(), heartbeat };
        inner.processes.insert(subject.pid, process);
        inner.version += 1;
    }

    /// The probe is attached; `fault` is why not to all tracepoints.
    pub(super) fn attached(&self, subject: &Subject, locations: u32, fault: Option<String>) {
        self.update(subject, |process| (process.attached, process.error) = (locations, fault));
    }

    pub(super) fn fail(&self, subject: &Subject, cause: String) {
        self.update(subject, |process| (process.attached, process.error) = (0, Some(cause)));
    }

    fn update(&self, subject: &Subject, update: impl FnOnce(&mut Process)) {
        let mut inner = self.0.lock();
        inner.version += 1;
        // A tracer that is ending may belong to an earlier process of this id.
        if let Some(process) = inner.processes.get_mut(&subject.pid).filter(|process| process.subject == *subject) {
            update(process);
        }
    }

    /// The counts of a tracer since it began.
    pub(super) fn set_counts(&self, subject: &Subject, counts: &ByTracepoint) {
        let mut inner = self.0.lock();
        if let Some(process) = inner.processes.get_mut(&subject.pid).filter(|process| process.subject == *subject) {
            process.counts.clone_from(counts);
        }
    }

    /// The tracer of a process has ended.
    pub(super) fn end(&self, subject: &Subject) {
        let mut inner = self.0.lock();
        if inner.processes.get(&subject.pid).is_some_and(|process| process.subject == *subject) {
            inner.retire(subject.pid);
        }
    }

    /// A process that has no tracer has ended.
    pub(super) fn forget(&self, pid: u32) {
        self.0.lock().retire(pid);
    }
}

impl Inner {
    fn retire(&mut self, pid: u32) {
        let Some(process) = self.processes.remove(&pid) else { return };
        self.version += 1;
        let ended = self.ended.entry(Arc::clone(&process.subject.node)).or_default();
        for (name, counts) in &process.counts {
            bounded(ended, name).add(counts);
        }
        if let Some(pod) = &process.subject.pod {
            let tally = Tally { trace_attached: 0, trace_error: String::new(), ..process.tally() };
            self.pods_ended.push((pod.clone(), tally));
        }
    }

    /// The counts of each node, of processes that ended as well.
    fn by_node(&self) -> BTreeMap<Arc<str>, ByTracepoint> {
        let mut nodes = self.ended.clone();
        for process in self.processes.values() {
            let of = nodes.entry(Arc::clone(&process.subject.node)).or_default();
            for (name, counts) in &process.counts {
                bounded(of, name).add(counts);
            }
        }
        nodes
    }
}

/// The counts of a tracepoint, or of the others if there are too many.
fn bounded<'a>(of: &'a mut ByTracepoint, name: &str) -> &'a mut Counts {
    let is_known = of.contains_key(name) || of.len() < MAX_TRACEPOINTS;
    of.entry(if is_known { name } else { OTHERS }.to_owned()).or_default()
}

impl PillarStatus for Figures {
    fn register(&self, registry: &mut Registry) {
        let inner = self.0.lock();
        let nodes = inner.by_node();
        let labels = |of: &Arc<str>, tracepoint: &str| {
            let mut labels = node(of);
            labels.push(("tracepoint", EscapedTruncated(tracepoint).to_string()));
            labels
        };
        let mut family = |name: &str, help: &str, value: fn(&Counts) -> u64| {
            let samples = nodes.iter().flat_map(|(of, counts)| {
                counts.iter().map(move |(tracepoint, counts)| (labels(of, tracepoint), value(counts)))
            });
            counters(registry, name, help, samples);
        };
        family("tracepoint_hits", "Hits of attached tracepoints", |counts| counts.hits);
        family("tracepoint_events", "Events of tracepoints added to record streams", |counts| counts.recorded);
        family("tracepoint_events_filtered", "Events of tracepoints that no rule selects", |counts| counts.filtered);
        let dropped = nodes.iter().flat_map(|(of, counts)| {
            counts.iter().flat_map(move |(tracepoint, counts)| {
                counts.dropped.iter().map(move |(reason, count)| {
                    let mut labels = labels(of, tracepoint);
                    labels.push(("reason", reason.clone()));
                    (labels, *count)
                })
            })
        });
        counters(registry, "tracepoint_events_dropped", "Events of tracepoints that were lost, by reason", dropped);
        let mut gauge = |name: &str, help: &str, value: fn(&Process) -> i64| {
            let mut sums = BTreeMap::<Arc<str>, i64>::new();
            for process in inner.processes.values() {
                *sums.entry(Arc::clone(&process.subject.node)).or_default() += value(process);
            }
            gauges(registry, name, help, sums.into_iter().map(|(of, sum)| (node(&of), sum)));
        };
        gauge("tracepoints_attached", "Locations of tracepoints that probes are attached to", |process| {
            process.attached.into()
        });
        gauge("tracepoints_failed", "Processes of which tracepoints cannot be recorded, or not all", |process| {
            process.error.is_some().into()
        });
    }

    fn heartbeats(&self) -> Vec<Heartbeat> {
        let inner = self.0.lock();
        let heartbeats = inner.processes.values().filter_map(|process| process.heartbeat.clone());
        // One stage: the tracer that has made no progress for the longest time.
        heartbeats.max_by_key(Heartbeat::age).into_iter().collect()
    }

    fn version(&self) -> u64 {
        self.0.lock().version
    }

    fn tally(&self, tallies: &mut TargetTallies) {
        let mut inner = self.0.lock();
        for (pid, process) in &inner.processes {
            let Subject { node, pod, .. } = &process.subject;
            let none = || LiveTally { node: Arc::clone(node), pod: pod.clone(), tally: Tally::default() };
            // The network pillar may have added what it counts of the process.
            let live = tallies.live.entry(*pid).or_insert_with(none);
            live.tally = live.tally.sum(&process.tally());
        }
        tallies.ended.append(&mut inner.pods_ended);
    }
}
