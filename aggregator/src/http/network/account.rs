//! Accounts of the network in `/v2/stats`: each term of the conservation equations (`NetworkAccount` in `record.proto`), and whether
//! they hold.

use chainscope_proto::v1::{NetworkAccount, ReasonCount, Record, record::Kind};
use chainscope_store::Account;
use serde::Serialize;
use utoipa::ToSchema;

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

/// An account as it is shown; none if the record is not one.
pub(crate) fn account(account: Account) -> Option<AccountStats> {
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
