//! Routes of the tracepoints pillar: events of the static tracepoints of nodes, and what follows from them.

mod events;
mod params;
mod relay;
mod row;
mod scrape;

use std::sync::Arc;

use axum::{Router, routing::get};
use utoipa::OpenApi;

use super::{app::App, problem::Problem};
pub(super) use scrape::scrape;

/// All routes; each needs the layer [`super::app::authenticate`].
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v2/trace", get(events::trace_events))
        .route("/v2/trace/stream", get(events::stream_trace_events))
        .route("/v2/trace/relay", get(relay::block_relay))
}

/// Description of the routes.
#[derive(OpenApi)]
#[openapi(paths(events::trace_events, events::stream_trace_events, relay::block_relay), components(schemas(Problem)))]
pub(super) struct Api;
