//! `/v2/latency/transactions`: transactions of runs, one by one.

use std::ops::ControlFlow;

use axum::{body::Body, response::Response};
use chainscope_hygiene::warn_limited;
use chainscope_latency::{
    RunId, Transaction,
    record::decode_transaction,
    report::{TransactionRow, hex_prefix},
};
use chainscope_proto::v1::{LatencyTransaction, Record, record::Kind};
use chainscope_store::{Error as StoreError, Order, Store, TransactionQuery};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    super::{
        app::AuthorizedNode,
        list,
        params::{NodeParameters, Params},
        problem::Problem,
        response,
        rows::{self, Part, Rows},
    },
    params::{TransactionParameters, Transactions},
    runs,
};
use crate::{access::permission::ReadTrace, json};

/// One application of a transaction.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LatencyTransactionRow)]
pub(super) struct Row {
    /// Position among the node's transactions, dense from 0.
    #[schema(example = 9999)]
    cursor: u64,
    #[serde(flatten)]
    transaction: TransactionRow,
}

/// Transactions of a node's runs, newest first, or slowest first.
///
/// A node that has a tracepoint for them says of each transaction its id, type and result. A transaction that is applied several times
/// is several rows. All filters given must hold. Pages: give as `cursor` the one after that of the last row; a list by duration has
/// none. The beginning of an id is compared with each row that the other filters select; everything else has an index.
#[utoipa::path(get, path = "/v2/latency/transactions", params(NodeParameters, TransactionParameters), responses(
    (status = 200, description = "The transactions; possibly none.", body = Vec<Row>),
    (status = 400, description = "A parameter is malformed, several nodes are meant, or the query takes too long.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node, or no such run.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(super) async fn latency_transactions(
    Params(parameters): Params<TransactionParameters>,
    node: AuthorizedNode<ReadTrace>,
) -> Result<Response, Problem> {
    let (selectors, is_by_duration, mut transactions) = parameters.transactions()?;
    if !selectors.is_empty() {
        let chosen =
            node.read(move |store, node, budget| runs::named(store, node, "run", &selectors, &budget)).await??;
        transactions.query.runs = chosen.into_iter().map(|id| id.0).collect();
    }
    if !is_by_duration {
        return rows::respond(node, transactions).await;
    }
    let slowest = node.read_long(move |store, node, budget| {
        let query = TransactionQuery { budget, ..transactions.query };
        let found = store.slowest_transactions(node, &query, &|of| is_of(transactions.id_prefix.as_deref(), of))?;
        Ok(list::array(found.into_iter().filter_map(|(id, record)| row(id, record))))
    });
    Ok(response::json(Body::from(slowest.await?)))
}

fn is_of(prefix: Option<&str>, transaction: &LatencyTransaction) -> bool {
    prefix.is_none_or(|prefix| hex_prefix(&transaction.id, prefix))
}

fn row(cursor: u64, record: Record) -> Option<Row> {
    let (run, transaction) = decoded(record)?;
    Some(Row { cursor, transaction: TransactionRow::new(run, &transaction) })
}

/// Run and transaction of a record.
pub(super) fn decoded(record: Record) -> Option<(RunId, Transaction)> {
    let Record { time_ns, kind: Some(Kind::LatencyTransaction(transaction)), .. } = record else { return None };
    // Ingest stores no invalid ones.
    let defect = |defect| warn_limited!(defect, "a stored transaction is not valid");
    decode_transaction(time_ns, &transaction).map_err(defect).ok()
}

impl Rows for Transactions {
    type Policy = ReadTrace;

    fn cursor(&self) -> Option<u64> {
        self.query.cursor
    }

    fn limit(&self) -> u64 {
        self.query.limit
    }

    fn order(&self) -> Order {
        self.query.order
    }

    fn next_id(store: &Store, node: &str) -> u64 {
        store.visible_transactions(node).1
    }

    fn each(
        self,
        store: &Store,
        node: &str,
        Part { cursor, limit, order, budget }: Part,
        each: &mut dyn FnMut(u64, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let Self { query, id_prefix } = self;
        if limit == 0 {
            return Ok(());
        }
        // What the indexes do not decide is not counted by the store.
        let examined = if id_prefix.is_some() { u64::MAX } else { limit };
        let query = TransactionQuery { cursor, limit: examined, order, budget, ..query };
        let (mut json_row, mut left) = (Vec::new(), limit);
        store.each_transaction(node, &query, &mut |id, record| {
            let is_wanted =
                matches!(&record.kind, Some(Kind::LatencyTransaction(of)) if is_of(id_prefix.as_deref(), of));
            let Some(shown) = is_wanted.then(|| row(id, record)).flatten() else { return ControlFlow::Continue(()) };
            json_row.clear();
            // Writing to memory does not fail.
            let _ = json::write(&mut json_row, &shown);
            left -= 1;
            if each(id, &json_row).is_break() || left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    }
}
