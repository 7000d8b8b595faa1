//! `/v1/flamegraph`: the tree as an SVG.

use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::Response,
};
use chainscope_profile::{FlameGraphOptions, Measure, Tree, TreeOptions, flame_graph};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    super::{
        app::AuthorizedNode,
        conditional::IfNoneMatch,
        params::{NodeParameters, Params, boolean, number},
        problem::Problem,
        response,
    },
    selection::{DEFAULT_THRESHOLD, MemoryParameters},
};
use crate::access::permission::ReadMemory;

/// Allows the script and style of the graph itself, and nothing else.
const POLICY: HeaderValue =
    HeaderValue::from_static("default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'");

/// How the flame graph is drawn.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(super) struct FlameParameters {
    /// Minimum size of a box, in kibibytes. Default: 256.
    #[serde(deserialize_with = "number")]
    threshold: Option<u64>,
    /// `true`: outermost frames are at the bottom; `false`: innermost ones. Default: true.
    #[serde(deserialize_with = "boolean")]
    reverse: Option<bool>,
}

/// The tree as a flame graph. With `since` the width is what is held now, and the colour how it changed: red for growth,
/// blue for the opposite.
#[utoipa::path(get, path = "/v1/flamegraph", params(NodeParameters, FlameParameters, MemoryParameters), responses(
    (status = 200, description = "The flame graph.", body = String, content_type = "image/svg+xml"),
    (status = 304, description = "The client has it: `If-None-Match` lists its `ETag`, and nothing has changed."),
    (status = 400, description = "A parameter is malformed, or several nodes are meant.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node, process or snapshot.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(crate) async fn flamegraph(
    Params(FlameParameters { threshold, reverse }): Params<FlameParameters>,
    Params(parameters): Params<MemoryParameters>,
    known: IfNoneMatch,
    node: AuthorizedNode<ReadMemory>,
) -> Result<Response, Problem> {
    let svg = parameters.make(known, &node, move |parameters, found, is_exhausted| {
        let is_compared = parameters.is_compared();
        let options = TreeOptions {
            reverse: reverse.unwrap_or(true),
            threshold: threshold.unwrap_or(DEFAULT_THRESHOLD),
            kinds: parameters.kinds(),
            measure: if is_compared { Measure::Both } else { Measure::Now },
        };
        let tree = Tree::new(&found.stacks, &options, is_exhausted)?;
        let what: Vec<&str> = found.now.iter().map(|data| data.target.as_str()).take(4).collect();
        let more = if found.now.len() > what.len() { ", …" } else { "" };
        let title = match what.as_slice() {
            [] => "memory".to_owned(),
            what => format!("memory of {}{more}", what.join(", ")),
        };
        Ok(flame_graph(&tree, &FlameGraphOptions { title: &title, is_compared }))
    });
    svg.await?.respond(|svg| {
        let mut response = response::uncached(Body::from(svg), "image/svg+xml");
        response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, POLICY);
        Ok(response)
    })
}
