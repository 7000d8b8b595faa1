//! Metrics of the memory pillar.

use std::sync::Arc;

use prometheus_client::registry::Registry;

use super::{
    metrics::{KINDS, NodeMetrics, RESIDENT},
    profile_store::ProfileStore,
};
use crate::{
    openmetrics::{counters, gauge, gauges, node, signed},
    pillar::PillarStatus,
    thread::Heartbeat,
};

impl PillarStatus for ProfileStore {
    fn register(&self, registry: &mut Registry) {
        let metrics = self.metrics();
        let nodes = &metrics.nodes;
        let samples = nodes.iter().map(|(of, metrics)| (node(of), signed(metrics.processes)));
        gauges(registry, "memory_processes", "Processes whose memory is profiled", samples);
        type Column = (&'static str, &'static str, &'static [&'static str; 3], fn(&NodeMetrics) -> &[u64; 3]);
        let columns: [Column; 3] = [
            ("memory_resident_bytes", "Resident memory as the kernel counts it", &RESIDENT, |node| {
                &node.resident_bytes
            }),
            ("memory_attributed_bytes", "Memory with a known allocation stack", &KINDS, |node| &node.attributed_bytes),
            (
                "memory_before_attach_bytes",
                "Memory that was resident before the profile began, and still is",
                &KINDS,
                |node| &node.before_attach_bytes,
            ),
        ];
        for (name, help, kinds, values) in columns {
            let mut samples = Vec::new();
            for (of, metrics) in nodes {
                for (kind, value) in kinds.iter().zip(values(metrics)) {
                    samples.push((of_kind(of, "kind", kind), signed(*value)));
                }
            }
            gauges(registry, name, help, samples);
        }
        let help = "Anonymous memory of which the kernel's count and the profile differ";
        let samples = nodes.iter().map(|(of, metrics)| (node(of), metrics.unattributed_bytes));
        gauges(registry, "memory_unattributed_bytes", help, samples);
        let stacks = |(of, metrics): (&Arc<str>, &NodeMetrics)| {
            let samples = metrics.stacks.iter().map(|(end, count)| (of_kind(of, "end", end), signed(*count)));
            samples.collect::<Vec<_>>()
        };
        let help = "Stacks of the profiled processes, by how their unwinding ended";
        gauges(registry, "memory_stacks", help, nodes.iter().flat_map(stacks));
        let lost = metrics.lost.iter().map(|(reason, count)| (vec![("reason", (*reason).to_owned())], *count));
        counters(registry, "memory_lost", "Events that the memory profiler could not account for, by reason", lost);
        let late = [(Vec::new(), metrics.late_files)];
        counters(registry, "memory_late_files", "Files that were not opened or read in time for their symbols", late);
        for (name, help, value) in [
            ("memory_tree_calls", "Calls in the tree of all stacks", metrics.calls),
            ("memory_tree_capacity", "Calls that fit into the tree", metrics.calls_capacity),
            (
                "memory_refused_files",
                "Files without a whole unwind table; the log has the causes",
                metrics.refused_files,
            ),
            ("memory_symbol_bytes", "Memory used to read symbols", metrics.symbol_bytes),
            (
                "memory_failed",
                "1 if no memory can be profiled; the log has the cause",
                u64::from(metrics.error.is_some()),
            ),
        ] {
            gauge(registry, name, help, value);
        }
    }

    fn heartbeats(&self) -> Vec<Heartbeat> {
        let heartbeats = self.heartbeats();
        [&heartbeats.watcher, &heartbeats.symbolizer].into_iter().chain(&heartbeats.calls).cloned().collect()
    }

    fn error(&self) -> Option<String> {
        Self::error(self)
    }
}

/// Labels: the node and one further label.
fn of_kind(of: &str, name: &'static str, value: &str) -> Vec<(&'static str, String)> {
    vec![("node", of.to_owned()), (name, value.to_owned())]
}
