//! Routes of the logs pillar: what a node has logged.

mod messages;
mod params;
mod row;
mod scrape;
mod text;

use std::sync::Arc;

use axum::{Router, routing::get};
use utoipa::OpenApi;

use super::{app::App, problem::Problem};
pub(super) use scrape::scrape;

/// All routes; each needs the layer [`super::app::authenticate`].
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v2/log", get(messages::log_messages))
        .route("/v2/log/stream", get(messages::stream_log_messages))
        .route("/v3/logs", get(messages::log_messages_v3))
}

/// Description of the routes.
#[derive(OpenApi)]
#[openapi(
    paths(messages::log_messages, messages::stream_log_messages, messages::log_messages_v3),
    components(schemas(Problem))
)]
pub(super) struct Api;

/// Description of the routes that the original's network recorder has, too.
#[derive(OpenApi)]
#[openapi(paths(messages::log_messages), components(schemas(Problem)))]
pub(super) struct RecorderApi;
