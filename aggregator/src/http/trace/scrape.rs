//! Metrics of the tracepoints pillar that are read at each scrape.

use chainscope_store::NodeInfo;
use prometheus_client::registry::{Registry, Unit};

use crate::http::scrape::{counters_by_node, gauges_by_node};

/// Registers what is stored of each node.
pub(crate) fn scrape(registry: &mut Registry, nodes: &[NodeInfo]) {
    let of_nodes = |value: fn(&NodeInfo) -> u64| nodes.iter().map(move |node| (node.name.clone(), value(node)));
    let kept = of_nodes(|node| node.trace_ids.end - node.trace_ids.start);
    gauges_by_node(registry, "store_trace_events", "Events of tracepoints that are kept", None, kept);
    let help = "Events of tracepoints and latency of functions that are kept, before compression";
    gauges_by_node(registry, "store_trace_size", help, Some(Unit::Bytes), of_nodes(|node| node.trace_bytes));
    let stored = of_nodes(|node| node.totals.trace_events);
    counters_by_node(registry, "trace_events_stored", "Events of tracepoints stored", None, stored);
    let evicted = of_nodes(|node| node.totals.evicted_trace_events);
    counters_by_node(registry, "trace_events_evicted", "Events of tracepoints evicted", None, evicted);
}
