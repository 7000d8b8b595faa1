//! Transactions of runs, by run, id, type, result, duration and process.

use std::{cmp::Reverse, ops::ControlFlow};

use chainscope_proto::v1::{LatencyTransaction, Record, record::Kind};

use crate::{
    Error, Store,
    kind::{FactKind, Index, RetentionClass},
    query::{Budget, Filter, Order, Query},
};

/// Transactions of runs. Like blocks of runs they are not counted as rows, which are events.
pub(crate) static LATENCY_TRANSACTIONS: FactKind = FactKind {
    name: "transaction",
    table: 160,
    accepts: |record| matches!(record.kind, Some(Kind::LatencyTransaction(_))),
    time: |record| record.time_ns,
    indexes: &[BY_RUN, BY_ID, BY_TYPE, BY_RESULT, BY_OCTAVE, BY_TARGET],
    text: None,
    position: None,
    group: None,
    retention: RetentionClass::Traces,
    counted: false,
    total: |totals, _| totals.latency_transactions += 1,
};

/// Positions in the list of indexes of [`LATENCY_TRANSACTIONS`].
mod index {
    pub(super) const RUN: usize = 0;
    pub(super) const ID: usize = 1;
    pub(super) const TYPE: usize = 2;
    pub(super) const RESULT: usize = 3;
    pub(super) const OCTAVE: usize = 4;
    pub(super) const TARGET: usize = 5;
}

const BY_RUN: Index = Index { values: |record, add| with(record, |transaction| add(&transaction.run_id)) };
const BY_ID: Index = Index { values: |record, add| with(record, |transaction| add(&transaction.id)) };
const BY_TYPE: Index = Index { values: |record, add| with(record, |of| add(&of.r#type.to_be_bytes())) };
const BY_RESULT: Index = Index { values: |record, add| with(record, |of| add(&of.result.to_be_bytes())) };
const BY_OCTAVE: Index = Index { values: |record, add| with(record, |of| add(&[octave(of.duration_ns)])) };
const BY_TARGET: Index = Index { values: |record, add| add(record.target.as_bytes()) };

/// The number of binary digits of a duration: what is slower is in the same octave or a later one.
const fn octave(duration_ns: u64) -> u8 {
    (u64::BITS - duration_ns.leading_zeros()) as u8 // at most 64
}

fn with(record: &Record, add: impl FnOnce(&LatencyTransaction)) {
    if let Some(Kind::LatencyTransaction(transaction)) = &record.kind {
        add(transaction);
    }
}

/// Which transactions, in which order. Filters are AND-ed.
#[derive(Clone, Debug)]
pub struct TransactionQuery {
    /// Id of the row to begin with, included: the greatest (newest first) or the least (oldest first).
    pub cursor: Option<u64>,
    /// Most transactions to give; 0 gives none.
    pub limit: u64,
    /// The order of the answer.
    pub order: Order,
    /// Of any of these runs; empty for all.
    pub runs: Vec<[u8; 16]>,
    /// With any of these ids; empty for all.
    pub ids: Vec<[u8; 32]>,
    /// Of any of these types; empty for all.
    pub types: Vec<i64>,
    /// With any of these results; empty for all.
    pub results: Vec<i64>,
    /// The observed process or pod.
    pub target: Option<String>,
    /// Least time of the end, included, nanoseconds since 1970.
    pub from_ns: Option<i64>,
    /// Greatest time of the end, excluded.
    pub to_ns: Option<i64>,
    /// Bound on the work.
    pub budget: Budget,
}

impl Default for TransactionQuery {
    fn default() -> Self {
        Self {
            cursor: None,
            limit: 100,
            order: Order::NewestFirst,
            runs: Vec::new(),
            ids: Vec::new(),
            types: Vec::new(),
            results: Vec::new(),
            target: None,
            from_ns: None,
            to_ns: None,
            budget: Budget::default(),
        }
    }
}

impl TransactionQuery {
    fn query(&self, octave: Option<u8>) -> Query {
        let numbers = |numbers: &[i64]| numbers.iter().map(|number| number.to_be_bytes().to_vec()).collect();
        let filters: [(usize, Vec<Vec<u8>>); 6] = [
            (index::RUN, self.runs.iter().map(|run| run.to_vec()).collect()),
            (index::ID, self.ids.iter().map(|id| id.to_vec()).collect()),
            (index::TYPE, numbers(&self.types)),
            (index::RESULT, numbers(&self.results)),
            (index::OCTAVE, octave.iter().map(|octave| vec![*octave]).collect()),
            (index::TARGET, self.target.iter().map(|target| target.clone().into_bytes()).collect()),
        ];
        let filters = filters.into_iter().filter(|(_, values)| !values.is_empty());
        Query {
            cursor: self.cursor,
            limit: self.limit,
            order: self.order,
            filters: filters.map(|(index, values)| Filter { index, values }).collect(),
            text: None,
            from_ns: self.from_ns,
            to_ns: self.to_ns,
            budget: self.budget.clone(),
        }
    }
}

impl Store {
    /// Passes transactions with the ids of their rows, one by one, until `each` breaks off.
    ///
    /// # Errors
    /// The query's budget is used up or its deadline passed. Damage.
    pub fn each_transaction(
        &self,
        node: &str,
        query: &TransactionQuery,
        each: &mut dyn FnMut(u64, Record) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.each_fact(node, &LATENCY_TRANSACTIONS, &query.query(None), each)
    }

    /// The slowest transactions for which `is_wanted` holds, slowest first, of the same duration the oldest first. Cursor and order of
    /// the query have no meaning. Reads octaves of durations from the slowest one on, until there are enough.
    ///
    /// # Errors
    /// As of [`Self::each_transaction`]; the budget of rows is one of each octave.
    pub fn slowest_transactions(
        &self,
        node: &str,
        query: &TransactionQuery,
        is_wanted: &dyn Fn(&LatencyTransaction) -> bool,
    ) -> Result<Vec<(u64, Record)>, Error> {
        let most = usize::try_from(query.limit).unwrap_or(usize::MAX);
        let mut slowest = Vec::new();
        for octave in (0..=u64::BITS as u8).rev() {
            if slowest.len() >= most {
                break;
            }
            let all = Query { cursor: None, limit: u64::MAX, order: Order::OldestFirst, ..query.query(Some(octave)) };
            let (mut found, left) = (Vec::new(), most - slowest.len());
            self.each_fact(node, &LATENCY_TRANSACTIONS, &all, &mut |id, record| {
                if matches!(&record.kind, Some(Kind::LatencyTransaction(of)) if is_wanted(of)) {
                    found.push((id, record));
                }
                // Twice the number that is needed is held at most.
                if found.len() >= left.saturating_mul(2).max(1024) {
                    keep_slowest(&mut found, left);
                }
                ControlFlow::Continue(())
            })?;
            keep_slowest(&mut found, left);
            slowest.append(&mut found);
        }
        Ok(slowest)
    }
}

fn keep_slowest(found: &mut Vec<(u64, Record)>, most: usize) {
    found.sort_by_key(|(id, record)| {
        let duration_ns = match &record.kind {
            Some(Kind::LatencyTransaction(transaction)) => transaction.duration_ns,
            _ => 0,
        };
        (Reverse(duration_ns), *id)
    });
    found.truncate(most);
}
