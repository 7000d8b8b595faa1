//! `/openapi…` and `/docs`: the API's description, and Swagger UI from assets inside this program.

use std::sync::{Arc, LazyLock};

use axum::{
    body::Body,
    extract::Path,
    http::{HeaderValue, header},
    response::{IntoResponse, Redirect, Response},
};
use utoipa_swagger_ui::Config;

use super::{list, openapi, problem::Problem};

static CONFIG: LazyLock<Arc<Config<'static>>> = LazyLock::new(|| Arc::new(Config::from("/openapi.json")));

pub(crate) async fn full() -> Response {
    list::json(Body::from(openapi::FULL))
}

pub(crate) async fn network_recorder() -> Response {
    list::json(Body::from(openapi::NETWORK_RECORDER))
}

pub(crate) async fn memory_profiler() -> Response {
    list::json(Body::from(openapi::MEMORY_PROFILER))
}

/// Swagger UI's own links are relative to `/docs/`.
pub(crate) async fn index() -> Redirect {
    Redirect::permanent("/docs/index.html")
}

pub(crate) async fn asset(Path(path): Path<String>) -> Result<Response, Problem> {
    let file = utoipa_swagger_ui::serve(&path, Arc::clone(&CONFIG))
        .map_err(|error| Problem::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?
        .ok_or_else(|| Problem::not_found("there is no such page"))?;
    let mut response = Body::from(file.bytes.into_owned()).into_response();
    if let Ok(kind) = HeaderValue::from_str(&file.content_type) {
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    Ok(response)
}
