//! The audit log of reads.

use std::{
    io,
    sync::{Arc, Mutex},
};

use chainscope_aggregator::{NodeConfig, access::AccessConfig};
use chainscope_testing::wait::until_true;
use serde_json::Value;
use tracing_subscriber::{Layer as _, filter::filter_fn, layer::SubscriberExt as _};

use crate::common::{Server, fake::Reviews, get};

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
fn reads_are_logged_with_user_node_route_and_status() {
    let lines = Lines::default();
    let writer = lines.clone();
    let layer = tracing_subscriber::fmt::layer()
        .json()
        .flatten_event(true)
        .with_writer(move || writer.clone())
        .with_filter(filter_fn(|meta| meta.target() == "audit"));
    // Global: requests are handled on other threads. No other test of this binary has authenticated callers.
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer)).unwrap();
    let reviews = Arc::new(Reviews::default());
    reviews.user("good", "alice");
    reviews.allow("alice", "messages", "a", "x");
    let access = AccessConfig::Kubernetes(reviews);
    let server = Server::with(|config| {
        config.nodes.push(NodeConfig { aliases: vec!["9732".into()], ..NodeConfig::new("a/x") });
        config.access = access;
    });
    let given = [("authorization", "Bearer good"), ("x-request-id", "proxy-1")];
    let answers = [
        get(server.http(), "GET", "/v2/p2p?limit=1&token=hidden&node_name=9732", &given),
        server.get_as("good", "/nodes/b/y/v3/chunks"),
        server.get_as("wrong", "/nodes"),
    ];
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
    let ids = |line: &Value| line["request_id"].as_str().unwrap().to_owned();
    let sent: Vec<_> = answers.iter().map(|answer| answer.header("x-request-id").unwrap()).collect();
    assert_eq!(logged.iter().map(ids).collect::<Vec<_>>(), sent);
    assert!(sent[0] == "proxy-1" && sent[1] != sent[2], "{sent:?}");
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert!(!text.contains("good") && !text.contains("wrong") && !text.contains("hidden"), "{text}");
}
