//! `/v2/stats`: the conservation table.
//!
//! For each node, target and epoch every term of the conservation equations (`NetworkAccount` in `record.proto`) and whether
//! they hold, what is stored, what was lost where and why, and errors that agents reported.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use axum::response::Response;
use chainscope_proto::v1::{NetworkAccount, ReasonCount, Record, record::Kind};
use chainscope_store::{Account, Budget, Error as StoreError, FactQuery, NodeInfo, Order, Store};
use serde::Serialize;
use utoipa::ToSchema;

use super::super::{
    app::{AuthorizedNodes, SelectedNodes, check_budget},
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

/// Running totals of one target in one epoch of an agent, and the conservation equations. The last entry may be without
/// agent, epoch and target: the sum of those that were updated least recently and are no longer listed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AccountStats {
    agent: String,
    /// In hex; accounts of different epochs count different stretches of time.
    epoch: String,
    target: String,
    /// Time of the counts, nanoseconds since 1970. Counts that do not change are sent every 10 seconds.
    time: i64,
    bytes_seen: u64,
    bytes_captured: u64,
    bytes_left_alone: u64,
    bytes_in_ring: u64,
    /// Bytes that the counters do not explain: a counter is wrong if it is not 0 for longer than a moment.
    bytes_residual: i64,
    bytes_dropped: Vec<Count>,
    bytes_in_chunks: u64,
    bytes_not_protocol: u64,
    bytes_skipped: u64,
    bytes_pending: u64,
    chunks: u64,
    chunks_opened: u64,
    chunks_undecryptable: u64,
    chunks_dropped: u64,
    /// Bytes on the wire of the chunks that were dropped; they are among `bytes_in_chunks`.
    chunk_bytes_dropped: u64,
    messages: u64,
    messages_sent: u64,
    messages_dropped: Vec<Count>,
    gaps: u64,
    connections: u64,
    connections_open: u64,
    equations: Vec<Equation>,
}

/// A count by reason.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Count {
    reason: String,
    count: u64,
}

/// An equation, and the values of its sides.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Equation {
    #[schema(example = "chunks = chunks_opened + chunks_undecryptable")]
    equation: &'static str,
    left: u64,
    right: u64,
    holds: bool,
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
    let NodeInfo { log_ids: Range { start, end }, totals, .. } = info;
    let (stored, evicted) = (totals.log_messages, totals.evicted_log_messages);
    RecordStats { first_id: *start, next_id: *end, bytes: info.log_bytes, stored, evicted }
}

fn trace(info: &NodeInfo) -> RecordStats {
    let NodeInfo { trace_ids: Range { start, end }, totals, .. } = info;
    let (stored, evicted) = (totals.trace_events, totals.evicted_trace_events);
    RecordStats { first_id: *start, next_id: *end, bytes: info.trace_bytes, stored, evicted }
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

fn account(account: Account) -> Option<AccountStats> {
    let Account { agent, epoch, record } = account;
    let Record { time_ns, target, kind: Some(Kind::NetworkAccount(terms)) } = record else { return None };
    let equations = equations(&terms);
    Some(AccountStats {
        agent,
        epoch: hex::encode(epoch),
        target,
        time: time_ns,
        bytes_seen: terms.bytes_seen,
        bytes_captured: terms.bytes_captured,
        bytes_left_alone: terms.bytes_left_alone,
        bytes_in_ring: terms.bytes_in_ring,
        bytes_residual: terms.bytes_residual,
        bytes_dropped: counts(terms.bytes_dropped),
        bytes_in_chunks: terms.bytes_in_chunks,
        bytes_not_protocol: terms.bytes_not_protocol,
        bytes_skipped: terms.bytes_skipped,
        bytes_pending: terms.bytes_pending,
        chunks: terms.chunks,
        chunks_opened: terms.chunks_opened,
        chunks_undecryptable: terms.chunks_undecryptable,
        chunks_dropped: terms.chunks_dropped,
        chunk_bytes_dropped: terms.chunk_bytes_dropped,
        messages: terms.messages,
        messages_sent: terms.messages_sent,
        messages_dropped: counts(terms.messages_dropped),
        gaps: terms.gaps,
        connections: terms.connections,
        connections_open: terms.connections_open,
        equations,
    })
}

fn counts(counts: Vec<ReasonCount>) -> Vec<Count> {
    counts.into_iter().map(|ReasonCount { reason, count }| Count { reason, count }).collect()
}

/// The equations of `record.proto`, evaluated.
fn equations(terms: &NetworkAccount) -> Vec<Equation> {
    let sum = |terms: &[u64]| terms.iter().fold(0, |sum: u64, term| sum.saturating_add(*term));
    let dropped = |counts: &[ReasonCount]| counts.iter().fold(0, |sum: u64, each| sum.saturating_add(each.count));
    let equation = |equation, left, right| Equation { equation, left, right, holds: left == right };
    vec![
        equation(
            "bytes_seen = bytes_captured + bytes_left_alone + bytes_dropped + bytes_in_ring",
            terms.bytes_seen,
            sum(&[terms.bytes_captured, terms.bytes_left_alone, dropped(&terms.bytes_dropped), terms.bytes_in_ring]),
        ),
        equation(
            "bytes_captured = bytes_in_chunks + bytes_not_protocol + bytes_skipped + bytes_pending",
            terms.bytes_captured,
            sum(&[terms.bytes_in_chunks, terms.bytes_not_protocol, terms.bytes_skipped, terms.bytes_pending]),
        ),
        equation(
            "chunks = chunks_opened + chunks_undecryptable",
            terms.chunks,
            sum(&[terms.chunks_opened, terms.chunks_undecryptable]),
        ),
        equation(
            "messages = messages_sent + messages_dropped",
            terms.messages,
            sum(&[terms.messages_sent, dropped(&terms.messages_dropped)]),
        ),
    ]
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
