//! The network account of a target: kernel totals, what was taken from the ring, and the totals of its conversations.
//!
//! Each term is counted where it occurs, so that a miscount anywhere shows as a residual. While bytes are in flight it may
//! differ from 0: kernel totals are kept per processor and read one after the other.

use std::collections::BTreeMap;

use chainscope_ebpf::network::KernelAccount;
use chainscope_proto::v1::{NetworkAccount, ReasonCount};
use chainscope_tezos::StreamStats;

/// Why records or bytes were dropped here, with the amount.
pub(crate) type Reasons = BTreeMap<&'static str, u64>;

/// Reason for bytes of connections that were given up.
pub(crate) const GIVEN_UP: &str = "too many open handshakes";
/// Reason for bytes of sockets whose opening was not reported.
pub(crate) const UNKNOWN_SOCKET: &str = "socket unknown";
/// Reason for bytes before the configuration that exceeded the holding buffer.
pub(crate) const HOLDING_FULL: &str = "holding buffer full";
/// Drop reason of records that exceed the quota of their stream.
pub(crate) const QUEUE_FULL: &str = "queue full";
/// Reason for messages of which a chunk was dropped.
pub(crate) const CHUNK_DROPPED: &str = "chunk dropped";

/// What the interpreter counts for one target.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Sum over the conversations that ended.
    pub(crate) ended: StreamStats,
    /// Bytes of the target that were taken from the ring.
    pub(crate) bytes_taken: u64,
    /// Those of them that reached no conversation.
    pub(crate) bytes_dropped: Reasons,
    pub(crate) messages_sent: u64,
    pub(crate) messages_dropped: Reasons,
    pub(crate) chunks_dropped: u64,
    /// Their bytes on the wire.
    pub(crate) chunk_bytes_dropped: u64,
    pub(crate) connections: u64,
    pub(crate) connections_open: u64,
    /// Time of the last record's event, nanoseconds since 1970.
    pub(crate) last_record_ns: i64,
}

/// The account to send. `live` is the sum over the conversations that go on; `kernel` was read after every event that
/// they know was taken from the ring.
pub(crate) fn network_account(kernel: &KernelAccount, totals: &Totals, live: &StreamStats) -> NetworkAccount {
    let sum = totals.ended + *live;
    let in_kernel = kernel.captured + kernel.left_alone + kernel.dropped.iter().map(|(_, bytes)| bytes).sum::<u64>();
    let here = sum.captured + totals.bytes_dropped.values().sum::<u64>();
    let mut dropped: Reasons = totals.bytes_dropped.clone();
    for (reason, bytes) in &kernel.dropped {
        *dropped.entry(reason).or_default() += bytes;
    }
    NetworkAccount {
        bytes_seen: kernel.seen,
        bytes_captured: sum.captured,
        bytes_dropped: reason_counts(&dropped),
        bytes_left_alone: kernel.left_alone,
        bytes_in_ring: kernel.captured.saturating_sub(totals.bytes_taken),
        bytes_residual: difference(kernel.seen, in_kernel).saturating_add(difference(totals.bytes_taken, here)),
        bytes_in_chunks: sum.in_chunks,
        bytes_not_protocol: sum.not_protocol,
        bytes_skipped: sum.skipped,
        bytes_pending: sum.pending,
        chunks: sum.chunks,
        chunks_opened: sum.opened,
        chunks_undecryptable: sum.undecryptable,
        messages: sum.messages,
        messages_sent: totals.messages_sent,
        messages_dropped: reason_counts(&totals.messages_dropped),
        gaps: sum.gaps,
        connections: totals.connections,
        connections_open: totals.connections_open,
        chunks_dropped: totals.chunks_dropped,
        chunk_bytes_dropped: totals.chunk_bytes_dropped,
    }
}

fn difference(left: u64, right: u64) -> i64 {
    left.wrapping_sub(right).cast_signed()
}

/// Data that a target's sessions dropped because their memory budget was exhausted, by reason.
pub(crate) fn over_memory(totals: &Totals, live: &StreamStats) -> Reasons {
    let sum = totals.ended + *live;
    let reasons = [
        ("message not decoded", sum.messages_undecoded),
        ("chunk skipped", sum.chunks_unbuffered),
        ("search started over", sum.windows_dropped),
    ];
    reasons.into_iter().filter(|(_, count)| *count > 0).collect()
}

fn reason_counts(reasons: &Reasons) -> Vec<ReasonCount> {
    reasons.iter().map(|(reason, count)| ReasonCount { reason: (*reason).to_owned(), count: *count }).collect()
}

/// The equations that hold at any time; which one does not.
#[cfg(any(test, debug_assertions))]
pub(crate) fn broken_equation(account: &NetworkAccount) -> Option<&'static str> {
    let sum = |reasons: &[ReasonCount]| reasons.iter().map(|reason| reason.count).sum::<u64>();
    let a = account;
    [
        ("captured", a.bytes_captured == a.bytes_in_chunks + a.bytes_not_protocol + a.bytes_skipped + a.bytes_pending),
        ("chunks", a.chunks == a.chunks_opened + a.chunks_undecryptable),
        ("messages", a.messages == a.messages_sent + sum(&a.messages_dropped)),
    ]
    .into_iter()
    .find_map(|(name, holds)| (!holds).then_some(name))
}
