//! Entity tags: what never changes is sent once to a client that keeps it.

use chainscope_proto::v1::record::Kind;
use chainscope_testing::{memory::FrameName, wait::until_true};

use crate::{
    common::{Answer, Server, TIME, get, message, record, with_chunks},
    memory::example,
};

/// Requests a path whose tag the client has.
fn again(server: &Server, path: &str, tag: &str) -> Answer {
    get(server.http(), "GET", path, &[("if-none-match", tag), ("accept-encoding", "gzip")])
}

/// The tag of a response, which is answered with 304 to a client that has it, and as before to others.
fn check(server: &Server, path: &str, cache_control: &str) -> String {
    let whole = server.get(path);
    assert_eq!((whole.status, whole.header("cache-control")), (200, Some(cache_control)), "{path}");
    let tag = whole.header("etag").unwrap_or_else(|| panic!("{path} has no tag")).to_owned();
    assert!(tag.starts_with("W/\""), "a compressed response has the same tag: {tag}");
    for known in [&*tag, tag.strip_prefix("W/").unwrap(), "*", &format!("\"a,b\", {tag}")] {
        let unchanged = again(server, path, known);
        assert_eq!((unchanged.status, unchanged.body.as_str()), (304, ""), "{path}: {known}");
        for name in ["etag", "cache-control"] {
            assert_eq!(unchanged.header(name), whole.header(name), "{path}: {name}");
        }
        assert!(unchanged.all("vary").contains(&"accept-encoding"), "{path}: {:?}", unchanged.headers);
    }
    let other = again(server, path, "W/\"0123\"");
    assert_eq!((other.status, other.header("etag")), (200, Some(&*tag)), "{path}");
    assert!(other.bytes == whole.bytes || other.header("content-encoding").is_some(), "{path}");
    let head = get(server.http(), "HEAD", path, &[("if-none-match", &tag)]);
    assert_eq!(head.status, 304, "{path}");
    tag
}

#[test]
fn documents_and_files_of_the_program_are_sent_once() {
    let server = Server::start();
    let paths = [
        "/openapi.json",
        "/openapi/network-recorder-openapi.json",
        "/openapi/memory-profiler-openapi.json",
        "/docs/index.html",
        "/docs/swagger-ui-bundle.js",
        "/docs/swagger-initializer.js",
    ];
    let tags: Vec<_> = paths.iter().map(|path| check(&server, path, "no-cache")).collect();
    assert!((1..tags.len()).all(|at| !tags[..at].contains(&tags[at])), "{tags:?}");
    let other = Server::with(|config| config.build = "another".into());
    assert_eq!(again(&other, paths[0], &tags[0]).status, 200, "of another build");
}

#[test]
fn messages_and_chunks_are_sent_once() {
    let server = Server::start();
    let mut records = vec![record(TIME, Kind::Message(message("advertise")))];
    records.push(record(TIME, Kind::Message(message("advertise"))));
    records.extend(with_chunks(message("operation"), &[7; 1_000_000], 0, 65_519));
    server.feed("9732", records);
    let chunk = |counter| format!("/v3/chunk/1617005682.953928051-local-{counter}");
    let (first, second) = (chunk(0), chunk(1));
    let paths = ["/v2/p2p/0", "/v2/p2p/1", "/v3/message/1", "/v2/p2p/2", "/v2/p2p/2?node_name=9732", &*first, &*second];
    let tags: Vec<_> = paths.iter().map(|path| check(&server, path, "private, no-cache")).collect();
    assert!((1..tags.len()).all(|at| !tags[..at].contains(&tags[at])), "{tags:?}");
    assert_eq!(again(&server, "/v2/p2p/0", &tags[1]).status, 200);
    assert_eq!(again(&server, &first, &tags[6]).status, 200);

    // One that may still come, and lists, which grow.
    for path in ["/v2/p2p/3", &*chunk(1000), "/v2/p2p", "/v2/stats", "/nodes", "/v2/log"] {
        let answer = server.get(path);
        assert_eq!((answer.header("etag"), answer.header("cache-control")), (None, Some("no-store")), "{path}");
        assert_eq!(again(&server, path, "*").status, 200, "{path}");
    }
    // A database of the same records, but for their time.
    let other = Server::start();
    let late: Vec<_> = (0..2).map(|_| record(TIME + 1, Kind::Message(message("advertise")))).collect();
    other.feed("9732", late);
    assert_eq!(again(&other, "/v2/p2p/0", &tags[0]).status, 200);
}

#[test]
fn what_is_made_of_a_snapshot_is_sent_once() {
    let server = Server::start();
    let mut agent = server.agent(&["9732"]);
    agent.memory([example().keyframe()]);
    let at = first_snapshot(&server);
    for kind in ["tree", "flamegraph", "pprof"] {
        let one = check(&server, &format!("/v1/{kind}?at={at}"), "private, no-cache");
        let both = check(&server, &format!("/v1/{kind}?at={at}&since={at}"), "private, no-cache");
        assert_ne!(one, both);
        assert_eq!(again(&server, &format!("/v1/{kind}?at={at}"), &both).status, 200);
    }
    check(&server, &format!("/v1/tree?short=true&at={at}"), "private, no-cache");
}

fn first_snapshot(server: &Server) -> i64 {
    let snapshots = || server.json("/v1/snapshots").as_array().unwrap().clone();
    until_true("a snapshot is taken", || !snapshots().is_empty());
    snapshots()[0]["time"].as_i64().unwrap()
}

#[test]
fn the_current_memory_is_sent_again_when_something_has_changed() {
    let server = Server::start();
    let mut agent = server.agent(&["9732"]);
    let mut process = example();
    let stack = [FrameName::own("main", 1), FrameName::own("grow", 2)];
    process.hold(&stack, [1000, 0, 0]);
    agent.memory([process.keyframe()]);
    let at = first_snapshot(&server);
    let pid = process.process.pid;
    let paths = ["tree", "flamegraph", "pprof", "tree?short=true", "tree?threshold=0&reverse=true"]
        .into_iter()
        .flat_map(|path| {
            let next = if path.contains('?') { '&' } else { '?' };
            [
                format!("/v1/{path}"),
                format!("/v1/{path}{next}since={at}"),
                format!("/v1/{path}{next}pid={pid}"),
                format!("/v1/{path}{next}kind=all"),
            ]
        })
        .collect::<Vec<_>>();
    // The tag and the body of each response: all are different, and known until something changes.
    let known = || -> Vec<(String, Vec<u8>)> {
        let known: Vec<_> =
            paths.iter().map(|path| (check(&server, path, "private, no-cache"), server.get(path).bytes)).collect();
        assert!((1..known.len()).all(|at| known[..at].iter().all(|(tag, _)| *tag != known[at].0)));
        known
    };
    let mut before = known();
    assert_eq!(known(), before);
    let mut has_changed = |change: &str| {
        for (path, (tag, body)) in paths.iter().zip(&before) {
            let answer = again(&server, path, tag);
            assert_eq!(answer.status, 200, "{change}: {path}");
            assert_ne!(server.get(path).bytes, *body, "{change}: {path}");
        }
        before = known();
    };

    process.hold(&stack, [3000, 3000, 3000]);
    process.time_ns += 1_000_000_000;
    agent.memory([process.delta(1)]);
    has_changed("another number of pages");

    process.unattributed[0] += 1000;
    process.time_ns += 1_000_000_000;
    agent.memory([process.delta(2)]);
    has_changed("other totals");

    // The same profile again, by an agent that began anew: the sequence number does not tell its states apart.
    let mut other = example();
    other.profile += 1;
    other.hold(&stack, [7000, 7000, 7000]);
    process.process.ended_ns = process.time_ns;
    agent.memory([process.delta(3), other.keyframe()]);
    let running: Vec<_> = paths.iter().zip(&before).filter(|(path, _)| !path.contains("pid=")).collect();
    for (path, (tag, body)) in running {
        assert_eq!(again(&server, path, tag).status, 200, "another process: {path}");
        assert_ne!(server.get(path).bytes, *body, "another process: {path}");
    }
}

#[test]
fn caches_know_on_what_a_response_depends() {
    let server = Server::start();
    for path in ["/openapi.json", "/v2/p2p", "/docs/index.html"] {
        for headers in [&[][..], &[("accept-encoding", "gzip")], &[("accept-encoding", "br")]] {
            let vary = get(server.http(), "GET", path, headers);
            let mut vary = vary.all("vary");
            vary.sort_unstable();
            assert_eq!(vary, ["accept-encoding", "origin"], "{path} {headers:?}");
        }
    }
    let pages = get(server.http(), "GET", "/v2/p2p", &[("origin", "http://localhost:4200")]);
    let readable = pages.header("access-control-expose-headers").unwrap();
    assert!(["etag", "retry-after", "x-request-id"].iter().all(|name| readable.contains(name)), "{readable}");
}
