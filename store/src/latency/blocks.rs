//! Blocks of runs, by run and process.

use std::ops::ControlFlow;

use chainscope_proto::v1::{LatencyBlock, Record, record::Kind};

use crate::{
    Error, Store,
    kind::{FactKind, Index, RetentionClass},
    query::{Budget, Filter, Order, Query},
};

/// Blocks of runs. They are not counted as rows, which are events.
pub(crate) static LATENCY_BLOCKS: FactKind = FactKind {
    name: "latency block",
    table: 144,
    accepts: |record| matches!(record.kind, Some(Kind::LatencyBlock(_))),
    time: |record| record.time_ns,
    indexes: &[BY_RUN, DESCRIBED, BY_TARGET],
    text: None,
    position: None,
    group: None,
    retention: RetentionClass::Traces,
    counted: false,
    total: |totals, _| totals.latency_blocks += 1,
};

/// Positions in the list of indexes of [`LATENCY_BLOCKS`].
mod index {
    pub(super) const RUN: usize = 0;
    pub(super) const DESCRIBED: usize = 1;
    pub(super) const TARGET: usize = 2;
}

/// The value of blocks that describe their run.
const IS_DESCRIBED: &[u8] = b"run";

const BY_RUN: Index = Index { values: |record, add| with(record, |block| add(&block.run_id)) };
const DESCRIBED: Index = Index {
    values: |record, add| {
        with(record, |block| {
            if block.run.is_some() {
                add(IS_DESCRIBED);
            }
        });
    },
};
const BY_TARGET: Index = Index { values: |record, add| add(record.target.as_bytes()) };

fn with(record: &Record, add: impl FnOnce(&LatencyBlock)) {
    if let Some(Kind::LatencyBlock(block)) = &record.kind {
        add(block);
    }
}

/// Which blocks of runs, oldest first. Filters are AND-ed.
#[derive(Clone, Debug, Default)]
pub struct LatencyQuery {
    /// Of any of these runs; empty for all.
    pub runs: Vec<[u8; 16]>,
    /// Only blocks that describe their run.
    pub is_described: bool,
    /// The observed process or pod.
    pub target: Option<String>,
    /// Least start, included, nanoseconds since 1970.
    pub from_ns: Option<i64>,
    /// Greatest start, excluded.
    pub to_ns: Option<i64>,
    /// Bound on the work.
    pub budget: Budget,
}

impl LatencyQuery {
    fn query(&self) -> Query {
        let runs: Vec<Vec<u8>> = self.runs.iter().map(|run| run.to_vec()).collect();
        let described: Vec<Vec<u8>> = self.is_described.then(|| IS_DESCRIBED.to_vec()).into_iter().collect();
        let targets: Vec<Vec<u8>> = self.target.iter().map(|target| target.clone().into_bytes()).collect();
        let filters = [(index::RUN, runs), (index::DESCRIBED, described), (index::TARGET, targets)];
        let filters = filters.into_iter().filter(|(_, values)| !values.is_empty());
        Query {
            cursor: None,
            limit: u64::MAX,
            order: Order::OldestFirst,
            filters: filters.map(|(index, values)| Filter { index, values }).collect(),
            text: None,
            from_ns: self.from_ns,
            to_ns: self.to_ns,
            budget: self.budget.clone(),
        }
    }
}

impl Store {
    /// Passes blocks of runs, one by one, until `each` breaks off.
    ///
    /// # Errors
    /// The query's budget is used up or its deadline passed. Damage.
    pub fn each_latency_block(
        &self,
        node: &str,
        query: &LatencyQuery,
        each: &mut dyn FnMut(u64, Record) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.each_fact(node, &LATENCY_BLOCKS, &query.query(), each)
    }
}
