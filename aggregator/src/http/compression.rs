//! gzip of responses for clients that accept it, at the fastest level: it runs on the threads that serve connections.
//!
//! An encoder takes memory for as long as the client takes the response. It is part of what responses may take together
//! ([`super::in_flight`]); where that is used up, a response is sent as it is.

use std::sync::Arc;

use axum::{
    body::{Body, HttpBody as _},
    extract::State,
    http::{Extensions, HeaderMap, HeaderValue, Request, StatusCode, Version, header},
    middleware::Next,
    response::Response,
};
use http_body_util::BodyExt as _;
use tower_http::compression::{CompressionLayer, CompressionLevel, Predicate};

use super::app::App;

/// Memory of an encoder.
const ENCODER_BYTES: usize = 320 << 10;
/// Shorter responses are one packet as they are.
const MIN_BYTES: u64 = 1 << 10;
/// Media types that are worth it. Not among them are events of live streams, which have to be sent at once.
const MEDIA_TYPES: [&str; 7] = [
    "application/json",
    "application/javascript",
    "application/openmetrics-text",
    "image/svg+xml",
    "text/css",
    "text/html",
    "text/javascript",
];

/// Marks a response that has memory for its encoder.
#[derive(Clone)]
struct Reserved;

/// Compresses the responses that [`reserve`] has marked.
pub(super) fn layer() -> CompressionLayer<impl Predicate + Send + Sync> {
    let is_reserved =
        |_: StatusCode, _: Version, _: &HeaderMap, extensions: &Extensions| extensions.get::<Reserved>().is_some();
    CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(is_reserved)
}

/// Reserves memory for the encoder of a response that is worth it.
pub(super) async fn reserve(State(app): State<Arc<App>>, request: Request<Body>, next: Next) -> Response {
    let mut accepted = request.headers().get_all(header::ACCEPT_ENCODING).iter();
    let is_accepted = accepted.any(|value| value.to_str().is_ok_and(|value| value.contains("gzip")));
    let mut response = next.run(request).await;
    // Also where it is sent as it is: caches must not give one client what another one accepts.
    if is_compressible(&response) || response.status() == StatusCode::NOT_MODIFIED {
        response.headers_mut().append(header::VARY, HeaderValue::from_static("accept-encoding"));
    }
    if !is_accepted || !is_compressible(&response) || is_short(&response) {
        return response;
    }
    let Ok(permit) = app.in_flight().hold(ENCODER_BYTES) else { return response };
    let mut response = response.map(|body| {
        // The encoder asks for trailers after the end, which bodies of streams do not allow.
        Body::new(body.fuse().map_frame(move |frame| {
            let _encoder = &permit;
            frame
        }))
    });
    response.extensions_mut().insert(Reserved);
    response
}

fn is_compressible(response: &Response) -> bool {
    let media_type = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    media_type.is_some_and(|value| MEDIA_TYPES.iter().any(|worth_it| value.starts_with(worth_it)))
}

fn is_short(response: &Response) -> bool {
    response.body().size_hint().exact().is_some_and(|length| length < MIN_BYTES)
}
