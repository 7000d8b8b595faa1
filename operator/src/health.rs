//! `/metrics`, `/livez`, `/readyz` on a listener of their own, in plain text.
//!
//! `/readyz` says yes once every watch has delivered its first list, whether this replica leads or not: a follower is
//! ready to take over. `/readyz/leader` says yes on the replica that answers agents.

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

/// OpenMetrics' media type: what the encoder writes.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the answers are made from.
#[derive(Debug)]
pub struct Health {
    /// All metrics.
    pub registry: Registry,
    /// Whether the first lists are complete.
    pub synced: watch::Receiver<bool>,
    /// Whether this replica answers agents.
    pub serving: watch::Receiver<bool>,
}

/// Answers until told to stop.
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
    said(*health.synced.borrow(), "TezosNodes and pods were not read yet\n")
}

async fn leader(State(health): State<Arc<Health>>) -> (StatusCode, &'static str) {
    said(*health.serving.borrow(), "another replica answers agents\n")
}

fn said(yes: bool, no: &'static str) -> (StatusCode, &'static str) {
    if yes { (StatusCode::OK, "ok\n") } else { (StatusCode::SERVICE_UNAVAILABLE, no) }
}
