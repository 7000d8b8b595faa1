//! `/v1/pprof`.

use std::{io::Write as _, sync::Arc};

use axum::{
    body::Body,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use flate2::{Compression, write::GzEncoder};

use super::{
    super::{
        app::{App, Asked},
        problem::Problem,
    },
    ask::{Ask, MemoryParameters},
};

/// All stacks as a gzipped `profile.proto`, for `go tool pprof`, Pyroscope and others: nothing is left out, values are bytes.
/// `inuse_space` is of the kinds asked for, `anon`, `cache` and `kernel` are each by itself.
#[utoipa::path(get, path = "/v1/pprof", params(MemoryParameters), responses(
    (status = 200, description = "The profile.", body = Vec<u8>, content_type = "application/octet-stream"),
    (status = 400, description = "A parameter is malformed, or several nodes are meant.", body = Problem),
    (status = 404, description = "There is no such node, process or snapshot.", body = Problem),
    (status = 503, description = "Too much is going on.", body = Problem),
))]
pub(crate) async fn pprof(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Problem> {
    let ask = Ask::read(&asked.form())?;
    let zipped = ask.answer(&app, &asked, |ask, found, _| {
        let profile = chainscope_profile::pprof(&found.stacks, ask.kinds, found.time_ns);
        let mut zip = GzEncoder::new(Vec::with_capacity(profile.len() / 4), Compression::fast());
        zip.write_all(&profile)
            .and_then(|()| zip.finish())
            .map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
    });
    let mut response = Body::from(zipped.await?).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    let name = HeaderValue::from_static("attachment; filename=\"memory.pb.gz\"");
    headers.insert(header::CONTENT_DISPOSITION, name);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}
