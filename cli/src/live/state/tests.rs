use std::time::{Duration, Instant};

use super::*;

const START: i64 = 1_626_264_123_000_000_000;

fn row(id: u64, remote: &str, kind: &str) -> Row {
    let text = serde_json::json!({
        "id": id, "timestamp": START, "remote_addr": remote, "source_type": "remote", "incoming": id.is_multiple_of(2),
        "category": "p2p", "kind": kind, "message_preview": null, "plain_bytes": 100, "peer_id": "idA",
    });
    Row::parse(&text.to_string()).unwrap()
}

fn at(mut row: Row, seconds: i64) -> Update {
    row.timestamp += seconds * NS_PER_S;
    Update::Row(row)
}

/// A state after these updates, all of one moment.
fn state(updates: impl IntoIterator<Item = Update>) -> (State, Instant) {
    let (mut state, now) = (State::new(), Instant::now());
    updates.into_iter().for_each(|update| state.apply(update, now));
    (state, now)
}

#[test]
fn peers_have_counts_bytes_and_their_latest_types() {
    let rows = ["advertise", "ping", "operation", "ping", "advertise", "ping"];
    let rows = rows.into_iter().zip(0..).map(|(kind, id)| Update::Row(row(id, "1.2.3.4:9732", kind)));
    let (state, _) = state(rows.chain([Update::Row(row(6, "[::1]:1", "bootstrap"))]));
    assert_eq!(state.peers.keys().collect::<Vec<_>>(), ["1.2.3.4:9732", "[::1]:1"]);
    assert_eq!(state.total, Traffic { messages: 7, bytes: 700 });
    let peer = &state.peers["1.2.3.4:9732"];
    assert_eq!((peer.sent, peer.received), (Traffic { messages: 3, bytes: 300 }, Traffic { messages: 3, bytes: 300 }));
    assert_eq!(peer.kinds(), ["ping", "advertise", "operation"], "newest first, each once");
    assert_eq!((peer.id.as_str(), peer.is_outgoing), ("idA", Some(false)));
}

#[test]
fn rates_are_means_of_the_last_ten_seconds_by_the_clock_of_the_records() {
    let rows = (0..40).map(|second| at(row(second, "a:1", "ping"), second as i64));
    let (state, now) = state(rows);
    let rate = |elapsed| state.peers["a:1"].rate(state.now(now + Duration::from_secs(elapsed)));
    assert_eq!(rate(0), (1.0, 100.0));
    assert_eq!(rate(4), (0.6, 60.0), "no message for four seconds");
    assert_eq!(rate(10), (0.0, 0.0));
    assert_eq!(state.peers["a:1"].seconds.len(), 10, "bounded");
}

#[test]
fn the_least_recently_seen_peer_is_evicted_and_counted() {
    let peers = MAX_PEERS as u64;
    let remote = |number: u64| format!("10.0.0.1:{number:05}");
    let mut updates: Vec<_> = (0..peers).map(|id| Update::Row(row(id, &remote(id), "ping"))).collect();
    updates.push(Update::Row(row(peers, &remote(0), "ping")));
    updates.push(Update::Row(row(peers + 1, &remote(peers), "ping")));
    let (state, _) = state(updates);
    assert_eq!((state.peers.len(), state.evicted), (MAX_PEERS, 1));
    assert!(state.peers.contains_key(&remote(0)) && state.peers.contains_key(&remote(peers)));
    assert!(!state.peers.contains_key(&remote(1)), "seen before 0 was seen again");
    assert_eq!(state.total.messages, peers + 2, "totals include the evicted");
}

#[test]
fn the_latest_messages_of_a_peer_are_bounded() {
    let (state, _) = state((0..250).map(|id| Update::Row(row(id, "a:1", "ping"))));
    let ids: Vec<u64> = state.peers["a:1"].recent.iter().map(|entry| entry.id).collect();
    assert_eq!(ids, (150..250).rev().collect::<Vec<_>>());
}

#[test]
fn keys_open_a_peer_then_a_message_and_go_back() {
    let (mut state, now) = state((0..6).map(|id| Update::Row(row(id, ["a:1", "b:2", "c:3"][id as usize % 3], "ping"))));
    assert_eq!(state.key(Key::Down, 10), Action::Nothing);
    assert_eq!(state.key(Key::Enter, 10), Action::Nothing);
    assert_eq!(state.open_peer().unwrap().0, "b:2");
    state.key(Key::Down, 10);
    assert_eq!(state.key(Key::Enter, 10), Action::Load(1), "the older one of 4 and 1");
    assert!(matches!(state.screen, Screen::Message { id: 1, body: Body::Loading, .. }));
    let lines = |text: &str| Ok(vec![text.to_owned(); 50]);
    state.apply(Update::Body { id: 4, lines: lines("another message's") }, now);
    assert!(matches!(state.screen, Screen::Message { body: Body::Loading, .. }));
    state.apply(Update::Body { id: 1, lines: lines("its own") }, now);
    state.key(Key::PageDown, 10);
    state.key(Key::Down, 10);
    state.key(Key::Right, 10);
    assert!(matches!(state.screen, Screen::Message { top: 11, left: 8, .. }), "{:?}", state.screen);
    state.key(Key::Last, 10);
    assert!(matches!(state.screen, Screen::Message { top: 49, .. }), "{:?}", state.screen);
    for expected in ["b:2", "", ""] {
        state.key(Key::Back, 10);
        assert_eq!(state.open_peer().map_or("", |(address, _)| address), expected);
    }
    assert_eq!(state.peer_index(), Some(1), "still selected");
    assert_eq!(state.key(Key::Quit, 10), Action::Quit);
}

#[test]
fn a_selection_stays_while_lists_change() {
    let (mut state, now) = state([Update::Row(row(0, "b:1", "ping")), Update::Row(row(1, "d:1", "ping"))]);
    state.key(Key::Down, 10);
    state.apply(Update::Row(row(2, "a:1", "ping")), now);
    assert_eq!(state.peer_index(), Some(2), "d is still selected");
    state.key(Key::Enter, 10);
    state.apply(Update::Row(row(3, "d:1", "ping")), now);
    assert_eq!(state.message_index(), Some(0), "the newest one follows");
    state.key(Key::Down, 10);
    state.apply(Update::Row(row(5, "d:1", "ping")), now);
    assert_eq!(state.message_index(), Some(2), "message 1 is still selected");
}

#[test]
fn a_lost_stream_and_a_restart_are_noticed() {
    let (mut state, now) = state([Update::Row(row(0, "a:1", "ping")), Update::Lost("cut\u{1b}[2J".to_owned())]);
    assert_eq!(state.link, Link::Lost("cut\\u{1b}[2J".to_owned()));
    assert_eq!(state.peers.len(), 1, "what was received stays");
    state.apply(Update::Restarted, now);
    state.apply(Update::Open, now);
    assert_eq!((state.peers.len(), &state.link), (0, &Link::Open));
    assert_eq!(state.key(Key::Enter, 10), Action::Nothing);
    assert_eq!((state.peer_index(), state.message_index()), (None, None));
}
