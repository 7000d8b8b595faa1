//! Every request of TezEdge Explorer 1.14, as it is on the wire: `explorer.json` has each with the rows that it has to get.
//!
//! Message `n` has kind `n` modulo 23, side `n` modulo 2 and address `n` modulo 3; log message `n` has level `n` modulo 7 and
//! text `n` modulo 5; both are `n` seconds after the start. A scenario's `ids` go from `first` to `last`, and are those whose
//! remainders are listed, `limit` at most.

use chainscope_aggregator::NodeConfig;
use chainscope_logs::Level;
use chainscope_proto::v1::{Initiator, Message, Record, record::Kind};
use chainscope_store::Retention;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    common::{
        Server, TIME, address, get,
        logs::{START, line},
        message, record,
    },
    memory::example,
};

const ROWS: i64 = 2500;

const KINDS: [&str; 23] = [
    "metadata",
    "connection_message",
    "ack_message",
    "bootstrap",
    "advertise",
    "swap_request",
    "swap_ack",
    "deactivate",
    "get_protocols",
    "protocol",
    "get_operations",
    "operation",
    "get_current_head",
    "current_head",
    "get_current_branch",
    "current_branch",
    "get_block_headers",
    "block_header",
    "get_operations_for_blocks",
    "operations_for_blocks",
    "get_operation_hashes_for_blocks",
    "operation_hashes_for_blocks",
    "unknown",
];
const REMOTES: [&str; 3] = ["51.15.220.7:9732", "[::ffff:18.185.162.144]:9732", "[2001:db8::1]:9732"];
const TEXTS: [&str; 5] = [
    "peer connected from 10.0.0.1:9732",
    "fetched 100% of the branch",
    "größe der Mempool: a+b",
    "say \"hello world\" to <all> & #1",
    "validated block (BLock1)",
];

fn time_of(row: i64) -> i64 {
    (START + row) * 1_000_000_000
}

fn message_of(row: i64) -> Record {
    let index = row as usize;
    let message = Message {
        initiator: if row % 2 == 0 { Initiator::Local } else { Initiator::Remote }.into(),
        remote: Some(address(REMOTES[index % 3])),
        preview: Some(format!("{{\"Row\":{row}}}")),
        ..message(KINDS[index % 23])
    };
    record(time_of(row), Kind::Message(message))
}

fn log_of(row: i64) -> Record {
    let index = row as usize;
    line(Level::ALL[index % 7], TEXTS[index % 5], time_of(row))
}

/// A node "default/octez-0" with alias 9732 of which this is kept, and another one.
fn server(retention: Retention) -> Server {
    let server = Server::with(|config| {
        let aliases = vec!["9732".to_owned()];
        config.nodes.push(NodeConfig { aliases, ..NodeConfig::new("default/octez-0") });
        config.nodes.push(NodeConfig::new("default/octez-1"));
    });
    let node = "default/octez-0";
    server.store.set_retention(node, retention).unwrap();
    server.store.set_log_retention(node, retention).unwrap();
    let mut agent = server.agent(&[node]);
    for first in (0..ROWS).step_by(500) {
        let rows = (first..first + 500).flat_map(|row| [message_of(row), log_of(row)]);
        agent.batch(node, 2 * first as u64, rows.collect());
    }
    agent.wait_for(node, 2 * ROWS as u64);
    let mut memory = example();
    memory.node = node.to_owned();
    agent.memory([memory.keyframe()]);
    drop(agent);
    server
}

#[derive(Deserialize)]
struct Scenario {
    page: String,
    action: String,
    get: String,
    #[serde(default = "ok")]
    status: u16,
    ids: Option<Ids>,
    body: Option<String>,
    /// Values at JSON pointers; null: absent or null.
    #[serde(default)]
    json: serde_json::Map<String, Value>,
}

fn ok() -> u16 {
    200
}

#[derive(Deserialize)]
struct Ids {
    first: i64,
    last: i64,
    limit: usize,
    /// Divisors, and the remainders that a row's number may have.
    of: Vec<(i64, Vec<i64>)>,
}

impl Ids {
    fn list(&self) -> Vec<u64> {
        let fits = |row: &i64| self.of.iter().all(|(divisor, remainders)| remainders.contains(&(row % divisor)));
        let mut rows: Vec<i64> = (self.first.min(self.last)..=self.first.max(self.last)).collect();
        if self.first > self.last {
            rows.reverse();
        }
        rows.into_iter().filter(fits).take(self.limit).map(|row| row as u64).collect()
    }
}

/// The request with the node in the base URL instead of the parameter, as the Explorer can be configured.
fn below_the_node(path: &str) -> String {
    format!("/nodes/default/octez-0{}", path.replace("node_name=9732&", "").replace("?node_name=9732", ""))
}

#[test]
fn every_request_gets_what_the_page_needs() {
    let server = server(Retention::default());
    let scenarios: Vec<Scenario> = serde_json::from_str(include_str!("explorer.json")).unwrap();
    for Scenario { page, action, get: path, status, ids, body, json } in scenarios {
        let of_node = below_the_node(&path);
        let is_at_root = !path.starts_with("/v1");
        for path in [&path, &of_node].into_iter().filter(|path| is_at_root || **path == of_node) {
            if path.contains("node_name=9999") && *path == of_node {
                continue;
            }
            let what = format!("{page}: {action}: {path}");
            let answer = get(server.http(), "GET", path, &[("origin", "http://localhost:4200")]);
            assert_eq!(answer.status, status, "{what}: {}", answer.body);
            assert_eq!(answer.header("access-control-allow-origin"), Some("http://localhost:4200"), "{what}");
            if let Some(ids) = &ids {
                let rows: Vec<Value> = serde_json::from_str(&answer.body).unwrap();
                let found: Vec<u64> = rows.iter().map(|row| row["id"].as_u64().unwrap()).collect();
                assert_eq!(found, ids.list(), "{what}");
                assert!(rows.iter().all(|row| row["timestamp"].as_i64().unwrap() % 1_000_000 == 0), "{what}");
            }
            if let Some(body) = &body {
                assert_eq!(answer.body, *body, "{what}");
            }
            for (pointer, expected) in &json {
                let value: Value = serde_json::from_str(&answer.body).unwrap();
                assert_eq!(value.pointer(pointer).unwrap_or(&Value::Null), expected, "{what} {pointer}");
            }
        }
    }
}

#[test]
fn pages_end_at_the_oldest_row_that_is_kept() {
    let node = "default/octez-0";
    let server = server(Retention { rows: Some(1000), ..Retention::default() });
    server.store.evict(TIME).unwrap();
    for (list, (first, next)) in [("/v2/p2p", server.store.visible(node)), ("/v2/log", server.store.visible_logs(node))]
    {
        assert!(first > 998 && next == ROWS as u64, "{first}..{next}");
        let path = |cursor: u64| format!("{list}?node_name=9732&cursor={cursor}&limit=1000");
        assert_eq!(server.get(&path(998)).body, "[]", "first page");
        assert_eq!(server.get(&path(first - 1)).body, "[]");
        assert_eq!(server.ids(&path(first)), [first], "previous page, of the oldest row alone");
        let ids = server.ids(&path(first + 500));
        assert_eq!(ids, (first..=first + 500).rev().collect::<Vec<_>>(), "previous page across the edge");
        let newest = server.ids(&format!("{list}?node_name=9732&limit=1000"));
        assert_eq!(newest, (next.saturating_sub(1000).max(first)..next).rev().collect::<Vec<_>>());
    }
    assert_eq!(server.get("/v2/p2p/5?node_name=9732").body, "null", "a row that is still shown");
    let searched = server.ids("/v2/log?node_name=9732&query=%22peer%22&limit=1000");
    let (first, next) = server.store.visible_logs(node);
    assert_eq!(searched, (first..next).rev().filter(|row| row % 5 == 0).collect::<Vec<_>>());
}
