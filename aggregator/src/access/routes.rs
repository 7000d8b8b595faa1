//! What each route needs. A route that is not here is nobody's.

/// What a caller may be allowed to read of a node: a subresource of `tezosnodes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Right {
    Messages,
    Connections,
    Chunks,
    Stats,
    Memory,
}

impl Right {
    /// The subresource's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Connections => "connections",
            Self::Chunks => "chunks",
            Self::Stats => "stats",
            Self::Memory => "memory",
        }
    }
}

/// What a route needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Anyone may ask: it tells nothing of any node.
    Nothing,
    /// For whoever operates the program: on the metrics port, and here only while access is open.
    Operation,
    /// Anyone who is known.
    Caller,
    /// This right to the nodes that the answer is about.
    Node(Right),
    /// Nobody may: the route was forgotten in this table.
    Forgotten,
}

const TABLE: [(&str, Need); 26] = [
    ("/v2/p2p", Need::Node(Right::Messages)),
    ("/v2/p2p/stream", Need::Node(Right::Messages)),
    ("/v2/p2p/{id}", Need::Node(Right::Messages)),
    ("/v3/messages", Need::Node(Right::Messages)),
    ("/v3/message/{id}", Need::Node(Right::Messages)),
    // A node is listed for whoever may read its messages.
    ("/nodes", Need::Node(Right::Messages)),
    ("/v3/connections", Need::Node(Right::Connections)),
    ("/v3/chunks", Need::Node(Right::Chunks)),
    ("/v3/chunk/{key}", Need::Node(Right::Chunks)),
    ("/v2/stats", Need::Node(Right::Stats)),
    ("/v1/tree", Need::Node(Right::Memory)),
    ("/v1/pid", Need::Node(Right::Memory)),
    ("/v1/targets", Need::Node(Right::Memory)),
    ("/v1/flamegraph", Need::Node(Right::Memory)),
    ("/v1/pprof", Need::Node(Right::Memory)),
    ("/v1/snapshots", Need::Node(Right::Memory)),
    ("/v2/version", Need::Caller),
    ("/metrics", Need::Operation),
    ("/healthz", Need::Operation),
    ("/livez", Need::Operation),
    ("/readyz", Need::Operation),
    ("/openapi.json", Need::Nothing),
    ("/openapi/network-recorder-openapi.json", Need::Nothing),
    ("/openapi/memory-profiler-openapi.json", Need::Nothing),
    ("/docs", Need::Nothing),
    ("/docs/{*path}", Need::Nothing),
];

/// What the route with this template needs; none: no route, which is answered by a 404.
pub(crate) fn need(route: Option<&str>) -> Need {
    let Some(route) = route else { return Need::Nothing };
    TABLE.iter().find(|(path, _)| *path == route).map_or(Need::Forgotten, |(_, need)| *need)
}

#[cfg(test)]
mod tests {
    use super::{Need, need};

    #[test]
    fn every_described_path_is_in_the_table() {
        let [full, ..] = crate::openapi();
        let document: serde_json::Value = serde_json::from_str(&full).unwrap();
        for path in document["paths"].as_object().unwrap().keys() {
            assert_ne!(need(Some(path)), Need::Forgotten, "{path}");
        }
        assert_eq!(need(Some("/v9/new")), Need::Forgotten);
    }
}
