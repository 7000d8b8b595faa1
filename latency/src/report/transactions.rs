//! Transactions of a report: the slowest ones, by id, and by type.

use std::{cmp::Reverse, collections::BTreeMap};

use serde::{Deserialize, Serialize};

use super::{ReturnCount, Statistics, TransactionRow, return_counts, rfc3339, timeline};
use crate::{
    Histogram,
    model::{Run, RunId, Transaction, TransactionId},
};

/// Transactions of a report.
pub const SLOWEST: usize = 20;

/// All applications of one transaction: to the open ledger, in the consensus, and so on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TransactionGroup {
    /// Its id, in hexadecimal.
    pub id: String,
    /// Its type.
    pub r#type: i64,
    /// How often it was applied.
    pub applications: u64,
    /// How long all of that took.
    pub sum_ns: u64,
    /// How long the fastest application took.
    pub min_ns: u64,
    /// How long the slowest application took.
    pub max_ns: u64,
    /// End of the first application, in RFC 3339.
    pub first: String,
    /// End of the last application, in RFC 3339.
    pub last: String,
    /// Results, most frequent first.
    pub results: Vec<ReturnCount>,
}

/// Transactions of a type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TransactionType {
    /// The type, as the node numbers it.
    pub r#type: i64,
    /// All of them; `returns` are their results.
    #[serde(flatten)]
    pub statistics: Statistics,
    /// Their course in each run that has some.
    pub runs: Vec<TransactionCourse>,
}

/// The course of the transactions of a type in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TransactionCourse {
    /// Id of the run.
    pub run: String,
    /// Periods with transactions, in order of time; `returns` are their results.
    pub timeline: Vec<timeline::Period>,
}

/// The slowest transactions, slowest first.
pub(super) fn slowest<'a>(runs: impl Iterator<Item = &'a Run>) -> Vec<TransactionRow> {
    let mut slowest: Vec<(RunId, &Transaction)> = Vec::new();
    for run in runs {
        slowest.extend(run.transactions.iter().map(|transaction| (run.info.id, transaction)));
        slowest.sort_by_key(|(_, transaction)| Reverse(transaction.duration_ns));
        slowest.truncate(SLOWEST);
    }
    slowest.into_iter().map(|(run, fact)| TransactionRow::new(run, fact)).collect()
}

/// Those of the slowest transactions that were applied several times, in their order.
pub(super) fn groups<'a>(runs: impl Iterator<Item = &'a Run>, slowest: &[TransactionRow]) -> Vec<TransactionGroup> {
    let mut order: Vec<TransactionId> = Vec::new();
    for id in slowest.iter().filter_map(|row| row.id.parse().ok()) {
        if !order.contains(&id) {
            order.push(id);
        }
    }
    let mut groups: BTreeMap<TransactionId, Vec<&Transaction>> = order.iter().map(|id| (*id, Vec::new())).collect();
    for transaction in runs.flat_map(|run| &run.transactions) {
        if let Some(group) = groups.get_mut(&transaction.id) {
            group.push(transaction);
        }
    }
    let group = |id: &TransactionId| {
        let all = groups.get(id).filter(|all| all.len() > 1)?;
        let durations = || all.iter().map(|of| of.duration_ns);
        let times = || all.iter().map(|of| of.time);
        let mut results = BTreeMap::<i64, u64>::new();
        all.iter().for_each(|of| *results.entry(of.result).or_default() += 1);
        Some(TransactionGroup {
            id: id.to_string(),
            r#type: all.first()?.kind,
            applications: all.len() as u64,
            sum_ns: durations().fold(0, u64::saturating_add),
            min_ns: durations().min()?,
            max_ns: durations().max()?,
            first: rfc3339(times().min()?),
            last: rfc3339(times().max()?),
            results: return_counts(results),
        })
    };
    order.iter().filter_map(group).collect()
}

/// Transactions by type, the most frequent type first.
pub(super) fn types(runs: &[&Run]) -> Vec<TransactionType> {
    let mut types = BTreeMap::<i64, (Histogram, BTreeMap<i64, u64>)>::new();
    for transaction in runs.iter().flat_map(|run| &run.transactions) {
        let (histogram, results) = types.entry(transaction.kind).or_default();
        histogram.record(transaction.duration_ns);
        *results.entry(transaction.result).or_default() += 1;
    }
    let course = |kind: i64, run: &Run| {
        let of_type = run.transactions.iter().filter(move |transaction| transaction.kind == kind);
        let timeline = timeline::of_transactions(run, runs.len(), of_type);
        (!timeline.is_empty()).then(|| TransactionCourse { run: run.info.id.to_string(), timeline })
    };
    let mut types: Vec<TransactionType> = types
        .into_iter()
        .map(|(kind, (histogram, results))| TransactionType {
            r#type: kind,
            statistics: Statistics::new(&histogram, return_counts(results), 0, BTreeMap::new()),
            runs: runs.iter().filter_map(|run| course(kind, run)).collect(),
        })
        .collect();
    types.sort_by_key(|of| Reverse(of.statistics.spans));
    types
}
