//! Successful responses.

use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::{IntoResponse as _, Response},
};
use serde::Serialize;

/// A response of this media type that no cache may store.
pub(crate) fn uncached(body: Body, content_type: &'static str) -> Response {
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A response whose body is JSON.
pub(crate) fn json(body: Body) -> Response {
    uncached(body, "application/json")
}

/// A response whose body is the JSON of a value.
pub(crate) fn json_of(value: &impl Serialize) -> Response {
    let mut text = Vec::new();
    // Values are structs of strings and numbers: writing them to memory does not fail.
    let _ = crate::json::write(&mut text, value);
    json(Body::from(text))
}
