//! `/v1/pprof`: all stacks as a profile of pprof.

use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::Response,
};
use flate2::{Compression, write::GzEncoder};

use super::{
    super::{
        app::AuthorizedNode,
        code::Code,
        conditional::IfNoneMatch,
        params::{NodeParameters, Params},
        problem::Problem,
        response,
    },
    selection::MemoryParameters,
};
use crate::access::permission::ReadMemory;

/// All stacks as a gzipped `profile.proto`, for `go tool pprof`, Pyroscope and others: nothing is left out, values are bytes.
/// `inuse_space` is the sum of the requested kinds, `anon`, `cache` and `kernel` are each by itself.
#[utoipa::path(get, path = "/v1/pprof", params(NodeParameters, MemoryParameters), responses(
    (status = 200, description = "The profile.", body = Vec<u8>, content_type = "application/octet-stream"),
    (status = 304, description = "The client has it: `If-None-Match` lists its `ETag`, and nothing has changed."),
    (status = 400, description = "A parameter is malformed, or several nodes are meant.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 404, description = "There is no such node, process or snapshot.", body = Problem, content_type = Problem::MEDIA_TYPE),
    (status = 503, description = "Overloaded.", body = Problem, content_type = Problem::MEDIA_TYPE),
))]
pub(crate) async fn pprof(
    Params(parameters): Params<MemoryParameters>,
    known: IfNoneMatch,
    node: AuthorizedNode<ReadMemory>,
) -> Result<Response, Problem> {
    let zipped = parameters.make(known, &node, |parameters, found, _| {
        let mut zip = GzEncoder::new(Vec::new(), Compression::fast());
        chainscope_profile::pprof(&found.stacks, parameters.kinds(), found.time_ns, &mut zip)
            .and_then(|()| zip.finish())
            .map_err(|error| Problem::new(Code::InternalError, error.to_string()))
    });
    zipped.await?.respond(|zipped| {
        let mut response = response::uncached(Body::from(zipped), "application/octet-stream");
        let name = HeaderValue::from_static("attachment; filename=\"memory.pb.gz\"");
        response.headers_mut().insert(header::CONTENT_DISPOSITION, name);
        Ok(response)
    })
}
