//! Metrics of the logs pillar that are read at each scrape.

use chainscope_store::{NodeInfo, Store};
use prometheus_client::{metrics::counter::Counter, registry::Registry};

use crate::http::scrape::{counters_by_node, gauges_by_node};

/// Registers what is stored of each node, and how far the full-text index is.
pub(crate) fn scrape(registry: &mut Registry, store: &Store, nodes: &[NodeInfo]) {
    let of_nodes =
        |value: fn(&Store, &str) -> u64| nodes.iter().map(move |node| (node.name.clone(), value(store, &node.name)));
    let kept = of_nodes(|store, node| {
        let (first, next) = store.visible_logs(node);
        next - first
    });
    gauges_by_node(registry, "store_log_messages", "Log messages that are kept", None, kept);
    let help = "Log messages that are not in the full-text index yet; searches read them one by one";
    let pending = of_nodes(|store, node| store.text_index(node).pending);
    gauges_by_node(registry, "log_messages_unindexed", help, None, pending);
    // Ids are dense and begin at 0.
    let stored = of_nodes(|store, node| store.visible_logs(node).1);
    counters_by_node(registry, "log_messages_stored", "Log messages stored", None, stored);
    let evicted = of_nodes(|store, node| store.visible_logs(node).0);
    counters_by_node(registry, "log_messages_evicted", "Log messages evicted", None, evicted);
    let errors = Counter::<u64>::default();
    errors.inc_by(store.text_index_errors());
    registry.register("text_index_errors", "Reads and writes of full-text indexes that failed", errors);
}
