//! Every line form of Octez and TezEdge, and whatever else arrives.

use chainscope_logs::{Encoding, Form, Level, MAX_MESSAGE_BYTES, Message, MessageJoiner};

/// 2026-01-01T00:00:00Z.
const RECEIVED: i64 = 1_767_225_600_000_000_000;

fn plain(line: &str) -> Message {
    Message::parse(Encoding::Plain, line.as_bytes(), RECEIVED)
}

fn rfc3339(time: &str) -> Option<i64> {
    chrono::DateTime::parse_from_rfc3339(time).expect("a time").timestamp_nanos_opt()
}

fn check(line: &str, form: Form, level: Option<Level>, time: Option<&str>, section: &str, text: &str) {
    let expected =
        Message { form, level, time: time.and_then(rfc3339), section: section.to_owned(), text: text.to_owned() };
    assert_eq!(plain(line), expected, "{line}");
}

#[test]
fn octez_with_levels() {
    use Level::{Debug, Error, Fatal, Info, Notice, Warning};
    let levels =
        [("DEBUG", Debug), ("INFO", Info), ("NOTICE", Notice), ("WARN", Warning), ("ERROR", Error), ("FATAL", Fatal)];
    for (word, level) in levels {
        let line = format!("Nov 24 13:56:37.285 {word:>6} │ read identity file");
        check(&line, Form::OctezLevel, Some(level), Some("2025-11-24T13:56:37.285Z"), "", "read identity file");
    }
    let time = Some("2025-11-24T13:56:38.469Z");
    check("Nov 24 13:56:38.469   WARN | protocol", Form::OctezLevel, Some(Warning), time, "", "protocol");
    check("Nov 24 13:56:38.469   WARN │", Form::OctezLevel, Some(Warning), time, "", "");
}

#[test]
fn older_octez() {
    let time = Some("2025-04-27T08:29:09Z");
    check("Apr 27 08:29:09.000: the node is ready", Form::Octez, None, time, "", "the node is ready");
    let time = Some("2025-04-08T16:49:28.172Z");
    let line = "Apr  8 16:49:28.172 - node.main: starting the Tezos node";
    check(line, Form::OctezSection, None, time, "node.main", "starting the Tezos node");
    let time = Some("2025-04-08T16:49:28Z");
    check("Apr  8 16:49:28 - light_mode: on", Form::OctezSection, None, time, "light_mode", "on");
    let line = "Apr  8 16:49:28 - no section in here: really";
    check(line, Form::OctezSection, None, time, "", "no section in here: really");
}

#[test]
fn octez_rfc5424() {
    let time = Some("2025-10-10T12:33:27.197Z");
    let levels = [
        (7, Level::Debug),
        (6, Level::Info),
        (5, Level::Notice),
        (4, Level::Warning),
        (3, Level::Error),
        (0, Level::Fatal),
    ];
    for (number, level) in levels {
        let line = format!("<{number:03}> 2025-10-10T12:33:27.197-00:00 [p2p.fd.send] hello [world]");
        check(&line, Form::OctezRfc5424, Some(level), time, "p2p.fd.send", "hello [world]");
    }
    let line = "2025-10-10T12:33:27.197-00:00 [node.main] no level";
    check(line, Form::OctezRfc5424, None, time, "node.main", "no level");
}

#[test]
fn octez_json() {
    let line = r#"{"fd-sink-item.v0":{"level":"notice","hostname":"h","time_stamp":1759939740.311383,"section":["p2p","pool"],"event":{"peer.v0":{"point":"1.2.3.4:9732"}}}}"#;
    let time = Some("2025-10-08T16:09:00.311383Z");
    check(line, Form::OctezJson, Some(Level::Notice), time, "p2p.pool", r#"peer.v0 {"point":"1.2.3.4:9732"}"#);
    let line =
        r#"{"fd-sink-item.v0":{"hostname":"h","time_stamp":1759939740,"section":[],"event":{"start.v0":"now"}}}"#;
    check(line, Form::OctezJson, None, Some("2025-10-08T16:09:00Z"), "", "start.v0 now");
}

#[test]
fn slog() {
    let time = Some("2025-03-31T16:10:22.937Z");
    let levels = [
        ("CRIT", Level::Fatal),
        ("ERRO", Level::Error),
        ("WARN", Level::Warning),
        ("INFO", Level::Info),
        ("DEBG", Level::Debug),
        ("TRCE", Level::Trace),
    ];
    for (word, level) in levels {
        let line = format!("Mar 31 16:10:22.937 {word} Loading identity..., peer: idr, port: 9732");
        check(&line, Form::SlogTerm, Some(level), time, "", "Loading identity..., peer: idr, port: 9732");
    }
    for (number, level) in [10, 20, 30, 40, 50, 60].into_iter().zip([
        Level::Trace,
        Level::Debug,
        Level::Info,
        Level::Warning,
        Level::Error,
        Level::Fatal,
    ]) {
        let line = format!(
            r#"{{"pid":1,"hostname":"h","time":"2025-03-31T16:10:22.937Z","level":{number},"module":"shell","line":3,"msg":"Applied","block":"BL","n":7}}"#
        );
        check(&line, Form::SlogJson, Some(level), time, "shell", "Applied, block: BL, n: 7");
    }
}

#[test]
fn unknown_forms_are_text() {
    for line in [
        "",
        " ",
        "Segmentation fault",
        "{\"a\":1}",
        "{not json",
        "Nov 24 13:56:37.285 LOUD │ x",
        "Nov 24",
        "<5>",
        "<005> today [x] y",
        "2025-10-10T12:33:27.197-00:00 no section",
        "Feb 30 10:10:10: x",
    ] {
        check(line, Form::Unknown, None, None, "", line);
    }
    let message = Message::parse(Encoding::Plain, b"\xff\x00 bytes", RECEIVED);
    assert_eq!(message.text, "\u{fffd}\0 bytes");
}

#[test]
fn colours_are_removed() {
    let line = "\u{1b}[1mNov 24 13:56:37.285\u{1b}[0m \u{1b}[33;1m  WARN\u{1b}[0m │ \u{1b}[38;5;9mred\u{1b}[0m text";
    check(line, Form::OctezLevel, Some(Level::Warning), Some("2025-11-24T13:56:37.285Z"), "", "red text");
    // No sequence of this kind: kept.
    check("\u{1b}]0;title\u{7} \u{1b}[", Form::Unknown, None, None, "", "\u{1b}]0;title\u{7} \u{1b}[");
}

#[test]
fn lines_of_a_message_are_joined() {
    let lines = [
        "Nov 24 13:56:38.469   WARN │ protocol",
        "Nov 24 13:56:38.469   WARN │   PsGXQmSv1UDDm2brdEFsuJCHjajS9Cv8mp44w93wNS2TpXFSvTC",
        "Nov 24 13:56:38.469   WARN │   is not active",
        "Nov 24 13:56:38.470   WARN │   indented, but of another time",
        "Apr 27 08:29:09.000: Error:",
        "  caused by",
        "\tand by",
        "Segmentation fault",
        "  not joined to an unknown form",
    ];
    let mut joiner = MessageJoiner::default();
    let mut messages: Vec<Vec<u8>> = lines.iter().filter_map(|line| joiner.push(line.as_bytes())).collect();
    assert!(joiner.is_pending());
    messages.extend(joiner.flush());
    assert_eq!(joiner.flush(), None);
    let expected =
        [lines[..3].join("\n"), lines[3].to_owned(), lines[4..7].join("\n"), lines[7].to_owned(), lines[8].to_owned()];
    assert_eq!(messages, expected.map(String::into_bytes));
    let text = |index: usize| Message::parse(Encoding::Plain, &messages[index], RECEIVED).text;
    assert_eq!(text(0), "protocol\n  PsGXQmSv1UDDm2brdEFsuJCHjajS9Cv8mp44w93wNS2TpXFSvTC\n  is not active");
    assert_eq!(text(2), "Error:\n  caused by\n\tand by");
}

#[test]
fn joined_messages_are_bounded() {
    let first = b"Apr 27 08:29:09.000: x";
    let mut joiner = MessageJoiner::default();
    joiner.push(first);
    let (mut split, mut bytes) = (0, 0);
    for _ in 0..10_000 {
        if let Some(message) = joiner.push(&[b' '; 1000]) {
            assert!(message.len() <= MAX_MESSAGE_BYTES);
            split += 1;
            bytes += message.len();
        }
    }
    bytes += joiner.flush().map_or(0, |message| message.len());
    assert!(split > 8, "{split}");
    // All bytes, and a newline between two lines of one message.
    assert_eq!(bytes, first.len() + 10_000 * 1000 + 10_000 - split);
}

fn syslog(message: &str) -> Message {
    Message::parse(Encoding::Syslog, message.as_bytes(), RECEIVED)
}

#[test]
fn syslog_headers() {
    // (message, level, time, text)
    let cases = [
        (
            "<27>1 2021-07-14T12:00:00.5Z wsvl eb3fdbc716e5 665 eb3fdbc716e5 - Jul 14 12:00:00.000 WARN some 3f0e",
            Some(Level::Warning),
            Some("2021-07-14T12:00:00.5Z"),
            "some 3f0e",
        ),
        ("<27>1 2021-07-14T12:00:00Z h a 1 m - what", Some(Level::Error), Some("2021-07-14T12:00:00Z"), "what"),
        ("<30>Dec 31 23:59:58 host octez-node[12]: ready", Some(Level::Info), Some("2025-12-31T23:59:58Z"), "ready"),
        ("<13>Jan  1 00:00:02 host octez-node: ready", Some(Level::Notice), Some("2026-01-01T00:00:02Z"), "ready"),
        ("no priority: text", None, None, "no priority: text"),
        (
            "Nov 24 13:56:37.285 NOTICE │ no priority",
            Some(Level::Notice),
            Some("2025-11-24T13:56:37.285Z"),
            "no priority",
        ),
        (
            "<14>Nov 24 13:56:37.285   WARN │ a node\'s line",
            Some(Level::Warning),
            Some("2025-11-24T13:56:37.285Z"),
            "a node\'s line",
        ),
        ("<11>Segmentation fault", Some(Level::Error), None, "Segmentation fault"),
        ("<27>", Some(Level::Error), None, ""),
        ("<30>Dec 31 23:59:58 host app: [p2p] hello", Some(Level::Info), Some("2025-12-31T23:59:58Z"), "[p2p] hello"),
        (
            "<30>1 2021-07-14T12:00:00Z h a 1 m [x y=\"z\"] \u{feff}[p2p] hello",
            Some(Level::Info),
            Some("2021-07-14T12:00:00Z"),
            "[p2p] hello",
        ),
        ("<192>text", None, None, "<192>text"),
        ("<9999>1 text", None, None, "<9999>1 text"),
        ("<>text", None, None, "<>text"),
    ];
    for (message, level, time, text) in cases {
        let parsed = syslog(message);
        assert_eq!(
            (parsed.level, parsed.time, parsed.text.as_str()),
            (level, time.and_then(rfc3339), text),
            "{message}"
        );
    }
    let header = chainscope_logs::syslog::Header::parse("<30>Dec 31 23:59:58 host octez-node[12]: ready", RECEIVED);
    assert_eq!((header.host, header.app), (Some("host"), Some("octez-node")));
}
