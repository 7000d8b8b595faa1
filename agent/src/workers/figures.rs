//! Counts of a pillar with a thread for each process: by process for reports, by node for metrics.

use std::{collections::BTreeMap, fmt, sync::Arc};

use parking_lot::Mutex;
use prometheus_client::registry::Registry;

use super::Subject;
use crate::{
    figures::{LiveTally, Tally, TargetTallies},
    openmetrics::{gauges, node},
    pillar::PillarStatus,
    thread::Heartbeat,
};

/// What a pillar counts of a process.
pub(crate) trait ProcessCounts: Clone + fmt::Debug + Default + Send + 'static {
    /// Name and help of the gauges of what probes are attached to, and of processes with an error.
    const GAUGES: [(&'static str, &'static str); 2];

    /// Adds the counts of another process of the node.
    fn merge(&mut self, other: &Self);

    /// What reports show of a process: `attached` as in [`Figures::attached`], and why not to all, or empty.
    fn tally(&self, attached: u32, error: String) -> Tally;

    /// Registers the counts of all nodes.
    fn register(nodes: &BTreeMap<Arc<str>, Self>, registry: &mut Registry);
}

/// Shared by the threads of the processes and those that serve metrics and reports.
#[derive(Debug, Default)]
pub(crate) struct Figures<C>(Mutex<Inner<C>>);

#[derive(Debug, Default)]
struct Inner<C> {
    processes: BTreeMap<u32, Process<C>>,
    /// Of processes that ended, by node.
    ended: BTreeMap<Arc<str>, C>,
    /// Of processes of pods that ended since the last report.
    pods_ended: Vec<(String, Tally)>,
    /// Counts changes that a report should show soon.
    version: u64,
}

#[derive(Debug)]
struct Process<C> {
    subject: Subject,
    /// Number of locations or functions that the probe is attached to.
    attached: u32,
    /// Why it is not attached, or not to all.
    error: Option<String>,
    counts: C,
    heartbeat: Option<Heartbeat>,
}

impl<C: ProcessCounts> Figures<C> {
    /// A process is to be observed.
    pub(crate) fn start(&self, subject: &Subject, heartbeat: Option<Heartbeat>) {
        let mut inner = self.0.lock();
        inner.retire(subject.pid);
        let process = Process { subject: subject.clone(), attached: 0, error: None, counts: C::default(), heartbeat };
        inner.processes.insert(subject.pid, process);
        inner.version += 1;
    }

    /// The probe is attached to `count` locations or functions; `fault` is why not to all.
    pub(crate) fn attached(&self, subject: &Subject, count: u32, fault: Option<String>) {
        self.update(subject, |process| (process.attached, process.error) = (count, fault));
    }

    /// The process cannot be observed.
    pub(crate) fn fail(&self, subject: &Subject, cause: String) {
        self.update(subject, |process| (process.attached, process.error) = (0, Some(cause)));
    }

    fn update(&self, subject: &Subject, update: impl FnOnce(&mut Process<C>)) {
        let mut inner = self.0.lock();
        inner.version += 1;
        if let Some(process) = inner.process(subject) {
            update(process);
        }
    }

    /// The counts of a thread since it began.
    pub(crate) fn set_counts(&self, subject: &Subject, counts: &C) {
        if let Some(process) = self.0.lock().process(subject) {
            process.counts.clone_from(counts);
        }
    }

    /// The thread of a process has ended.
    pub(crate) fn end(&self, subject: &Subject) {
        let mut inner = self.0.lock();
        if inner.process(subject).is_some() {
            inner.retire(subject.pid);
        }
    }

    /// A process that has no thread has ended.
    pub(crate) fn forget(&self, pid: u32) {
        self.0.lock().retire(pid);
    }
}

impl<C: ProcessCounts> Inner<C> {
    /// The process of a thread; `None` if another one has its id by now, because the thread is ending.
    fn process(&mut self, subject: &Subject) -> Option<&mut Process<C>> {
        self.processes.get_mut(&subject.pid).filter(|process| process.subject == *subject)
    }

    fn retire(&mut self, pid: u32) {
        let Some(process) = self.processes.remove(&pid) else { return };
        self.version += 1;
        self.ended.entry(Arc::clone(&process.subject.node)).or_default().merge(&process.counts);
        if let Some(pod) = process.subject.pod {
            self.pods_ended.push((pod, process.counts.tally(0, String::new())));
        }
    }

    /// The counts of each node, of processes that ended as well.
    fn by_node(&self) -> BTreeMap<Arc<str>, C> {
        let mut nodes = self.ended.clone();
        for process in self.processes.values() {
            nodes.entry(Arc::clone(&process.subject.node)).or_default().merge(&process.counts);
        }
        nodes
    }
}

impl<C: ProcessCounts> PillarStatus for Figures<C> {
    fn register(&self, registry: &mut Registry) {
        let inner = self.0.lock();
        C::register(&inner.by_node(), registry);
        let [attached, failed] = C::GAUGES;
        let mut gauge = |(name, help): (&str, &str), value: fn(&Process<C>) -> i64| {
            let mut sums = BTreeMap::<Arc<str>, i64>::new();
            for process in inner.processes.values() {
                *sums.entry(Arc::clone(&process.subject.node)).or_default() += value(process);
            }
            gauges(registry, name, help, sums.into_iter().map(|(of, sum)| (node(&of), sum)));
        };
        gauge(attached, |process| process.attached.into());
        gauge(failed, |process| process.error.is_some().into());
    }

    fn heartbeats(&self) -> Vec<Heartbeat> {
        let inner = self.0.lock();
        let heartbeats = inner.processes.values().filter_map(|process| process.heartbeat.clone());
        // One stage: the thread that has made no progress for the longest time.
        heartbeats.max_by_key(Heartbeat::age).into_iter().collect()
    }

    fn version(&self) -> u64 {
        self.0.lock().version
    }

    fn tally(&self, tallies: &mut TargetTallies) {
        let mut inner = self.0.lock();
        for (pid, process) in &inner.processes {
            let Subject { node, pod, .. } = &process.subject;
            let tally = process.counts.tally(process.attached, process.error.clone().unwrap_or_default());
            tallies.add(*pid, LiveTally { node: Arc::clone(node), pod: pod.clone(), tally });
        }
        tallies.ended.append(&mut inner.pods_ended);
    }
}
