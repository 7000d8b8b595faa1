//! `/v1/flamegraph`.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse as _, Response},
};
use chainscope_profile::{FlameGraphOptions, Measure, Tree, TreeOptions, flame_graph};
use utoipa::IntoParams;

use super::{
    super::{
        app::{App, Asked},
        problem::Problem,
    },
    ask::{Ask, MemoryParameters},
};

/// Its own script and nothing else.
const POLICY: HeaderValue =
    HeaderValue::from_static("default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'");

/// How the flame graph is drawn.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code)] // documentation of what is read by hand
pub(super) struct FlameParameters {
    /// Kibibytes that a box holds at least. [default: 256]
    threshold: Option<u64>,
    /// `true`: outermost frames are at the bottom; `false`: innermost ones. [default: true]
    reverse: Option<bool>,
}

/// The tree as a flame graph. With `since` the width is what is held now, and the colour how it changed: red for growth,
/// blue for the opposite.
#[utoipa::path(get, path = "/v1/flamegraph", params(FlameParameters, MemoryParameters), responses(
    (status = 200, description = "The flame graph.", body = String, content_type = "image/svg+xml"),
    (status = 400, description = "A parameter is malformed, or several nodes are meant.", body = Problem),
    (status = 404, description = "There is no such node, process or snapshot.", body = Problem),
    (status = 503, description = "Too much is going on.", body = Problem),
))]
pub(crate) async fn flamegraph(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Problem> {
    let ask = Ask::read(&asked.form())?;
    let svg = ask.answer(&app, &asked, |ask, found, is_over| {
        let options = TreeOptions {
            reverse: ask.reverse.unwrap_or(true),
            threshold: ask.threshold,
            kinds: ask.kinds,
            measure: if ask.is_compared() { Measure::Both } else { Measure::Now },
        };
        let tree = Tree::new(&found.stacks, &options, is_over)?;
        let what: Vec<&str> = found.now.iter().map(|data| data.target.as_str()).take(4).collect();
        let more = if found.now.len() > what.len() { ", …" } else { "" };
        let title = match what.as_slice() {
            [] => "memory".to_owned(),
            what => format!("memory of {}{more}", what.join(", ")),
        };
        Ok(flame_graph(&tree, &FlameGraphOptions { title: &title, is_compared: ask.is_compared() }))
    });
    let mut response = Body::from(svg.await?).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("image/svg+xml"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::CONTENT_SECURITY_POLICY, POLICY);
    Ok(response)
}
