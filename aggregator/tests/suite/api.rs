//! The rest of the API: nodes, connections, chunks, stats, metrics, documents, errors, headers.

use std::{
    io::Write as _,
    net::TcpStream,
    time::{Duration, Instant},
};

use chainscope_aggregator::NodeConfig;
use chainscope_proto::v1::{
    ConnectionClosed, ConnectionState, ConnectionStateChanged, Gap, Initiator, Loss, Message, NetworkAccount,
    ReasonCount, TargetEvent, connection_event::Event, record::Kind,
};
use chainscope_store::Retention;
use serde_json::{Value, json};

use crate::common::{CONNECTION, LIMIT, Server, TIME, event, get, identified, message, opened, record, with_chunks};

#[test]
fn every_response_is_readable_by_pages_of_loopback_and_listed_origins_only() {
    let listed = "https://explorer.example";
    let server = Server::with(|config| {
        config.nodes.push(NodeConfig::new("9732"));
        config.cors_origins = vec![listed.into()];
        config.limits.max_streams = 0;
    });
    let too_long = format!("/v2/log?query={}", "x".repeat(9000));
    for (method, path, status) in [
        ("GET", "/v2/p2p", 200),
        ("GET", "/v2/p2p/", 200),
        ("GET", "/v2/version/?", 200),
        ("GET", "/v2/log", 200),
        ("GET", "/v2/log?query=(", 400),
        ("GET", "/nodes/9732/v3/logs/", 200),
        ("GET", "/nodes/9732/v1/tree", 200),
        ("GET", "/nodes/9732/openapi/memory-profiler-openapi.json", 200),
        ("GET", "/chains/main/blocks/head/header", 200),
        ("GET", "/nodes/9732/chains/main/blocks/head/header", 200),
        ("GET", "/chains/main/blocks/head/hash", 404),
        ("HEAD", "/v2/p2p", 200),
        ("GET", "/v2/p2p?limit=", 400),
        ("GET", "/v2/p2p?limit=\"5\"", 400),
        ("GET", "/v2/p2p?other=\"<a>\"", 200),
        ("GET", "/v2/p2p?node_name=none", 404),
        ("GET", "/v2/p2p/abc", 404),
        ("GET", "/nothing", 404),
        ("GET", "//v2/p2p", 404),
        ("POST", "/v2/p2p", 405),
        ("DELETE", "/nothing", 405),
        ("OPTIONS", "/v2/p2p", 204),
        ("GET", "/healthz", 200),
        ("GET", "/readyz", 200),
        ("GET", "/docs", 308),
        ("GET", "/v2/log/stream", 503),
        ("GET", &too_long, 414),
    ] {
        let answer = get(server.http(), method, path, &[]);
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        assert_eq!(answer.header("access-control-allow-origin"), None, "{method} {path}");
        assert!(answer.all("vary").contains(&"origin"), "{method} {path}");
        for (origin, is_allowed) in
            [("http://localhost:8080", true), ("http://[::1]", true), (listed, true), ("http://evil.example", false)]
        {
            let answer = get(server.http(), method, path, &[("origin", origin)]);
            let allowed = is_allowed.then_some(origin);
            assert_eq!(
                (answer.status, answer.header("access-control-allow-origin")),
                (status, allowed),
                "{method} {path}"
            );
        }
        let rebound = get(server.http(), method, path, &[("host", "evil.example"), ("origin", "http://evil.example")]);
        assert_eq!(rebound.status, 421, "{method} {path}: {}", rebound.body);
        assert_eq!(rebound.header("access-control-allow-origin"), None, "{method} {path}");
        assert!(method == "HEAD" || rebound.body.contains("`hosts`"), "{method} {path}: {}", rebound.body);
        if status >= 400 && method != "HEAD" {
            assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{method} {path}");
            let problem: Value = serde_json::from_str(&answer.body).unwrap();
            assert_eq!(problem["status"], status, "{method} {path}");
            assert!(!problem["detail"].as_str().unwrap().is_empty(), "{method} {path}");
        }
    }
    let options = get(server.http(), "OPTIONS", "/v2/p2p", &[]);
    assert_eq!(options.header("access-control-allow-methods"), Some("GET, HEAD, OPTIONS"));
    assert_eq!(get(server.http(), "PUT", "/v2/p2p", &[]).header("allow"), Some("GET, HEAD, OPTIONS"));
}

#[test]
fn all_origins_and_hosts_may_be_allowed() {
    let server = Server::with(|config| {
        config.nodes.push(NodeConfig::new("9732"));
        config.cors_origins = vec!["*".into()];
        config.hosts = vec!["*".into()];
    });
    let answer = get(server.http(), "GET", "/v2/p2p", &[("host", "any.example"), ("origin", "http://any.example")]);
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, Some("*")));
}

#[test]
fn malformed_parameters_are_named_and_unknown_ones_ignored() {
    let server = Server::start();
    for (query, parameter) in [
        ("limit=-1", "limit"),
        ("limit=1&limit=2", "limit"),
        ("types=foo", "types"),
        ("incoming=1", "incoming"),
        ("remote_addr=nowhere", "remote_addr"),
        ("source_type=both", "source_type"),
        ("node_name=a&node_name=b", "node_name"),
    ] {
        for path in ["/v2/p2p", "/v3/messages", "/v2/p2p/0", "/v2/p2p/stream"] {
            assert_eq!(server.problem(&format!("{path}?{query}"), 400)["parameter"], parameter, "{path}?{query}");
        }
    }
    assert_eq!(server.problem("/v3/chunks?cn=x", 400)["parameter"], "cn");
    assert_eq!(server.problem("/v3/chunk/x", 400)["parameter"], "key");
    assert_eq!(server.get("/v2/p2p?foo=1&foo=%%22&remote_addr=[::ffff:1.2.3.4]:9732&x={a}").status, 200);
    assert_eq!(server.get("/v2/version?x=1").status, 200);
    assert_eq!(server.get(&format!("/v2/p2p?x={}", "y".repeat(9000))).status, 414);
}

#[test]
fn an_oversized_head_and_other_protocols_are_refused() {
    let server = Server::start();
    let long = "x".repeat(100_000);
    assert_eq!(get(server.http(), "GET", "/v2/p2p", &[("x", &long)]).status, 431);
    let mut stream = TcpStream::connect(server.http()).unwrap();
    stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n").unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut stream, &mut text).unwrap();
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 400"), "{text}");
    assert_eq!(server.get("/v2/p2p").status, 200);
}

#[test]
fn a_client_that_does_not_finish_the_head_of_its_request_is_given_up() {
    // Long enough for the part to be written: what comes after the end of the connection resets it.
    let server = Server::with(|config| config.limits.client_timeout = Duration::from_secs(1));
    for begun in ["", "GET /v2/p2p HTTP/1.1\r\nhost:"] {
        let mut stream = TcpStream::connect(server.http()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(begun.as_bytes()).unwrap();
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    }
}

#[test]
fn a_node_is_found_by_name_alias_prefix_and_default() {
    let server = Server::with(|config| {
        for (name, aliases) in [("default/octez-0", &["9732"][..]), ("other/octez-0", &["9732", "main"]), ("9733", &[])]
        {
            let aliases = aliases.iter().map(|&alias| alias.to_owned()).collect();
            config.nodes.push(NodeConfig { aliases, ..NodeConfig::new(name) });
        }
    });
    for (index, node) in ["default/octez-0", "other/octez-0", "9733"].into_iter().enumerate() {
        let records = (0..=index).map(|_| record(TIME, Kind::Message(message("advertise")))).collect();
        server.feed(node, records);
    }
    let count = |path: &str| server.json(path).as_array().unwrap().len();
    assert_eq!(count("/v2/p2p?node_name=default/octez-0"), 1);
    assert_eq!(count("/v2/p2p?node_name=main"), 2);
    assert_eq!(count("/v2/p2p?node_name=9733"), 3);
    assert_eq!(count("/nodes/default/octez-0/v2/p2p"), 1);
    assert_eq!(count("/nodes/default%2Foctez-0/v2/p2p?node_name=9732"), 1);
    assert_eq!(count("/nodes/other/octez-0/v3/messages/"), 2);
    assert_eq!(count("/nodes/9733/v2/p2p"), 3);
    assert_eq!(count("/nodes/main/v2/p2p"), 2);
    assert_eq!(server.json("/nodes/9733/v2/stats")["nodes"][0]["name"], "9733");
    assert_eq!(server.get("/nodes/9733/openapi/network-recorder-openapi.json").status, 200);
    let both = json!(["default/octez-0", "other/octez-0"]);
    for path in ["/v2/p2p?node_name=9732", "/v2/p2p?node_name=octez-0", "/nodes/octez-0/v2/p2p"] {
        let problem = server.problem(path, 400);
        assert_eq!(problem["nodes"], both, "{path}");
        assert!(problem["detail"].as_str().unwrap().contains("default/octez-0, other/octez-0"), "{path}");
    }
    assert_eq!(server.problem("/v2/p2p", 400)["nodes"].as_array().unwrap().len(), 3);
    let unknown = server.problem("/v2/p2p?node_name=%1b%3Cb%3E", 404);
    assert_eq!(unknown["detail"], "no such node: \"\\u{1b}<b>\"");
    server.problem("/nodes/none/v2/p2p", 404);
    let nodes = server.json("/nodes");
    let paths: Vec<_> = nodes.as_array().unwrap().iter().map(|node| node["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/nodes/9733", "/nodes/default/octez-0", "/nodes/other/octez-0"]);
}

#[test]
fn a_listener_may_be_pinned_to_a_node() {
    let server = Server::with(|config| {
        config.nodes.push(NodeConfig { listen: Some("127.0.0.1:0".parse().unwrap()), ..NodeConfig::new("a") });
        config.nodes.push(NodeConfig::new("b"));
    });
    server.feed("a", vec![record(TIME, Kind::Message(message("bootstrap")))]);
    let (name, address) = server.running().pinned_addrs()[0].clone();
    assert_eq!(name, "a");
    for path in ["/v3/messages", "/v2/p2p?node_name=b", "/nodes/a/v2/p2p"] {
        let rows: Value = serde_json::from_str(&get(address, "GET", path, &[]).body).unwrap();
        assert_eq!(rows.as_array().unwrap().len(), 1, "{path}");
    }
    assert_eq!(get(address, "GET", "/nodes/b/v2/p2p", &[]).body, "[]");
}

#[test]
fn connections_are_folded_as_in_the_contract() {
    let server = Server::start();
    assert_eq!(server.get("/v3/connections").body, "[]");
    let other = CONNECTION + 1_000_000_000;
    let state = ConnectionStateChanged {
        state: ConnectionState::Undecryptable.into(),
        reason: "started before capture".into(),
        remedy: "restart the node".into(),
    };
    let gap = Gap { lost_bytes: 70, reason: "ring full".into(), ..Gap::default() };
    let closed = ConnectionClosed { by: "remote".into(), sent_bytes: 5, received_bytes: 6 };
    server.feed(
        "9732",
        vec![
            opened(CONNECTION, Initiator::Local, "51.15.220.7:9732"),
            identified(CONNECTION, "idssJHDL1z8fkryZaYVF9fQRMktoWg"),
            opened(other, Initiator::Remote, "[::ffff:1.2.3.4]:55555"),
            event(other, Event::Comment("incoming connection message bad proof-of-work, target: 26".into())),
            event(other, Event::Gap(gap)),
            event(other, Event::StateChanged(state)),
            event(other, Event::Closed(closed)),
        ],
    );
    let body = server.get("/v3/connections").body;
    let first = r#"["1617005682.953928051",{"initiator":"local","remote_addr":"[::ffff:51.15.220.7]:9732","#;
    assert!(
        body.starts_with(&format!("[{first}\"peer_id\":\"idssJHDL1z8fkryZaYVF9fQRMktoWg\",\"comments\":[],")),
        "{body}"
    );
    let list = server.json("/v3/connections");
    let second = &list[1][1];
    assert_eq!(list[1][0], "1617005683.953928051");
    assert_eq!(second["peer_id"], "unknown");
    assert_eq!(second["comments"], json!(["incoming connection message bad proof-of-work, target: 26"]));
    assert_eq!((&second["state"], &second["reason"]), (&json!("closed"), &json!("started before capture")));
    assert_eq!((&second["gaps"], &second["lost_bytes"]), (&json!(1), &json!(70)));
    assert_eq!(second["closed"], json!({"by": "remote", "sent_bytes": 5, "received_bytes": 6}));
    assert_eq!(server.json("/v3/connections?limit=1").as_array().unwrap().len(), 1);
    assert_eq!(server.json("/v3/connections?limit=5&cursor=1617005683.0")[0], list[1]);
    assert_eq!(server.get("/v3/connections?limit=0").body, "[]");
}

#[test]
fn chunks_have_the_keys_and_the_cut_of_the_contract() {
    let server = Server::start();
    let incoming = Message { incoming: true, ..message("metadata") };
    let mut records = with_chunks(incoming, &[0, 0], 15, 10);
    records.extend(with_chunks(message("connection_message"), &[1; 65_535], 0, 65_535));
    server.feed("9732", records);
    assert_eq!(
        server.get("/v3/chunks?cn=1617005682.953928051").body.split("[\"").nth(2).unwrap(),
        format!(
            "1617005682.953928051-remote-15\",{{\"net\":true,\"timestamp\":1626264123,\"bytes\":\"0012{}5555\",\
             \"plain\":\"0000\"}}]]",
            "aa".repeat(16)
        )
    );
    let list = server.json("/v3/chunks");
    assert_eq!(
        (&list[0][0], &list[1][0]),
        (&json!("1617005682.953928051-local-0"), &json!("1617005682.953928051-remote-15"),)
    );
    let shown = list[0][1]["bytes"].as_str().unwrap();
    assert!(shown.starts_with("ffff0101") && shown.ends_with("01...truncated 1 bytes"));
    assert_eq!(shown.len(), 2 * 65_536 + "...truncated 1 bytes".len());
    assert_eq!(list[0][1]["plain"].as_str().unwrap().len(), 2 * 65_535);
    let whole = server.json("/v3/chunk/1617005682.953928051-local-0");
    assert_eq!(whole["bytes"].as_str().unwrap().len(), 2 * 65_537);
    assert_eq!(server.get("/v3/chunk/1617005682.953928051-local-1").body, "null");
    assert_eq!(server.get("/v3/chunks?cn=1.0").body, "[]");
    assert_eq!(server.get("/v3/chunks?limit=0").body, "[]");
    assert_eq!(server.problem("/v3/chunks?limit=100000", 400)["parameter"], "limit");
    let from = |cursor: &str| server.json(&format!("/v3/chunks?cursor={cursor}")).as_array().unwrap().len();
    let at = |place: &str| from(&format!("1617005682.953928051-{place}"));
    assert_eq!((from("0.0-local-0"), at("local-0"), at("remote-0"), at("remote-15"), at("local-16")), (2, 2, 1, 1, 0));
    assert_eq!(server.problem("/v3/chunks?cursor=15", 400)["parameter"], "cursor");
}

#[test]
fn stats_contain_every_term_every_loss_and_findings() {
    let server = Server::start();
    let count = |reason: &str, count| ReasonCount { reason: reason.into(), count };
    let account = NetworkAccount {
        bytes_seen: 100,
        bytes_captured: 80,
        bytes_dropped: vec![count("ring full", 7), count("unreadable", 3)],
        bytes_left_alone: 10,
        bytes_residual: -2,
        bytes_in_chunks: 60,
        bytes_skipped: 15,
        bytes_pending: 5,
        chunks: 4,
        chunks_opened: 3,
        messages: 2,
        messages_sent: 2,
        ..NetworkAccount::default()
    };
    let loss = |stage: &str, bytes, from_ns| {
        let (stage, reason) = (stage.into(), "ring full".into());
        record(
            TIME,
            Kind::Loss(Loss { stage, reason, records: 1, bytes, from_ns, to_ns: from_ns + 5, amount_unknown: false }),
        )
    };
    let found = |event: &str, detail: &str| {
        record(TIME, Kind::TargetEvent(TargetEvent { event: event.into(), pid: 4711, detail: detail.into() }))
    };
    let mut agent = server.agent(&["9732"]);
    agent.batch(
        "9732",
        0,
        vec![
            record(TIME, Kind::NetworkAccount(account)),
            loss("kernel", 7, 50),
            loss("kernel", 3, 20),
            found("found", ""),
            found("identity error", "no such file"),
        ],
    );
    agent.wait_for("9732", 5);
    let node = server.json("/v2/stats")["nodes"][0].clone();
    let table = &node["accounts"][0];
    assert_eq!((&table["agent"], &table["target"]), (&json!("host-1"), &json!("pid 4711")));
    assert_eq!(table["epoch"], "07".repeat(16));
    assert_eq!(
        table["bytes_dropped"],
        json!([{"reason": "ring full", "count": 7}, {"reason": "unreadable", "count": 3}])
    );
    let holds: Vec<_> = table["equations"].as_array().unwrap().iter().map(|each| each["holds"].clone()).collect();
    assert_eq!(holds, [true, true, false, true], "{table}");
    assert_eq!(table["equations"][2]["left"], 4);
    assert_eq!(table["bytes_residual"], -2);
    let losses = json!([{"stage": "kernel", "reason": "ring full", "times": 2, "records": 2, "bytes": 10,
                         "amount_unknown": false, "from": 20, "to": 55}]);
    assert_eq!(node["losses"], losses);
    assert_eq!(node["findings"][0]["event"], "identity error");
    assert_eq!(node["findings"][0]["detail"], "no such file");
    assert_eq!(node["totals"]["lost_bytes"], 10);
    let listed = server.json("/nodes")[0].clone();
    assert_eq!((&listed["state"], &listed["loss"]), (&json!("recording"), &json!({"records": 2, "bytes": 10})));
    assert_eq!(listed["targets"][0]["event"], "identity error");
    // A loss is counted once, also after several requests; an identity that was found resolves the finding.
    agent.batch("9732", 5, vec![found("identity", "idX"), loss("kernel", 1, 90)]);
    agent.wait_for("9732", 7);
    let node = server.json("/v2/stats?node_name=9732")["nodes"][0].clone();
    assert_eq!((&node["losses"][0]["bytes"], &node["findings"]), (&json!(11), &json!([])));
    let metrics = server.get("/metrics").body;
    for line in [
        "chainscope_network_seen_bytes_total{node=\"9732\"} 100",
        "chainscope_network_dropped_bytes_total{node=\"9732\"} 10",
        "chainscope_lost_bytes_total{node=\"9732\"} 11",
        "chainscope_ingest_records_total 7",
        "chainscope_store_messages{node=\"9732\"} 0",
        "chainscope_http_requests_total{route=\"/v2/stats\",code=\"200\"} 2",
    ] {
        assert!(metrics.lines().any(|each| each == line), "no {line} in\n{metrics}");
    }
    assert!(metrics.ends_with("# EOF\n") && !metrics.contains("pid 4711"));
    assert!(server.get("/metrics").header("content-type").unwrap().starts_with("application/openmetrics-text"));
}

#[test]
fn too_wide_a_query_is_a_400_that_says_how_to_narrow_it() {
    let server = Server::with(|config| {
        config.nodes.push(NodeConfig::new("9732"));
        config.limits.query_timeout = Duration::from_micros(100);
        config.limits.heartbeat_interval = Duration::from_millis(5);
    });
    server.feed("9732", (0..30_000).map(|_| record(TIME, Kind::Message(message("advertise")))).collect());
    // A 503 says that the wait for a thread took longer.
    let mut answers = std::iter::repeat_with(|| server.get("/v2/p2p?limit=1000")).take(1000);
    let answer = answers.find(|answer| answer.status != 503).expect("another status than 503");
    assert_eq!((answer.status, answer.header("retry-after")), (400, None), "{}", answer.body);
    assert!(answer.body.contains("(from, to), a cursor"), "{}", answer.body);
    let mut live = server.events("/v2/p2p/stream?cursor=0", &[]);
    let blocks: Vec<String> = std::iter::from_fn(|| live.block()).collect();
    let last = blocks.last().unwrap();
    assert!(last.starts_with("event: error\ndata: {") && last.contains("\"status\":400"), "{last}");
}

#[test]
fn a_summary_of_many_nodes_ends_at_the_deadline() {
    let server = Server::with(|config| {
        config.nodes.extend((0..2000).map(|number| NodeConfig::new(format!("a/{number}"))));
        config.limits.query_timeout = Duration::from_micros(100);
    });
    for path in ["/nodes", "/v2/stats"] {
        // Others say that the wait for a thread took longer.
        let is_late =
            |_: &usize| server.problem(path, 503)["detail"].as_str().unwrap().contains("the summary of all nodes");
        assert!((0..1000).any(|turn| is_late(&turn)), "{path}");
    }
}

/// Summaries have threads of their own, so that they do not delay other requests.
#[test]
fn summaries_are_read_on_threads_of_their_own() {
    let server = Server::with(|config| {
        config.nodes.push(NodeConfig::new("9732"));
        config.limits.query_threads = 0;
    });
    for path in ["/nodes", "/v2/stats", "/metrics"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    assert_eq!(server.get("/v2/p2p").status, 500, "it has no thread");
}

#[test]
fn documents_are_embedded() {
    let server = Server::with(|config| config.build = "39690b8fe4c7a526bf790e370dc61cb4fa636a90".into());
    assert_eq!(server.get("/v2/version").body, "\"39690b8fe4c7a526bf790e370dc61cb4fa636a90\"");
    let full = server.json("/openapi.json");
    for path in full["paths"].as_object().unwrap().keys().filter(|path| !path.contains('{') && !path.contains("stream"))
    {
        // Without a node the response is a 404 of the handler, with its own message.
        let answer = server.get(path);
        assert!(!answer.body.contains("there is no such path"), "{path} is described, but not served");
    }
    assert_eq!(server.json("/openapi/network-recorder-openapi.json")["info"]["title"], "Network recorder");
    let docs = server.get("/docs/index.html");
    assert_eq!(docs.status, 200);
    assert!(docs.header("content-type").unwrap().starts_with("text/html"));
    assert!(docs.body.contains("swagger-ui"), "{}", docs.body);
    assert_eq!(server.get("/docs/swagger-initializer.js").status, 200);
    assert!(server.get("/docs/swagger-initializer.js").body.contains("/openapi.json"));
    server.problem("/docs/none", 404);
}

#[test]
fn control_characters_of_peers_are_escaped() {
    let server = Server::start();
    let loud = "\u{1b}[2J\u{9b}x\u{7f}\u{202e}";
    server.feed(
        "9732",
        vec![
            opened(CONNECTION, Initiator::Remote, "1.2.3.4:5"),
            event(CONNECTION, Event::Comment(loud.into())),
            record(TIME, Kind::Message(Message { preview: Some(loud.into()), ..message("advertise") })),
        ],
    );
    for path in ["/v2/p2p", "/v3/connections", "/v2/stats", "/metrics", "/nodes"] {
        let body = server.get(path).body;
        assert!(!body.chars().any(|c| c.is_control() && c != '\n'), "{path}: {body:?}");
    }
    assert_eq!(server.json("/v2/p2p")[0]["message_preview"], loud);
    assert_eq!(server.json("/v3/connections")[0][1]["comments"][0], loud);
}

#[test]
fn retention_evicts_whole_segments_and_ids_continue() {
    let server = Server::with(|config| {
        config.limits.eviction_interval = Duration::from_millis(10);
        config.retention = Retention { rows: Some(32), ..Retention::default() };
        config.nodes.push(NodeConfig {
            retention: Retention { rows: Some(160), ..Retention::default() },
            ..NodeConfig::new("a")
        });
    });
    let rows = || (0..400).map(|n| record(TIME + n, Kind::Message(message("advertise")))).collect();
    server.feed("a", rows());
    server.feed("b", rows());
    let first_id = |node: &str| server.store.visible(node).0;
    let start = Instant::now();
    while first_id("a") < 230 || first_id("b") < 366 {
        server.store.wait(server.store.generation(), LIMIT.saturating_sub(start.elapsed()));
        assert!(start.elapsed() < LIMIT, "nothing was evicted: {} and {}", first_id("a"), first_id("b"));
    }
    for (node, most) in [("a", 170), ("b", 34)] {
        let ids = server.ids(&format!("/v2/p2p?node_name={node}&limit=1000&direction=forward"));
        assert_eq!((ids[0], ids.last()), (first_id(node), Some(&399)), "{node}");
        assert!(ids.len() <= most && ids.windows(2).all(|two| two[0] + 1 == two[1]), "{node}: {ids:?}");
    }
    assert_eq!(server.get("/v2/p2p/0?node_name=b").body, "null");
    assert_eq!(server.get("/v2/p2p?node_name=b&cursor=5").body, "[]");
}
