//! `/v2/p2p/stream`: live, resumable, filtered, closed at shutdown.

use std::time::Duration;

use chainscope_proto::v1::{Message, Record, record::Kind};

use crate::common::{Server, TIME, message, record};

fn messages(kinds: &[&str]) -> Vec<Record> {
    kinds.iter().map(|kind| record(TIME, Kind::Message(message(kind)))).collect()
}

#[test]
fn new_messages_arrive_with_their_cursor_and_resuming_loses_nothing() {
    let server = Server::start();
    let mut agent = server.agent(&["9732"]);
    agent.batch("9732", 0, messages(&["advertise", "bootstrap"]));
    agent.wait_for("9732", 2);
    let mut live = server.events("/v2/p2p/stream", &[]);
    agent.batch("9732", 2, messages(&["advertise", "operation"]));
    agent.wait_for("9732", 4);
    assert_eq!(live.ids(2), [2, 3], "from now on");
    drop(live);
    agent.batch("9732", 4, messages(&["advertise"; 600]));
    agent.wait_for("9732", 604);
    let mut resumed = server.events("/v2/p2p/stream", &[("last-event-id", "3")]);
    assert_eq!(resumed.ids(600), (4..604).collect::<Vec<_>>(), "what came meanwhile, each once");
    agent.batch("9732", 604, messages(&["operation"]));
    assert_eq!(resumed.ids(1), [604]);
    let mut from = server.events("/v2/p2p/stream?cursor=603&limit=2", &[]);
    assert_eq!(from.ids(2), [603, 604]);
    assert_eq!(from.block(), None, "the limit ends it");
    let peer_id = "idssJHDL1z8fkryZaYVF9fQRMktoWg";
    let last = Message { length: 77, peer_id: peer_id.into(), ..message("operation") };
    agent.batch("9732", 605, vec![record(TIME, Kind::Message(last))]);
    agent.wait_for("9732", 606);
    let mut row = server.json("/v2/p2p?limit=1")[0].clone();
    row["plain_bytes"] = 77.into();
    row["peer_id"] = peer_id.into();
    let streamed = server.events("/v2/p2p/stream?cursor=605", &[]).next().unwrap().1;
    assert_eq!(streamed, row, "rows are those of the list, with length and peer");
}

#[test]
fn filters_apply_and_the_cursor_skips_filtered_rows() {
    let server = Server::start();
    let mut agent = server.agent(&["9732"]);
    let mut live = server.events("/nodes/9732/v2/p2p/stream?types=operation", &[]);
    for first in (0..40).step_by(4) {
        agent.batch("9732", first, messages(&["advertise", "bootstrap", "operation", "advertise"]));
    }
    agent.wait_for("9732", 40);
    assert_eq!(live.ids(10), (0..10).map(|n| n * 4 + 2).collect::<Vec<u64>>());
}

#[test]
fn a_malformed_last_event_id_is_refused_and_an_empty_one_ignored() {
    let server = Server::start();
    let answer = crate::common::get(server.http(), "GET", "/v2/p2p/stream", &[("last-event-id", "x")]);
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("Last-Event-ID"), "{}", answer.body);
    server.feed("9732", messages(&["advertise"]));
    let mut live = server.events("/v2/p2p/stream?cursor=0", &[("last-event-id", "")]);
    assert_eq!(live.ids(1), [0]);
}

#[test]
fn a_quiet_stream_has_heartbeats_and_the_number_of_streams_is_limited() {
    let server = Server::with(|config| {
        config.limits.heartbeat_interval = Duration::from_millis(20);
        config.limits.max_streams = 1;
        config.nodes.push(chainscope_aggregator::NodeConfig::new("n"));
    });
    let mut live = server.events("/v2/p2p/stream", &[]);
    assert_eq!(live.block().as_deref(), Some(": still here"));
    server.problem("/v2/p2p/stream", 503);
    assert!(server.get("/metrics").body.contains("chainscope_http_streams 1"));
}

#[test]
fn shutdown_ends_streams_cleanly() {
    let mut server = Server::start();
    let mut live = server.events("/v2/p2p/stream", &[]);
    server.feed("9732", messages(&["advertise"]));
    assert_eq!(live.ids(1), [0]);
    server.shutdown();
    assert_eq!(live.block().as_deref(), Some(": the aggregator ends"));
    assert_eq!(live.block(), None, "an end, not a cut");
}
