//! Events of tracepoints: every filter in both orders and from cursors, with resends, evictions and reopening in between, on disk
//! and in memory, compared with a naive model. Log messages are appended beside them: each has ids and limits of its own.
#![expect(clippy::unwrap_used, reason = "a panic shows the line of the failure")]

mod common;

use chainscope_proto::v1::{LogMessage, Record, TraceEvent, TraceValue, record::Kind, trace_value};
use chainscope_store::{Budget, Error, Order, Retention, Store, TraceQuery};
use common::open;
use proptest::prelude::*;
use rand::{Rng as _, SeedableRng as _, rngs::SmallRng, seq::IndexedRandom as _};

const NODE: &str = "node";
const AGENT: &str = "host";
const EPOCH: [u8; 1] = [1];
const TRACEPOINTS: [(&str, &str); 5] = [
    ("net", "inbound_message"),
    ("net", "outbound_message"),
    ("mempool", "added"),
    ("validation", "block_connected"),
    // Another provider's tracepoint of the same name.
    ("mempool", "inbound_message"),
];
const PEERS: [&str; 4] = ["1", "2", "203.0.113.7:8333", "\u{1b}[2J"];

fn long_peer() -> String {
    "x".repeat(300)
}

fn event(rng: &mut SmallRng, number: i64) -> Record {
    let (provider, name) = *TRACEPOINTS.choose(rng).unwrap();
    let mut peers: Vec<String> =
        (0..rng.random_range(0..3)).map(|_| (*PEERS.choose(rng).unwrap()).to_owned()).collect();
    if rng.random_ratio(1, 10) {
        // Values are cut in keys, and compared whole.
        peers.push(long_peer() + if rng.random_bool(0.5) { "a" } else { "b" });
    }
    let payload = vec![0; rng.random_range(0..200)];
    let event = TraceEvent {
        provider: provider.to_owned(),
        name: name.to_owned(),
        monotonic_ns: 7,
        pid: rng.random_range(1..4),
        peers,
        attachment: b"location".as_slice().into(),
        arguments: vec![TraceValue { kind: Some(trace_value::Kind::Text(payload.into())) }],
        ..TraceEvent::default()
    };
    let time_ns = 10 * number + rng.random_range(-200..200);
    let target = ["pid 1", "pid 2"].choose(rng).copied().unwrap().to_owned();
    Record { time_ns, target, kind: Some(Kind::TraceEvent(event)) }
}

fn of(record: &Record) -> &TraceEvent {
    match &record.kind {
        Some(Kind::TraceEvent(event)) => event,
        other => panic!("{other:?}"),
    }
}

/// A filter: what it asks of the store, and what it means.
type Filter = (fn(&mut TraceQuery), fn(&Record) -> bool);

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

const FILTERS: &[Filter] = &[
    (|_| (), |_| true),
    (|query| query.providers = texts(&["net"]), |record| of(record).provider == "net"),
    (|query| query.names = texts(&["inbound_message"]), |record| of(record).name == "inbound_message"),
    (
        |query| {
            (query.providers, query.names) =
                (texts(&["net", "validation"]), texts(&["inbound_message", "block_connected"]))
        },
        |record| matches!((&*of(record).provider, &*of(record).name), ("net", "inbound_message") | ("validation", _)),
    ),
    (|query| query.pids = vec![2, 3, 9], |record| of(record).pid > 1),
    (
        |query| query.peers = texts(&["203.0.113.7:8333"]),
        |record| of(record).peers.iter().any(|peer| peer.starts_with('2') && peer.len() > 1),
    ),
    (
        |query| query.peers = texts(&["1", "\u{1b}[2J"]),
        |record| of(record).peers.iter().any(|peer| peer == "1" || peer.starts_with('\u{1b}')),
    ),
    (|query| query.peers = vec![long_peer() + "a"], |record| of(record).peers.iter().any(|peer| peer.ends_with("xa"))),
    (|query| query.peers = texts(&["nobody"]), |_| false),
    (|query| query.target = Some("pid 2".to_owned()), |record| record.target == "pid 2"),
    (|query| query.from_ns = Some(2_000), |record| record.time_ns >= 2_000),
    (
        |query| {
            (query.from_ns, query.to_ns) = (Some(900), Some(4_000));
            (query.names, query.pids) = (texts(&["added", "inbound_message"]), vec![1]);
            query.target = Some("pid 1".to_owned());
        },
        |record| {
            (900..4_000).contains(&record.time_ns)
                && ["added", "inbound_message"].contains(&&*of(record).name)
                && of(record).pid == 1
                && record.target == "pid 1"
        },
    ),
];

#[derive(Clone, Debug)]
enum Step {
    Append(usize),
    /// Sends the last records again.
    Resend(usize),
    Evict(Option<u64>, Option<u64>),
    Reopen,
    Ask,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..400usize).prop_map(Step::Append),
        1 => (1..50usize).prop_map(Step::Resend),
        1 => (prop::option::of(30..500u64), prop::option::of(20_000..200_000u64)).prop_map(|(rows, bytes)| Step::Evict(rows, bytes)),
        1 => Just(Step::Reopen),
        2 => Just(Step::Ask),
    ]
}

/// All records of the stream, and the events of them.
struct Model {
    stream: Vec<Record>,
    rows: Vec<Record>,
    rng: SmallRng,
}

impl Model {
    fn append(&mut self, store: &Store, first: usize) {
        let next = store.append(NODE, AGENT, &EPOCH, first as u64, &self.stream[first..]).unwrap();
        assert_eq!(next, self.stream.len() as u64);
        store.sync().unwrap();
    }

    fn add(&mut self, count: usize) {
        for _ in 0..count {
            let record = event(&mut self.rng, self.rows.len() as i64);
            self.rows.push(record.clone());
            self.stream.push(record);
            if self.rng.random_ratio(1, 5) {
                let log = LogMessage { raw: b"text".to_vec(), ..LogMessage::default() };
                self.stream.push(Record { time_ns: 0, target: String::new(), kind: Some(Kind::LogMessage(log)) });
            }
        }
    }
}

fn ask_everything(store: &Store, model: &mut Model) {
    let (first, next) = store.visible_traces(NODE);
    assert_eq!(next, model.rows.len() as u64, "ids are dense");
    let cursors = [None, Some(0), Some(first), Some(first + (next - first) / 2), next.checked_sub(1), Some(u64::MAX)];
    for (set, is) in FILTERS {
        let wanted: Vec<u64> = (first..next).filter(|id| is(&model.rows[*id as usize])).collect();
        for order in [Order::OldestFirst, Order::NewestFirst] {
            let cursor = *cursors.choose(&mut model.rng).unwrap();
            let limit = *[0, 1, 3, 100, u64::MAX].choose(&mut model.rng).unwrap();
            let mut query = TraceQuery { order, cursor, limit, ..TraceQuery::default() };
            set(&mut query);
            let mut expected = wanted.clone();
            match order {
                Order::OldestFirst => expected.retain(|id| cursor.is_none_or(|at| *id >= at)),
                Order::NewestFirst => {
                    expected.retain(|id| cursor.is_none_or(|at| *id <= at));
                    expected.reverse();
                }
            }
            expected.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
            let found = store.trace_events(NODE, &query).unwrap();
            let ids: Vec<u64> = found.iter().map(|(id, _)| *id).collect();
            assert_eq!(ids, expected, "{query:?}, rows {first} to {next}");
            assert!(found.iter().all(|(id, record)| *record == model.rows[*id as usize]));
        }
    }
    let report = store.verify().unwrap();
    assert!(report.is_sound(), "{:#?}", report.problems);
}

fn play(is_on_disk: bool, seed: u64, segment_rows: u64, steps: &[Step]) {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(is_on_disk.then_some(dir.path()), segment_rows);
    let mut model = Model { stream: Vec::new(), rows: Vec::new(), rng: SmallRng::seed_from_u64(seed) };
    let mut evicted = 0;
    for step in steps.iter().chain([&Step::Ask, &Step::Reopen, &Step::Ask]) {
        match *step {
            Step::Append(count) => {
                let first = model.stream.len();
                model.add(count);
                model.append(&store, first);
            }
            Step::Resend(again) => {
                let first = model.stream.len().saturating_sub(again);
                model.add(1);
                model.append(&store, first);
            }
            Step::Evict(rows, bytes) => {
                store.set_trace_retention(NODE, Retention { rows, bytes, age: None }).unwrap();
                evicted += store.evict(0).unwrap().rows;
                assert_eq!(store.visible_traces(NODE).0, evicted);
                assert_eq!(store.visible_logs(NODE).0, 0, "log messages have limits of their own");
            }
            Step::Reopen if is_on_disk => {
                drop(store);
                store = open(is_on_disk.then_some(dir.path()), segment_rows);
            }
            Step::Reopen => {}
            Step::Ask => ask_everything(&store, &mut model),
        }
    }
    let logs = model.stream.len() - model.rows.len();
    assert_eq!(store.visible_logs(NODE), (0, logs as u64));
    if let Some(info) = store.nodes().into_iter().find(|info| info.name == NODE) {
        assert_eq!((info.totals.trace_events, info.totals.evicted_trace_events), (model.rows.len() as u64, evicted));
        assert_eq!(info.trace_ids, evicted..model.rows.len() as u64);
        assert_eq!(info.rows, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, max_shrink_iters: 10, ..ProptestConfig::default() })]

    #[test]
    fn answers_like_a_naive_model(
        seed in any::<u64>(),
        segment_rows in prop::sample::select(vec![40u64, 300, 1_000_000]),
        steps in prop::collection::vec(step(), 3..15),
    ) {
        for is_on_disk in [true, false] {
            play(is_on_disk, seed, segment_rows, &steps);
        }
    }
}

#[test]
fn a_query_that_examines_too_much_is_an_error() {
    let store = open(None, 1_000_000);
    let mut model = Model { stream: Vec::new(), rows: Vec::new(), rng: SmallRng::seed_from_u64(1) };
    model.add(500);
    model.append(&store, 0);
    let budget = Budget { rows: Some(100), ..Budget::default() };
    let query = TraceQuery { limit: u64::MAX, budget, ..TraceQuery::default() };
    assert!(matches!(store.trace_events(NODE, &query), Err(Error::Budget { examined: 100 })));
}

#[test]
fn events_of_any_age_are_evicted_by_their_own_limit() {
    let store = open(None, 10);
    let mut model = Model { stream: Vec::new(), rows: Vec::new(), rng: SmallRng::seed_from_u64(2) };
    model.add(95);
    model.append(&store, 0);
    let age = Some(std::time::Duration::from_nanos(1));
    store.set_trace_retention(NODE, Retention { age, ..Retention::default() }).unwrap();
    let evicted = store.evict(i64::MAX / 2).unwrap();
    assert_eq!(evicted.rows, 95);
    assert_eq!(store.visible_traces(NODE), (95, 95));
    let logs = store.visible_logs(NODE);
    assert_eq!(logs.0, 0);
}
