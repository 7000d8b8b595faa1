//! `/nodes`: every node, and how it is doing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use axum::{body::Body, extract::State, response::Response};
use chainscope_proto::v1::{Record, record::Kind};
use chainscope_store::{Error as StoreError, FactQuery, Order, Store};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    app::{App, Asked},
    list,
    problem::Problem,
};
use crate::nodes::NodeEntry;

/// What may stand in a part of a path as it is.
const PART: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Events of targets that are looked at.
const EVENTS: u64 = 1000;

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
    /// `recording`: an agent is connected that delivers its records or tells of its memory. `silent`: there are records, but no such agent.
    /// `waiting`: there are no records yet. `deleted`: its resource was deleted; what is kept of it goes in a while.
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
    /// The latest thing that happened to it.
    #[schema(example = "found")]
    event: String,
    detail: String,
    /// When, nanoseconds since 1970.
    time: i64,
}

/// What was lost of a node since its database was made; `/v2/stats` says where and why.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct LossView {
    records: u64,
    bytes: u64,
}

/// Every node that the caller may read, with its state, targets, last record and loss.
#[utoipa::path(get, path = "/nodes", responses((status = 200, description = "The nodes, by name.", body = Vec<NodeView>)))]
pub(crate) async fn nodes(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Problem> {
    let mut known = app.nodes.all();
    if let Some(visible) = asked.visible(&app).await? {
        known.retain(|(name, _)| visible.contains(name));
    }
    let agents = app.ingest.agents();
    let mut delivering: BTreeSet<String> =
        agents.into_values().filter(|agent| agent.sessions > 0).flat_map(|agent| agent.nodes).collect();
    delivering.extend(app.memory.nodes().into_iter().filter(|node| app.memory.is_told_of(node)));
    let json = app.read(move |store, _| {
        let mut json = vec![b'['];
        let stored: BTreeMap<_, _> = store.nodes().into_iter().map(|node| (node.name.clone(), node)).collect();
        for (name, NodeEntry { aliases, configured, deleted_ns, .. }) in known {
            let info = stored.get(&name);
            let last_record = info.and_then(|info| info.last_time_ns);
            let state = match (deleted_ns, delivering.contains(&name), last_record) {
                (Some(_), ..) => "deleted",
                (None, true, _) => "recording",
                (None, false, Some(_)) => "silent",
                (None, false, None) => "waiting",
            };
            let view = NodeView {
                path: path(&name),
                state,
                targets: targets(store, &name)?,
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
            };
            let is_first = json.len() == 1;
            list::push(&mut json, is_first, &view);
        }
        json.push(b']');
        Ok(json)
    });
    Ok(list::json(Body::from(json.await?)))
}

fn path(name: &str) -> String {
    name.split('/').fold(String::from("/nodes"), |path, part| format!("{path}/{}", utf8_percent_encode(part, PART)))
}

/// The latest event of each target, newest first.
fn targets(store: &Store, node: &str) -> Result<Vec<TargetView>, StoreError> {
    let query = FactQuery { cursor: None, limit: EVENTS, order: Order::NewestFirst };
    let mut seen = BTreeSet::new();
    let events = store.target_events(node, &query)?.into_iter().filter_map(|(_, record)| match record {
        Record { time_ns, target, kind: Some(Kind::TargetEvent(event)) } => seen
            .insert(target.clone())
            .then_some(TargetView { target, pid: event.pid, event: event.event, detail: event.detail, time: time_ns }),
        _ => None,
    });
    Ok(events.collect())
}
