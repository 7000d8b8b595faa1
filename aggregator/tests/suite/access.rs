//! Authentication and authorization: 401, 403, 503, and no information about data that the caller may not read.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::Arc,
    time::Duration,
};

use chainscope_aggregator::{Config, NodeConfig, access::AccessConfig};
use chainscope_proto::v1::{Record, record::Kind};
use chainscope_testing::wait::until_true;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpSocket,
};

use crate::common::{Server, TIME, fake::Reviews, get, message, record};

fn messages(count: usize) -> Vec<Record> {
    (0..count).map(|_| record(TIME, Kind::Message(message("advertise")))).collect()
}

/// Three nodes, two of which have one alias, and a user each that may read them.
fn guarded(change: impl FnOnce(&mut Config)) -> (Server, Arc<Reviews>) {
    let reviews = Arc::new(Reviews::default());
    for user in ["alice", "bob", "carol", "root"] {
        reviews.user(&format!("{user}-token"), user);
    }
    reviews.allow("alice", "messages", "a", "x");
    reviews.allow("carol", "messages", "a", "");
    reviews.allow_all("root");
    let access = AccessConfig::Kubernetes(Arc::clone(&reviews) as _);
    let server = Server::with(|config| {
        for name in ["a/x", "a/y", "b/x"] {
            config.nodes.push(NodeConfig { aliases: vec!["9732".into()], ..NodeConfig::new(name) });
        }
        config.access = access;
        config.operation = Some("127.0.0.1:0".parse().unwrap());
        change(config);
    });
    (server, reviews)
}

/// Open connections of the API, without that of this request.
fn open_connections(server: &Server) -> u64 {
    let metrics = get(server.running().operation_addr().unwrap(), "GET", "/metrics", &[]).body;
    let line = metrics.lines().find_map(|line| line.strip_prefix("chainscope_http_connections "));
    line.unwrap().parse::<u64>().unwrap() - 1
}

const NODE_PATHS: [&str; 22] = [
    "/v2/p2p",
    "/v2/p2p/0",
    "/v2/p2p/stream",
    "/v2/log",
    "/v2/log/stream",
    "/v2/trace",
    "/v2/trace/stream",
    "/v2/trace/relay",
    "/v2/latency/runs",
    "/v2/stats",
    "/v3/logs",
    "/v3/messages",
    "/v3/message/0",
    "/v3/connections",
    "/v3/chunks",
    "/v3/chunk/1.000000002-local-0",
    "/v1/tree",
    "/v1/pid",
    "/v1/targets",
    "/v1/flamegraph",
    "/v1/pprof",
    "/v1/snapshots",
];

#[test]
fn without_a_valid_token_only_the_description_is_served() {
    let (server, _) = guarded(|_| {});
    let more =
        ["/nodes", "/v2/version", "/chains/main/blocks/head/header", "/nodes/a/x/v2/p2p", "/nodes/none/none/v2/p2p"];
    for path in NODE_PATHS.iter().chain(&more) {
        let bare = get(server.http(), "GET", path, &[]);
        assert_eq!(bare.status, 401, "{path}");
        assert_eq!(bare.header("www-authenticate"), Some("Bearer realm=\"chainscope\""), "{path}");
        for bad in ["Bearer nobody", "Bearer ", "Basic YTpi", "x", "bearer  "] {
            assert_eq!(get(server.http(), "GET", path, &[("authorization", bad)]).status, 401, "{path} {bad}");
        }
        assert_eq!(get(server.http(), "OPTIONS", path, &[]).status, 204, "{path}");
    }
    // A page of a rebound name has no token.
    let rebound = [("host", "evil.example"), ("authorization", "Bearer alice-token")];
    assert_eq!(get(server.http(), "GET", "/nodes/a/x/v2/p2p", &rebound).status, 200);
    let profiler = "/openapi/memory-profiler-openapi.json";
    for path in ["/openapi.json", "/openapi/network-recorder-openapi.json", profiler, "/docs/index.html"] {
        assert_eq!(get(server.http(), "GET", path, &[]).status, 200, "{path}");
    }
    for path in ["/metrics", "/readyz", "/livez", "/healthz"] {
        assert_eq!(server.get_as("root-token", path).status, 404, "{path}");
        assert_eq!(get(server.running().operation_addr().unwrap(), "GET", path, &[]).status, 200, "{path}");
    }
    assert_eq!(server.get_as("alice-token", "/v2/version").status, 200, "every authenticated caller");
}

#[test]
fn every_described_path_needs_a_permission_or_is_served_on_the_other_port() {
    let (server, _) = guarded(|_| {});
    let document: serde_json::Value = serde_json::from_str(&chainscope_aggregator::openapi()[0]).unwrap();
    for path in document["paths"].as_object().unwrap().keys() {
        let url = path.replace("{id}", "0").replace("{key}", "1.000000002-local-0");
        let is_operation = ["/metrics", "/healthz", "/readyz"].contains(&path.as_str());
        assert_eq!(server.get(&url).status, if is_operation { 404 } else { 401 }, "{path}");
        // bob has the permission for statistics only: a handler without its own check would respond with 200.
        let of_bob = match path.as_str() {
            "/nodes" | "/v2/version" | "/v2/stats" | "/chains/main/blocks/head/header" => 200,
            _ if is_operation => 404,
            _ => 403,
        };
        assert_eq!(server.get_as("bob-token", &url).status, of_bob, "{path}");
    }
}

#[test]
fn a_permission_is_for_one_kind_of_data_of_one_node() {
    let (server, _) = guarded(|_| {});
    for path in NODE_PATHS {
        let is_messages = path.starts_with("/v2/p2p") || path.starts_with("/v3/message");
        let own = if is_messages { 200 } else { 403 };
        // A stream's body does not end: its status is enough, and is tested below.
        if !path.ends_with("/stream") {
            assert_eq!(server.get_as("alice-token", &format!("/nodes/a/x{path}")).status, own, "{path}");
            assert_eq!(server.get_as("root-token", &format!("/nodes/a/x{path}")).status, 200, "{path}");
        }
        for other in ["a/y", "b/x", "b/none", "none"] {
            let by_path = server.refusal("alice-token", &format!("/nodes/{other}{path}"), 403);
            assert_eq!(server.refusal("alice-token", &format!("{path}?node_name={other}"), 403), by_path);
        }
        assert_eq!(server.get_as("bob-token", path).status, if path == "/v2/stats" { 200 } else { 403 }, "{path}");
    }
    assert_eq!(
        server.refusal("alice-token", "/nodes/a/x/v3/chunks", 403),
        "alice may not get tezosnodes/chunks of a/x: no role says so"
    );
    assert_eq!(server.refusal("root-token", "/nodes/b/none/v2/p2p", 404), "no such node: \"b/none\"");
    server.refusal("root-token", "/nodes/b/x/v2/none", 404);
}

#[test]
fn names_of_unreadable_nodes_are_not_revealed() {
    let (server, _) = guarded(|_| {});
    server.feed("b/x", messages(2));
    server.feed("a/x", messages(1));
    let names = |token: &str, path: &str| {
        let list = server.json_as(token, path);
        list.as_array().unwrap().iter().map(|node| node["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("alice-token", "/nodes"), ["a/x"]);
    assert_eq!(names("carol-token", "/nodes"), ["a/x", "a/y"]);
    assert_eq!(names("root-token", "/nodes"), ["a/x", "a/y", "b/x"]);
    assert!(names("bob-token", "/nodes").is_empty());
    // For alice the alias is unambiguous, and the default is her only node.
    for path in ["/v2/p2p?node_name=9732", "/v2/p2p?node_name=x", "/v2/p2p", "/nodes/9732/v2/p2p"] {
        assert_eq!(server.json_as("alice-token", path).as_array().unwrap().len(), 1, "{path}");
    }
    for path in ["/v2/p2p?node_name=9732", "/v2/p2p"] {
        let answer = server.get_as("carol-token", path);
        assert_eq!(answer.status, 400);
        assert!(
            answer.body.contains("a/x") && answer.body.contains("a/y") && !answer.body.contains("b/x"),
            "{}",
            answer.body
        );
    }
    assert!(server.refusal("root-token", "/v2/p2p?node_name=x", 400).contains("b/x"));
    // Existing and missing nodes are indistinguishable without the permission.
    for (there, not) in [("x", "q"), ("9732", "9799"), ("b/x", "b/q")] {
        let refused = |name: &str| server.refusal("bob-token", &format!("/v2/p2p?node_name={name}"), 403);
        assert_eq!(refused(there).replace(there, "*"), refused(not).replace(not, "*"));
    }
    let stats = server.json_as("bob-token", "/v2/stats");
    assert!(stats["nodes"].as_array().unwrap().is_empty() && stats["agents"].as_array().unwrap().is_empty());
    let stats = server.json_as("root-token", "/v2/stats");
    assert_eq!((stats["nodes"].as_array().unwrap().len(), stats["agents"][0]["nodes"][1].as_str()), (3, Some("b/x")));
}

#[test]
fn an_unavailable_reviewer_refuses_and_answers_are_cached() {
    let (server, reviews) = guarded(|_| {});
    assert_eq!(server.get_as("alice-token", "/nodes/a/x/v2/p2p").status, 200);
    reviews.away(true);
    reviews.revoke("alice");
    let requests = reviews.requests();
    assert_eq!(server.get_as("alice-token", "/nodes/a/x/v2/p2p").status, 200, "cached");
    assert_eq!(reviews.requests(), requests);
    assert!(server.refusal("alice-token", "/nodes/a/y/v2/p2p", 503).contains("no answer"));
    assert_eq!(server.get_as("root-token", "/nodes").status, 503);
    assert_eq!(get(server.http(), "GET", "/nodes", &[]).status, 401);
    reviews.away(false);
    assert_eq!(server.get_as("root-token", "/nodes").status, 200);

    let (server, reviews) = guarded(|config| config.limits.review_ttl = Duration::ZERO);
    assert_eq!(server.get_as("alice-token", "/nodes/a/x/v2/p2p").status, 200);
    reviews.revoke("alice");
    assert_eq!(server.get_as("alice-token", "/nodes/a/x/v2/p2p").status, 403);
}

#[test]
fn one_token_is_reviewed_once_and_an_expired_one_never() {
    let (server, reviews) = guarded(|_| {});
    reviews.user("held-token", "alice");
    reviews.is_holding.send_replace(true);
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(|| server.get_as("held-token", "/v2/version").status)).collect();
        until_true("all requests are under way", || open_connections(&server) >= 8);
        reviews.is_holding.send_replace(false);
        for each in all {
            assert_eq!(each.join().unwrap(), 200);
        }
    });
    assert_eq!(reviews.requests(), 1);
    // {"exp":1}
    let expired = "e30.eyJleHAiOjF9.c2ln";
    reviews.user(expired, "alice");
    server.refusal(expired, "/v2/version", 401);
    assert_eq!(reviews.requests(), 1);
}

#[test]
fn invalid_tokens_of_one_address_do_not_delay_others() {
    let (server, reviews) = guarded(|_| {});
    reviews.is_holding.send_replace(true);
    let forged: Vec<TcpStream> = (0..40)
        .map(|number| {
            let mut stream = TcpStream::connect(server.http()).unwrap();
            write!(stream, "GET /nodes HTTP/1.1\r\nhost: a\r\nauthorization: Bearer held-{number}\r\n\r\n").unwrap();
            stream
        })
        .collect();
    until_true("reviews are under way", || open_connections(&server) >= 40 && reviews.requests() >= 4);
    // From another address, which a loopback listener sees as such.
    let status = server.runtime.block_on(async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let mut stream = socket.connect(server.http()).await.unwrap();
        let head =
            "GET /v2/version HTTP/1.1\r\nhost: a\r\nconnection: close\r\nauthorization: Bearer bob-token\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    });
    assert!(status.starts_with("HTTP/1.1 200"), "{status}");
    assert_eq!(reviews.requests(), 5, "four of the first address, one of the second");
    reviews.is_holding.send_replace(false);
    drop(forged);
}

#[test]
fn a_stream_ends_when_the_permission_is_withdrawn() {
    let (server, reviews) = guarded(|config| {
        config.limits.reauthorize_interval = Duration::from_millis(20);
        config.limits.heartbeat_interval = Duration::from_millis(20);
    });
    let authorization = [("authorization", "Bearer alice-token")];
    let mut live = server.events("/nodes/a/x/v2/p2p/stream", &authorization);
    let mut agent = server.agent(&["a/x"]);
    agent.batch("a/x", 0, messages(1));
    assert_eq!(live.ids(1), [0]);
    // The reviewer is unavailable: keep-alive comments only, and no message is lost.
    reviews.away(true);
    let requests = reviews.requests();
    until_true("the stream is reauthorized", || reviews.requests() > requests);
    agent.batch("a/x", 1, messages(1));
    agent.wait_for("a/x", 2);
    for _ in 0..3 {
        assert_eq!(live.block().as_deref(), Some(": still here"));
    }
    reviews.away(false);
    assert_eq!(live.ids(1), [1]);
    reviews.revoke("alice");
    let last = loop {
        let block = live.block().expect("a last event");
        if !block.starts_with(':') {
            break block;
        }
    };
    assert!(last.starts_with("event: error\ndata: {") && last.contains("\"status\":403"), "{last}");
    assert_eq!(live.block(), None);
}

#[test]
fn a_list_ends_when_the_permission_is_withdrawn() {
    let (server, reviews) = guarded(|config| config.limits.reauthorize_interval = Duration::ZERO);
    let mut agent = server.agent(&["a/x"]);
    agent.batch("a/x", 0, messages(2500));
    agent.wait_for("a/x", 2500);
    let list = "/nodes/a/x/v2/p2p?limit=2500";
    // Each page but the first is authorized: the list waits while it cannot be, and is complete when it can.
    for is_withdrawn in [false, true] {
        assert_eq!(server.get_as("alice-token", "/nodes/a/x/v2/p2p?limit=1").status, 200);
        reviews.away(true);
        let mut stream = TcpStream::connect(server.http()).unwrap();
        write!(stream, "GET {list} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n").unwrap();
        write!(stream, "authorization: Bearer alice-token\r\n\r\n").unwrap();
        let requests = reviews.requests();
        until_true("the second page is authorized", || reviews.requests() > requests);
        if is_withdrawn {
            reviews.revoke("alice");
        }
        reviews.away(false);
        let mut response = Vec::new();
        // Aborted: an error, or an end without the last chunk.
        let end = stream.read_to_end(&mut response);
        assert!(response.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&response));
        let is_complete = end.is_ok() && response.ends_with(b"\r\n0\r\n\r\n");
        let rows = response.windows(5).filter(|five| five == b"{\"id\"").count();
        assert_eq!((is_complete, rows), if is_withdrawn { (false, 1000) } else { (true, 2500) });
    }
}

#[test]
fn a_token_file_grants_nodes_and_is_reloaded() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokens");
    std::fs::write(&file, "one alice a/*\ntwo root *\n").unwrap();
    let (server, _) = guarded(|config| config.access = AccessConfig::TokenFile(file.clone()));
    let names = |token: &str| server.json_as(token, "/nodes").as_array().unwrap().len();
    assert_eq!((names("one"), names("two")), (2, 3));
    assert_eq!(server.get_as("one", "/nodes/a/y/v3/chunks").status, 200, "all kinds of data");
    assert_eq!(server.refusal("one", "/nodes/b/x/v2/p2p", 403), "alice may not get tezosnodes/messages of b/x");
    server.refusal("three", "/nodes", 401);
    std::fs::write(&file, "three alice b/x\ntwo root *\nfour eve # b/*\n").unwrap();
    until_true("the new token is good", || server.get_as("three", "/nodes").status == 200);
    assert_eq!((server.get_as("one", "/nodes").status, names("three"), names("two")), (401, 1, 3));
    server.refusal("four", "/nodes", 401);
    std::fs::remove_file(&file).unwrap();
    until_true("no token is accepted", || server.get_as("two", "/nodes").status == 503);
}

#[test]
fn a_malformed_token_file_is_an_error_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokens");
    let db = tempfile::tempdir().unwrap();
    let start = || {
        let store = crate::common::open(&db);
        let mut config = Config::new(store, "127.0.0.1:0".parse().unwrap());
        config.access = AccessConfig::TokenFile(file.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(chainscope_aggregator::Aggregator::start(config)).err().map(|error| error.to_string())
    };
    assert!(start().unwrap().contains("tokens"));
    std::fs::write(&file, "secret-of-mine\n").unwrap();
    let error = start().unwrap();
    assert!(error.contains("line 1") && !error.contains("secret"), "{error}");
    std::fs::write(&file, "a root *\nsecret-of-mine eve # ns/*\n").unwrap();
    let error = start().unwrap();
    let names_it = error.contains(file.to_str().unwrap()) && error.contains("line 2") && error.contains("`*` for all");
    assert!(names_it && !error.contains("secret"), "{error}");
}
