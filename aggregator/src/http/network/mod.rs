//! Routes of the network pillar: messages, connections and chunks; its accounts in `/v2/stats`.

mod account;
mod chunks;
mod connections;
mod detail;
mod messages;
mod params;
mod scrape;
mod wire;

use std::sync::Arc;

use axum::{Router, routing::get};
use utoipa::OpenApi;

pub(super) use self::{
    account::{AccountStats, account},
    scrape::scrape,
};
use super::{app::App, problem::Problem};

/// All routes; each needs the layer [`super::app::authenticate`].
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v2/p2p", get(messages::messages))
        .route("/v2/p2p/stream", get(messages::stream_messages))
        .route("/v2/p2p/{id}", get(detail::message))
        .route("/v3/connections", get(connections::connections))
        .route("/v3/chunks", get(chunks::chunks))
        .route("/v3/chunk/{key}", get(chunks::chunk))
        .route("/v3/messages", get(messages::messages_v3))
        .route("/v3/message/{id}", get(detail::message_v3))
}

/// Description of the routes.
#[derive(OpenApi)]
#[openapi(
    paths(
        messages::messages,
        detail::message,
        messages::stream_messages,
        messages::messages_v3,
        detail::message_v3,
        connections::connections,
        chunks::chunks,
        chunks::chunk,
    ),
    components(schemas(Problem, params::SourceType, wire::ClosedView))
)]
pub(super) struct Api;

/// Description of the routes that the original's network recorder has, too.
#[derive(OpenApi)]
#[openapi(paths(messages::messages, detail::message), components(schemas(Problem, params::SourceType)))]
pub(super) struct RecorderApi;
