//! Accounts: running totals of a target, each of which replaces the one before.
//!
//! An agent does not delete the account of a target that has ended, and each restart of a process is a new target. Of a node,
//! the [`MAX_ACCOUNTS`] accounts that were updated last are kept. The others are *retired*: added to a single sum, so that the
//! totals over all accounts of a node do not decrease. If more targets than that run at a time, an account that is updated
//! after it was retired is counted twice.

use std::collections::BTreeMap;

use chainscope_proto::v1::{NetworkAccount, ReasonCount, Record, record::Kind};

use crate::{
    Error,
    engine::Batch,
    keys,
    kind::{decode, encode},
    view::Reader,
};

/// Accounts that are kept of a node.
pub(crate) const MAX_ACCOUNTS: usize = 256;

/// Reasons that the sum of the retired accounts tells apart.
const MAX_REASONS: usize = 64;

/// The latest account of a target, as its agent sent it; or, without agent, epoch and target, the sum of those that are no
/// longer kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    /// Name of the agent.
    pub agent: String,
    /// The agent's epoch: accounts of different epochs count different stretches of time.
    pub epoch: Vec<u8>,
    /// The record, of kind `NetworkAccount`.
    pub record: Record,
}

struct AccountRow {
    record: Record,
    /// The position of its last update among all updates of the node.
    updated: u64,
}

/// The accounts of a node, for the writer.
#[derive(Default)]
pub(crate) struct Accounts {
    kept: BTreeMap<Vec<u8>, AccountRow>,
    updates: u64,
    retired: Option<Record>,
}

impl Accounts {
    /// The accounts of a node from their rows.
    pub(crate) fn load(node: u32, mut rows: Vec<(Vec<u8>, Record)>) -> Self {
        rows.sort_by_key(|(_, record)| record.time_ns);
        let mut accounts = Self::default();
        for (key, record) in rows {
            if key == retired_key(node) {
                accounts.retired = Some(record);
            } else {
                accounts.keep(key, record);
            }
        }
        accounts
    }

    /// Puts an account into a batch, and retires another one if there are too many.
    pub(crate) fn add(&mut self, node: u32, key: Vec<u8>, record: &Record, batch: &mut Batch) {
        batch.put_with(&key, |out| encode(record, out));
        self.keep(key, record.clone());
        while self.kept.len() > MAX_ACCOUNTS {
            let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.updated).map(|(key, _)| key.clone());
            let Some((key, kept)) = oldest.and_then(|key| self.kept.remove_entry(&key)) else { return };
            batch.delete(&key);
            let retired = self.retired.get_or_insert_default();
            retire(retired, kept.record);
            batch.put_with(&retired_key(node), |out| encode(retired, out));
        }
    }

    fn keep(&mut self, key: Vec<u8>, record: Record) {
        self.kept.insert(key, AccountRow { record, updated: self.updates });
        self.updates += 1;
    }
}

fn retired_key(node: u32) -> Vec<u8> {
    keys::of_stream(node, keys::ACCOUNT, "", &[], Some(""))
}

/// Adds an account to the sum of the retired ones.
fn retire(retired: &mut Record, record: Record) {
    let Some(Kind::NetworkAccount(account)) = record.kind else { return };
    retired.time_ns = retired.time_ns.max(record.time_ns);
    let mut sum = match retired.kind.take() {
        Some(Kind::NetworkAccount(sum)) => sum,
        _ => NetworkAccount::default(),
    };
    add(&mut sum, account);
    retired.kind = Some(Kind::NetworkAccount(sum));
}

/// Adds every term, so that the equations between them hold for the sum, too.
fn add(sum: &mut NetworkAccount, account: NetworkAccount) {
    let NetworkAccount {
        bytes_seen,
        bytes_captured,
        bytes_dropped,
        bytes_left_alone,
        bytes_in_ring,
        bytes_in_chunks,
        bytes_not_protocol,
        bytes_skipped,
        bytes_pending,
        chunks,
        chunks_opened,
        chunks_undecryptable,
        messages,
        messages_sent,
        messages_dropped,
        gaps,
        connections,
        // None is open any more.
        connections_open: _,
        chunks_dropped,
        chunk_bytes_dropped,
        bytes_residual,
    } = account;
    sum.bytes_residual = sum.bytes_residual.saturating_add(bytes_residual);
    for (sum, term) in [
        (&mut sum.bytes_seen, bytes_seen),
        (&mut sum.bytes_captured, bytes_captured),
        (&mut sum.bytes_left_alone, bytes_left_alone),
        (&mut sum.bytes_in_ring, bytes_in_ring),
        (&mut sum.bytes_in_chunks, bytes_in_chunks),
        (&mut sum.bytes_not_protocol, bytes_not_protocol),
        (&mut sum.bytes_skipped, bytes_skipped),
        (&mut sum.bytes_pending, bytes_pending),
        (&mut sum.chunks, chunks),
        (&mut sum.chunks_opened, chunks_opened),
        (&mut sum.chunks_undecryptable, chunks_undecryptable),
        (&mut sum.messages, messages),
        (&mut sum.messages_sent, messages_sent),
        (&mut sum.gaps, gaps),
        (&mut sum.connections, connections),
        (&mut sum.chunks_dropped, chunks_dropped),
        (&mut sum.chunk_bytes_dropped, chunk_bytes_dropped),
    ] {
        *sum = sum.saturating_add(term);
    }
    add_counts(&mut sum.bytes_dropped, bytes_dropped);
    add_counts(&mut sum.messages_dropped, messages_dropped);
}

fn add_counts(sums: &mut Vec<ReasonCount>, counts: Vec<ReasonCount>) {
    for ReasonCount { mut reason, count } in counts {
        if sums.len() >= MAX_REASONS && !sums.iter().any(|sum| sum.reason == reason) {
            "other".clone_into(&mut reason);
        }
        match sums.iter_mut().find(|sum| sum.reason == reason) {
            Some(sum) => sum.count = sum.count.saturating_add(count),
            None => sums.push(ReasonCount { reason, count }),
        }
    }
}

/// The latest account of every target, then the sum of the retired ones, if any.
pub(crate) fn accounts(reader: &Reader<'_>) -> Result<Vec<Account>, Error> {
    let range = keys::table_range(reader.view.number, keys::STATE, keys::ACCOUNT);
    let retired = retired_key(reader.view.number);
    let mut cursor = reader.snapshot.cursor(&range.start..&range.end);
    let (mut answer, mut last) = (Vec::new(), None);
    cursor.first()?;
    while let Some((key, value)) = cursor.entry() {
        let (agent, epoch) = keys::stream_of(key).ok_or_else(|| Error::Corrupt(format!("account key {key:02x?}")))?;
        let account = Account {
            agent: String::from_utf8_lossy(agent).into_owned(),
            epoch: epoch.to_vec(),
            record: decode(value)?,
        };
        if key == retired {
            last = Some(account);
        } else {
            answer.push(account);
        }
        cursor.next()?;
    }
    answer.extend(last);
    Ok(answer)
}
