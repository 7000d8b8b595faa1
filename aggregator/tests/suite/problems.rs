//! Problems: the code of each kind of error, and the id of the request.

use std::sync::Arc;

use chainscope_aggregator::{NodeConfig, access::AccessConfig};
use serde_json::{Value, json};

use crate::common::{Answer, Server, fake::Reviews, get};

/// The problem of a refused request: its body is complete, and agrees with the head.
fn problem(answer: &Answer) -> Value {
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{}", answer.body);
    let problem: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(problem["status"], answer.status);
    assert_eq!(problem["type"], format!("urn:chainscope:problem:{}", problem["code"].as_str().unwrap()));
    assert_eq!(problem["request_id"], answer.header("x-request-id").unwrap());
    assert!(["title", "detail"].iter().all(|name| problem[name].as_str().is_some_and(|text| !text.is_empty())));
    assert_eq!(answer.header("content-length"), Some(&*answer.body.len().to_string()), "{problem}");
    problem
}

#[test]
fn each_kind_of_error_has_its_code() {
    let server = Server::with(|config| {
        config
            .nodes
            .extend(["a/x", "b/x"].map(|name| NodeConfig { aliases: vec!["x".into()], ..NodeConfig::new(name) }));
    });
    let long = format!("/v2/p2p?x={}", "x".repeat(9000));
    for (path, status, code) in [
        ("/v2/p2p?limit=x", 400, "invalid_parameter"),
        ("/v2/p2p?limit=1&limit=2", 400, "invalid_parameter"),
        ("/nodes/a/x/v2/log?query=(", 400, "invalid_parameter"),
        ("/nodes/a/x/v3/chunks?limit=100000", 400, "invalid_parameter"),
        ("/v2/p2p", 400, "node_required"),
        ("/v2/p2p?node_name=x", 400, "ambiguous_node"),
        ("/v2/p2p?node_name=none", 404, "unknown_node"),
        ("/nodes/a/x/v1/tree?pid=7", 404, "unknown_process"),
        ("/nodes/a/x/v1/tree?at=1", 404, "unknown_snapshot"),
        ("/none", 404, "unknown_path"),
        ("/docs/none", 404, "unknown_path"),
        ("/nodes/a/x/v2/p2p/x", 404, "unknown_path"),
        (&long, 414, "uri_too_long"),
    ] {
        let answer = server.get(path);
        assert_eq!((answer.status, &problem(&answer)["code"]), (status, &json!(code)), "{path}");
    }
    let written = get(server.http(), "POST", "/v2/p2p", &[]);
    assert_eq!((written.status, &problem(&written)["code"]), (405, &json!("method_not_allowed")));
    let page = get(server.http(), "GET", "/v2/p2p", &[("host", "evil.example")]);
    assert_eq!((page.status, &problem(&page)["code"]), (421, &json!("host_not_allowed")));
    let head = get(server.http(), "HEAD", "/v2/p2p?limit=x", &[("x-request-id", "head-1")]);
    assert_eq!((head.status, head.body.as_str(), head.header("x-request-id")), (400, "", Some("head-1")));
    assert_eq!(problem(&Server::with(|_| {}).get("/v2/p2p"))["code"], "unknown_node", "there are no nodes");
}

#[test]
fn callers_are_told_apart_why_they_are_refused() {
    let reviews = Arc::new(Reviews::default());
    reviews.user("good", "alice");
    let access = AccessConfig::Kubernetes(Arc::clone(&reviews) as _);
    let server = Server::with(|config| {
        config.nodes.push(NodeConfig::new("9732"));
        config.access = access;
    });
    let code = |answer: Answer| (answer.status, problem(&answer)["code"].as_str().unwrap().to_owned());
    assert_eq!(code(server.get("/v2/p2p")), (401, "token_missing".to_owned()));
    assert_eq!(code(server.get_as("wrong", "/v2/p2p")), (401, "token_rejected".to_owned()));
    assert_eq!(code(server.get_as("good", "/v2/p2p")), (403, "forbidden".to_owned()));
    assert_eq!(code(server.get_as("good", "/metrics")), (404, "unknown_path".to_owned()));
    reviews.away(true);
    assert_eq!(code(server.get_as("another", "/v2/p2p")), (503, "review_unavailable".to_owned()));
    server.running().drain();
    let open = Server::start();
    open.running().drain();
    assert_eq!(code(open.get("/readyz")), (503, "not_ready".to_owned()));
}

#[test]
fn every_response_has_the_id_of_its_request() {
    let server = Server::start();
    for path in ["/v2/p2p", "/v2/p2p?limit=x", "/openapi.json", "/none", "/healthz"] {
        let with = |id: &str| get(server.http(), "GET", path, &[("x-request-id", id)]);
        assert_eq!(with("proxy-0.1_a").header("x-request-id"), Some("proxy-0.1_a"), "{path}");
        let ids = [with("a b"), with(""), with(&"x".repeat(129)), server.get(path), server.get(path)]
            .map(|answer| answer.header("x-request-id").unwrap().to_owned());
        assert!(ids.iter().all(|id| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())), "{ids:?}");
        assert!((1..ids.len()).all(|at| !ids[..at].contains(&ids[at])), "{ids:?}");
    }
    let preflight = get(server.http(), "OPTIONS", "/v2/p2p", &[("x-request-id", "7")]);
    assert_eq!((preflight.status, preflight.header("x-request-id")), (204, Some("7")));
}
