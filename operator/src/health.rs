//! `/metrics`, `/livez` and `/readyz` over plain HTTP.
//!
//! `/readyz` succeeds once the initial lists of all watches are complete, on the leader and on the other replicas, which
//! are ready to take over. `/readyz/leader` succeeds on the replica that serves the config stream.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus_client::registry::Registry;
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;

use crate::metrics;

/// Media type of the OpenMetrics text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// State behind the endpoints.
#[derive(Debug)]
pub struct Health {
    /// All metrics.
    pub registry: Registry,
    /// Whether the initial lists are complete.
    pub synced: watch::Receiver<bool>,
    /// Whether this replica serves the config stream.
    pub serving: watch::Receiver<bool>,
}

/// Serves until `stop` is cancelled.
///
/// # Errors
/// If the listener fails.
pub async fn serve(listener: TcpListener, health: Health, stop: CancellationToken) -> std::io::Result<()> {
    let router = Router::new()
        .route("/metrics", get(scrape))
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/readyz/leader", get(leader))
        .with_state(Arc::new(health));
    axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await
}

async fn scrape(State(health): State<Arc<Health>>) -> Response {
    match metrics::encode(&health.registry) {
        Some(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn ready(State(health): State<Arc<Health>>) -> (StatusCode, &'static str) {
    probe(*health.synced.borrow(), "the initial lists of TezosNodes and pods are not complete\n")
}

async fn leader(State(health): State<Arc<Health>>) -> (StatusCode, &'static str) {
    probe(*health.serving.borrow(), "this replica does not serve the config stream\n")
}

fn probe(ok: bool, failure: &'static str) -> (StatusCode, &'static str) {
    if ok { (StatusCode::OK, "ok\n") } else { (StatusCode::SERVICE_UNAVAILABLE, failure) }
}
