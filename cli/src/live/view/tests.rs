use std::time::Instant;

use chainscope_hygiene::is_printable;
use ratatui::{Terminal, backend::TestBackend};
use serde_json::{Value, json};

use super::{super::stream::Update, draw};
use crate::{keys::Key, live::state::State, message_row::Row};

/// A row of the stream.
fn row(changes: &Value) -> Step {
    let mut row = json!({
        "id": 7, "timestamp": 1_626_264_123_456_000_000_i64, "remote_addr": "127.0.0.1:29733", "source_type": "local",
        "incoming": true, "category": "p2p", "kind": "current_head", "message_preview": "{\"CurrentHead\":{\"chain_id\":\"NetX",
        "plain_bytes": 2048, "peer_id": "idssJHDL1z8fkryZaYVF9fQRMktoWg",
    });
    for (name, value) in changes.as_object().unwrap() {
        row[name] = value.clone();
    }
    Step::Update(Update::Row(Row::parse(&row.to_string()).unwrap()))
}

/// Something that happens to the table.
enum Step {
    Update(Update),
    Key(Key),
}

/// The lines of a screen after these steps.
fn screen(width: u16, height: u16, steps: impl IntoIterator<Item = Step>) -> Vec<String> {
    let (mut state, now) = (State::new(), Instant::now());
    for step in steps {
        match step {
            Step::Update(update) => state.apply(update, now),
            Step::Key(key) => {
                state.key(key, 2);
            }
        }
    }
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, &mut state, "http://127.0.0.1:17732", now)).unwrap();
    let lines = terminal.backend().buffer().content.chunks(usize::from(width));
    lines.map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned()).collect()
}

#[test]
fn the_table_shows_peers() {
    let quiet = json!({"id": 8, "remote_addr": "[2001:db8::1]:9732", "source_type": "remote", "incoming": false, "peer_id": ""});
    let updates = || vec![row(&json!({})), row(&json!({"id": 9, "incoming": false, "kind": "operation"})), row(&quiet)];
    assert_eq!(
        screen(124, 6, updates()),
        [
            " live · peers: 2 · messages: 3 · 6.0 KiB · http://127.0.0.1:17732",
            "",
            "ADDRESS            PEER ID                        DIR SENT   RECVD  BYTES     MSG/S  BYTES/S   LATEST TYPES",
            "127.0.0.1:29733    idssJHDL1z8fkryZaYVF9fQRMktoWg out 1      1      4.0 KiB   0.2    409 B     operation, current_head",
            "[2001:db8::1]:9732                                in  1      0      2.0 KiB   0.1    204 B     current_head",
            " ↑↓ select · Enter messages of the peer · q quit",
        ]
    );
    let narrow = screen(80, 6, updates());
    assert!(
        narrow[3].starts_with("127.0.0.1:29733    idssJHD… out 1      1      4.0 KiB   0.2    409 B     oper"),
        "{narrow:?}"
    );
}

#[test]
fn a_peer_shows_its_messages_and_a_message_its_body() {
    let rows = || {
        vec![
            row(&json!({})),
            row(&json!({"id": 9, "incoming": false, "category": "ack", "kind": null, "message_preview": "\"Ack\""})),
        ]
    };
    assert_eq!(
        screen(100, 6, rows().into_iter().chain([Step::Key(Key::Enter)])),
        [
            " live · peers: 1 · messages: 2 · 4.0 KiB · http://127.0.0.1:17732",
            " 127.0.0.1:29733 out · idssJHDL1z8fkryZaYVF9fQRMktoWg · sent 1 (2.0 KiB) · received 1 (2.0 KiB)",
            "TIME (UTC)         ID   TYPE                         BYTES     PREVIEW",
            "12:02:03.456        9 → ack                          2.0 KiB   \"Ack\"",
            "12:02:03.456        7 ← current_head                 2.0 KiB   {\"CurrentHead\":{\"chain_id\":\"NetX",
            " ↑↓ select · Enter body · Esc peers · q quit",
        ]
    );
    let body = |lines: Result<Vec<String>, String>, keys: &[Key]| {
        let opened = rows().into_iter().chain([Key::Enter, Key::Enter].map(Step::Key));
        let loaded = opened.chain([Step::Update(Update::Body { id: 9, lines })]);
        screen(60, 5, loaded.chain(keys.iter().copied().map(Step::Key)))
    };
    let lines = || Ok((0..20).map(|line| format!("{line} of the body")).collect::<Vec<_>>());
    assert_eq!(
        body(lines(), &[]),
        [
            " live · peers: 1 · messages: 2 · 4.0 KiB · http://127.0.0.1:",
            " message 9 · 127.0.0.1:29733 · → ack · 2021-07-14T12:02:03.4",
            "0 of the body",
            "1 of the body",
            " ↑↓←→ scroll · Esc messages · q quit",
        ]
    );
    assert_eq!(body(lines(), &[Key::PageDown, Key::Down, Key::Right])[2..4], [" body", " body"]);
    assert_eq!(body(lines(), &[Key::PageDown, Key::Down])[2..4], ["3 of the body", "4 of the body"]);
    assert_eq!(body(lines(), &[Key::Last])[2..4], ["19 of the body", ""]);
    assert_eq!(body(Err("no\u{1b} response".to_owned()), &[])[2], " no\\u{1b} response");
}

#[test]
fn text_of_peers_is_escaped() {
    let hostile = "a\u{1b}[31m\u{202e}\u{200b}\r\nb";
    let changes = json!({
        "remote_addr": hostile, "category": hostile, "kind": hostile, "message_preview": hostile, "peer_id": hostile,
    });
    let rows = || [row(&changes), Step::Update(Update::Lost(hostile.to_owned()))];
    for keys in 0..3 {
        let lines = screen(300, 8, rows().into_iter().chain((0..keys).map(|_| Step::Key(Key::Enter))));
        assert!(lines.iter().any(|line| line.contains("a\\u{1b}[31m\\u{202e}\\u{200b}\\u{d}\\u{a}b")), "{lines:?}");
        assert!(lines.concat().chars().all(is_printable), "{lines:?}");
    }
}

#[test]
fn a_lost_stream_is_announced_with_the_reason() {
    let lost = |reason: &str| Step::Update(Update::Lost(reason.to_owned()));
    let lines = screen(70, 4, [row(&json!({})), lost("the server ended the stream")]);
    assert!(lines[0].starts_with(" RECONNECTING · peers: 1"), "{lines:?}");
    assert_eq!(lines[3], " the server ended the stream");
    let again = screen(70, 4, [lost("x"), Step::Update(Update::Open)]);
    assert!(again[0].starts_with(" live · peers: 0") && again[1] == "Waiting for messages.", "{again:?}");
}

#[test]
fn no_size_of_a_screen_panics() {
    for (width, height) in [(1, 1), (2, 3), (5, 2), (20, 4), (300, 100)] {
        for keys in 0..3 {
            let rows = (0..50).map(|id| row(&json!({"id": id, "remote_addr": format!("10.0.0.{id}:1")})));
            screen(width, height, rows.chain((0..keys).map(|_| Step::Key(Key::Enter))));
        }
    }
}
