//! Reports of runs with their transactions.

use std::ops::ControlFlow;

use chainscope_latency::{
    Run,
    report::{Report, SLOWEST},
    verdict::Options,
};
use chainscope_store::{Budget, Error as StoreError, Order, Store, TransactionQuery};

use super::{
    super::problem::Problem,
    params::{CompareQuery, Period, ReportQuery},
    runs,
    transactions::decoded,
};

/// Most transactions of a report of which the course of time is computed.
const MAX_WHOLE: usize = 100_000;

/// A report of runs.
pub(super) fn report(
    store: &Store,
    node: &str,
    query: &ReportQuery,
    budget: &Budget,
) -> Result<Result<Report, Problem>, StoreError> {
    let mut runs = match runs::chosen(store, node, query, budget)? {
        Err(problem) => return Ok(Err(problem)),
        Ok(runs) => runs,
    };
    let has_all = attach(store, node, &mut runs, query.period, budget)?;
    Ok(Ok(with_transactions(Report::of_runs(&runs, &Options::default()), has_all)))
}

/// A comparison with everything that its page shows.
pub(super) fn comparison_report(
    store: &Store,
    node: &str,
    query: &CompareQuery,
    budget: &Budget,
) -> Result<Result<Report, Problem>, StoreError> {
    let [mut a, mut b] = match runs::sides(store, node, query, budget)? {
        Err(problem) => return Ok(Err(problem)),
        Ok(sides) => sides,
    };
    let mut has_all = true;
    for side in [&mut a, &mut b] {
        has_all &= attach(store, node, side, query.period, budget)?;
    }
    Ok(Ok(with_transactions(Report::of_comparison(&a, &b, &query.options), has_all)))
}

/// Without the course of time of transactions, unless all are known.
fn with_transactions(mut report: Report, has_all: bool) -> Report {
    if !has_all {
        report.transaction_types.clear();
    }
    report
}

/// Gives runs their transactions that ended in the period: all, or of more than [`MAX_WHOLE`] all applications of the slowest ones.
/// Returns whether these are all.
fn attach(
    store: &Store,
    node: &str,
    runs: &mut [Run],
    (from_ns, to_ns): Period,
    budget: &Budget,
) -> Result<bool, StoreError> {
    let of_runs = TransactionQuery {
        runs: runs.iter().map(|run| run.info.id.0).collect(),
        limit: u64::MAX,
        order: Order::OldestFirst,
        from_ns,
        to_ns,
        budget: budget.clone(),
        ..TransactionQuery::default()
    };
    let mut found = Vec::new();
    if runs.is_empty() {
        return Ok(true);
    }
    store.each_transaction(node, &of_runs, &mut |_, record| {
        found.extend(decoded(record));
        if found.len() > MAX_WHOLE { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    let is_whole = found.len() <= MAX_WHOLE;
    if !is_whole {
        found.clear();
        let slowest = TransactionQuery { limit: SLOWEST as u64, ..of_runs.clone() };
        let slowest = store.slowest_transactions(node, &slowest, &|_| true)?;
        let mut ids: Vec<[u8; 32]> =
            slowest.into_iter().filter_map(|(_, record)| Some(decoded(record)?.1.id.0)).collect();
        ids.sort_unstable();
        ids.dedup();
        store.each_transaction(node, &TransactionQuery { ids, ..of_runs }, &mut |_, record| {
            found.extend(decoded(record));
            ControlFlow::Continue(())
        })?;
    }
    found.sort_by_key(|(_, transaction)| transaction.time);
    for (id, transaction) in found {
        if let Some(run) = runs.iter_mut().find(|run| run.info.id == id) {
            run.transactions.push(transaction);
        }
    }
    Ok(is_whole)
}
