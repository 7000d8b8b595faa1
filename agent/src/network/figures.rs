//! Counts of the network pillar, shared with metrics and reports.

use std::{collections::BTreeMap, sync::Arc};

use chainscope_ebpf::network::Counters;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;

use super::holding::Discarded;
use crate::{
    figures::{LiveTally, Tally, TargetTallies},
    openmetrics::{counter, counters, gauge, gauges, node, signed},
    pillar::PillarStatus,
    thread::Heartbeat,
};

/// What the interpreter's thread publishes about once a second.
#[derive(Debug)]
pub(super) struct Figures {
    inner: Mutex<Inner>,
    heartbeats: Vec<Heartbeat>,
}

#[derive(Debug, Default)]
struct Inner {
    version: u64,
    live: BTreeMap<u32, LiveTally>,
    /// Sums over the ended targets of each node.
    nodes_ended: BTreeMap<Arc<str>, Tally>,
    /// Ended targets of pods, by pod uid, that no report has taken yet.
    pods_ended: Vec<(String, Tally)>,
    /// Refused targets of pods that no report has taken yet.
    refused: Vec<(String, String)>,
    held: HoldingFigures,
    kernel: Counters,
}

/// Counts of the holding buffer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct HoldingFigures {
    pub(super) processes: usize,
    pub(super) bytes: usize,
    pub(super) discarded: Discarded,
}

/// Most entries that wait for a report: without an operator nothing takes them.
const MAX_UNREPORTED: usize = 4096;

impl Figures {
    pub(super) fn new(heartbeats: Vec<Heartbeat>) -> Self {
        Self { inner: Mutex::default(), heartbeats }
    }

    /// Replaces the counts of live targets.
    pub(super) fn update(&self, live: BTreeMap<u32, LiveTally>, held: HoldingFigures) {
        let mut inner = self.inner.lock();
        (inner.live, inner.held) = (live, held);
    }

    /// Replaces the kernel's counts that belong to no process.
    pub(super) fn set_kernel_counters(&self, counters: Counters) {
        self.inner.lock().kernel = counters;
    }

    /// A target began: a report should show it soon.
    pub(super) fn started(&self, pid: u32, live: LiveTally) {
        let mut inner = self.inner.lock();
        inner.live.insert(pid, live);
        inner.version += 1;
    }

    /// A target ended with this tally.
    pub(super) fn ended(&self, pid: u32, node: &Arc<str>, pod: Option<String>, tally: Tally) {
        let mut inner = self.inner.lock();
        inner.live.remove(&pid);
        let ended = inner.nodes_ended.entry(Arc::clone(node)).or_default();
        *ended = Tally { connections_open: 0, ..ended.sum(&tally) };
        if let Some(uid) = pod.filter(|_| inner.pods_ended.len() < MAX_UNREPORTED) {
            inner.pods_ended.push((uid, tally));
        }
        inner.version += 1;
    }

    /// A target is not captured.
    pub(super) fn refused(&self, pod: &str, cause: &str) {
        let mut inner = self.inner.lock();
        // It is repeated while the kernel refuses.
        inner.forget_refused(pod);
        if inner.refused.len() < MAX_UNREPORTED {
            inner.refused.push((pod.to_owned(), cause.to_owned()));
        }
        inner.version += 1;
    }

    /// The kernel captures a target that it refused before.
    pub(super) fn captured(&self, pod: &str) {
        let mut inner = self.inner.lock();
        inner.forget_refused(pod);
        inner.version += 1;
    }
}

impl Inner {
    fn forget_refused(&mut self, pod: &str) {
        self.refused.retain(|(uid, _)| uid != pod);
    }

    /// Observed processes of each node, and the sums over them and those that ended.
    fn nodes(&self) -> BTreeMap<Arc<str>, (u64, Tally)> {
        let mut nodes: BTreeMap<Arc<str>, (u64, Tally)> =
            self.nodes_ended.iter().map(|(node, ended)| (Arc::clone(node), (0, ended.clone()))).collect();
        for LiveTally { node, tally, .. } in self.live.values() {
            let (processes, total) = nodes.entry(Arc::clone(node)).or_default();
            *processes += 1;
            *total = total.sum(tally);
        }
        nodes
    }
}

impl PillarStatus for Figures {
    fn register(&self, registry: &mut Registry) {
        let inner = self.inner.lock();
        let (nodes, held, kernel) = (inner.nodes(), inner.held, inner.kernel);
        drop(inner);
        type Column = (&'static str, &'static str, fn(&(u64, Tally)) -> u64);
        let columns: [Column; 2] = [
            ("processes", "Observed processes", |(processes, _)| *processes),
            ("connections_open", "Connections that are followed", |(_, total)| total.connections_open),
        ];
        for (name, help, value) in columns {
            gauges(registry, name, help, nodes.iter().map(|(of, figures)| (node(of), signed(value(figures)))));
        }
        let columns: [Column; 4] = [
            ("messages", "Messages recorded", |(_, total)| total.messages),
            ("seen_bytes", "Payload that observed processes sent and received", |(_, total)| total.bytes_seen),
            ("lost_bytes", "Payload that was not captured", |(_, total)| total.bytes_lost),
            ("lost_records", "Records that were dropped before they entered a stream", |(_, total)| total.records_lost),
        ];
        for (name, help, value) in columns {
            counters(registry, name, help, nodes.iter().map(|(of, figures)| (node(of), value(figures))));
        }
        let help =
            "Payload that the conservation equation does not explain; not 0 for longer than a moment: a miscount";
        let samples = nodes.iter().map(|(of, (_, total))| (node(of), total.bytes_residual));
        gauges(registry, "residual_bytes", help, samples);
        let over_memory = nodes.iter().flat_map(|(of, (_, total))| {
            let sample = |(reason, count): (&&'static str, &u64)| {
                ([node(of), vec![("reason", (*reason).to_owned())]].concat(), *count)
            };
            total.over_memory.iter().map(sample)
        });
        let help = "Data that a node's sessions dropped because their memory budget was exhausted, by reason";
        counters(registry, "session_memory_exceeded", help, over_memory);
        gauge(registry, "held_processes", "Processes captured before they are configured", held.processes as u64);
        gauge(registry, "held_bytes", "Payload held of them", held.bytes as u64);
        let help = "Held processes that were never configured";
        counter(registry, "discarded_processes", help, held.discarded.processes);
        let help = "Times that a process was not captured before it is configured, because too many others were";
        counter(registry, "refused_processes", help, kernel.refused_processes);
        let help = "Openings and endings of connections that the kernel could not report; what is missing of a connection is shown with it";
        counter(registry, "lost_notices", help, kernel.lost_notices);
        counter(registry, "discarded_bytes", "Payload of them that was dropped", held.discarded.bytes);
    }

    fn heartbeats(&self) -> Vec<Heartbeat> {
        self.heartbeats.clone()
    }

    fn version(&self) -> u64 {
        self.inner.lock().version
    }

    fn tally(&self, tallies: &mut TargetTallies) {
        let mut inner = self.inner.lock();
        for (pid, live) in &inner.live {
            tallies.add(*pid, live.clone());
        }
        tallies.ended.append(&mut inner.pods_ended);
        tallies.refused.append(&mut inner.refused);
    }
}
