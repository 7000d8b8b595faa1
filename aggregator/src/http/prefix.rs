//! What happens to a request before and after routing: hosts, node prefixes, methods, CORS.
//!
//! The prefix `/nodes/{name}` or `/nodes/{namespace}/{name}` pins the request to a node and is removed, so that every
//! endpoint exists below it. A request is refused here if its host, its method or its length is not acceptable; every response
//! gets the headers that let pages of allowed origins read it.
//!
//! tower-http has layers for two of these, which do not fit the API's contract. `CorsLayer` responds to `OPTIONS` with 200
//! (contract: 204) and without `Allow`. `NormalizePathLayer` removes any number of slashes, also leading ones: `//v2/p2p`
//! would be answered (contract: 404).

use std::{convert::Infallible, sync::Arc};

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Method, Request, StatusCode, Uri, header, uri::PathAndQuery},
    response::{IntoResponse, Response},
};
use percent_encoding::percent_decode_str;
use tower::ServiceExt as _;

use super::{app::PinnedNode, browser::BrowserPolicy, code::Code, problem::Problem, request_id::RequestId};

/// Longest path and query, in bytes.
const MAX_URI: usize = 8 << 10;

/// First parts of the paths that exist for each node.
const ROOTS: [&str; 5] = ["v1", "v2", "v3", "openapi", "chains"];

const ALLOWED: HeaderValue = HeaderValue::from_static("GET, HEAD, OPTIONS");

/// Responds to a request; `pinned` is the node of the listener.
pub(crate) async fn respond(
    router: Router,
    policy: Arc<BrowserPolicy>,
    pinned: Option<PinnedNode>,
    mut request: Request<Body>,
) -> Response {
    let id = RequestId::of(request.headers());
    request.extensions_mut().insert(id.clone());
    let origin = request.headers().get(header::ORIGIN).cloned();
    let response = match policy.refuse_host(&request) {
        Some(refused) => refused,
        None => route(router, pinned, request).await,
    };
    let mut response = id.attach(response);
    policy.allow_origin(origin.as_ref(), response.headers_mut());
    response
}

async fn route(router: Router, pinned: Option<PinnedNode>, mut request: Request<Body>) -> Response {
    if request.method() == Method::OPTIONS {
        return options();
    }
    if let Some(refused) = refuse_method(request.method()) {
        return refused;
    }
    let uri = request.uri();
    if uri.path_and_query().is_some_and(|uri| uri.as_str().len() > MAX_URI) {
        return Problem::new(Code::UriTooLong, format!("longer than {MAX_URI} bytes")).into_response();
    }
    let (node, path) = split(uri.path());
    if let Some(uri) = with_path(uri, &path) {
        *request.uri_mut() = uri;
    }
    if let Some(pinned) = node.map(|node| PinnedNode(node.into())).or(pinned) {
        request.extensions_mut().insert(pinned);
    }
    router.oneshot(request).await.unwrap_or_else(|never: Infallible| match never {})
}

/// The response to a method other than `GET` and `HEAD`.
pub(crate) fn refuse_method(method: &Method) -> Option<Response> {
    if method == Method::GET || method == Method::HEAD {
        return None;
    }
    let problem = Problem::new(Code::MethodNotAllowed, format!("{method} is not supported here"));
    let mut response = problem.into_response();
    response.headers_mut().insert(header::ALLOW, ALLOWED);
    Some(response)
}

/// The node that a path names by its prefix, and the path without the prefix and without a trailing slash.
///
/// A node's own name may be that of a root: `/nodes/v2/v2/p2p` is the node "v2", `/nodes/a/v2/v2/p2p` the node "a/v2".
pub(crate) fn split(path: &str) -> (Option<String>, String) {
    let trimmed = if path.len() > 1 { path.strip_suffix('/').unwrap_or(path) } else { path };
    let unchanged = || (None, trimmed.to_owned());
    let Some(rest) = trimmed.strip_prefix("/nodes/") else { return unchanged() };
    let parts: Vec<&str> = rest.split('/').collect();
    let taken = match parts.as_slice() {
        [_, _, root, ..] if ROOTS.contains(root) => 2,
        [_, root, ..] if ROOTS.contains(root) => 1,
        _ => return unchanged(),
    };
    let (name, rest) = parts.split_at(taken);
    // A slash inside of a part was escaped: `default%2Foctez-0` is the node "default/octez-0".
    let decode = |part: &&str| percent_decode_str(part).decode_utf8_lossy().into_owned();
    let name: Vec<String> = name.iter().map(decode).collect();
    (Some(name.join("/")), format!("/{}", rest.join("/")))
}

fn with_path(uri: &Uri, path: &str) -> Option<Uri> {
    if uri.path() == path {
        return None;
    }
    let text = uri.query().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
    // The parts were part of a valid URI before.
    Some(Uri::from(PathAndQuery::from_maybe_shared(text.into_bytes()).ok()?))
}

fn options() -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(header::ALLOW, ALLOWED);
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, ALLOWED);
    // `*` does not include `authorization`.
    let allowed = HeaderValue::from_static("authorization, last-event-id, *");
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("86400"));
    response
}

/// The response to an unknown path.
pub(crate) async fn not_found() -> Problem {
    Problem::new(Code::UnknownPath, "there is no such path; see /docs")
}

/// The response when a handler panicked. The message itself is in the log.
pub(crate) fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    Problem::new(Code::InternalError, "this request met a defect of the aggregator").into_response()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::{Router, body::Body, http::Request, routing::get};
    use proptest::prelude::*;
    use tower_http::catch_panic::CatchPanicLayer;

    use super::{BrowserPolicy, panicked, respond, split, with_path};

    #[tokio::test]
    async fn pages_may_read_that_a_handler_panicked() {
        let router = Router::new()
            .route("/v2/panic", get(async || -> &'static str { panic!("a defect") }))
            .layer(CatchPanicLayer::custom(panicked));
        let policy = Arc::new(BrowserPolicy::new(&[], &[], true).unwrap());
        let request = Request::builder().uri("/nodes/a/v2/panic/").header("origin", "http://localhost:4200");
        let response = respond(router, policy, None, request.body(Body::empty()).unwrap()).await;
        let headers = response.headers();
        assert_eq!(
            (response.status().as_u16(), &headers["content-type"]),
            (500, &"application/problem+json".parse().unwrap())
        );
        assert_eq!(headers["access-control-allow-origin"], "http://localhost:4200");
    }

    #[test]
    fn prefixes_name_nodes() {
        let node = |path: &str| {
            let (node, rest) = split(path);
            (node.unwrap_or_default(), rest)
        };
        let is = |name: &str, rest: &str| (name.to_owned(), rest.to_owned());
        assert_eq!(node("/v2/p2p"), is("", "/v2/p2p"));
        assert_eq!(node("/v2/p2p/"), is("", "/v2/p2p"));
        assert_eq!(node("/"), is("", "/"));
        assert_eq!(node("//"), is("", "/"));
        assert_eq!(node("/nodes"), is("", "/nodes"));
        assert_eq!(node("/nodes/9732"), is("", "/nodes/9732"));
        assert_eq!(node("/nodes/9732/v2/p2p"), is("9732", "/v2/p2p"));
        assert_eq!(node("/nodes/9732/v2/p2p/7/"), is("9732", "/v2/p2p/7"));
        assert_eq!(node("/nodes/default/octez-0/v3/messages"), is("default/octez-0", "/v3/messages"));
        assert_eq!(node("/nodes/default%2Foctez-0/v2/p2p"), is("default/octez-0", "/v2/p2p"));
        assert_eq!(node("/nodes/a/openapi/x.json"), is("a", "/openapi/x.json"));
        let head = "/chains/main/blocks/head/header";
        assert_eq!(node(&format!("/nodes/default/octez-0{head}")), is("default/octez-0", head));
        assert_eq!(node("/nodes/v2/v2/p2p"), is("v2", "/v2/p2p"));
        assert_eq!(node("/nodes/a/v2/v2/p2p"), is("a/v2", "/v2/p2p"));
        assert_eq!(node("/nodes/%ff/v2/p2p"), is("\u{fffd}", "/v2/p2p"));
        assert_eq!(node("/nodes//v2/p2p"), is("", "/v2/p2p"));
        assert_eq!(node("/nodes/a/b/c/v2/p2p"), is("", "/nodes/a/b/c/v2/p2p"));
    }

    proptest! {
        #[test]
        fn a_split_path_is_still_one(path in "(/[a-z0-9%.]{0,6}){1,7}/?", query in "[a-z=&%\\[\\]]{0,8}") {
            let Ok(uri) = format!("{path}?{query}").parse::<axum::http::Uri>() else { return Ok(()) };
            let (_, rest) = split(uri.path());
            prop_assert!(rest.starts_with('/'));
            if let Some(changed) = with_path(&uri, &rest) {
                prop_assert_eq!(changed.path(), rest.as_str());
                prop_assert_eq!(changed.query(), uri.query());
            }
        }
    }
}
