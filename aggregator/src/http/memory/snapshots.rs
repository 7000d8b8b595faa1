//! `/v1/snapshots`: the moments that `at` and `since` may name.

use axum::{body::Body, response::Response};
use chainscope_store::MemorySnapshot;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::super::{
    app::AuthorizedNode,
    list,
    params::{NodeParameters, Params, number},
    problem::Problem,
    response,
    time::{NS_PER_MS, first_shown_after, nanoseconds, shown_time},
};
use crate::access::permission::ReadMemory;

/// Default of `limit`.
const DEFAULT_LIMIT: u64 = 1000;

/// Which snapshots.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(super) struct SnapshotParameters {
    /// Minimum time, included, since 1970: seconds below 10^11, milliseconds below 10^14, else nanoseconds.
    #[serde(deserialize_with = "number")]
    from: Option<u64>,
    /// Maximum time, included; units as for `from`.
    #[serde(deserialize_with = "number")]
    to: Option<u64>,
    /// Maximum number of snapshots. Default: 1000.
    #[serde(deserialize_with = "number")]
    limit: Option<u64>,
}

/// A snapshot that `at` and `since` may name.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SnapshotView {
    /// The moment, milliseconds since 1970.
    time: i64,
    /// Kibibytes of anonymous memory.
    anon: u64,
    /// Kibibytes of page cache.
    cache: u64,
    /// Kibibytes of the kernel.
    kernel: u64,
    /// Processes.
    targets: u32,
    /// Distinct stacks that hold something.
    stacks: u64,
    /// Size in bytes, before compression.
    bytes: u64,
}

impl From<&MemorySnapshot> for SnapshotView {
    fn from(head: &MemorySnapshot) -> Self {
        let MemorySnapshot { time_ns, parts: _, bytes, anon_kib, cache_kib, kernel_kib, targets, stacks } = *head;
        let time = time_ns.div_euclid(NS_PER_MS);
        Self { time, anon: anon_kib, cache: cache_kib, kernel: kernel_kib, targets, stacks, bytes }
    }
}

/// Snapshots of the node's memory, newest first.
#[utoipa::path(get, path = "/v1/snapshots", params(NodeParameters, SnapshotParameters), responses(
    (status = 200, description = "The snapshots; possibly none.", body = Vec<SnapshotView>),
    (status = 400, description = "A parameter is malformed, or several nodes are meant.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(crate) async fn snapshots(
    Params(parameters): Params<SnapshotParameters>,
    node: AuthorizedNode<ReadMemory>,
) -> Result<Response, Problem> {
    let from = parameters.from.map_or(i64::MIN, |time| shown_time(nanoseconds(time)));
    let to = parameters.to.map_or(i64::MAX, |time| first_shown_after(nanoseconds(time)));
    let limit = usize::try_from(parameters.limit.unwrap_or(DEFAULT_LIMIT)).unwrap_or(usize::MAX);
    let json = node.read(move |store, node, _| {
        let heads = store.memory_snapshots(node, from, to)?;
        Ok(list::array(heads.iter().rev().take(limit).map(SnapshotView::from)))
    });
    Ok(response::json(Body::from(json.await?)))
}
