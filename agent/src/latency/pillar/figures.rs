//! Counts of the latency pillar: by process for reports, by node for metrics.

use std::{collections::BTreeMap, sync::Arc};

use chainscope_latency::Block;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;

use crate::{
    figures::{LiveTally, Tally, TargetTallies},
    openmetrics::{counters, gauges, node},
    pillar::PillarStatus,
    thread::Heartbeat,
    workers::Subject,
};

/// What was recorded of the functions of a process: `ended spans = spans + not_kept`, plus those of the block that is counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Records of blocks.
    pub(super) blocks: u64,
    pub(super) spans: u64,
    /// Spans of blocks that did not fit into the record stream.
    pub(super) not_kept: u64,
    /// Spans that were found not to end.
    pub(super) unended: u64,
    /// What the probe has lost, by reason.
    pub(super) lost: BTreeMap<&'static str, u64>,
    /// Start of the newest recorded block.
    pub(super) last_ns: i64,
}

impl Counts {
    /// Adds a block that was recorded.
    pub(super) fn add(&mut self, block: &Block) {
        self.spans += block.histogram.count();
        self.unended += block.unended;
        for (reason, count) in &block.lost {
            *self.lost.entry(reason.as_str()).or_default() += count;
        }
    }

    fn merge(&mut self, other: &Self) {
        self.blocks += other.blocks;
        self.spans += other.spans;
        self.not_kept += other.not_kept;
        self.unended += other.unended;
        for (reason, count) in &other.lost {
            *self.lost.entry(reason).or_default() += count;
        }
    }
}

/// Shared by the timers and the threads that serve metrics and reports.
#[derive(Debug, Default)]
pub(super) struct Figures(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    processes: BTreeMap<u32, Process>,
    /// Of processes that ended, by node.
    ended: BTreeMap<Arc<str>, Counts>,
    /// Counts changes that a report should show soon.
    version: u64,
}

#[derive(Debug)]
struct Process {
    subject: Subject,
    /// Functions that are timed.
    functions: u32,
    /// Why none is, or not all are.
    error: Option<String>,
    counts: Counts,
    heartbeat: Option<Heartbeat>,
}

impl Figures {
    /// Functions of a process are to be timed.
    pub(super) fn start(&self, subject: &Subject, heartbeat: Option<Heartbeat>) {
        let mut inner = self.0.lock();
        inner.retire(subject.pid);
        let process =
            Process { subject: subject.clone(), functions: 0, error: None, counts: Counts::default(), heartbeat };
        inner.processes.insert(subject.pid, process);
        inner.version += 1;
    }

    /// The probe is attached; `fault` is why not to all functions.
    pub(super) fn attached(&self, subject: &Subject, functions: u32, fault: Option<String>) {
        self.update(subject, |process| (process.functions, process.error) = (functions, fault));
    }

    pub(super) fn fail(&self, subject: &Subject, cause: String) {
        self.update(subject, |process| (process.functions, process.error) = (0, Some(cause)));
    }

    fn update(&self, subject: &Subject, update: impl FnOnce(&mut Process)) {
        let mut inner = self.0.lock();
        inner.version += 1;
        // A timer that is ending may belong to an earlier process of this id.
        if let Some(process) = inner.processes.get_mut(&subject.pid).filter(|process| process.subject == *subject) {
            update(process);
        }
    }

    /// The counts of a timer since it began.
    pub(super) fn set_counts(&self, subject: &Subject, counts: &Counts) {
        let mut inner = self.0.lock();
        if let Some(process) = inner.processes.get_mut(&subject.pid).filter(|process| process.subject == *subject) {
            process.counts.clone_from(counts);
        }
    }

    /// The timer of a process has ended.
    pub(super) fn end(&self, subject: &Subject) {
        let mut inner = self.0.lock();
        if inner.processes.get(&subject.pid).is_some_and(|process| process.subject == *subject) {
            inner.retire(subject.pid);
        }
    }

    /// A process that has no timer has ended.
    pub(super) fn forget(&self, pid: u32) {
        self.0.lock().retire(pid);
    }
}

impl Inner {
    fn retire(&mut self, pid: u32) {
        let Some(process) = self.processes.remove(&pid) else { return };
        self.version += 1;
        self.ended.entry(Arc::clone(&process.subject.node)).or_default().merge(&process.counts);
    }
}

impl PillarStatus for Figures {
    fn register(&self, registry: &mut Registry) {
        let inner = self.0.lock();
        let mut nodes = inner.ended.clone();
        for process in inner.processes.values() {
            nodes.entry(Arc::clone(&process.subject.node)).or_default().merge(&process.counts);
        }
        let mut family = |name: &str, help: &str, value: fn(&Counts) -> u64| {
            counters(registry, name, help, nodes.iter().map(|(of, counts)| (node(of), value(counts))));
        };
        family("latency_blocks", "Blocks of the latency of functions added to record streams", |counts| counts.blocks);
        family("latency_spans", "Spans of functions in these blocks", |counts| counts.spans);
        let help = "Spans of functions whose blocks did not fit into the record stream";
        family("latency_spans_dropped", help, |counts| counts.not_kept);
        family("latency_spans_unended", "Spans of functions that were found not to end", |counts| counts.unended);
        let lost = nodes.iter().flat_map(|(of, counts)| {
            counts.lost.iter().map(move |(reason, count)| {
                let mut labels = node(of);
                labels.push(("reason", (*reason).to_owned()));
                (labels, *count)
            })
        });
        counters(registry, "latency_lost", "Spans and return codes that are missing in blocks, by reason", lost);
        let mut gauge = |name: &str, help: &str, value: fn(&Process) -> i64| {
            let mut sums = BTreeMap::<Arc<str>, i64>::new();
            for process in inner.processes.values() {
                *sums.entry(Arc::clone(&process.subject.node)).or_default() += value(process);
            }
            gauges(registry, name, help, sums.into_iter().map(|(of, sum)| (node(&of), sum)));
        };
        gauge("latency_functions", "Functions that are timed", |process| process.functions.into());
        gauge("latency_failed", "Processes of which functions cannot be timed, or not all", |process| {
            process.error.is_some().into()
        });
    }

    fn heartbeats(&self) -> Vec<Heartbeat> {
        let inner = self.0.lock();
        let heartbeats = inner.processes.values().filter_map(|process| process.heartbeat.clone());
        // One stage: the timer that has made no progress for the longest time.
        heartbeats.max_by_key(Heartbeat::age).into_iter().collect()
    }

    fn version(&self) -> u64 {
        self.0.lock().version
    }

    fn tally(&self, tallies: &mut TargetTallies) {
        let inner = self.0.lock();
        for (pid, process) in &inner.processes {
            let Subject { node, pod, .. } = &process.subject;
            let none = || LiveTally { node: Arc::clone(node), pod: pod.clone(), tally: Tally::default() };
            // Another pillar may have added what it counts of the process.
            let live = tallies.live.entry(*pid).or_insert_with(none);
            live.tally = live.tally.sum(&Tally {
                latency_functions: process.functions,
                latency_error: process.error.clone().unwrap_or_default(),
                last_record_ns: process.counts.last_ns,
                ..Tally::default()
            });
        }
    }
}
