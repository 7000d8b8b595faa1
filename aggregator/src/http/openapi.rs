//! The OpenAPI documents. They are generated from the handlers, committed under `openapi/`, and served from there: a test
//! fails when they are stale.

use utoipa::OpenApi;

use super::{logs, memory, network, nodes, operations, problem::Problem};

/// The whole API, as it is committed and served.
pub(crate) const FULL: &str = include_str!("../../openapi/chainscope.json");
/// The part that the original's network recorder had, as it is committed and served.
pub(crate) const NETWORK_RECORDER: &str = include_str!("../../openapi/network-recorder.json");
/// The part that the original's memory profiler had, as it is committed and served.
pub(crate) const MEMORY_PROFILER: &str = include_str!("../../openapi/memory-profiler.json");

/// The whole API: the paths of each pillar are added to these.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Chainscope",
        description = "What a blockchain node exchanges with its peers, and which of its code holds its memory. Every path \
            but /nodes, /metrics and health also exists below /nodes/{name}/ and /nodes/{namespace}/{name}/, and is then \
            about that node.",
        license(name = "Apache-2.0 OR MIT")
    ),
    paths(nodes::nodes, operations::version, operations::metrics, operations::healthz, operations::readyz),
    components(schemas(Problem))
)]
struct Full;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Network recorder",
        description = "Peer-to-peer messages of Tezos nodes.",
        license(name = "Apache-2.0 OR MIT")
    ),
    paths(operations::version)
)]
struct NetworkRecorder;

#[derive(OpenApi)]
#[openapi(info(
    title = "Memory profiler",
    description = "Which code holds the memory of a node.",
    license(name = "Apache-2.0 OR MIT")
))]
struct MemoryProfiler;

/// The documents, generated: the whole API, and the two that the original had.
pub(crate) fn generate() -> [String; 3] {
    let mut full = Full::openapi();
    full.merge(network::Api::openapi());
    full.merge(memory::Api::openapi());
    full.merge(logs::Api::openapi());
    let mut recorder = NetworkRecorder::openapi();
    recorder.merge(network::RecorderApi::openapi());
    let mut profiler = MemoryProfiler::openapi();
    profiler.merge(memory::Api::openapi());
    [full, recorder, profiler].map(|document| {
        // A document of strings and maps always serialises.
        let mut text = document.to_pretty_json().unwrap_or_default();
        text.push('\n');
        text
    })
}
