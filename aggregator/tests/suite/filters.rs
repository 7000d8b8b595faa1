//! Every parameter of `/v2/p2p` reaches the query: random queries against a naive model, through a socket.
//! (The store has its own, larger test of queries.)

use chainscope_proto::v1::{Initiator, Message, record::Kind};
use proptest::{prelude::*, test_runner::TestRunner};

use crate::common::{Server, TIME, address, message, record};

const KINDS: [&str; 4] = ["connection_message", "advertise", "operation_hashes_for_blocks", "unknown"];
const REMOTES: [&str; 3] = ["1.2.3.4:9732", "[::ffff:1.2.3.4]:9732", "[2001:db8::1]:9732"];
const ROWS: u64 = 200;

/// Row `id`: each property has another period.
fn row(id: u64) -> (i64, Message) {
    let message = Message {
        incoming: id.is_multiple_of(2),
        initiator: if id.is_multiple_of(3) { Initiator::Local } else { Initiator::Remote }.into(),
        remote: Some(address(REMOTES[id as usize % 5 % 3])),
        ..message(KINDS[id as usize % 7 % 4])
    };
    // Not in order: ids follow arrival.
    (TIME + (id * 37 % ROWS) as i64 * 250_000, message)
}

#[derive(Debug, Clone)]
struct RandomQuery {
    cursor: Option<u64>,
    limit: Option<u64>,
    forward: bool,
    kinds: Vec<usize>,
    incoming: Option<bool>,
    local: Option<bool>,
    remote: Option<usize>,
    from_ms: Option<i64>,
    to_ms: Option<i64>,
    pivot_ms: Option<i64>,
}

fn queries() -> impl Strategy<Value = RandomQuery> {
    let ms = || prop::option::weighted(0.3, -1..52_i64);
    (
        prop::option::of(0..ROWS + 20),
        prop::option::of(0..60_u64),
        any::<bool>(),
        prop::collection::vec(0..4_usize, 0..3),
        prop::option::weighted(0.4, any::<bool>()),
        prop::option::weighted(0.4, any::<bool>()),
        prop::option::weighted(0.4, 0..3_usize),
        (ms(), ms(), ms()),
    )
        .prop_map(|(cursor, limit, forward, kinds, incoming, local, remote, (from_ms, to_ms, pivot_ms))| {
            RandomQuery { cursor, limit, forward, kinds, incoming, local, remote, from_ms, to_ms, pivot_ms }
        })
}

const TIME_MS: i64 = TIME / 1_000_000;

impl RandomQuery {
    fn path(&self) -> String {
        let mut path = String::from("/v2/p2p?x=1");
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                path.push_str(&format!("&{name}={value}"));
            }
        };
        add("cursor", self.cursor.map(|cursor| cursor.to_string()));
        add("limit", self.limit.map(|limit| limit.to_string()));
        add("direction", self.forward.then(|| "forward".into()));
        let kinds: Vec<_> = self.kinds.iter().map(|kind| KINDS[*kind]).collect();
        add("types", Some(kinds.join(",")));
        add("incoming", self.incoming.map(|incoming| incoming.to_string()));
        add("source_type", self.local.map(|local| if local { "local" } else { "remote" }.into()));
        add("remote_addr", self.remote.map(|remote| REMOTES[remote].into()));
        add("from", self.from_ms.map(|ms| (TIME_MS + ms).to_string()));
        add("to", self.to_ms.map(|ms| (TIME_MS + ms).to_string()));
        add("timestamp", self.pivot_ms.map(|ms| (TIME_MS + ms).to_string()));
        path
    }

    fn answer(&self) -> Vec<u64> {
        let same_peer = |one: usize, other: usize| one == other || (one < 2 && other < 2);
        let fits = |id: &u64| {
            let (time, message) = row(*id);
            let ms = time.div_euclid(1_000_000) - TIME_MS;
            (self.kinds.is_empty() || self.kinds.iter().any(|kind| KINDS[*kind] == message.kind))
                && self.incoming.is_none_or(|incoming| incoming == message.incoming)
                && self.local.is_none_or(|local| local == (message.initiator() == Initiator::Local))
                && self.remote.is_none_or(|remote| same_peer(remote, *id as usize % 5 % 3))
                && self.from_ms.is_none_or(|from| ms >= from)
                && self.to_ms.is_none_or(|to| ms <= to)
                && self.pivot_ms.is_none_or(|pivot| if self.forward { ms > pivot } else { ms <= pivot })
                && self.cursor.is_none_or(|cursor| if self.forward { *id >= cursor } else { *id <= cursor })
        };
        let limit = self.limit.unwrap_or(100) as usize;
        if self.forward {
            (0..ROWS).filter(fits).take(limit).collect()
        } else {
            (0..ROWS).rev().filter(fits).take(limit).collect()
        }
    }
}

#[test]
fn answers_are_those_of_the_model() {
    let server = Server::start();
    server.feed("9732", (0..ROWS).map(row).map(|(time, message)| record(time, Kind::Message(message))).collect());
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() });
    runner
        .run(&queries(), |query| {
            prop_assert_eq!(server.ids(&query.path()), query.answer(), "{}", query.path());
            Ok(())
        })
        .unwrap();
}

#[test]
fn no_query_string_gets_anything_but_200_or_400() {
    let server = Server::start();
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() });
    let names = ["limit", "cursor", "types", "incoming", "from", "to", "timestamp", "remote_addr", "x"];
    let query = prop::collection::vec((prop::sample::select(names.to_vec()), "[!$-;=?-~]{0,20}"), 0..4);
    runner
        .run(&query, |pairs| {
            let query: Vec<_> = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let answer = server.get(&format!("/v2/p2p?{}", query.join("&")));
            prop_assert!(answer.status == 200 || answer.status == 400, "{}", answer.status);
            prop_assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
            Ok(())
        })
        .unwrap();
}
