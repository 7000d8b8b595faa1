//! `/v2/stats`: does everything add up?
//!
//! For each node, target and epoch every term of the conservation equations (`NetworkAccount` in `record.proto`), whether
//! they hold, what is stored, what was lost where and why, and what the agents found wrong.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use axum::{body::Body, extract::State, response::Response};
use chainscope_proto::v1::{Loss, NetworkAccount, ReasonCount, Record, record::Kind};
use chainscope_store::{Account, Error as StoreError, FactQuery, NodeInfo, Order, Store};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    app::{App, Asked},
    list,
    openapi::NodeParameter,
    problem::Problem,
};
use crate::{clock::now_ns, ingest::AgentInfo};

/// Facts that are read at once.
const FACTS: u64 = 1000;
/// Pairs of stage and reason that are told apart, a node; others are summed as "other".
const MOST_REASONS: usize = 200;

/// The whole answer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Stats {
    /// When this was true, nanoseconds since 1970.
    time: i64,
    /// Build of the aggregator.
    build: String,
    /// What keeps records from being stored; null if nothing does.
    trouble: Option<String>,
    disk: DiskStats,
    ingest: IngestStats,
    agents: Vec<AgentStats>,
    nodes: Vec<NodeStats>,
}

/// The disk that the database is on.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct DiskStats {
    /// The last write was refused for want of space.
    full: bool,
    free_bytes: u64,
    /// Kept aside so that old records can be dropped on a full disk.
    reserve_bytes: u64,
}

/// What came in since the aggregator started, resent records included.
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

/// An agent, as heard of since the aggregator started.
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
    /// When it was last heard of, nanoseconds since 1970.
    last: i64,
    batches: u64,
    records: u64,
    bytes: u64,
    /// Nodes that it delivered records of.
    nodes: BTreeSet<String>,
}

/// A node.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NodeStats {
    name: String,
    stored: Stored,
    /// Since its database was made.
    totals: Totals,
    accounts: Vec<AccountStats>,
    losses: Vec<LossStats>,
    findings: Vec<Finding>,
}

/// What can be read of a node now.
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

/// What was stored of a node since its database was made.
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

/// Running totals of one target in one epoch of an agent, and whether they add up.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AccountStats {
    agent: String,
    /// In hex; accounts of different epochs count different stretches of time.
    epoch: String,
    target: String,
    /// When the agent counted, nanoseconds since 1970.
    time: i64,
    bytes_seen: u64,
    bytes_captured: u64,
    bytes_left_alone: u64,
    bytes_in_ring: u64,
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

/// Something counted by its reason.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Count {
    reason: String,
    count: u64,
}

/// Two sides that must be equal.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Equation {
    #[schema(example = "chunks = chunks_opened + chunks_undecryptable")]
    equation: &'static str,
    left: u64,
    right: u64,
    holds: bool,
}

/// What was lost at one place for one reason.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct LossStats {
    /// `kernel`, `stream`, `queue`, `spool`, `agent`, …
    stage: String,
    reason: String,
    /// How often.
    times: u64,
    records: u64,
    bytes: u64,
    /// How much cannot be known in every case.
    amount_unknown: bool,
    /// The earliest, nanoseconds since 1970.
    from: i64,
    /// The latest.
    to: i64,
}

/// Something that an agent found wrong and that was not put right since.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Finding {
    time: i64,
    target: String,
    #[schema(example = "identity error")]
    event: String,
    pid: u32,
    detail: String,
}

/// Whether everything adds up: the conservation table.
#[utoipa::path(get, path = "/v2/stats", params(NodeParameter), responses(
    (status = 200, description = "All nodes, or the one that is named.", body = Stats),
    (status = 404, description = "There is no such node.", body = Problem),
))]
pub(crate) async fn stats(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Problem> {
    let form = asked.form();
    let (names, is_whole) = match asked.named(&app, &form).await? {
        Some(name) => (vec![name], app.access.is_open()),
        None => match asked.visible(&app).await? {
            Some(visible) => (visible.into_iter().collect(), false),
            None => (app.nodes.candidates(None), true),
        },
    };
    let shared = Arc::clone(&app);
    let mut stats = app.read(move |store, _| gather(&shared, store, &names)).await?;
    if !is_whole {
        stats.narrow();
    }
    let mut json = Vec::new();
    list::push(&mut json, true, &stats);
    Ok(list::json(Body::from(json)))
}

impl Stats {
    /// Leaves out agents, and nodes of agents, that are none of these nodes'.
    fn narrow(&mut self) {
        let names: BTreeSet<&String> = self.nodes.iter().map(|node| &node.name).collect();
        for agent in &mut self.agents {
            agent.nodes.retain(|node| names.contains(node));
        }
        self.agents.retain(|agent| !agent.nodes.is_empty());
    }
}

fn gather(app: &App, store: &Store, names: &[String]) -> Result<Stats, StoreError> {
    let stored: BTreeMap<_, _> = store.nodes().into_iter().map(|node| (node.name.clone(), node)).collect();
    let nodes = names.iter().map(|name| node(app, store, name, stored.get(name)));
    let ingest = &app.metrics.ingest;
    let disk = store.disk()?;
    Ok(Stats {
        time: now_ns(),
        build: app.build.clone(),
        trouble: app.ingest.write_error(),
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
        agents: app.ingest.agents().into_iter().map(agent).collect(),
        nodes: nodes.collect::<Result<_, _>>()?,
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

fn node(app: &App, store: &Store, name: &str, info: Option<&NodeInfo>) -> Result<NodeStats, StoreError> {
    Ok(NodeStats {
        name: name.to_owned(),
        stored: info.map(stored).unwrap_or_default(),
        totals: info.map(totals).unwrap_or_default(),
        accounts: store.accounts(name)?.into_iter().filter_map(account).collect(),
        losses: app.losses.lock().of(store, name)?,
        findings: findings(store, name)?,
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

/// The latest word on each matter of each target, where it is an error.
fn findings(store: &Store, node: &str) -> Result<Vec<Finding>, StoreError> {
    let query = FactQuery { cursor: None, limit: FACTS, order: Order::NewestFirst };
    let mut told = BTreeSet::new();
    let mut findings = Vec::new();
    for (_, record) in store.target_events(node, &query)? {
        let Record { time_ns, target, kind: Some(Kind::TargetEvent(event)) } = record else { continue };
        let matter = event.event.strip_suffix(" error").unwrap_or(&event.event).to_owned();
        let is_error = matter.len() < event.event.len();
        if told.insert((target.clone(), matter)) && is_error {
            let (event, pid, detail) = (event.event, event.pid, event.detail);
            findings.push(Finding { time: time_ns, target, event, pid, detail });
        }
    }
    Ok(findings)
}

/// Losses summed by stage and reason. Each is read once: a question reads only what is new.
///
/// Losses that were evicted before this process started are in the totals, but no longer here.
#[derive(Debug, Default)]
pub(crate) struct LossTables {
    nodes: BTreeMap<String, LossTable>,
}

#[derive(Debug, Default)]
struct LossTable {
    next: u64,
    sums: BTreeMap<(String, String), LossStats>,
}

impl LossTables {
    fn of(&mut self, store: &Store, node: &str) -> Result<Vec<LossStats>, StoreError> {
        let table = self.nodes.entry(node.to_owned()).or_default();
        loop {
            let query = FactQuery { cursor: Some(table.next), limit: FACTS, order: Order::OldestFirst };
            let losses = store.losses(node, &query)?;
            let is_last = (losses.len() as u64) < FACTS;
            for (id, record) in losses {
                table.next = id.saturating_add(1);
                if let Some(Kind::Loss(loss)) = record.kind {
                    table.add(loss);
                }
            }
            if is_last {
                return Ok(table.sums.values().cloned().collect());
            }
        }
    }
}

impl LossTable {
    fn add(&mut self, loss: Loss) {
        let mut key = (loss.stage, loss.reason);
        if self.sums.len() >= MOST_REASONS && !self.sums.contains_key(&key) {
            key = ("other".to_owned(), "other".to_owned());
        }
        let sum = self.sums.entry(key).or_insert_with_key(|(stage, reason)| LossStats {
            stage: stage.clone(),
            reason: reason.clone(),
            from: loss.from_ns,
            to: loss.to_ns,
            ..LossStats::default()
        });
        sum.times = sum.times.saturating_add(1);
        sum.records = sum.records.saturating_add(loss.records);
        sum.bytes = sum.bytes.saturating_add(loss.bytes);
        sum.amount_unknown |= loss.amount_unknown;
        sum.from = sum.from.min(loss.from_ns);
        sum.to = sum.to.max(loss.to_ns);
    }
}
