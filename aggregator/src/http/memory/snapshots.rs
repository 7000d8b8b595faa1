//! `/v1/snapshots`.

use std::sync::Arc;

use axum::{body::Body, extract::State, response::Response};
use chainscope_store::MemorySnapshot;
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use super::super::{
    app::{App, Asked},
    list,
    problem::Problem,
    query::{nanoseconds, shown_time},
};

/// Snapshots in an answer, if nothing is said.
const LIMIT: u64 = 1000;

/// Which snapshots.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code)] // documentation of what is read by hand
pub(super) struct SnapshotParameters {
    /// As for `/v1/tree`.
    node_name: Option<String>,
    /// Least time, included, since 1970: seconds below 10^11, milliseconds below 10^14, else nanoseconds.
    from: Option<u64>,
    /// Greatest time, included; units as for `from`.
    to: Option<u64>,
    /// Snapshots at most. [default: 1000]
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
    /// Bytes that it takes, before compression.
    bytes: u64,
}

impl From<&MemorySnapshot> for SnapshotView {
    fn from(head: &MemorySnapshot) -> Self {
        let MemorySnapshot { time_ns, parts: _, bytes, anon_kib, cache_kib, kernel_kib, targets, stacks } = *head;
        let time = time_ns.div_euclid(1_000_000);
        Self { time, anon: anon_kib, cache: cache_kib, kernel: kernel_kib, targets, stacks, bytes }
    }
}

/// Snapshots of the node's memory, newest first.
#[utoipa::path(get, path = "/v1/snapshots", params(SnapshotParameters), responses(
    (status = 200, description = "The snapshots; possibly none.", body = Vec<SnapshotView>),
    (status = 400, description = "A parameter is malformed, or several nodes are meant.", body = Problem),
    (status = 404, description = "There is no such node.", body = Problem),
))]
pub(crate) async fn snapshots(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Problem> {
    let form = asked.form();
    let from = form.number("from")?.map_or(i64::MIN, |time| shown_time(nanoseconds(time)));
    let to = form.number("to")?.map_or(i64::MAX, |time| shown_time(nanoseconds(time)).saturating_add(1_000_000));
    let limit = usize::try_from(form.number("limit")?.unwrap_or(LIMIT)).unwrap_or(usize::MAX);
    let node = asked.node(&app, &form).await?;
    let text = app.read(move |store, _| {
        let heads = store.memory_snapshots(&node, from, to)?;
        let mut text = vec![b'['];
        for (number, head) in heads.iter().rev().take(limit).enumerate() {
            list::push(&mut text, number == 0, &SnapshotView::from(head));
        }
        text.push(b']');
        Ok(text)
    });
    Ok(list::json(Body::from(text.await?)))
}
