//! What peers choose, and what could not be captured, is shown as what it is.

use std::sync::Arc;

use chainscope_trace::{
    Attachment, Event, Incomplete, Selection, Value,
    view::{Any, P2p},
};

use crate::support::{attachment, event, lines, output, text};

fn message(address: Value, kind: Value) -> Event {
    let inbound = attachment("bitcoin-core-v31", "net:inbound_message");
    event(
        &inbound,
        1,
        vec![Value::Signed(-1), address, text("inbound"), kind, Value::Unsigned(u64::MAX), Value::bytes("")],
    )
}

#[test]
fn control_characters_and_bytes_that_are_no_text_are_escaped() {
    let hostile = message(Value::text(&b"\x1b[2J\xff\n1"[..]), text("a\u{202e}b"));
    let found = lines(&mut P2p::default(), std::slice::from_ref(&hostile));
    let line =
        "inbound 'a\\u{202e}b' msg from peer -1 (inbound, \\u{1b}[2J\\xff\\u{a}1) with 18446744073709551615 bytes";
    assert_eq!(found[1], line);
    assert!(found.iter().all(|line| line.is_ascii()), "also in the sums: {found:#?}");

    let json = output(&mut P2p::default(), Selection::default(), true, &[hostile]);
    assert!(json.is_ascii(), "{json}");
    let parsed: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!(parsed["arguments"]["message_type"], "a\u{202e}b");
    assert_eq!(parsed["arguments"]["address"]["hex"], "1b5b324aff0a31");
    assert_eq!(parsed["arguments"]["size"], u64::MAX);
}

#[test]
fn what_was_not_captured_is_marked() {
    let truncated = Value::Text { bytes: "1.2.3".into(), is_truncated: true };
    let events = [message(truncated, Value::Unreadable { address: 0x10 }), message(text(""), Value::Unsupported)];
    let found = lines(&mut P2p::default(), &events);
    assert_eq!(found[1], "inbound '<unreadable>' msg from peer -1 (inbound, 1.2.3…) with 18446744073709551615 bytes");
    assert_eq!(found[2], "inbound '<unsupported>' msg from peer -1 (inbound, ) with 18446744073709551615 bytes");

    let json = output(&mut P2p::default(), Selection::default(), true, &events);
    let lines: Vec<serde_json::Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["truncated"][0], "address");
    assert_eq!(lines[0]["unreadable"][0]["address"], "0x10");
    assert_eq!(lines[1]["unsupported"][0]["raw"], "8@%rax");
    assert!(lines[0]["arguments"]["message_type"].is_null());
}

#[test]
fn a_part_of_a_hash_is_no_hash() {
    let added = attachment("bitcoin-core-v31", "mempool:added");
    let part = Value::Bytes { bytes: vec![1, 2].into(), claimed: 32, incomplete: Some(Incomplete::Unreadable) };
    let events = [event(&added, 1, vec![part, Value::Signed(0), Value::Signed(5)])];
    let found = lines(&mut chainscope_trace::view::Mempool::new(0), &events);
    assert_eq!(found[1], "09:30:00Z added <unreadable> with feerate ? sat/vB (5 sat, 0 vbytes)");
}

#[test]
fn sums_by_text_of_peers_are_bounded() {
    let events: Vec<Event> = (0..1000).map(|n| message(text("1.2.3.4:5"), text(&format!("type{n}")))).collect();
    let found = lines(&mut P2p::default(), &events);
    assert_eq!(found.iter().filter(|line| line.ends_with("type5")).count(), 1);
    let others = found.iter().find(|line| line.ends_with("(others)")).expect("others");
    assert!(others.trim_start().starts_with("744 "), "{others}");
}

#[test]
fn arguments_that_a_tracepoint_does_not_have_are_missing() {
    let inbound = attachment("bitcoin-core-v31", "net:inbound_message");
    // As of a contract with other names.
    let mut renamed = Attachment::clone(&inbound);
    renamed.arguments[1].meaning.name = "other".to_owned();
    let mut found = message(text("x"), text("inv"));
    found.attachment = Arc::new(renamed);
    let shown = lines(&mut P2p::default(), &[found.clone()]);
    assert_eq!(shown[1], "inbound 'inv' msg from peer -1 (inbound, <missing>) with 18446744073709551615 bytes");

    let all = Any::new(vec!["net:*".parse().unwrap()], None);
    let shown = lines(&mut { all }, &[found]);
    let line = "2021-07-14T09:30:00.001000000Z b-msghand[4711/4712] net:inbound_message peer_id=-1 other=x connection_type=inbound message_type=inv size=18446744073709551615 payload=";
    assert_eq!(shown[0], line);
}
