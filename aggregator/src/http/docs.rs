//! `/openapi…` and `/docs`: the API's description, and Swagger UI from assets inside this program.

use std::{
    borrow::Cow,
    sync::{Arc, LazyLock},
};

use axum::{
    Router,
    body::Body,
    extract::Path,
    http::{HeaderValue, header},
    response::{IntoResponse as _, Redirect, Response},
    routing::get,
};
use utoipa_swagger_ui::Config;

use super::{
    app::App,
    code::Code,
    conditional::{Audience, IfNoneMatch, not_modified, tagged},
    openapi,
    problem::Problem,
};

/// Swagger UI keeps a token for as long as the page is open, and no longer: a stored one could be read by any page of the origin.
static CONFIG: LazyLock<Arc<Config<'static>>> =
    LazyLock::new(|| Arc::new(Config::from("/openapi.json").persist_authorization(false)));

/// Routes of the description. They need no token: it contains no data.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/openapi.json", get(full))
        .route("/openapi/network-recorder-openapi.json", get(network_recorder))
        .route("/openapi/memory-profiler-openapi.json", get(memory_profiler))
        .route("/docs", get(index))
        .route("/docs/{*path}", get(asset))
}

async fn full(known: IfNoneMatch) -> Response {
    file(&known, openapi::FULL.as_bytes().into(), HeaderValue::from_static("application/json"))
}

async fn network_recorder(known: IfNoneMatch) -> Response {
    file(&known, openapi::NETWORK_RECORDER.as_bytes().into(), HeaderValue::from_static("application/json"))
}

async fn memory_profiler(known: IfNoneMatch) -> Response {
    file(&known, openapi::MEMORY_PROFILER.as_bytes().into(), HeaderValue::from_static("application/json"))
}

/// Swagger UI's own links are relative to `/docs/`.
async fn index() -> Redirect {
    Redirect::permanent("/docs/index.html")
}

async fn asset(Path(path): Path<String>, known: IfNoneMatch) -> Result<Response, Problem> {
    let found = utoipa_swagger_ui::serve(&path, Arc::clone(&CONFIG))
        .map_err(|error| Problem::new(Code::InternalError, error.to_string()))?
        .ok_or_else(|| Problem::new(Code::UnknownPath, "there is no such page"))?;
    let media_type = HeaderValue::from_str(&found.content_type)
        .map_err(|error| Problem::new(Code::InternalError, error.to_string()))?;
    Ok(file(&known, found.bytes, media_type))
}

/// A file of this program.
fn file(known: &IfNoneMatch, bytes: Cow<'static, [u8]>, media_type: HeaderValue) -> Response {
    let tag = known.tag(&[&bytes]);
    if known.has(&tag) {
        return not_modified(&tag, Audience::Public);
    }
    let body = match bytes {
        Cow::Borrowed(bytes) => Body::from(bytes),
        Cow::Owned(bytes) => Body::from(bytes),
    };
    let mut response = body.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, media_type);
    tagged(response, &tag, Audience::Public)
}
