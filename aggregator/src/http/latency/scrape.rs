//! Metrics of the latency of functions that are read at each scrape.

use chainscope_store::NodeInfo;
use prometheus_client::registry::Registry;

use crate::http::scrape::counters_by_node;

/// Registers what was stored of each node.
pub(crate) fn scrape(registry: &mut Registry, nodes: &[NodeInfo]) {
    let stored = nodes.iter().map(|node| (node.name.clone(), node.totals.latency_blocks));
    let help = "Records of blocks of the latency of functions stored";
    counters_by_node(registry, "latency_blocks_stored", help, None, stored);
    let stored = nodes.iter().map(|node| (node.name.clone(), node.totals.latency_transactions));
    let help = "Transactions of runs of the latency of functions stored";
    counters_by_node(registry, "latency_transactions_stored", help, None, stored);
}
