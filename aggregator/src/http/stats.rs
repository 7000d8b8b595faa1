//! `/v2/stats`: the conservation table.
//!
//! The disk, ingest and agents; of each node what is stored of every pillar, the accounts of its network, what was lost where and
//! why, and errors that agents reported.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use axum::response::Response;
use chainscope_proto::v1::{Record, record::Kind};
use chainscope_store::{Budget, Error as StoreError, FactQuery, NodeInfo, Order, Store};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    app::{AuthorizedNodes, SelectedNodes, check_budget},
    network::{AccountStats, account},
    params::NodeParameters,
    problem::Problem,
    response,
};
use crate::{access::permission::ReadStats, clock::now_ns, ingest::AgentInfo, network::losses::LossStats};

/// The whole answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Stats {
    /// Time of the response, nanoseconds since 1970.
    time: i64,
    /// Build of the aggregator.
    build: String,
    /// Why records cannot be stored; null if they can.
    trouble: Option<String>,
    disk: DiskStats,
    ingest: IngestStats,
    agents: Vec<AgentStats>,
    nodes: Vec<NodeStats>,
}

/// The disk that the database is on.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct DiskStats {
    /// The last write was refused because the disk is full.
    full: bool,
    free_bytes: u64,
    /// Ballast that is released for evictions on a full disk.
    reserve_bytes: u64,
}

/// Ingest since the start of the aggregator, resent records included.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct IngestStats {
    sessions: i64,
    session_errors: u64,
    batches: u64,
    records: u64,
    bytes: u64,
    /// Records of a kind that this build does not know: acknowledged, not shown.
    unknown_kinds: u64,
    store_errors: u64,
}

/// An agent that connected since the start of the aggregator.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AgentStats {
    name: String,
    build: String,
    /// Version of the record protocol.
    version: u32,
    /// Of its latest session, in hex.
    epoch: String,
    /// Open sessions.
    sessions: u64,
    /// By how many nanoseconds this clock is ahead of the agent's; the time that its hello took is part of it.
    clock_skew: i64,
    /// Time of its last message, nanoseconds since 1970.
    last: i64,
    batches: u64,
    records: u64,
    bytes: u64,
    /// Nodes whose records it delivered.
    nodes: BTreeSet<String>,
}

/// A node.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NodeStats {
    name: String,
    stored: Stored,
    /// Its log messages.
    logs: RecordStats,
    /// Events of its tracepoints. What was lost of them is among `losses`, by tracepoint, with the stage `tracepoint`.
    trace: RecordStats,
    /// The latency of its functions.
    latency: LatencyStats,
    /// Since its database was made.
    totals: Totals,
    accounts: Vec<AccountStats>,
    losses: Vec<LossStats>,
    findings: Vec<Finding>,
}

/// What is stored of a node.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct Stored {
    /// Id of the oldest message that is kept.
    first_id: u64,
    /// Id that the next message will get.
    next_id: u64,
    messages: u64,
    bytes: u64,
    segments: u64,
    /// Least time of what is kept, nanoseconds since 1970.
    first_time: Option<i64>,
    /// Greatest time of what is kept.
    last_time: Option<i64>,
}

/// Log messages or events of tracepoints.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct RecordStats {
    /// Id of the oldest record that is kept.
    first_id: u64,
    /// Id that the next record will get.
    next_id: u64,
    /// Bytes of those that are kept, before compression; of events, with those of the latency of functions.
    bytes: u64,
    /// Records stored and evicted since the node's database was made.
    stored: u64,
    evicted: u64,
}

/// What was stored of the latency of a node's functions since its database was made. It is evicted with the events of tracepoints.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct LatencyStats {
    /// Blocks of runs.
    blocks: u64,
    /// Transactions of runs.
    transactions: u64,
}

/// What was stored of a node's network since its database was made, and what was lost of all of its records.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct Totals {
    messages: u64,
    chunks: u64,
    connection_events: u64,
    losses: u64,
    target_events: u64,
    unknown_kinds: u64,
    /// Records that came again and were recognised.
    duplicates: u64,
    evicted_messages: u64,
    lost_records: u64,
    lost_bytes: u64,
}

/// An error that an agent reported and that was not resolved since.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Finding {
    time: i64,
    target: String,
    #[schema(example = "identity error")]
    event: String,
    pid: u32,
    detail: String,
}

/// The conservation table.
#[utoipa::path(get, path = "/v2/stats", params(NodeParameters), responses(
    (status = 200, description = "All nodes, or the one that is named.", body = Stats),
    (status = 404, description = "There is no such node.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(crate) async fn stats(SelectedNodes(nodes): SelectedNodes<ReadStats>) -> Result<Response, Problem> {
    Ok(response::json_of(&nodes.read(gather).await?))
}

fn gather(nodes: &AuthorizedNodes<ReadStats>, store: &Store, budget: &Budget) -> Result<Stats, StoreError> {
    let stored: BTreeMap<_, _> = store.nodes().into_iter().map(|node| (node.name.clone(), node)).collect();
    let of_nodes = nodes.names().iter().map(|name| node(nodes, store, budget, name, stored.get(name)));
    let ingest = &nodes.app().metrics().ingest;
    let disk = store.disk()?;
    Ok(Stats {
        time: now_ns(),
        build: nodes.app().build().to_owned(),
        trouble: nodes.ingest_trouble(),
        disk: DiskStats { full: disk.full, free_bytes: disk.free_bytes, reserve_bytes: disk.ballast_bytes },
        ingest: IngestStats {
            sessions: ingest.sessions.get(),
            session_errors: ingest.session_errors.get(),
            batches: ingest.batches.get(),
            records: ingest.records.get(),
            bytes: ingest.bytes.get(),
            unknown_kinds: ingest.unknown_kinds.get(),
            store_errors: ingest.store_errors.get(),
        },
        agents: nodes.agents().into_iter().map(agent).collect(),
        nodes: of_nodes.collect::<Result<_, _>>()?,
    })
}

fn agent((name, info): (String, AgentInfo)) -> AgentStats {
    AgentStats {
        name,
        build: info.build,
        version: info.version,
        epoch: hex::encode(info.epoch),
        sessions: info.sessions,
        clock_skew: info.skew_ns,
        last: info.last_ns,
        batches: info.batches,
        records: info.records,
        bytes: info.bytes,
        nodes: info.nodes,
    }
}

fn node(
    nodes: &AuthorizedNodes<ReadStats>,
    store: &Store,
    budget: &Budget,
    name: &str,
    info: Option<&NodeInfo>,
) -> Result<NodeStats, StoreError> {
    check_budget(budget)?;
    Ok(NodeStats {
        name: name.to_owned(),
        stored: info.map(stored).unwrap_or_default(),
        logs: info.map(logs).unwrap_or_default(),
        trace: info.map(trace).unwrap_or_default(),
        latency: info.map(latency).unwrap_or_default(),
        totals: info.map(totals).unwrap_or_default(),
        accounts: store.accounts(name)?.into_iter().filter_map(account).collect(),
        losses: nodes.losses(store, name, budget)?,
        findings: findings(store, name, nodes.max_events())?,
    })
}

fn stored(info: &NodeInfo) -> Stored {
    Stored {
        first_id: info.first_id,
        next_id: info.next_id,
        messages: info.rows,
        bytes: info.bytes,
        segments: info.segments,
        first_time: info.first_time_ns,
        last_time: info.last_time_ns,
    }
}

fn logs(info: &NodeInfo) -> RecordStats {
    let Range { start, end } = info.log_ids;
    let (stored, evicted) = (info.totals.log_messages, info.totals.evicted_log_messages);
    RecordStats { first_id: start, next_id: end, bytes: info.log_bytes, stored, evicted }
}

fn trace(info: &NodeInfo) -> RecordStats {
    let Range { start, end } = info.trace_ids;
    let (stored, evicted) = (info.totals.trace_events, info.totals.evicted_trace_events);
    RecordStats { first_id: start, next_id: end, bytes: info.trace_bytes, stored, evicted }
}

fn latency(info: &NodeInfo) -> LatencyStats {
    LatencyStats { blocks: info.totals.latency_blocks, transactions: info.totals.latency_transactions }
}

fn totals(info: &NodeInfo) -> Totals {
    let totals = &info.totals;
    Totals {
        messages: totals.messages,
        chunks: totals.chunks,
        connection_events: totals.connection_events,
        losses: totals.losses,
        target_events: totals.target_events,
        unknown_kinds: totals.unknown_kinds,
        duplicates: totals.duplicates,
        evicted_messages: totals.evicted_rows,
        lost_records: totals.lost_records,
        lost_bytes: totals.lost_bytes,
    }
}

/// The latest event of each kind and target, if it is an error.
fn findings(store: &Store, node: &str, max_events: u64) -> Result<Vec<Finding>, StoreError> {
    let query = FactQuery { cursor: None, limit: max_events, order: Order::NewestFirst };
    let mut seen = BTreeSet::new();
    let mut findings = Vec::new();
    for (_, record) in store.target_events(node, &query)? {
        let Record { time_ns, target, kind: Some(Kind::TargetEvent(event)) } = record else { continue };
        let matter = event.event.strip_suffix(" error").unwrap_or(&event.event).to_owned();
        let is_error = matter.len() < event.event.len();
        if seen.insert((target.clone(), matter)) && is_error {
            let (event, pid, detail) = (event.event, event.pid, event.detail);
            findings.push(Finding { time: time_ns, target, event, pid, detail });
        }
    }
    Ok(findings)
}
