//! The OpenAPI documents. They are generated from the handlers, committed under `openapi/`, and served from there: a test
//! fails when they are stale.

use utoipa::{IntoParams, OpenApi, ToSchema};

use super::{detail, memory, nodes, p2p, problem::Problem, scrape, stats, stream, v3, wire};

/// The whole API, as it is committed and served.
pub(crate) const FULL: &str = include_str!("../../openapi/chainscope.json");
/// The part that the original had, as it is committed and served.
pub(crate) const NETWORK_RECORDER: &str = include_str!("../../openapi/network-recorder.json");

/// The original's memory profiler, as it is committed and served.
pub(crate) const MEMORY_PROFILER: &str = include_str!("../../openapi/memory-profiler.json");

/// Which node.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code)] // documentation of what is read by hand
pub(crate) struct NodeParameter {
    /// The node: its name, `namespace/name`, or an alias such as its P2P port. Without it: the node called `tezedge`, else
    /// the only node. Not looked at below `/nodes/…`.
    node_name: Option<String>,
}

/// Which messages.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code)] // documentation of what is read by hand
pub(crate) struct P2pParameters {
    /// The node: its name, `namespace/name`, or an alias such as its P2P port. Without it: the node called `tezedge`, else
    /// the only node. Not looked at below `/nodes/…`.
    node_name: Option<String>,
    /// Rows at most; any number, answers are streamed. [default: 100]
    limit: Option<u64>,
    /// Id to begin with, included. `cursor_id` means the same.
    cursor: Option<u64>,
    /// `forward`: oldest first. Anything else: newest first.
    direction: Option<String>,
    /// Types of message, separated by commas; any of them.
    #[param(example = "current_head,current_branch")]
    types: Option<String>,
    /// `true`: the peer sent it; `false`: the node did.
    incoming: Option<bool>,
    /// Who opened the connection.
    source_type: Option<SourceType>,
    /// The peer's socket. An IPv4 address and the IPv6 address that stands for it are the same.
    #[param(example = "[::ffff:51.15.220.7]:9732")]
    remote_addr: Option<String>,
    /// The peer's identity.
    peer_id: Option<String>,
    /// The observed process.
    target: Option<String>,
    /// Least time, included, since 1970: seconds below 10^11, milliseconds below 10^14, else nanoseconds.
    from: Option<u64>,
    /// Greatest time, included; units as for `from`.
    to: Option<u64>,
    /// A moment: newest first, messages up to it; `forward`, messages after it. Units as for `from`.
    timestamp: Option<u64>,
}

/// Which messages of a stream.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code)] // documentation of what is read by hand
pub(crate) struct StreamParameters {
    /// As for `/v2/p2p`.
    node_name: Option<String>,
    /// Events after which the stream ends. [default: never]
    limit: Option<u64>,
    /// Id to begin with, included. [default: the next message to be recorded]
    cursor: Option<u64>,
    /// As for `/v2/p2p`.
    types: Option<String>,
    /// As for `/v2/p2p`.
    incoming: Option<bool>,
    /// As for `/v2/p2p`.
    source_type: Option<SourceType>,
    /// As for `/v2/p2p`.
    remote_addr: Option<String>,
    /// As for `/v2/p2p`.
    peer_id: Option<String>,
    /// As for `/v2/p2p`.
    target: Option<String>,
    /// As for `/v2/p2p`.
    from: Option<u64>,
    /// As for `/v2/p2p`.
    to: Option<u64>,
}

/// Who opened a connection.
#[derive(Debug, ToSchema)]
#[schema(rename_all = "lowercase")]
#[allow(dead_code)] // documentation of what is read by hand
pub(crate) enum SourceType {
    /// The observed node.
    Local,
    /// Its peer.
    Remote,
}

/// Which connections.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code)] // documentation of what is read by hand
pub(crate) struct ConnectionsParameters {
    /// As for `/v2/p2p`.
    node_name: Option<String>,
    /// Connections at most. [default: 100]
    limit: Option<u64>,
    /// Key to begin with, included.
    #[param(example = "1617005682.953928051")]
    cursor: Option<String>,
}

/// Which chunks.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code)] // documentation of what is read by hand
pub(crate) struct ChunksParameters {
    /// As for `/v2/p2p`.
    node_name: Option<String>,
    /// Chunks at most, up to 1000. [default: 100]
    limit: Option<u64>,
    /// Key to begin with, included.
    #[param(example = "1617005682.953928051-remote-15")]
    cursor: Option<String>,
    /// Key of the connection that they belong to.
    #[param(example = "1617005682.953928051")]
    cn: Option<String>,
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Chainscope",
        description = "What a blockchain node says to its peers, and which of its code holds its memory. Every path but /nodes, /metrics and health also works \
            below /nodes/{name}/ and /nodes/{namespace}/{name}/, and is then about that node.",
        license(name = "Apache-2.0 OR MIT")
    ),
    paths(
        p2p::messages,
        detail::message,
        stream::messages,
        stats::stats,
        scrape::version,
        p2p::messages_v3,
        detail::message_v3,
        v3::connections,
        v3::chunks,
        v3::chunk,
        memory::tree,
        memory::pid,
        memory::targets,
        memory::flamegraph,
        memory::pprof,
        memory::snapshots,
        nodes::nodes,
        scrape::metrics,
        scrape::healthz,
        scrape::readyz,
    ),
    components(schemas(
        Problem,
        SourceType,
        wire::ClosedView,
        memory::FrameView,
        memory::ShortReport,
        memory::TreeView
    ))
)]
struct Full;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Network recorder",
        description = "Peer-to-peer messages of Tezos nodes.",
        license(name = "Apache-2.0 OR MIT")
    ),
    paths(p2p::messages, detail::message, scrape::version),
    components(schemas(Problem, SourceType))
)]
struct NetworkRecorder;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Memory profiler",
        description = "Which code holds the memory of a node.",
        license(name = "Apache-2.0 OR MIT")
    ),
    paths(memory::tree, memory::pid, memory::targets, memory::flamegraph, memory::pprof, memory::snapshots),
    components(schemas(Problem, memory::FrameView, memory::ShortReport, memory::TreeView))
)]
struct MemoryProfiler;

/// The documents, generated: the whole API, and the two that the original had.
pub(crate) fn generate() -> [String; 3] {
    let text = |document: utoipa::openapi::OpenApi| {
        // A document of strings and maps always serialises.
        let mut text = document.to_pretty_json().unwrap_or_default();
        text.push('\n');
        text
    };
    [text(Full::openapi()), text(NetworkRecorder::openapi()), text(MemoryProfiler::openapi())]
}
