//! A stub of the RPC of a node.

use axum::{body::Body, response::Response};

use super::response;

/// The path of the header of a chain's head.
pub(super) const HEAD_HEADER: &str = "/chains/main/blocks/head/header";

/// The header of the head as `{}`: TezEdge Explorer opens no page before the RPC of a node has answered this.
///
/// Where browsers cannot reach the node's own RPC, the base URL of this API, or of a node below it, stands in for it.
#[utoipa::path(get, path = "/chains/main/blocks/head/header", responses(
    (status = 200, description = "An empty object.", body = serde_json::Map<String, serde_json::Value>),
))]
pub(super) async fn head_header() -> Response {
    response::json(Body::from("{}"))
}
