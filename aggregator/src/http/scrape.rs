//! `/metrics`, `/healthz`, `/readyz`, `/v2/version`.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use chainscope_hygiene::EscapedTruncated;
use chainscope_proto::v1::{NetworkAccount, ReasonCount, Record, record::Kind};
use chainscope_store::{Error as StoreError, NodeInfo, Store};
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

use super::{app::App, list, memory, problem::Problem};

/// OpenMetrics' media type: what the encoder writes.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The build of the recorder: a commit or a version, as a JSON string.
#[utoipa::path(get, path = "/v2/version", responses((status = 200, description = "The build.", body = String)))]
pub(crate) async fn version(State(app): State<Arc<App>>) -> Response {
    list::json(Body::from(serde_json::Value::from(app.build.clone()).to_string()))
}

/// Whether the program lives.
#[utoipa::path(get, path = "/healthz", responses((status = 200, description = "It does.", body = String)))]
pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether questions can be answered. Records that cannot be stored, as on a full disk, are said but no reason to be
/// taken out of service: what is stored can still be read.
#[utoipa::path(get, path = "/readyz", responses(
    (status = 200, description = "Yes.", body = String),
    (status = 503, description = "No, and why.", body = Problem),
))]
pub(crate) async fn readyz(State(app): State<Arc<App>>) -> Result<String, Problem> {
    if app.draining.is_cancelled() || app.stop.is_cancelled() {
        return Err(Problem::busy("the aggregator ends"));
    }
    if app.catalog.as_ref().is_some_and(|catalog| !catalog.is_known()) {
        return Err(Problem::busy("the operator has not said yet which nodes there are"));
    }
    app.read(|store, _| Ok(store.generation())).await?;
    Ok(match app.ingest.write_error() {
        Some(trouble) => format!("ok, but records cannot be stored: {}\n", EscapedTruncated(&trouble)),
        None => "ok\n".to_owned(),
    })
}

/// Counters and gauges for Prometheus, in its OpenMetrics text format.
#[utoipa::path(get, path = "/metrics", responses(
    (status = 200, description = "The metrics.", content_type = "application/openmetrics-text", body = String),
))]
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    let shared = Arc::clone(&app);
    let text = app.read(move |store, _| {
        let scraped = scraped(&shared, store)?;
        let mut text = String::new();
        let written = text::encode_registry(&mut text, &shared.metrics.registry)
            .and_then(|()| text::encode_registry(&mut text, &scraped))
            .and_then(|()| text::encode_eof(&mut text));
        // Writing to memory does not fail.
        written.map(|()| text).map_err(|error| StoreError::Corrupt(error.to_string()))
    });
    let mut response = text.await?.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(OPEN_METRICS));
    Ok(response)
}

/// A node: its name was checked when it became known.
#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct NodeLabels {
    node: String,
}

type ByNode<M> = Family<NodeLabels, M>;

/// What is read at each scrape: the store's counts, and the accounts of all targets of a node together.
///
/// A target's name has a process id in it, so it is no label; `/v2/stats` tells targets apart.
fn scraped(app: &App, store: &Store) -> Result<Registry, StoreError> {
    let mut registry = Registry::with_prefix("chainscope");
    let mut nodes = store.nodes();
    // A deleted node's name stays in the store.
    nodes.retain(|node| app.nodes.knows(&node.name));
    stored(&mut registry, &nodes);
    accounted(&mut registry, store, &nodes)?;
    memory::scrape(app, &mut registry);
    let disk = store.disk()?;
    gauge(
        &mut registry,
        "store_disk_free",
        "Space that the database may still take",
        Some(Unit::Bytes),
        disk.free_bytes,
    );
    gauge(
        &mut registry,
        "store_disk_full",
        "1 if the last write was refused for want of space",
        None,
        disk.full.into(),
    );
    let memory = store.memory();
    let parts = [
        ("store_block_cache", "Memory of blocks that were read from the database's files", memory.block_cache_bytes),
        (
            "store_write_buffer",
            "Memory of records that are not in a file of the database yet",
            memory.write_buffer_bytes,
        ),
        ("store_open_files", "Memory of tables of contents outside the block cache", memory.open_files_bytes),
    ];
    for (name, help, bytes) in parts {
        gauge(&mut registry, name, help, Some(Unit::Bytes), bytes);
    }
    if let Some(catalog) = &app.catalog {
        let help = "1 if the operator's catalog is followed";
        gauge(&mut registry, "catalog_connected", help, None, catalog.is_connected().into());
    }
    gauge(&mut registry, "nodes", "Known nodes", None, app.nodes.all().len() as u64);
    gauge(&mut registry, "query_waiting", "Requests that wait for a thread", None, app.pool.waiting() as u64);
    let streamed = Counter::<u64>::default();
    streamed.inc_by(app.metrics.streamed());
    registry.register("http_streamed_rows", "Rows sent on live streams", streamed);
    Ok(registry)
}

fn gauge(registry: &mut Registry, name: &str, help: &str, unit: Option<Unit>, value: u64) {
    let gauge = Gauge::<i64>::default();
    gauge.set(signed(value));
    match unit {
        Some(unit) => registry.register_with_unit(name, help, unit, gauge),
        None => registry.register(name, help, gauge),
    }
}

fn stored(registry: &mut Registry, nodes: &[NodeInfo]) {
    let mut gauges = |name: &str, help: &str, unit: Option<Unit>, value: fn(&NodeInfo) -> u64| {
        let family = ByNode::<Gauge>::default();
        for node in nodes {
            family.get_or_create(&NodeLabels { node: node.name.clone() }).set(signed(value(node)));
        }
        match unit {
            Some(unit) => registry.register_with_unit(name, help, unit, family),
            None => registry.register(name, help, family),
        }
    };
    gauges("store_messages", "Messages that are kept", None, |node| node.rows);
    gauges("store_size", "What is kept, before compression", Some(Unit::Bytes), |node| node.bytes);
    gauges("store_segments", "Segments that are kept", None, |node| node.segments);
    gauges("store_last_record_timestamp", "Time of the latest record", Some(Unit::Seconds), |node| {
        node.last_time_ns.and_then(|ns| u64::try_from(ns / 1_000_000_000).ok()).unwrap_or(0)
    });
    let mut counters = |name: &str, help: &str, unit: Option<Unit>, value: fn(&NodeInfo) -> u64| {
        counters_of(registry, name, help, unit, nodes.iter().map(|node| (node.name.clone(), value(node))));
    };
    counters("messages_stored", "Messages stored", None, |node| node.totals.messages);
    counters("chunks_stored", "Chunks stored", None, |node| node.totals.chunks);
    counters("messages_evicted", "Messages that retention let go", None, |node| node.totals.evicted_rows);
    counters("records_duplicate", "Records that came again", None, |node| node.totals.duplicates);
    counters("records_lost", "Records that agents report as lost", None, |node| node.totals.lost_records);
    counters("lost", "Size of what agents report as lost", Some(Unit::Bytes), |node| node.totals.lost_bytes);
}

fn counters_of(
    registry: &mut Registry,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    values: impl Iterator<Item = (String, u64)>,
) {
    let family = ByNode::<Counter>::default();
    for (node, value) in values {
        family.get_or_create(&NodeLabels { node }).inc_by(value);
    }
    match unit {
        Some(unit) => registry.register_with_unit(name, help, unit, family),
        None => registry.register(name, help, family),
    }
}

/// The terms of the conservation equations, summed over the targets and epochs of a node.
fn accounted(registry: &mut Registry, store: &Store, nodes: &[NodeInfo]) -> Result<(), StoreError> {
    let mut accounts: Vec<(String, Vec<NetworkAccount>)> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let of_node = store.accounts(&node.name)?.into_iter().filter_map(|account| match account.record {
            Record { kind: Some(Kind::NetworkAccount(terms)), .. } => Some(terms),
            _ => None,
        });
        accounts.push((node.name.clone(), of_node.collect()));
    }
    let mut counters = |name: &str, help: &str, unit: Option<Unit>, value: fn(&NetworkAccount) -> u64| {
        let sums = accounts
            .iter()
            .map(|(node, accounts)| (node.clone(), accounts.iter().map(value).fold(0, u64::saturating_add)));
        counters_of(registry, name, help, unit, sums);
    };
    let bytes = || Some(Unit::Bytes);
    counters("network_seen", "Bytes seen on the node's sockets", bytes(), |terms| terms.bytes_seen);
    counters("network_captured", "Bytes captured", bytes(), |terms| terms.bytes_captured);
    counters("network_dropped", "Bytes not captured", bytes(), |terms| sum(&terms.bytes_dropped));
    counters("network_left_alone", "Bytes of other protocols", bytes(), |terms| terms.bytes_left_alone);
    counters("network_in_chunks", "Bytes that became chunks", bytes(), |terms| terms.bytes_in_chunks);
    counters("network_skipped", "Bytes skipped behind a hole", bytes(), |terms| terms.bytes_skipped);
    counters("network_not_protocol", "Bytes captured of other protocols", bytes(), |terms| terms.bytes_not_protocol);
    counters("network_chunks", "Chunks", None, |terms| terms.chunks);
    counters("network_chunks_undecryptable", "Chunks not opened", None, |terms| terms.chunks_undecryptable);
    counters("network_chunks_dropped", "Chunks that the agent's queue had no room for", None, |terms| {
        terms.chunks_dropped
    });
    counters("network_queue_dropped", "Bytes of these chunks on the wire", bytes(), |terms| terms.chunk_bytes_dropped);
    counters("network_messages", "Messages", None, |terms| terms.messages);
    counters("network_messages_dropped", "Messages dropped", None, |terms| sum(&terms.messages_dropped));
    counters("network_gaps", "Holes in streams", None, |terms| terms.gaps);
    counters("network_connections", "Connections", None, |terms| terms.connections);
    Ok(())
}

fn sum(counts: &[ReasonCount]) -> u64 {
    counts.iter().map(|each| each.count).fold(0, u64::saturating_add)
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
