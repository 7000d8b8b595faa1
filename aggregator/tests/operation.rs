//! Metrics and health on their own port, the end, paths below a node, the audit log.

#![allow(clippy::unwrap_used)] // a test panics where it fails

mod common;

use std::{
    io,
    sync::{Arc, Mutex},
};

use chainscope_aggregator::{NodeConfig, access::AccessConfig};
use chainscope_proto::v1::{Record, record::Kind};
use chainscope_testing::wait::until_true;
use common::{Server, TIME, fake::Reviews, get, message, record};
use serde_json::Value;
use tracing_subscriber::{Layer as _, filter::filter_fn, layer::SubscriberExt as _};

fn messages(count: usize) -> Vec<Record> {
    (0..count).map(|_| record(TIME, Kind::Message(message("advertise")))).collect()
}

#[test]
fn health_has_a_port_of_its_own_and_says_the_end_before_it_comes() {
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
    // Alone on a machine the API has them, too.
    for path in ["/livez", "/readyz", "/metrics"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    server.running().drain();
    assert_eq!((ask("/readyz").status, ask("/livez").status), (503, 200));
    assert_eq!(
        (server.get("/readyz").status, server.get("/v2/p2p").status),
        (503, 200),
        "what comes is still answered"
    );
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
        assert_eq!(server.ids(&format!("{prefix}/v2/p2p/?node_name=ns/octez-1")), [1, 0], "the path decides");
        assert_eq!(server.json(&format!("{prefix}/v2/stats"))["nodes"][0]["name"], "ns/octez-0");
        assert_eq!(server.json(&format!("{prefix}/v3/chunk/1.000000002-local-0")), Value::Null);
        let mut live = server.events(&format!("{prefix}/v2/p2p/stream?cursor=0"), &[]);
        assert_eq!(live.ids(2), [0, 1]);
    }
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn reads_are_logged_with_who_what_and_how_it_ended() {
    let lines = Lines::default();
    let writer = lines.clone();
    let layer = tracing_subscriber::fmt::layer()
        .json()
        .flatten_event(true)
        .with_writer(move || writer.clone())
        .with_filter(filter_fn(|meta| meta.target() == "audit"));
    // For the whole program: the requests are answered on other threads. No other test here has callers with names.
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer)).unwrap();
    let reviews = Arc::new(Reviews::default());
    reviews.user("good", "alice");
    reviews.allow("alice", "messages", "a", "x");
    let access = AccessConfig::Kubernetes(reviews);
    let server = Server::with(|config| {
        config.nodes.push(NodeConfig { aliases: vec!["9732".into()], ..NodeConfig::new("a/x") });
        config.access = access;
    });
    server.get_as("good", "/v2/p2p?limit=1&token=hidden&node_name=9732");
    server.get_as("good", "/nodes/b/y/v3/chunks");
    server.get_as("wrong", "/nodes");
    server.get_as("good", "/openapi.json");
    let read = || {
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect::<Vec<_>>()
    };
    until_true("all are logged", || read().len() >= 3);
    let short = |line: &Value| {
        let text = |key: &str| line[key].as_str().unwrap().to_owned();
        (text("user"), text("node"), text("route"), text("query"), line["status"].as_u64().unwrap())
    };
    let is = |user: &str, node: &str, route: &str, query: &str, status| {
        (user.to_owned(), node.to_owned(), route.to_owned(), query.to_owned(), status)
    };
    let logged = read();
    assert_eq!(
        logged.iter().map(short).collect::<Vec<_>>(),
        [
            is("alice", "a/x", "/v2/p2p", "limit=1&token=…&node_name=9732", 200),
            is("alice", "b/y", "/v3/chunks", "", 403),
            is("", "", "/nodes", "", 401),
        ]
    );
    assert!(
        logged.iter().all(|line| line["ms"].is_u64() && line["timestamp"].is_string() && line["target"] == "audit")
    );
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert!(!text.contains("good") && !text.contains("wrong") && !text.contains("hidden"), "{text}");
}
