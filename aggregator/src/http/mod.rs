//! The HTTP API.
//!
//! `entry` looks at every request first, then `guard`; the routes are below; `form` and `query` read parameters, `list`, `stream`,
//! `detail` and `v3` answer from the store, `memory` from what agents told last and from snapshots, `wire` has the shapes. Handlers never call the store themselves: they ask
//! the pool, through [`app::App::read`].

pub(crate) mod app;
mod detail;
mod docs;
pub(crate) mod entry;
pub(crate) mod form;
mod guard;
pub(crate) mod json;
mod lenient;
pub(crate) mod list;
mod memory;
mod nodes;
pub(crate) mod openapi;
mod p2p;
pub(crate) mod patient;
pub(crate) mod problem;
mod query;
mod scrape;
pub(crate) mod server;
pub(crate) mod stats;
mod stream;
mod v3;
mod wire;

use std::{sync::Arc, time::Instant};

use axum::{
    Router,
    body::Body,
    extract::{MatchedPath, State},
    http::Request,
    middleware::{self, Next},
    response::Response,
    routing::get,
};
use tower_http::catch_panic::CatchPanicLayer;

use self::app::App;
use crate::metrics::{RequestLabels, RouteLabels};

/// All routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v2/p2p", get(p2p::messages))
        .route("/v2/p2p/stream", get(stream::messages))
        .route("/v2/p2p/{id}", get(detail::message))
        .route("/v2/stats", get(stats::stats))
        .route("/v2/version", get(scrape::version))
        .route("/v3/connections", get(v3::connections))
        .route("/v3/chunks", get(v3::chunks))
        .route("/v3/chunk/{key}", get(v3::chunk))
        .route("/v3/messages", get(p2p::messages_v3))
        .route("/v3/message/{id}", get(detail::message_v3))
        .route("/v1/tree", get(memory::tree))
        .route("/v1/pid", get(memory::pid))
        .route("/v1/targets", get(memory::targets))
        .route("/v1/flamegraph", get(memory::flamegraph))
        .route("/v1/pprof", get(memory::pprof))
        .route("/v1/snapshots", get(memory::snapshots))
        .route("/nodes", get(nodes::nodes))
        .route("/metrics", get(scrape::metrics))
        .route("/healthz", get(scrape::healthz))
        .route("/livez", get(scrape::healthz))
        .route("/readyz", get(scrape::readyz))
        .route("/openapi.json", get(docs::full))
        .route("/openapi/network-recorder-openapi.json", get(docs::network_recorder))
        .route("/openapi/memory-profiler-openapi.json", get(docs::memory_profiler))
        .route("/docs", get(docs::index))
        .route("/docs/{*path}", get(docs::asset))
        .fallback(entry::nothing)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), guard::guard))
        .layer(CatchPanicLayer::custom(entry::panicked))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), measure))
        .with_state(app)
}

/// What is served on the port for metrics and health: nothing of any node but its name and counts.
pub(crate) fn operation(app: Arc<App>) -> Router {
    Router::new()
        .route("/metrics", get(scrape::metrics))
        .route("/livez", get(scrape::healthz))
        .route("/healthz", get(scrape::healthz))
        .route("/readyz", get(scrape::readyz))
        .fallback(entry::nothing)
        .layer(CatchPanicLayer::custom(entry::panicked))
        .with_state(app)
}

/// Counts the request and the time until its answer began.
async fn measure(State(app): State<Arc<App>>, request: Request<Body>, next: Next) -> Response {
    let began = Instant::now();
    let matched = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let route = matched.unwrap_or_else(|| "other".to_owned());
    let response = next.run(request).await;
    let http = &app.metrics.http;
    let code = response.status().as_u16();
    http.seconds.get_or_create(&RouteLabels { route: route.clone() }).observe(began.elapsed().as_secs_f64());
    http.requests.get_or_create(&RequestLabels { route, code }).inc();
    response
}
