//! Metrics and health on their own port, the shutdown, paths below a node.

use chainscope_aggregator::NodeConfig;
use chainscope_proto::v1::{Record, record::Kind};
use serde_json::Value;

use crate::common::{Server, TIME, get, message, record};

fn messages(count: usize) -> Vec<Record> {
    (0..count).map(|_| record(TIME, Kind::Message(message("advertise")))).collect()
}

#[test]
fn health_has_its_own_port_and_readiness_fails_before_shutdown() {
    let server = Server::with(|config| {
        config.operation = Some("127.0.0.1:0".parse().unwrap());
        config.nodes.push(NodeConfig::new("n"));
    });
    let port = server.running().operation_addr().unwrap();
    let ask = |path: &str| get(port, "GET", path, &[]);
    assert_eq!((ask("/livez").status, ask("/readyz").body.as_str()), (200, "ok\n"));
    assert!(ask("/metrics").body.contains("chainscope_nodes 1\n"));
    for path in ["/v2/p2p", "/nodes", "/v2/stats", "/docs", "/nodes/n/v2/p2p"] {
        assert_eq!(ask(path).status, 404, "{path}");
    }
    // While access is open the API serves them, too.
    for path in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    server.running().drain();
    assert_eq!((ask("/readyz").status, ask("/livez").status), (503, 200));
    assert_eq!((server.get("/readyz").status, server.get("/v2/p2p").status), (503, 200), "requests are still served");
}

#[test]
fn every_route_exists_below_a_node_of_two_parts() {
    let server = Server::with(|_| {});
    server.feed("ns/octez-0", messages(2));
    server.feed("ns/octez-1", messages(1));
    for prefix in ["/nodes/ns/octez-0", "/nodes/ns%2Foctez-0", "/nodes/octez-0"] {
        for path in
            ["/v2/p2p", "/v3/messages", "/v3/connections", "/v3/chunks", "/v2/p2p/1", "/v3/message/1", "/v2/stats"]
        {
            server.json(&format!("{prefix}{path}"));
        }
        assert_eq!(server.ids(&format!("{prefix}/v2/p2p/?node_name=ns/octez-1")), [1, 0], "the path takes precedence");
        assert_eq!(server.json(&format!("{prefix}/v2/stats"))["nodes"][0]["name"], "ns/octez-0");
        assert_eq!(server.json(&format!("{prefix}/v3/chunk/1.000000002-local-0")), Value::Null);
        let mut live = server.events(&format!("{prefix}/v2/p2p/stream?cursor=0"), &[]);
        assert_eq!(live.ids(2), [0, 1]);
    }
}
