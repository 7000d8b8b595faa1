//! `/v2/trace/relay`: who announced and delivered the blocks of a range of time.

use std::{collections::BTreeMap, ops::ControlFlow};

use axum::response::Response;
use chainscope_proto::v1::{Record, record::Kind};
use chainscope_store::{Budget, Error as StoreError, FactQuery, Order, Store, TraceQuery};
use chainscope_trace::{
    Accounting, json,
    record::Decoder,
    view::{Lines, Relay, View as _},
};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    super::{
        app::AuthorizedNode,
        params::{NodeParameters, Params},
        problem::Problem,
        response,
    },
    params::RelayParameters,
};
use crate::{access::permission::ReadTrace, clock::now_ns};

/// The stage of losses between a tracepoint and the record stream.
const STAGE: &str = "tracepoint";
/// Losses read at a time.
const PAGE: u64 = 1000;

/// How blocks reached the node.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BlockRelay {
    /// Begin of the range.
    #[schema(example = "2021-07-14T14:46:39.000000000Z")]
    from: String,
    /// Events that it is computed from.
    events: u64,
    /// Events that cannot be read.
    unreadable_events: u64,
    /// Events of any tracepoint that were lost in this time: a step may be missing.
    lost_events: u64,
    /// One for each observed process or pod.
    targets: Vec<TargetRelay>,
}

/// How blocks reached a process.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TargetRelay {
    /// The observed process or pod.
    #[schema(example = "pid 4711")]
    target: String,
    /// Blocks that were announced and connected, the last 1000, in order: `hash`, `pid`, `height`, `announcements` (each peer once, the
    /// first one first), the `request` and the `delivery` that completed it, `connected_after_ns`, and the requests that were
    /// `unanswered`. Times of steps are `after_ns` since the first announcement.
    #[schema(value_type = Vec<Object>)]
    blocks: Value,
    /// Hashes of blocks that were announced and not connected.
    #[schema(value_type = Vec<String>)]
    not_connected: Value,
    /// Number of blocks that were announced and not connected, and are forgotten.
    #[schema(value_type = u64)]
    forgotten: Value,
}

/// Block relay: who announced a block first, who delivered it, which peer did not answer, and the time of each stage.
///
/// Computed from the recorded events `net:inbound_message`, `net:outbound_message` and `validation:block_connected` of the range, of
/// Bitcoin Core, Tapyrus, and nodes with headers of 80 bytes. Blocks whose first announcement is before the range are not in it.
#[utoipa::path(get, path = "/v2/trace/relay", params(NodeParameters, RelayParameters), responses(
    (status = 200, description = "The blocks.", body = BlockRelay),
    (status = 400, description = "A parameter is malformed, several nodes are meant, or the query takes too long.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(super) async fn block_relay(
    Params(parameters): Params<RelayParameters>,
    node: AuthorizedNode<ReadTrace>,
) -> Result<Response, Problem> {
    let query = parameters.query(now_ns())?;
    let relay = node.read(move |store, node, budget| compute(store, node, TraceQuery { budget, ..query })).await?;
    Ok(response::json_of(&relay))
}

fn compute(store: &Store, node: &str, query: TraceQuery) -> Result<BlockRelay, StoreError> {
    let (mut decoder, mut relays) = (Decoder::default(), BTreeMap::<String, Relay>::new());
    let (mut events, mut unreadable_events, mut lines) = (0, 0, Lines::default());
    store.each_trace_event(node, &query, &mut |id, record| {
        let Record { time_ns, target, kind: Some(Kind::TraceEvent(event)) } = record else {
            return ControlFlow::Continue(());
        };
        let relay = relays.entry(target).or_default();
        if !relay.selects(&event.provider, &event.name) {
            return ControlFlow::Continue(());
        }
        match decoder.event(id, time_ns, event) {
            Ok(event) => {
                events += 1;
                relay.event(&event, &mut lines);
                lines.discard();
            }
            Err(_) => unreadable_events += 1,
        }
        ControlFlow::Continue(())
    })?;
    let from_ns = query.from_ns.unwrap_or(0);
    let lost_events = lost(store, node, from_ns, query.to_ns.unwrap_or(i64::MAX), &query.budget)?;
    let targets = relays.into_iter().map(|(target, relay)| summary(target, relay)).collect();
    Ok(BlockRelay { from: json::rfc3339(from_ns), events, unreadable_events, lost_events, targets })
}

fn summary(target: String, mut relay: Relay) -> TargetRelay {
    relay.finish(&Accounting::default(), &mut Lines::default());
    let mut summary = relay.summary().unwrap_or_default();
    let mut take = |key: &str| summary.get_mut(key).map(Value::take).unwrap_or_default();
    TargetRelay { target, blocks: take("blocks"), not_connected: take("not_connected"), forgotten: take("forgotten") }
}

/// Events of tracepoints that were lost in a range of time, or at its edges. Losses are read backwards from now.
fn lost(store: &Store, node: &str, from_ns: i64, to_ns: i64, budget: &Budget) -> Result<u64, StoreError> {
    let (mut cursor, mut lost) = (None, 0_u64);
    loop {
        super::super::app::check_budget(budget)?;
        let losses = store.losses(node, &FactQuery { cursor, limit: PAGE, order: Order::NewestFirst })?;
        let is_last = (losses.len() as u64) < PAGE;
        for (id, record) in losses {
            let Some(Kind::Loss(loss)) = record.kind else { continue };
            cursor = id.checked_sub(1);
            if loss.stage == STAGE && loss.to_ns >= from_ns && loss.from_ns < to_ns {
                lost = lost.saturating_add(loss.records);
            }
            if record.time_ns < from_ns || cursor.is_none() {
                return Ok(lost);
            }
        }
        if is_last {
            return Ok(lost);
        }
    }
}
