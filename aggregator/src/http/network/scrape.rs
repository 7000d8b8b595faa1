//! Metrics of the network pillar: what is stored, and the terms of the conservation equations.
//!
//! They are summed over the targets of a node: the name of a target contains a process id, so it is no label. `/v2/stats`
//! has each target.

use chainscope_proto::v1::{NetworkAccount, ReasonCount, Record, record::Kind};
use chainscope_store::{Budget, Error as StoreError, NodeInfo, Store};
use prometheus_client::registry::{Registry, Unit};

use super::super::{
    app::check_budget,
    scrape::{counters_by_node, gauges_by_node},
};

/// Registers the metrics of all nodes.
pub(crate) fn scrape(
    registry: &mut Registry,
    store: &Store,
    nodes: &[NodeInfo],
    budget: &Budget,
) -> Result<(), StoreError> {
    stored(registry, nodes);
    accounted(registry, store, nodes, budget)
}

/// What is stored of each node.
fn stored(registry: &mut Registry, nodes: &[NodeInfo]) {
    let mut gauges = |name: &str, help: &str, unit: Option<Unit>, value: fn(&NodeInfo) -> u64| {
        gauges_by_node(registry, name, help, unit, nodes.iter().map(|node| (node.name.clone(), value(node))));
    };
    gauges("store_messages", "Messages that are kept", None, |node| node.rows);
    gauges("store_size", "What is kept, before compression", Some(Unit::Bytes), |node| node.bytes);
    gauges("store_segments", "Segments that are kept", None, |node| node.segments);
    gauges("store_last_record_timestamp", "Time of the latest record", Some(Unit::Seconds), |node| {
        node.last_time_ns.and_then(|ns| u64::try_from(ns / 1_000_000_000).ok()).unwrap_or(0)
    });
    let mut counters = |name: &str, help: &str, unit: Option<Unit>, value: fn(&NodeInfo) -> u64| {
        counters_by_node(registry, name, help, unit, nodes.iter().map(|node| (node.name.clone(), value(node))));
    };
    counters("messages_stored", "Messages stored", None, |node| node.totals.messages);
    counters("chunks_stored", "Chunks stored", None, |node| node.totals.chunks);
    counters("messages_evicted", "Messages evicted", None, |node| node.totals.evicted_rows);
    counters("records_duplicate", "Resent records", None, |node| node.totals.duplicates);
    counters("records_lost", "Records that agents report as lost", None, |node| node.totals.lost_records);
    counters("lost", "Size of what agents report as lost", Some(Unit::Bytes), |node| node.totals.lost_bytes);
}

/// The terms of the conservation equations, summed over the targets and epochs of a node.
fn accounted(registry: &mut Registry, store: &Store, nodes: &[NodeInfo], budget: &Budget) -> Result<(), StoreError> {
    let mut accounts: Vec<(String, Vec<NetworkAccount>)> = Vec::with_capacity(nodes.len());
    for node in nodes {
        check_budget(budget)?;
        let of_node = store.accounts(&node.name)?.into_iter().filter_map(|account| match account.record {
            Record { kind: Some(Kind::NetworkAccount(terms)), .. } => Some(terms),
            _ => None,
        });
        accounts.push((node.name.clone(), of_node.collect()));
    }
    let mut counters = |name: &str, help: &str, unit: Option<Unit>, value: fn(&NetworkAccount) -> u64| {
        let sums = accounts
            .iter()
            .map(|(node, accounts)| (node.clone(), accounts.iter().map(value).fold(0, u64::saturating_add)));
        counters_by_node(registry, name, help, unit, sums);
    };
    let bytes = || Some(Unit::Bytes);
    counters("network_seen", "Bytes seen on the node's sockets", bytes(), |terms| terms.bytes_seen);
    counters("network_captured", "Bytes captured", bytes(), |terms| terms.bytes_captured);
    counters("network_dropped", "Bytes not captured", bytes(), |terms| sum(&terms.bytes_dropped));
    counters("network_left_alone", "Bytes of other protocols", bytes(), |terms| terms.bytes_left_alone);
    counters("network_in_chunks", "Bytes that became chunks", bytes(), |terms| terms.bytes_in_chunks);
    counters("network_skipped", "Bytes skipped after a gap", bytes(), |terms| terms.bytes_skipped);
    counters("network_not_protocol", "Bytes captured of other protocols", bytes(), |terms| terms.bytes_not_protocol);
    counters("network_chunks", "Chunks", None, |terms| terms.chunks);
    counters("network_chunks_undecryptable", "Chunks not opened", None, |terms| terms.chunks_undecryptable);
    counters("network_chunks_dropped", "Chunks dropped because the agent's queue was full", None, |terms| {
        terms.chunks_dropped
    });
    counters("network_queue_dropped", "Bytes of these chunks on the wire", bytes(), |terms| terms.chunk_bytes_dropped);
    counters("network_messages", "Messages", None, |terms| terms.messages);
    counters("network_messages_dropped", "Messages dropped", None, |terms| sum(&terms.messages_dropped));
    counters("network_gaps", "Gaps in streams", None, |terms| terms.gaps);
    counters("network_connections", "Connections", None, |terms| terms.connections);
    Ok(())
}

fn sum(counts: &[ReasonCount]) -> u64 {
    counts.iter().map(|each| each.count).fold(0, u64::saturating_add)
}
