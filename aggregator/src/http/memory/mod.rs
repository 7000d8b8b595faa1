//! Routes of the memory pillar: which code holds a node's memory.
//!
//! `selection` reads parameters and finds the processes that they select, now or in a snapshot; the other files make responses of
//! them. All of them are made on threads of the query pool, from copies that share the columns of the profiles: ingest
//! goes on meanwhile.

mod flamegraph;
mod pprof;
mod scrape;
mod selection;
mod snapshots;
mod targets;
mod tree;
mod tree_json;

use std::sync::Arc;

use axum::{Router, routing::get};
use utoipa::OpenApi;

pub(super) use self::scrape::scrape;
use super::{app::App, problem::Problem};

/// All routes; each needs the layer [`super::app::authenticate`].
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/tree", get(tree::tree))
        .route("/v1/pid", get(targets::pid))
        .route("/v1/targets", get(targets::targets))
        .route("/v1/flamegraph", get(flamegraph::flamegraph))
        .route("/v1/pprof", get(pprof::pprof))
        .route("/v1/snapshots", get(snapshots::snapshots))
}

/// Description of the routes.
#[derive(OpenApi)]
#[openapi(
    paths(tree::tree, targets::pid, targets::targets, flamegraph::flamegraph, pprof::pprof, snapshots::snapshots,),
    components(schemas(Problem, selection::KindName, tree::ShortReport))
)]
pub(super) struct Api;
