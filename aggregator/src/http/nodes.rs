//! `/nodes`: every node, with its state.

use std::collections::{BTreeMap, BTreeSet};

use axum::{body::Body, response::Response};
use chainscope_proto::v1::{Record, record::Kind};
use chainscope_store::{Error as StoreError, FactQuery, NodeInfo, Order, Store};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    app::{AuthorizedNodes, check_budget},
    list,
    problem::Problem,
    response,
};
use crate::{access::permission::ReadMessages, nodes::NodeEntry};

/// Characters that are escaped in a segment of a path.
const PATH_SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A node.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NodeView {
    /// `name` or `namespace/name`.
    #[schema(example = "default/octez-0")]
    name: String,
    /// Other names that `node_name` may use.
    aliases: BTreeSet<String>,
    /// Named by the configuration or a `TezosNode`, not only by an agent.
    configured: bool,
    /// Prefix of every path that is about this node alone.
    #[schema(example = "/nodes/default/octez-0")]
    path: String,
    /// `recording`: an agent is connected that delivers its records or reports its memory. `silent`: there are records, but
    /// no such agent. `waiting`: there are no records yet. `deleted`: its resource was deleted; its records are evicted
    /// after a while.
    state: &'static str,
    targets: Vec<TargetView>,
    /// Time of the latest record, nanoseconds since 1970.
    last_record: Option<i64>,
    /// Id of the oldest message that is kept.
    first_id: u64,
    /// Id that the next message will get.
    next_id: u64,
    loss: LossView,
}

/// An observed process of a node.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TargetView {
    #[schema(example = "pid 4711")]
    target: String,
    pid: u32,
    /// Its latest event.
    #[schema(example = "found")]
    event: String,
    detail: String,
    /// Time of the event, nanoseconds since 1970.
    time: i64,
}

/// What was lost of a node since its database was created; `/v2/stats` has stage and reason.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct LossView {
    records: u64,
    bytes: u64,
}

/// Every node that the caller may read, with its state, targets, last record and loss.
#[utoipa::path(get, path = "/nodes", responses(
    (status = 200, description = "The nodes, by name.", body = Vec<NodeView>),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(crate) async fn nodes(nodes: AuthorizedNodes<ReadMessages>) -> Result<Response, Problem> {
    let connected = nodes.agents().into_values().filter(|agent| agent.sessions > 0);
    let mut delivering: BTreeSet<String> = connected.flat_map(|agent| agent.nodes).collect();
    delivering.extend(nodes.with_current_memory());
    let json = nodes.read(move |nodes, store, budget| {
        let stored: BTreeMap<_, _> = store.nodes().into_iter().map(|node| (node.name.clone(), node)).collect();
        let views = nodes.known().into_iter().map(|(name, known)| {
            check_budget(budget)?;
            let (info, is_delivering) = (stored.get(&name), delivering.contains(&name));
            view(store, name, known, info, is_delivering, nodes.max_events())
        });
        Ok(list::array(views.collect::<Result<Vec<_>, _>>()?))
    });
    Ok(response::json(Body::from(json.await?)))
}

fn view(
    store: &Store,
    name: String,
    known: NodeEntry,
    info: Option<&NodeInfo>,
    is_delivering: bool,
    max_events: u64,
) -> Result<NodeView, StoreError> {
    let NodeEntry { aliases, configured, deleted_ns, .. } = known;
    let last_record = info.and_then(|info| info.last_time_ns);
    let state = match (deleted_ns, is_delivering, last_record) {
        (Some(_), ..) => "deleted",
        (None, true, _) => "recording",
        (None, false, Some(_)) => "silent",
        (None, false, None) => "waiting",
    };
    Ok(NodeView {
        path: path(&name),
        state,
        targets: targets(store, &name, max_events)?,
        last_record,
        first_id: info.map_or(0, |info| info.first_id),
        next_id: info.map_or(0, |info| info.next_id),
        loss: info.map_or_else(LossView::default, |info| LossView {
            records: info.totals.lost_records,
            bytes: info.totals.lost_bytes,
        }),
        configured,
        aliases,
        name,
    })
}

fn path(name: &str) -> String {
    name.split('/')
        .fold(String::from("/nodes"), |path, part| format!("{path}/{}", utf8_percent_encode(part, PATH_SEGMENT)))
}

/// The latest event of each target, newest first.
fn targets(store: &Store, node: &str, max_events: u64) -> Result<Vec<TargetView>, StoreError> {
    let query = FactQuery { cursor: None, limit: max_events, order: Order::NewestFirst };
    let mut seen = BTreeSet::new();
    let events = store.target_events(node, &query)?.into_iter().filter_map(|(_, record)| match record {
        Record { time_ns, target, kind: Some(Kind::TargetEvent(event)) } => seen
            .insert(target.clone())
            .then_some(TargetView { target, pid: event.pid, event: event.event, detail: event.detail, time: time_ns }),
        _ => None,
    });
    Ok(events.collect())
}
