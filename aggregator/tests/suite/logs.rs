//! `/v2/log`, `/v3/logs` and `/v2/log/stream` over real sockets on a real database.

use chainscope_aggregator::NodeConfig;
use chainscope_logs::{Encoding, Level};
use chainscope_proto::v1::{LogMessage, Record, record::Kind};
use chainscope_store::Retention;
use chainscope_testing::wait;
use proptest::{prelude::*, test_runner::TestRunner};
use serde_json::{Value, json};

use crate::common::{
    Server, TIME, get,
    logs::{line, lines, log, words},
    record,
};

#[test]
fn rows_are_byte_for_byte_those_of_the_contract() {
    let server = Server::start();
    assert_eq!(server.get("/v2/log").body, "[]");
    let text = "Oct 10 12:33:27.197 some 3f0e";
    let syslog = "<27>1 2021-07-14T12:00:00.123456Z wsvl app 665 id - Jul 14 12:00:00.000 WARN some 3f0e";
    let octez = "<005> 2021-07-14T12:00:01.000-00:00 [node.main] read identity file";
    server.feed(
        "9732",
        vec![
            log(Encoding::Plain, text, TIME),
            log(Encoding::Syslog, syslog, TIME),
            log(Encoding::Plain, octez, TIME),
            log(Encoding::Plain, "Jul 14 12:00:02.000  ERROR │ first\nJul 14 12:00:02.000  ERROR │   second", TIME),
        ],
    );
    let answer = server.get("/v2/log");
    assert_eq!(
        answer.body,
        concat!(
            r#"[{"id":3,"level":"Error","timestamp":1626264002000000000,"section":"","message":"first\n  second"},"#,
            r#"{"id":2,"level":"Notice","timestamp":1626264001000000000,"section":"node.main","message":"read identity file"},"#,
            r#"{"id":1,"level":"Warning","timestamp":1626264000123000000,"section":"","message":"some 3f0e"},"#,
            r#"{"id":0,"level":"Info","timestamp":1626264123456000000,"section":"","message":"Oct 10 12:33:27.197 some 3f0e"}]"#,
        )
    );
    assert_eq!(answer.header("content-type"), Some("application/json"));
    for path in ["/v3/logs", "/v2/log/", "/nodes/9732/v2/log", "/nodes/9732/v3/logs/?node_name=none"] {
        assert_eq!(server.get(path).body, answer.body, "{path}");
    }
}

#[test]
fn text_of_a_node_is_escaped_and_whole() {
    let server = Server::start();
    let loud = "\u{1b}[2Jbell\u{7}\u{9b}x\u{202e}\0";
    let long = "\u{1}".repeat(255 << 10);
    let invalid = record(TIME, Kind::LogMessage(LogMessage { raw: b"a\xff\xfeb".to_vec(), ..LogMessage::default() }));
    server.feed("9732", vec![lines(&[loud]).remove(0), lines(&[&long]).remove(0), invalid]);
    let body = server.get("/v2/log?limit=10").body;
    assert!(!body.chars().any(|character| character.is_control() || character == '\u{202e}'));
    let rows: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(rows[0]["message"], "a\u{fffd}\u{fffd}b");
    assert_eq!(rows[0]["level"], "Info", "a record without a level");
    assert_eq!(rows[1]["message"], long, "nothing is cut");
    assert_eq!(rows[2]["message"], "bell\u{7}\u{9b}x\u{202e}\0", "colours are no text");
    assert_eq!(server.ids("/v2/log?level=info"), [2, 1, 0]);
}

#[test]
fn long_messages_come_in_pages_of_bounded_size_and_all_of_them() {
    let server = Server::start();
    let long = "x".repeat(100 << 10);
    server.feed("9732", lines(&[&*long; 64]));
    let answer = server.get("/v2/log?limit=1000000000");
    assert_eq!(answer.header("transfer-encoding"), Some("chunked"), "in several pages");
    let rows: Value = serde_json::from_str(&answer.body).unwrap();
    let ids: Vec<_> = rows.as_array().unwrap().iter().map(|row| row["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, (0..64).rev().collect::<Vec<_>>());
    assert_eq!(server.ids("/v2/log?limit=33&direction=forward"), (0..33).collect::<Vec<_>>());
    let mut live = server.events("/v2/log/stream?cursor=0&limit=64", &[]);
    assert_eq!(live.ids(64), (0..64).collect::<Vec<_>>());
    assert_eq!(live.block(), None);
}

#[test]
fn malformed_parameters_are_named() {
    let server = Server::start();
    for (query, parameter) in [
        ("limit=x", "limit"),
        ("log_level=loud", "log_level"),
        ("level=info&log_level=info", "level"),
        ("from=-1", "from"),
        ("query=(a", "query"),
        ("query_no_quotes=maybe", "query_no_quotes"),
        ("node_name=a&node_name=b", "node_name"),
    ] {
        for path in ["/v2/log", "/v3/logs", "/v2/log/stream"] {
            assert_eq!(server.problem(&format!("{path}?{query}"), 400)["parameter"], parameter, "{path}?{query}");
        }
    }
    let loud = server.problem("/v2/log?log_level=info,loud", 400);
    assert_eq!(
        loud["detail"],
        "log_level: unknown level \"loud\"; known are trace, debug, info, notice, warning, error, fatal, warn"
    );
    let open = server.problem("/v2/log?query=peer%20AND%20(a%20b", 400);
    assert_eq!((&open["position"], &open["parameter"]), (&json!(9), &json!("query")));
    assert!(open["detail"].as_str().unwrap().contains("parenthesis"), "{open}");
    server.problem("/v2/log?node_name=none", 404);
}

#[test]
fn limits_and_times_may_be_extreme() {
    let server = Server::start();
    let at = |time_ns: i64| line(Level::Info, "x", time_ns);
    // 1969, now, 2200.
    server.feed("9732", vec![at(-1_000_000_000), at(TIME), at(7_258_118_400_000_000_000)]);
    assert_eq!(server.ids("/v2/log?limit=0"), [0_u64; 0]);
    assert_eq!(server.ids("/v2/log?limit=18446744073709551615"), [2, 1, 0]);
    assert_eq!(server.json("/v2/log")[2]["timestamp"], -1_000_000_000);
    assert_eq!(server.ids("/v2/log?from=0"), [2, 1]);
    assert_eq!(server.ids("/v2/log?timestamp=0"), [0]);
    assert_eq!(server.ids("/v2/log?from=4102444800"), [2], "2100");
    assert_eq!(server.ids("/v2/log?from=18446744073709551615"), [0_u64; 0]);
    assert_eq!(server.ids("/v2/log?to=18446744073709551615"), [2, 1, 0]);
    assert_eq!(server.ids("/v2/log?timestamp=18446744073709551615&direction=forward"), [0_u64; 0]);
}

#[test]
fn metrics_count_what_is_kept_and_indexed() {
    let server = Server::start();
    server.feed("9732", (0..3).map(|at| line(Level::Info, "peer", TIME + at)).collect());
    let metrics = wait::until("the index", || {
        let metrics = server.get("/metrics").body;
        metrics.contains("chainscope_log_messages_unindexed{node=\"9732\"} 0\n").then_some(metrics)
    });
    for line in [
        "chainscope_store_log_messages{node=\"9732\"} 3\n",
        "chainscope_log_messages_stored_total{node=\"9732\"} 3\n",
        "chainscope_log_messages_evicted_total{node=\"9732\"} 0\n",
        "chainscope_text_index_errors_total 0\n",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

const ROWS: i64 = 255;
const LEVELS: [Level; 3] = [Level::Info, Level::Warning, Level::Fatal];
/// A query, and whether it matches a text with this set of words.
type TextCase = (&'static str, fn(u32) -> bool);
const TEXTS: [TextCase; 5] = [
    ("peer", |set| set & 1 != 0),
    ("branch%20head", |set| set & 0b110 != 0),
    ("%2Bpeer%20%2Bhead", |set| set & 0b101 == 0b101),
    ("-chain", |set| set & 0b1000 == 0),
    ("peer%20-(ip%20OR%20message)", |set| set & 1 != 0 && set & 0b110_0000 == 0),
];

/// Row `id`: each property has another period; times are not in order, as ids follow arrival.
fn row(id: i64) -> Record {
    let Record { kind, .. } = words(id as u32 + 1);
    let Some(Kind::LogMessage(message)) = kind else { unreachable!() };
    let level = line(LEVELS[id as usize % 3], "", TIME);
    let Some(Kind::LogMessage(LogMessage { level, .. })) = level.kind else { unreachable!() };
    let message = LogMessage { level, ..message };
    let target = format!("pid {}", id % 2);
    Record { time_ns: TIME + time_of(id) * 1_000_000, target, kind: Some(Kind::LogMessage(message)) }
}

fn time_of(id: i64) -> i64 {
    id * 37 % 64
}

#[derive(Debug, Clone)]
struct RandomQuery {
    cursor: Option<i64>,
    limit: Option<u64>,
    forward: bool,
    levels: Vec<usize>,
    target: Option<i64>,
    from: Option<i64>,
    to: Option<i64>,
    pivot: Option<i64>,
    text: Option<usize>,
}

fn queries() -> impl Strategy<Value = RandomQuery> {
    let ms = || prop::option::weighted(0.3, -1..66_i64);
    (
        prop::option::of(0..ROWS + 20),
        prop::option::of(0..60_u64),
        any::<bool>(),
        prop::collection::vec(0..3_usize, 0..3),
        prop::option::weighted(0.3, 0..2_i64),
        (ms(), ms(), ms()),
        prop::option::weighted(0.6, 0..TEXTS.len()),
    )
        .prop_map(|(cursor, limit, forward, levels, target, (from, to, pivot), text)| RandomQuery {
            cursor,
            limit,
            forward,
            levels,
            target,
            from,
            to,
            pivot,
            text,
        })
}

const TIME_MS: i64 = TIME / 1_000_000;

impl RandomQuery {
    fn path(&self) -> String {
        let mut path = String::from("/v2/log?x=1");
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                path.push_str(&format!("&{name}={value}"));
            }
        };
        add("cursor", self.cursor.map(|cursor| cursor.to_string()));
        add("limit", self.limit.map(|limit| limit.to_string()));
        add("direction", self.forward.then(|| "forward".into()));
        let levels: Vec<_> = self.levels.iter().map(|level| LEVELS[*level].name()).collect();
        add("log_level", (!levels.is_empty()).then(|| levels.join(",")));
        add("target", self.target.map(|target| format!("pid+{target}")));
        add("from", self.from.map(|ms| (TIME_MS + ms).to_string()));
        add("to", self.to.map(|ms| (TIME_MS + ms).to_string()));
        add("timestamp", self.pivot.map(|ms| (TIME_MS + ms).to_string()));
        add("query", self.text.map(|text| TEXTS[text].0.to_owned()));
        path
    }

    fn answer(&self) -> Vec<u64> {
        let fits = |id: &i64| {
            let (id, ms) = (*id, time_of(*id));
            (self.levels.is_empty() || self.levels.contains(&(id as usize % 3)))
                && self.target.is_none_or(|target| id % 2 == target)
                && self.from.is_none_or(|from| ms >= from)
                && self.to.is_none_or(|to| ms <= to)
                && self.pivot.is_none_or(|pivot| if self.forward { ms > pivot } else { ms <= pivot })
                && self.cursor.is_none_or(|cursor| if self.forward { id >= cursor } else { id <= cursor })
                && self.text.is_none_or(|text| TEXTS[text].1(id as u32 + 1))
        };
        let limit = self.limit.unwrap_or(100) as usize;
        let ids = 0..ROWS;
        let found: Vec<i64> = if self.forward {
            ids.filter(fits).take(limit).collect()
        } else {
            ids.rev().filter(fits).take(limit).collect()
        };
        found.into_iter().map(|id| id as u64).collect()
    }
}

#[test]
fn all_filters_combine_as_in_the_model() {
    let server = Server::start();
    server.feed("9732", (0..ROWS).map(row).collect());
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() });
    runner
        .run(&queries(), |query| {
            prop_assert_eq!(server.ids(&query.path()), query.answer(), "{}", query.path());
            Ok(())
        })
        .unwrap();
}

#[test]
fn no_query_string_gets_anything_but_200_or_400_and_no_quoted_text_a_400() {
    let server = Server::start();
    server.feed("9732", lines(&["peer", "branch"]));
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() });
    let names = ["limit", "cursor", "log_level", "level", "from", "to", "timestamp", "query", "query_no_quotes", "x"];
    let pairs = prop::collection::vec((prop::sample::select(names.to_vec()), "[!-$'-;=?-~]{0,20}"), 0..4);
    runner
        .run(&(pairs, "[!-$'-;=?-~]{0,20}"), |(pairs, text)| {
            let query: Vec<_> = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let answer = server.get(&format!("/v2/log?{}", query.join("&")));
            prop_assert!(answer.status == 200 || answer.status == 400, "{}", answer.status);
            let quoted = server.get(&format!("/v2/log?query=\"{text}\"&limit=1000"));
            prop_assert_eq!(quoted.status, 200, "{}: {}", text, quoted.body);
            Ok(())
        })
        .unwrap();
}

#[test]
fn live_log_messages_arrive_filtered_with_their_cursor_and_resume() {
    let server = Server::start();
    let mut agent = server.agent(&["9732"]);
    agent.batch("9732", 0, lines(&["peer", "branch"]));
    agent.wait_for("9732", 2);
    let mut live = server.events("/v2/log/stream", &[]);
    let mut searched = server.events("/v2/log/stream?query=peer&cursor=0", &[]);
    agent.batch("9732", 2, lines(&["head", "chain", "another peer"]));
    agent.wait_for("9732", 5);
    assert_eq!(live.ids(3), [2, 3, 4], "from now on");
    assert_eq!(searched.ids(2), [0, 4]);
    drop(live);
    agent.batch("9732", 5, lines(&["x"; 600]));
    agent.wait_for("9732", 605);
    let mut resumed = server.events("/v2/log/stream", &[("last-event-id", "3")]);
    assert_eq!(resumed.ids(601), (4..605).collect::<Vec<_>>(), "what came meanwhile, each once");
    let row = server.events("/v2/log/stream?cursor=4", &[]).next().unwrap().1;
    assert_eq!(row, server.json("/v2/log?limit=1&cursor=4")[0], "rows are those of the list");
    let bad = get(server.http(), "GET", "/v2/log/stream", &[("last-event-id", "x")]);
    assert!(bad.status == 400 && bad.body.contains("Last-Event-ID"), "{}", bad.body);
}

#[test]
fn messages_and_log_messages_of_nodes_have_ids_and_limits_of_their_own() {
    let server = Server::with(|config| {
        let log_retention = Retention { rows: Some(160), ..Retention::default() };
        config.nodes.push(NodeConfig { log_retention, ..NodeConfig::new("a") });
        config.nodes.push(NodeConfig::new("b"));
    });
    server.feed("a", lines(&["x"; 400]));
    let mut records = lines(&["peer"; 3]);
    records.push(record(TIME, Kind::Message(crate::common::message("advertise"))));
    server.feed("b", records);
    server.store.evict(TIME).unwrap();
    let (first, next) = server.store.visible_logs("a");
    assert!(first > 0 && next == 400);
    assert_eq!(server.ids("/v2/log?node_name=a&limit=1000"), (first..400).rev().collect::<Vec<_>>());
    assert_eq!(server.ids(&format!("/v2/log?node_name=a&cursor={}", first - 1)), [0_u64; 0]);
    let logs = &server.json("/v2/stats?node_name=a")["nodes"][0]["logs"];
    assert_eq!(
        (&logs["first_id"], &logs["next_id"], &logs["stored"], &logs["evicted"]),
        (&json!(first), &json!(400), &json!(400), &json!(first))
    );
    assert!(logs["bytes"].as_u64() > Some(0), "{logs}");
    assert_eq!(server.ids("/v2/log?node_name=b"), [2, 1, 0]);
    assert_eq!(server.ids("/v2/p2p?node_name=b"), [0]);
    assert_eq!(server.ids("/v2/p2p?node_name=a"), [0_u64; 0]);
}
