//! gzip of responses.

use std::io::Read as _;

use chainscope_proto::v1::record::Kind;
use chainscope_testing::wait::until_true;
use flate2::read::GzDecoder;

use crate::common::{Server, TIME, get, logs::lines, message, record, with_chunks};

const GZIP: [(&str, &str); 1] = [("accept-encoding", "gzip, deflate, br")];

#[test]
fn large_responses_are_compressed_for_clients_that_accept_it() {
    let server = Server::start();
    let mut records: Vec<_> = (0..2500).map(|_| record(TIME, Kind::Message(message("advertise")))).collect();
    records.extend(with_chunks(message("operation"), &[7; 1_000_000], 0, 65_519));
    records.extend(lines(&["read identity file"; 1000]));
    server.feed("9732", records);
    for path in ["/v2/p2p?limit=1000", "/v2/p2p?limit=2500", "/v2/p2p/2500", "/v2/log?limit=1000", "/openapi.json"] {
        let plain = get(server.http(), "GET", path, &[]);
        assert_eq!((plain.status, plain.header("content-encoding")), (200, None), "{path}");
        for other in ["identity", "br", "gzip;q=0"] {
            let answer = get(server.http(), "GET", path, &[("accept-encoding", other)]);
            assert!(answer.header("content-encoding").is_none() && answer.bytes == plain.bytes, "{path} {other}");
        }
        let zipped = get(server.http(), "GET", path, &GZIP);
        assert_eq!((zipped.status, zipped.header("content-encoding")), (200, Some("gzip")), "{path}");
        assert_eq!(zipped.header("content-type"), Some("application/json"), "{path}");
        let mut text = Vec::new();
        GzDecoder::new(&*zipped.bytes).read_to_end(&mut text).unwrap();
        assert!(text == plain.bytes, "{path}");
        assert!(zipped.bytes.len() * 4 < plain.bytes.len(), "{path}: {} bytes", zipped.bytes.len());
    }
    assert!(server.get("/metrics").body.contains("chainscope_http_in_flight_bytes 0\n"), "encoders are gone");
}

#[test]
fn small_compressed_and_live_responses_are_sent_as_they_are() {
    let server = Server::start();
    server.feed("9732", lines(&["peer"]));
    for path in ["/v2/log", "/v2/p2p?limit=x", "/v1/pprof"] {
        assert_eq!(get(server.http(), "GET", path, &GZIP).header("content-encoding"), None, "{path}");
    }
    let mut live = server.events("/v2/log/stream?cursor=0", &GZIP);
    assert_eq!(live.ids(1), [0], "at once");
    let head = get(server.http(), "HEAD", "/openapi.json", &GZIP);
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}

#[test]
fn without_memory_for_an_encoder_a_response_is_sent_as_it_is() {
    let server = Server::with(|config| {
        config.nodes.push(chainscope_aggregator::NodeConfig::new("9732"));
        // The least: one page of a list.
        config.limits.max_response_bytes = 0;
    });
    let long = "x".repeat(100 << 10);
    server.feed("9732", lines(&[&*long; 400]));
    let encoding = || {
        let answer = get(server.http(), "GET", "/openapi/memory-profiler-openapi.json", &GZIP);
        assert_eq!(answer.status, 200);
        answer.header("content-encoding").map(str::to_owned)
    };
    assert_eq!(encoding().as_deref(), Some("gzip"));
    let unread = ureq::get(format!("http://{}/v2/log?limit=400", server.http())).call().unwrap();
    until_true("a client that does not read has all memory", || encoding().is_none());
    drop(unread);
    until_true("the memory is free again", || encoding().is_some());
}
