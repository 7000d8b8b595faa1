//! Losses summed by stage and reason.

use std::collections::BTreeMap;

use chainscope_proto::v1::{Loss, record::Kind};
use chainscope_store::{Error as StoreError, FactQuery, Order, Store};
use parking_lot::Mutex;
use serde::Serialize;
use utoipa::ToSchema;

/// Losses read at a time.
const PAGE: u64 = 1000;
/// Distinct pairs of stage and reason of a node; further ones are summed as "other".
const MAX_REASONS: usize = 200;

/// Losses of one stage for one reason.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct LossStats {
    /// `kernel`, `stream`, `queue`, `spool`, `agent`, …
    stage: String,
    reason: String,
    /// Number of losses.
    times: u64,
    records: u64,
    bytes: u64,
    /// The amount of at least one of the losses is unknown.
    amount_unknown: bool,
    /// The earliest, nanoseconds since 1970.
    from: i64,
    /// The latest.
    to: i64,
}

/// Losses of all nodes. Each loss is read once: a query reads only those that were stored since the last one. Nothing is
/// locked while the store is read.
///
/// Losses that were evicted before this process started are in the totals of a node, but not here.
#[derive(Debug, Default)]
pub(crate) struct LossTables {
    nodes: Mutex<BTreeMap<String, LossTable>>,
}

#[derive(Debug, Default)]
struct LossTable {
    /// Id of the first loss that was not read.
    next: u64,
    sums: BTreeMap<(String, String), LossStats>,
}

impl LossTables {
    /// Losses of a node. Reads the store, and calls `check` between pages: its error ends the call, and the next one goes on.
    pub(crate) fn of(
        &self,
        store: &Store,
        node: &str,
        check: impl Fn() -> Result<(), StoreError>,
    ) -> Result<Vec<LossStats>, StoreError> {
        loop {
            check()?;
            let first = self.nodes.lock().get(node).map_or(0, |table| table.next);
            let query = FactQuery { cursor: Some(first), limit: PAGE, order: Order::OldestFirst };
            let losses = store.losses(node, &query)?;
            let is_last = (losses.len() as u64) < PAGE;
            let mut nodes = self.nodes.lock();
            let table = nodes.entry(node.to_owned()).or_default();
            // Losses before `next` were added by another request meanwhile.
            for (id, record) in losses.into_iter().filter(|(id, _)| *id >= table.next).collect::<Vec<_>>() {
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
        if self.sums.len() >= MAX_REASONS && !self.sums.contains_key(&key) {
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
