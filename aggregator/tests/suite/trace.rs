//! `/v2/trace`, `/v2/trace/stream` and `/v2/trace/relay` over real sockets on a real database.

use chainscope_aggregator::NodeConfig;
use chainscope_proto::v1::{Loss, Record, TraceEvent, record::Kind};
use chainscope_store::Retention;
use chainscope_trace::{Incomplete, Value as Captured};
use proptest::{prelude::*, test_runner::TestRunner};
use serde_json::{Value, json};

use crate::common::{
    Server, TIME, get,
    logs::lines,
    record,
    trace::{added, attachment, event, message, text},
};

#[test]
fn rows_are_byte_for_byte_as_documented() {
    let server = Server::start();
    assert_eq!(server.get("/v2/trace").body, "[]");
    server.feed("9732", vec![message(0, 4711, "inbound", 7, "inv", vec![1, 2]), added(1, 4711, 250)]);
    let first = concat!(
        r#"{"id":0,"timestamp":1626264123456000000,"time":"2021-07-14T12:02:03.456789000Z","monotonic_ns":5000000000000,"#,
        r#""tracepoint":"net:inbound_message","target":"pid 4711","pid":4711,"tid":4712,"cpu":1,"comm":"b-msghand","#,
        r#""contract":"bitcoin-core-v31","arguments":{"address":"10.0.0.7:8333","connection_type":"manual","message_type":"inv","#,
        r#""peer_id":7,"size":2}}"#,
    );
    let second = server.get("/v2/trace?limit=1").body;
    let all = server.get("/v2/trace");
    assert_eq!(all.body, format!("{},{first}]", second.strip_suffix(']').unwrap()));
    assert_eq!(all.header("content-type"), Some("application/json"));
    let second: Value = serde_json::from_str(&second).unwrap();
    assert_eq!(second[0]["arguments"], json!({ "fee": 1000, "size": 250, "txid": "07".repeat(32) }));
    assert_eq!(server.get("/nodes/9732/v2/trace").body, all.body);
    let with = server.json("/v2/trace?payload=true&limit=1&cursor=0");
    assert_eq!(with[0]["arguments"]["payload"], "0102");
}

#[test]
fn text_of_a_peer_is_escaped_and_what_was_not_captured_is_marked() {
    let server = Server::start();
    let inbound = attachment("net:inbound_message");
    let loud = "\u{1b}[2Jbell\u{7}\u{9b}x\u{202e}\0";
    let hostile = |address: Captured, kind: Captured, payload: Captured| {
        let arguments =
            vec![Captured::Signed(-1), address, text("inbound"), kind, Captured::Unsigned(u64::MAX), payload];
        event(&inbound, 0, 7, arguments)
    };
    let cut = Captured::Text { bytes: "1.2.3".into(), is_truncated: true };
    let part = Captured::Bytes { bytes: vec![1].into(), claimed: 9, incomplete: Some(Incomplete::Limit) };
    let unread = Captured::Unreadable { address: 0x10 };
    server.feed(
        "9732",
        vec![
            hostile(text(loud), Captured::text(&b"a\xff"[..]), Captured::bytes("")),
            hostile(cut, unread, part),
            hostile(Captured::Unsupported, text(""), Captured::bytes("")),
        ],
    );
    let body = server.get("/v2/trace?payload=true&direction=forward").body;
    assert!(!body.chars().any(|character| character.is_control() || character == '\u{202e}'), "{body}");
    let rows: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(rows[0]["arguments"]["address"], loud);
    assert_eq!(rows[0]["arguments"]["message_type"], json!({ "hex": "61ff" }));
    assert_eq!(rows[0]["arguments"]["size"], u64::MAX);
    assert_eq!(rows[1]["truncated"], json!(["address"]));
    assert_eq!(rows[1]["unreadable"], json!([{ "name": "message_type", "address": "0x10" }]));
    assert_eq!(rows[1]["incomplete"], json!({ "payload": { "captured": 1, "claimed": 9, "reason": "limit" } }));
    assert!(rows[1]["arguments"]["message_type"].is_null());
    assert_eq!(rows[2]["unsupported"], json!([{ "name": "address", "raw": "8@%rax" }]));
}

#[test]
fn a_record_that_cannot_be_read_is_a_row_that_says_so() {
    let server = Server::start();
    let damaged = |attachment: &'static [u8]| {
        let event = TraceEvent {
            provider: "net".into(),
            name: "x".into(),
            pid: 7,
            attachment: attachment.into(),
            ..TraceEvent::default()
        };
        record(TIME, Kind::TraceEvent(event))
    };
    // What exceeds a bound is not stored, but counted.
    let peers = TraceEvent { peers: vec![String::new(); 9], ..TraceEvent::default() };
    server.feed("9732", vec![damaged(b"\xff"), damaged(b""), record(TIME, Kind::TraceEvent(peers)), added(0, 7, 1)]);
    let rows = server.json("/v2/trace?direction=forward");
    assert_eq!(rows.as_array().unwrap().len(), 3);
    assert_eq!((&rows[0]["tracepoint"], &rows[0]["arguments"]), (&json!("net:x"), &json!({})));
    assert!(rows[0]["error"].is_string() && rows[1]["error"].is_string() && rows[2]["error"].is_null(), "{rows:#}");
    assert_eq!(server.ids("/v2/trace?filter=pid%3D7"), [2], "of what cannot be read nothing holds");
    let losses = &server.json("/v2/stats")["nodes"][0]["losses"];
    assert_eq!(losses[0]["reason"], "invalid record: peers of an event");
}

#[test]
fn malformed_parameters_are_named() {
    let server = Server::start();
    for (query, parameter) in [
        ("limit=x", "limit"),
        ("tracepoint=net", "tracepoint"),
        ("pid=x", "pid"),
        ("from=-1", "from"),
        ("since=1&from=1", "since"),
        ("filter=size", "filter"),
        ("payload=maybe", "payload"),
        ("node_name=a&node_name=b", "node_name"),
    ] {
        for path in ["/v2/trace", "/v2/trace/stream"] {
            assert_eq!(server.problem(&format!("{path}?{query}"), 400)["parameter"], parameter, "{path}?{query}");
        }
    }
    assert_eq!(server.problem("/v2/trace/relay?pid=x", 400)["parameter"], "pid");
    let operator = server.problem("/v2/trace?filter=size", 400);
    assert_eq!(operator["detail"], "filter: \"size\": no operator: one of = != < <= > >= ~");
    server.problem("/v2/trace?node_name=none", 404);
    server.problem("/v2/trace/relay?node_name=none", 404);
}

const ROWS: i64 = 255;
const TIME_MS: i64 = TIME / 1_000_000;

fn time_of(id: i64) -> i64 {
    id * 37 % 64
}

/// Row `id`: each property has another period; times are not in order, as ids follow arrival.
fn row(id: i64) -> Record {
    let (ms, pid) = (time_of(id), u32::try_from(id % 2 + 1).unwrap());
    match id % 3 {
        0 => message(ms, pid, "inbound", id % 5, ["inv", "tx"][id as usize % 2], vec![0; id as usize]),
        1 => message(ms, pid, "outbound", id % 5, ["inv", "tx"][id as usize % 2], vec![0; id as usize]),
        _ => added(ms, pid, id),
    }
}

fn tracepoint_of(id: i64) -> &'static str {
    ["net:inbound_message", "net:outbound_message", "mempool:added"][id as usize % 3]
}

/// Parameters, and whether they match the row with an id.
type Case = (&'static str, fn(i64) -> bool);
const CASES: [Case; 14] = [
    ("tracepoint=net:*", |id| id % 3 < 2),
    ("tracepoint=*:added,net:inbound_message", |id| id % 3 != 1),
    ("tracepoint=mempool:added", |id| id % 3 == 2),
    ("provider=net&name=inbound_message", |id| id % 3 == 0),
    ("name=added,outbound_message", |id| id % 3 > 0),
    ("pid=2", |id| id % 2 == 1),
    ("pid=1,2,3", |_| true),
    ("peer=3", |id| id % 3 < 2 && id % 5 == 3),
    ("peer=10.0.0.4:8333,0", |id| id % 3 < 2 && (id % 5 == 4 || id % 5 == 0)),
    ("target=pid+1", |id| id % 2 == 0),
    ("filter=size%3E100", |id| id > 100),
    ("filter=message_type%3Dtx&filter=size%3C%3D50", |id| id % 3 < 2 && id % 2 == 1 && id <= 50),
    ("filter=address~.3:", |id| id % 3 < 2 && id % 5 == 3),
    ("filter=fee!%3D2&filter=size!%3D2", |id| id % 3 == 2 && id != 2),
];

#[derive(Debug, Clone)]
struct RandomQuery {
    cursor: Option<i64>,
    limit: Option<u64>,
    forward: bool,
    from: Option<i64>,
    to: Option<i64>,
    case: Option<usize>,
}

fn queries() -> impl Strategy<Value = RandomQuery> {
    let ms = || prop::option::weighted(0.3, -1..66_i64);
    let case = prop::option::weighted(0.9, 0..CASES.len());
    (prop::option::of(0..ROWS + 20), prop::option::of(0..60_u64), any::<bool>(), ms(), ms(), case)
        .prop_map(|(cursor, limit, forward, from, to, case)| RandomQuery { cursor, limit, forward, from, to, case })
}

impl RandomQuery {
    fn path(&self) -> String {
        let mut path = String::from("/v2/trace?x=1");
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                path.push_str(&format!("&{name}={value}"));
            }
        };
        add("cursor", self.cursor.map(|cursor| cursor.to_string()));
        add("limit", self.limit.map(|limit| limit.to_string()));
        add("direction", self.forward.then(|| "forward".into()));
        add("since", self.from.map(|ms| (TIME_MS + ms).to_string()));
        add("until", self.to.map(|ms| (TIME_MS + ms).to_string()));
        path.push_str(&self.case.map(|case| format!("&{}", CASES[case].0)).unwrap_or_default());
        path
    }

    fn answer(&self) -> Vec<i64> {
        let fits = |id: &i64| {
            let (id, ms) = (*id, time_of(*id));
            self.from.is_none_or(|from| ms >= from)
                && self.to.is_none_or(|to| ms <= to)
                && self.cursor.is_none_or(|cursor| if self.forward { id >= cursor } else { id <= cursor })
                && self.case.is_none_or(|case| CASES[case].1(id))
        };
        let limit = self.limit.unwrap_or(100) as usize;
        match self.forward {
            true => (0..ROWS).filter(fits).take(limit).collect(),
            false => (0..ROWS).rev().filter(fits).take(limit).collect(),
        }
    }
}

#[test]
fn all_filters_combine_as_in_the_model() {
    let server = Server::start();
    server.feed("9732", (0..ROWS).map(row).collect());
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() });
    runner
        .run(&queries(), |query| {
            let rows = server.json(&query.path());
            let rows = rows.as_array().unwrap();
            let ids: Vec<i64> = rows.iter().map(|row| row["id"].as_i64().unwrap()).collect();
            prop_assert_eq!(&ids, &query.answer(), "{}", query.path());
            prop_assert!(rows.iter().zip(&ids).all(|(row, id)| row["tracepoint"] == tracepoint_of(*id)));
            Ok(())
        })
        .unwrap();
}

#[test]
fn long_events_come_in_pages_of_bounded_size_and_all_of_them() {
    let server = Server::start();
    server.feed("9732", (0..40).map(|ms| message(ms, 7, "inbound", 1, "block", vec![7; 100 << 10])).collect());
    let answer = server.get("/v2/trace?limit=1000000000&payload=true");
    assert_eq!(answer.header("transfer-encoding"), Some("chunked"), "in several pages");
    let rows: Value = serde_json::from_str(&answer.body).unwrap();
    let ids: Vec<_> = rows.as_array().unwrap().iter().map(|row| row["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, (0..40).rev().collect::<Vec<_>>());
    // Every other row, over several pages.
    let even = server.ids("/v2/trace?limit=15&payload=true&direction=forward&filter=peer_id%3D1");
    assert_eq!(even, (0..15).collect::<Vec<_>>());
}

#[test]
fn live_events_arrive_filtered_with_their_cursor_and_resume() {
    let server = Server::start();
    let mut agent = server.agent(&["9732"]);
    let batch = |from: i64, to: i64| (from..to).map(row).collect::<Vec<_>>();
    agent.batch("9732", 0, batch(0, 3));
    agent.wait_for("9732", 3);
    let mut live = server.events("/v2/trace/stream", &[]);
    let mut filtered = server.events("/v2/trace/stream?cursor=0&tracepoint=net:*&filter=message_type%3Dtx", &[]);
    agent.batch("9732", 3, batch(3, 10));
    agent.wait_for("9732", 10);
    assert_eq!(live.ids(7), (3..10).collect::<Vec<_>>(), "from now on");
    assert_eq!(filtered.ids(4), [1, 3, 7, 9]);
    drop(live);
    agent.batch("9732", 10, batch(10, 700));
    agent.wait_for("9732", 700);
    let mut resumed = server.events("/v2/trace/stream", &[("last-event-id", "4")]);
    assert_eq!(resumed.ids(695), (5..700).collect::<Vec<_>>(), "what came meanwhile, each once");
    let shown = server.events("/v2/trace/stream?cursor=4", &[]).next().unwrap().1;
    assert_eq!(shown, server.json("/v2/trace?limit=1&cursor=4")[0], "rows are those of the list");
    let bad = get(server.http(), "GET", "/v2/trace/stream", &[("last-event-id", "x")]);
    assert!(bad.status == 400 && bad.body.contains("Last-Event-ID"), "{}", bad.body);
}

#[test]
fn events_and_log_messages_have_ids_limits_and_statistics_of_their_own() {
    let server = Server::with(|config| {
        let trace_retention = Retention { rows: Some(160), ..Retention::default() };
        config.nodes.push(NodeConfig { trace_retention, ..NodeConfig::new("a") });
        config.nodes.push(NodeConfig::new("b"));
    });
    let mut records: Vec<Record> = (0..400).map(|ms| added(ms, 7, 1)).collect();
    records.extend(lines(&["x"; 200]));
    let loss =
        Loss { stage: "tracepoint".into(), reason: "mempool:added ring_full".into(), records: 5, ..Loss::default() };
    records.push(record(TIME, Kind::Loss(loss)));
    server.feed("a", records);
    server.store.evict(TIME).unwrap();
    let (first, next) = server.store.visible_traces("a");
    assert!(first > 0 && next == 400);
    assert_eq!(server.ids("/v2/trace?node_name=a&limit=1000"), (first..400).rev().collect::<Vec<_>>());
    assert_eq!(server.ids("/v2/trace?node_name=b"), [0_u64; 0]);
    assert_eq!(server.ids("/v2/log?node_name=a&limit=1000").len(), 200);
    let stats = server.json("/v2/stats?node_name=a");
    let trace = &stats["nodes"][0]["trace"];
    assert_eq!(
        (&trace["first_id"], &trace["next_id"], &trace["stored"], &trace["evicted"]),
        (&json!(first), &json!(400), &json!(400), &json!(first))
    );
    let logs = &stats["nodes"][0]["logs"];
    assert_eq!((&logs["next_id"], &logs["stored"], &logs["evicted"]), (&json!(200), &json!(200), &json!(0)));
    let loss = &stats["nodes"][0]["losses"][0];
    assert_eq!((&loss["reason"], &loss["records"]), (&json!("mempool:added ring_full"), &json!(5)));
    let metrics = server.get("/metrics").body;
    for line in [
        format!("chainscope_store_trace_events{{node=\"a\"}} {}\n", 400 - first),
        "chainscope_trace_events_stored_total{node=\"a\"} 400\n".to_owned(),
        format!("chainscope_trace_events_evicted_total{{node=\"a\"}} {first}\n"),
    ] {
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
}

/// The first block of Bitcoin: its header and its hash.
const HEADER: &str = "0100000000000000000000000000000000000000000000000000000000000000000000003ba3edfd7a7b12b27ac72c3e67768f617fc81bc3888a51323a9fb8aa4b1e5e4a29ab5f49ffff001d1dac2b7c";
const HASH: &str = "000000000019d6689c085ae165831e934ff763ae46a2a6c172b3f1b60a8ce26f";

#[test]
fn block_relay_is_computed_from_the_events_of_a_range() {
    let server = Server::start();
    let header = hex::decode(HEADER).unwrap();
    let mut hash = hex::decode(HASH).unwrap();
    hash.reverse();
    let inventory = [vec![1, 2, 0, 0, 0], hash.clone()].concat();
    let connected = |ms: i64, pid: u32| {
        let counts = [7, 1, 1, 1, 1_000_000].map(Captured::Signed);
        let arguments = std::iter::once(Captured::bytes(hash.clone())).chain(counts).collect();
        event(&attachment("validation:block_connected"), ms, pid, arguments)
    };
    let loss = |reason: &str, from_ns: i64| {
        let loss = Loss {
            stage: "tracepoint".into(),
            reason: reason.into(),
            records: 3,
            from_ns,
            to_ns: from_ns + 1,
            ..Loss::default()
        };
        record(from_ns, Kind::Loss(loss))
    };
    server.feed(
        "9732",
        vec![
            loss("before", TIME - 1_000_000_000),
            message(0, 7, "inbound", 1, "inv", inventory.clone()),
            // Another process of the node.
            message(1, 8, "inbound", 9, "inv", inventory.clone()),
            added(5, 7, 1),
            message(10, 7, "outbound", 1, "getdata", inventory),
            message(20, 7, "inbound", 2, "cmpctblock", header),
            connected(90, 7),
            loss("within", TIME + 1_000_000),
        ],
    );
    let range = |from: i64, to: i64| format!("/v2/trace/relay?since={}&until={}", TIME_MS + from, TIME_MS + to);
    let relay = server.json(&range(0, 1000));
    assert_eq!(
        (&relay["events"], &relay["lost_events"], &relay["unreadable_events"]),
        (&json!(5), &json!(3), &json!(0))
    );
    let [of, other] = relay["targets"].as_array().unwrap().as_slice() else { panic!("{relay:#}") };
    assert_eq!((&of["target"], &of["not_connected"]), (&json!("pid 7"), &json!([])));
    let block = &of["blocks"][0];
    assert_eq!(
        (&block["hash"], &block["height"], &block["connected_after_ns"]),
        (&json!(HASH), &json!(7), &json!(90_000_000))
    );
    assert_eq!(block["announcements"].as_array().unwrap().len(), 2);
    assert_eq!(block["announcements"][0]["peer_id"], 1);
    assert_eq!((&block["delivery"]["peer_id"], &block["delivery"]["after_ns"]), (&json!(2), &json!(20_000_000)));
    assert_eq!(block["unanswered"][0]["message_type"], "getdata");
    assert_eq!(
        (&other["target"], &other["blocks"], &other["not_connected"]),
        (&json!("pid 8"), &json!([]), &json!([HASH]))
    );
    // The first announcement is before the range: it begins with the next one.
    let later = server.json(&range(15, 1000));
    assert_eq!(
        (&later["events"], &later["targets"][0]["blocks"][0]["announcements"][0]["peer_id"]),
        (&json!(2), &json!(2))
    );
    assert_eq!(server.json(&format!("{}&pid=8", range(0, 1000)))["targets"].as_array().unwrap().len(), 1);
    assert_eq!(server.json("/v2/trace/relay")["events"], 0, "the last hour");
}
