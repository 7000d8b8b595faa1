//! `/metrics`, `/healthz`, `/livez`, `/readyz`, `/v2/version`.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use chainscope_hygiene::EscapedTruncated;
use chainscope_store::{Budget, Error as StoreError, Store};
use prometheus_client::{
    encoding::text,
    metrics::counter::Counter,
    registry::{Registry, Unit},
};

use super::{
    app::{App, OperationsAccess},
    code::Code,
    latency, logs, memory, network,
    problem::Problem,
    response,
    scrape::gauge,
    trace,
};

/// OpenMetrics' media type: that of the encoder.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Routes for the operator of the program.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/livez", get(healthz))
        .route("/readyz", get(readyz))
}

/// The build of the recorder: a commit or a version, as a JSON string.
#[utoipa::path(get, path = "/v2/version", responses(
    (status = 200, description = "The build.", body = String, content_type = "application/json"),
))]
pub(crate) async fn version(State(app): State<Arc<App>>) -> Response {
    response::json(Body::from(serde_json::Value::from(app.build()).to_string()))
}

/// Liveness of the program.
#[utoipa::path(get, path = "/healthz", responses(
    (status = 200, description = "It is alive.", body = String),
    (status = 404, description = "With authentication: it is served on the port for metrics and health.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(crate) async fn healthz(_: OperationsAccess) -> &'static str {
    "ok\n"
}

/// Readiness to respond to requests. While records cannot be stored, as on a full disk, the program is ready and says so:
/// what is stored can still be read.
#[utoipa::path(get, path = "/readyz", responses(
    (status = 200, description = "Ready.", body = String),
    (status = 404, description = "With authentication: it is served on the port for metrics and health.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Not ready, with the reason.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(crate) async fn readyz(access: OperationsAccess) -> Result<String, Problem> {
    if access.is_draining() {
        return Err(Problem::new(Code::NotReady, "the aggregator ends"));
    }
    if access.catalog().is_some_and(|catalog| !catalog.is_known()) {
        return Err(Problem::new(Code::NotReady, "the operator has not said yet which nodes there are"));
    }
    Ok(match access.ingest_trouble() {
        Some(trouble) => format!("ok, but records cannot be stored: {}\n", EscapedTruncated(&trouble)),
        None => "ok\n".to_owned(),
    })
}

/// Counters and gauges for Prometheus, in its OpenMetrics text format.
#[utoipa::path(get, path = "/metrics", responses(
    (status = 200, description = "The metrics.", content_type = "application/openmetrics-text", body = String),
    (status = 404, description = "With authentication: it is served on the port for metrics and health.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(crate) async fn metrics(access: OperationsAccess) -> Result<Response, Problem> {
    let text = access.read(|access, store, budget| {
        let scraped = scraped(access, store, budget)?;
        let mut text = String::new();
        let written = text::encode_registry(&mut text, &access.app().metrics().registry)
            .and_then(|()| text::encode_registry(&mut text, &scraped))
            .and_then(|()| text::encode_eof(&mut text));
        // Writing to memory does not fail.
        written.map(|()| text).map_err(|error| StoreError::Corrupt(error.to_string()))
    });
    let mut response = text.await?.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(OPEN_METRICS));
    Ok(response)
}

/// What is read at each scrape.
fn scraped(access: &OperationsAccess, store: &Store, budget: &Budget) -> Result<Registry, StoreError> {
    let mut registry = Registry::with_prefix("chainscope");
    let mut nodes = store.nodes();
    // The store keeps the name of a deleted node.
    nodes.retain(|node| access.nodes().knows(&node.name));
    network::scrape(&mut registry, store, &nodes, budget)?;
    logs::scrape(&mut registry, store, &nodes);
    trace::scrape(&mut registry, &nodes);
    latency::scrape(&mut registry, &nodes);
    memory::scrape(&mut registry, access);
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
        "1 if the last write was refused because the disk is full",
        None,
        disk.full.into(),
    );
    gauge(
        &mut registry,
        "store_level0_files",
        "Files of the database that compaction has not sorted in; at 20 batches wait",
        None,
        disk.level0_files,
    );
    let memory = store.memory();
    let parts = [
        ("store_block_cache", "Memory of cached blocks of the database's files", memory.block_cache_bytes),
        (
            "store_write_buffer",
            "Memory of records that are not yet flushed to a file of the database",
            memory.write_buffer_bytes,
        ),
        ("store_open_files", "Memory of index and filter blocks outside the block cache", memory.open_files_bytes),
    ];
    for (name, help, bytes) in parts {
        gauge(&mut registry, name, help, Some(Unit::Bytes), bytes);
    }
    if let Some(catalog) = access.catalog() {
        let help = "1 if the stream of the operator's catalog is connected";
        gauge(&mut registry, "catalog_connected", help, None, catalog.is_connected().into());
        let help =
            "Nodes that vanished from the operator's snapshot with many others, and are kept until it is confirmed";
        gauge(&mut registry, "catalog_unconfirmed_nodes", help, None, catalog.unconfirmed() as u64);
    }
    gauge(&mut registry, "nodes", "Known nodes", None, access.nodes().all().len() as u64);
    gauge(&mut registry, "query_waiting", "Requests that wait for a thread", None, access.waiting_queries() as u64);
    let help = "Memory of responses that wait for their clients";
    gauge(&mut registry, "http_in_flight", help, Some(Unit::Bytes), access.app().in_flight().bytes());
    let streamed = Counter::<u64>::default();
    streamed.inc_by(access.app().metrics().streamed());
    registry.register("http_streamed_rows", "Rows sent on live streams", streamed);
    Ok(registry)
}
