//! The HTTP API.
//!
//! ```text
//! listener ─▶ server ─▶ prefix: hosts, node prefixes, methods, CORS ─▶ router ─▶ app: authentication, authorization ─▶ handler
//! ```
//!
//! `network`, `memory`, `logs`, `trace` and `latency` have the routes of a pillar; a further pillar is a further directory with
//! `routes()`, `Api` and `scrape()`. What they share is beside them: `params` (query strings), `time`, `list` (JSON arrays of any
//! length), `rows` and `stream` (rows with ids, in pages and live), `stats` (what of every pillar is stored, evicted and lost),
//! `response`, `problem` and `code` (errors), `request_id`, `conditional` (entity tags), `app` (state, and the only ways to the
//! store). This file has the wiring: no other file imports it.

pub(crate) mod app;
pub(crate) mod browser;
pub(crate) mod code;
mod compression;
mod conditional;
mod docs;
pub(crate) mod in_flight;
mod latency;
mod least_rate;
mod list;
mod logs;
mod memory;
mod network;
mod node_rpc;
mod nodes;
pub(crate) mod openapi;
mod operations;
pub(crate) mod params;
pub(crate) mod prefix;
pub(crate) mod problem;
pub(crate) mod request_id;
mod request_target;
pub(crate) mod response;
mod rows;
mod scrape;
pub(crate) mod server;
mod stats;
mod stream;
mod time;
mod trace;

use std::{sync::Arc, time::Instant};

use axum::{
    Extension, Router,
    body::Body,
    extract::{MatchedPath, State},
    http::Request,
    middleware::{self, Next},
    response::Response,
    routing::get,
};
use tower_http::catch_panic::CatchPanicLayer;

use self::app::{App, OperationsListener};
use crate::metrics::{RequestLabels, RouteLabels};

/// All routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    let authenticated = Router::new()
        .merge(network::routes())
        .merge(memory::routes())
        .merge(logs::routes())
        .merge(trace::routes())
        .merge(latency::routes())
        .route("/nodes", get(nodes::nodes))
        .route("/v2/stats", get(stats::stats))
        .route("/v2/version", get(operations::version))
        .route(node_rpc::HEAD_HEADER, get(node_rpc::head_header))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&app), app::authenticate));
    Router::new()
        .merge(authenticated)
        .merge(operations::routes())
        .merge(docs::routes())
        .fallback(prefix::not_found)
        .layer(CatchPanicLayer::custom(prefix::panicked))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), limit))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), compression::reserve))
        .layer(compression::layer())
        .layer(middleware::from_fn_with_state(Arc::clone(&app), measure))
        .with_state(app)
}

/// The routes of the listener for metrics and health.
pub(crate) fn operations_router(app: Arc<App>) -> Router {
    operations::routes()
        .fallback(prefix::not_found)
        .layer(Extension(OperationsListener))
        .layer(CatchPanicLayer::custom(prefix::panicked))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), limit))
        .with_state(app)
}

/// Bounds the memory of responses.
async fn limit(State(app): State<Arc<App>>, request: Request<Body>, next: Next) -> Response {
    app.in_flight().limit(next.run(request).await)
}

/// Counts the request and the time until its response began.
async fn measure(State(app): State<Arc<App>>, request: Request<Body>, next: Next) -> Response {
    let began = Instant::now();
    let matched = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let route = matched.unwrap_or_else(|| "other".to_owned());
    let response = next.run(request).await;
    let http = &app.metrics().http;
    let code = response.status().as_u16();
    http.seconds.get_or_create(&RouteLabels { route: route.clone() }).observe(began.elapsed().as_secs_f64());
    http.requests.get_or_create(&RequestLabels { route, code }).inc();
    response
}
