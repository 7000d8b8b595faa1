//! `/openapi…` and `/docs`: the API's description, and Swagger UI from assets inside this program.

use std::sync::{Arc, LazyLock};

use axum::{
    Router,
    body::Body,
    extract::Path,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Redirect, Response},
    routing::get,
};
use utoipa_swagger_ui::Config;

use super::{app::App, openapi, problem::Problem, response};

static CONFIG: LazyLock<Arc<Config<'static>>> = LazyLock::new(|| Arc::new(Config::from("/openapi.json")));

/// Routes of the description. They need no token: it contains no data.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/openapi.json", get(full))
        .route("/openapi/network-recorder-openapi.json", get(network_recorder))
        .route("/openapi/memory-profiler-openapi.json", get(memory_profiler))
        .route("/docs", get(index))
        .route("/docs/{*path}", get(asset))
}

async fn full() -> Response {
    response::json(Body::from(openapi::FULL))
}

async fn network_recorder() -> Response {
    response::json(Body::from(openapi::NETWORK_RECORDER))
}

async fn memory_profiler() -> Response {
    response::json(Body::from(openapi::MEMORY_PROFILER))
}

/// Swagger UI's own links are relative to `/docs/`.
async fn index() -> Redirect {
    Redirect::permanent("/docs/index.html")
}

async fn asset(Path(path): Path<String>) -> Result<Response, Problem> {
    let file = utoipa_swagger_ui::serve(&path, Arc::clone(&CONFIG))
        .map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?
        .ok_or_else(|| Problem::not_found("there is no such page"))?;
    let mut response = Body::from(file.bytes.into_owned()).into_response();
    if let Ok(kind) = HeaderValue::from_str(&file.content_type) {
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    Ok(response)
}
