//! Metrics of the memory pillar.

use std::sync::Arc;

use prometheus_client::registry::Registry;

use super::{
    board::Board,
    figures::{KINDS, NodeFigures, RESIDENT},
};
use crate::{
    openmetrics::{counters, gauge, gauges, node, signed},
    pillar::PillarStatus,
};

impl PillarStatus for Board {
    fn register(&self, registry: &mut Registry) {
        let figures = self.figures();
        let nodes = &figures.nodes;
        let samples = nodes.iter().map(|(of, figures)| (node(of), signed(figures.processes)));
        gauges(registry, "memory_processes", "Processes whose memory is profiled", samples);
        type Column = (&'static str, &'static str, &'static [&'static str; 3], fn(&NodeFigures) -> &[u64; 3]);
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
            for (of, figures) in nodes {
                for (kind, value) in kinds.iter().zip(values(figures)) {
                    samples.push((of_kind(of, "kind", kind), signed(*value)));
                }
            }
            gauges(registry, name, help, samples);
        }
        let help = "Anonymous memory of which the kernel's count and the profile differ";
        let samples = nodes.iter().map(|(of, figures)| (node(of), figures.unattributed_bytes));
        gauges(registry, "memory_unattributed_bytes", help, samples);
        let stacks = |(of, figures): (&Arc<str>, &NodeFigures)| {
            let samples = figures.stacks.iter().map(|(end, count)| (of_kind(of, "end", end), signed(*count)));
            samples.collect::<Vec<_>>()
        };
        let help = "Stacks of the profiled processes, by how their unwinding ended";
        gauges(registry, "memory_stacks", help, nodes.iter().flat_map(stacks));
        let lost = figures.lost.iter().map(|(reason, count)| (vec![("reason", (*reason).to_owned())], *count));
        counters(registry, "memory_lost", "Events that the memory profiler could not account for, by reason", lost);
        for (name, help, value) in [
            ("memory_tree_calls", "Calls in the tree of all stacks", figures.calls),
            ("memory_tree_capacity", "Calls that fit into the tree", figures.calls_room),
            ("memory_symbol_bytes", "Memory used to read symbols", figures.symbol_bytes),
            (
                "memory_failed",
                "1 if no memory can be profiled; the log has the cause",
                u64::from(figures.error.is_some()),
            ),
        ] {
            gauge(registry, name, help, value);
        }
    }

    fn error(&self) -> Option<String> {
        Self::error(self)
    }
}

/// The labels of a node and one further label.
fn of_kind(of: &str, name: &'static str, value: &str) -> Vec<(&'static str, String)> {
    vec![("node", of.to_owned()), (name, value.to_owned())]
}
