//! Every filter, pair of filters, order and cursor edge, with evictions, resends and reopening in between, compared
//! with a naive model in memory.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    path::Path,
};

use bytes::Bytes;
use chainscope_proto::v1::{Chunk, Initiator, Loss, Message, Record, SocketAddress, record::Kind};
use chainscope_store::{MessageQuery, Order, Retention, Store, StoreOptions};
use proptest::prelude::*;
use rand::{Rng as _, SeedableRng as _, rngs::SmallRng, seq::IndexedRandom as _};

const NODE: &str = "node";
const AGENTS: [&str; 2] = ["host-a", "host-b"];
const EPOCH: &[u8] = b"epoch";
const KINDS: [&str; 5] = ["operation", "current_head", "advertise", "metadata", "unknown"];
const PEERS: [&str; 4] = ["", "idalpha", "idbeta", "idgamma"];
const TARGETS: [&str; 2] = ["pid 1", "pid 2"];

#[derive(Clone, Debug)]
enum Step {
    /// `messages` messages of one of the agents, with their chunks.
    Burst {
        agent: usize,
        messages: usize,
    },
    /// A batch of the last records of an agent comes again, with new ones behind.
    Resend {
        agent: usize,
        again: u64,
    },
    Sync,
    WriteAppended,
    SyncWritten,
    Evict {
        rows: Option<u64>,
        bytes: Option<u64>,
    },
    Reopen,
    /// Every question, answers compared.
    Ask,
}

fn step() -> impl Strategy<Value = Step> {
    let agent = || 0..AGENTS.len();
    prop_oneof![
        6 => (agent(), 1..300usize).prop_map(|(agent, messages)| Step::Burst { agent, messages }),
        2 => (agent(), 1..100u64).prop_map(|(agent, again)| Step::Resend { agent, again }),
        2 => Just(Step::Sync),
        2 => Just(Step::WriteAppended),
        2 => Just(Step::SyncWritten),
        2 => (prop::option::of(1..900u64), prop::option::of(20_000..300_000u64))
            .prop_map(|(rows, bytes)| Step::Evict { rows, bytes }),
        1 => Just(Step::Reopen),
        1 => Just(Step::Ask),
    ]
}

/// What the store should hold.
struct Model {
    rng: SmallRng,
    /// All records of each agent's stream.
    streams: [Vec<Record>; AGENTS.len()],
    /// How much of each stream is appended, and how much of it is synced.
    appended: [u64; AGENTS.len()],
    /// Messages in the order of their ids; appended, and how many of them are certainly written, and synced.
    rows: Vec<Record>,
    written: u64,
    visible: u64,
    /// With the number of messages that had arrived before.
    chunks: BTreeMap<(u64, bool, u64), (u64, Record)>,
    /// By id of a message, the first id that was kept when it arrived.
    first_ids: Vec<u64>,
    next_chunk: BTreeMap<(u64, bool), u64>,
    /// Messages whose chunks were sent and whose row comes later, by agent.
    delayed: [VecDeque<Record>; AGENTS.len()],
}

impl Model {
    fn new(seed: u64) -> Self {
        Self {
            rng: SmallRng::seed_from_u64(seed),
            streams: Default::default(),
            appended: Default::default(),
            rows: Vec::new(),
            written: 0,
            visible: 0,
            chunks: BTreeMap::new(),
            first_ids: Vec::new(),
            next_chunk: BTreeMap::new(),
            delayed: Default::default(),
        }
    }

    /// Records of one message: its chunks, then the message itself or another that was held back.
    fn make_message(&mut self, agent: usize) -> Vec<Record> {
        let rng = &mut self.rng;
        // Connections of an agent are its own: streams are not ordered among each other.
        let connection = 10 * agent as u64 + rng.random_range(0..4);
        let incoming = rng.random();
        let next = self.next_chunk.entry((connection, incoming)).or_default();
        if rng.random_ratio(1, 50) {
            *next += 3; // chunks that were lost on the way
        }
        let first_chunk = *next;
        let last_chunk = first_chunk + [0, 0, 0, 1, 4][rng.random_range(0..5)];
        *next = last_chunk + 1;
        // Time goes on, but not steadily.
        let time_ns = 10 * self.rows.len() as i64 + rng.random_range(-200..200);
        let target = TARGETS.choose(rng).copied().unwrap_or_default().to_owned();
        let mut records: Vec<Record> = (first_chunk..=last_chunk)
            .map(|counter| {
                let wire = Bytes::from(format!("{connection} {incoming} {counter}"));
                let chunk = Chunk { connection, incoming, counter, wire, ..Chunk::default() };
                Record { time_ns, target: target.clone(), kind: Some(Kind::Chunk(chunk)) }
            })
            .collect();
        let remote = match rng.random_range(0..6) {
            0 => Some(SocketAddress { ip: vec![10, 0, 0, 1], port: 9732 }),
            1 => Some(SocketAddress { ip: vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1], port: 9732 }),
            2 => Some(SocketAddress { ip: vec![10, 0, 0, 1], port: 9733 }),
            3 => Some(SocketAddress { ip: vec![32, 1, 13, 184, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], port: 9732 }),
            4 => Some(SocketAddress { ip: vec![1, 2, 3], port: 70_000 }), // no address
            _ => None,
        };
        let message = Message {
            connection,
            incoming,
            kind: KINDS.choose(rng).copied().unwrap_or_default().to_owned(),
            first_chunk,
            last_chunk,
            initiator: rng.random_range(0..4), // 3 is unknown to this build
            remote,
            peer_id: PEERS.choose(rng).copied().unwrap_or_default().to_owned(),
            ..Message::default()
        };
        let message = Record { time_ns, target, kind: Some(Kind::Message(message)) };
        if rng.random_ratio(1, 20) {
            self.delayed[agent].push_back(message);
        } else {
            records.push(message);
        }
        if rng.random_ratio(1, 15) {
            records.extend(self.delayed[agent].pop_front());
        }
        if rng.random_ratio(1, 40) {
            records.push(Record { time_ns, target: String::new(), kind: Some(Kind::Loss(Loss::default())) });
        }
        records
    }

    /// Appends what is in the agent's stream, from `first` on.
    fn append(&mut self, store: &Store, agent: usize, first: u64) {
        let stream = &self.streams[agent];
        let (first_id, _) = store.visible(NODE);
        let next = store.append(NODE, AGENTS[agent], EPOCH, first, &stream[first as usize..]).expect("appends");
        assert_eq!(next, stream.len() as u64);
        for record in &stream[self.appended[agent] as usize..] {
            match &record.kind {
                Some(Kind::Message(_)) => {
                    self.rows.push(record.clone());
                    self.first_ids.push(first_id);
                }
                Some(Kind::Chunk(chunk)) => {
                    let arrived = self.rows.len() as u64;
                    self.chunks.insert((chunk.connection, chunk.incoming, chunk.counter), (arrived, record.clone()));
                }
                _ => {}
            }
        }
        self.appended[agent] = next;
    }

    fn sync(&mut self, store: &Store) {
        store.sync().expect("syncs");
        self.all_synced();
    }

    fn all_synced(&mut self) {
        (self.written, self.visible) = (self.rows.len() as u64, self.rows.len() as u64);
    }
}

/// A filter: what it asks of the store, and what it means.
type Filter = (&'static str, fn(&mut MessageQuery), fn(&Record, &Message) -> bool);

fn remote_is(message: &Message, ip: [u8; 4], port: u32) -> bool {
    message
        .remote
        .as_ref()
        .is_some_and(|remote| remote.ip.ends_with(&ip) && remote.port == port && remote.ip.len() % 4 == 0)
}

const FILTERS: &[Filter] = &[
    ("kind", |q| q.kinds = vec!["operation".into()], |_, m| m.kind == "operation"),
    (
        "kinds",
        |q| q.kinds = vec!["unknown".into(), "advertise".into(), "never".into(), "unknown".into()],
        |_, m| m.kind == "unknown" || m.kind == "advertise",
    ),
    ("no kind", |q| q.kinds = vec!["never".into()], |_, _| false),
    ("incoming", |q| q.incoming = Some(true), |_, m| m.incoming),
    ("outgoing", |q| q.incoming = Some(false), |_, m| !m.incoming),
    ("local", |q| q.initiator = Some(Initiator::Local), |_, m| m.initiator == 1),
    ("remote", |q| q.initiator = Some(Initiator::Remote), |_, m| m.initiator == 2),
    ("ipv4", |q| q.remote = "10.0.0.1:9732".parse().ok(), |_, m| remote_is(m, [10, 0, 0, 1], 9732)),
    (
        "mapped",
        |q| q.remote = "[::ffff:10.0.0.1]:9733".parse::<SocketAddr>().ok(),
        |_, m| remote_is(m, [10, 0, 0, 1], 9733),
    ),
    ("ipv6", |q| q.remote = "[2001:db8::1]:9732".parse().ok(), |_, m| remote_is(m, [0, 0, 0, 1], 9732)),
    ("peer", |q| q.peer_id = Some("idalpha".into()), |_, m| m.peer_id == "idalpha"),
    ("no peer", |q| q.peer_id = Some(String::new()), |_, m| m.peer_id.is_empty()),
    ("target", |q| q.target = Some("pid 2".into()), |r, _| r.target == "pid 2"),
    ("from", |q| q.from_ns = Some(4_000), |r, _| r.time_ns >= 4_000),
    ("to", |q| q.to_ns = Some(9_000), |r, _| r.time_ns < 9_000),
    ("between", |q| (q.from_ns, q.to_ns) = (Some(7_900), Some(8_000)), |r, _| (7_900..8_000).contains(&r.time_ns)),
];

fn ask_everything(store: &Store, model: &mut Model) {
    let (first, next) = store.visible(NODE);
    assert_eq!(next, model.visible, "ids are dense");
    assert!(first <= next);
    let rows: Vec<(u64, &Record, &Message)> = (first..next)
        .map(|id| match &model.rows[id as usize] {
            record @ Record { kind: Some(Kind::Message(message)), .. } => (id, record, message),
            other => panic!("{other:?}"),
        })
        .collect();
    let middle = first + (next - first) / 2;
    let cursors = [
        None,
        Some(0),
        first.checked_sub(1),
        Some(first),
        Some(middle),
        next.checked_sub(1),
        Some(next),
        Some(u64::MAX),
    ];
    let none: &Filter = &("none", |_| (), |_, _| true);
    let mut pairs: Vec<(&Filter, &Filter)> = vec![(none, none)];
    for (at, one) in FILTERS.iter().enumerate() {
        // Later filters of the same kind overwrite earlier ones: those pairs are no pairs.
        pairs.push((one, none));
        pairs.extend(FILTERS[at + 1..].iter().map(|other| (one, other)));
    }
    for ((name_1, set_1, is_1), (name_2, set_2, is_2)) in pairs {
        let mut base = MessageQuery::default();
        set_1(&mut base);
        let before = format!("{base:?}");
        let mut with_1_last = MessageQuery::default();
        set_2(&mut with_1_last);
        set_1(&mut with_1_last);
        set_2(&mut base);
        if format!("{base:?}") != format!("{with_1_last:?}") {
            continue; // one overwrites the other
        }
        assert!(*name_2 == "none" || format!("{base:?}") != before);
        let wanted: Vec<_> =
            rows.iter().filter(|(_, record, message)| is_1(record, message) && is_2(record, message)).collect();
        for order in [Order::OldestFirst, Order::NewestFirst] {
            for cursor in cursors {
                let limit = *[0, 1, 3, 100, u64::MAX].choose(&mut model.rng).expect("not empty");
                let query = MessageQuery { order, cursor, limit, ..base.clone() };
                let limit = usize::try_from(limit).unwrap_or(usize::MAX);
                let expected: Vec<u64> = match order {
                    Order::OldestFirst => wanted
                        .iter()
                        .map(|row| row.0)
                        .filter(|id| cursor.is_none_or(|at| *id >= at))
                        .take(limit)
                        .collect(),
                    Order::NewestFirst => wanted
                        .iter()
                        .rev()
                        .map(|row| row.0)
                        .filter(|id| cursor.is_none_or(|at| *id <= at))
                        .take(limit)
                        .collect(),
                };
                let found = store.messages(NODE, &query).expect("answers");
                let ids: Vec<u64> = found.iter().map(|(id, _)| *id).collect();
                assert_eq!(ids, expected, "{name_1} and {name_2}: {query:?}, rows {first} to {next}");
                assert!(found.iter().all(|(id, record)| *record == model.rows[*id as usize]));
            }
        }
    }
    for (id, record, message) in rows.iter().step_by(1 + rows.len() / 100) {
        assert_eq!(store.message(NODE, *id).expect("answers").as_ref(), Some(*record));
        let found = store.message_chunks(NODE, *id).expect("answers").expect("is there");
        let mut found = found.iter().peekable();
        for counter in message.first_chunk..=message.last_chunk {
            let (arrived, chunk) = &model.chunks[&(message.connection, message.incoming, counter)];
            // A chunk whose message took so long that its segment was dropped meanwhile may be gone; no other.
            let first_id = model.first_ids[*id as usize];
            if found.next_if_eq(&chunk).is_none() {
                assert!(first_id > 0 && *arrived <= first_id, "chunk {counter} of {id}, {arrived} {first_id}");
            }
        }
        assert_eq!(found.next(), None);
    }
    for absent in [first.checked_sub(1), Some(next), Some(u64::MAX)].into_iter().flatten() {
        assert_eq!(store.message(NODE, absent).expect("answers"), None);
        assert_eq!(store.message_chunks(NODE, absent).expect("answers"), None);
    }
    let report = store.verify().expect("reads");
    assert!(report.is_sound(), "{:#?}", report.problems);
}

fn options(segment_rows: u64, stage_bytes: usize) -> StoreOptions {
    StoreOptions {
        block_cache_bytes: 1 << 20,
        write_buffer_bytes: 256 << 10,
        stage_bytes,
        ballast_bytes: 0,
        min_free_bytes: 0,
        segment_rows,
        ..StoreOptions::default()
    }
}

/// The engine that a run is played on.
#[derive(Clone, Copy, Debug)]
enum Engine {
    #[cfg(feature = "rocksdb")]
    RocksDb,
    Memory,
}

impl Engine {
    const ALL: &[Self] = &[
        #[cfg(feature = "rocksdb")]
        Self::RocksDb,
        Self::Memory,
    ];

    fn open(self, dir: &Path, options: StoreOptions) -> Store {
        match self {
            #[cfg(feature = "rocksdb")]
            Self::RocksDb => Store::open(dir, options).expect("opens"),
            Self::Memory => {
                let _ = dir;
                Store::in_memory(options).expect("opens")
            }
        }
    }

    /// What is in memory does not outlive its store.
    fn reopen(self, store: Store, dir: &Path, options: StoreOptions) -> Store {
        match self {
            #[cfg(feature = "rocksdb")]
            Self::RocksDb => {
                drop(store);
                self.open(dir, options)
            }
            Self::Memory => {
                let _ = (dir, options);
                store
            }
        }
    }
}

fn play(engine: Engine, seed: u64, segment_rows: u64, stage_bytes: usize, steps: &[Step]) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut store = engine.open(dir.path(), options(segment_rows, stage_bytes));
    let mut model = Model::new(seed);
    let mut first_id = 0;
    for step in steps.iter().chain([&Step::Ask]) {
        match *step {
            Step::Burst { agent, messages } => {
                for _ in 0..messages {
                    let records = model.make_message(agent);
                    model.streams[agent].extend(records);
                }
                let first = model.appended[agent];
                model.append(&store, agent, first);
            }
            Step::Resend { agent, again } => {
                let records = model.make_message(agent);
                model.streams[agent].extend(records);
                let first = model.appended[agent].saturating_sub(again);
                model.append(&store, agent, first);
            }
            Step::Sync => model.sync(&store),
            Step::WriteAppended => {
                let before = store.visible(NODE);
                store.write_appended().expect("writes");
                assert_eq!(store.visible(NODE), before);
                model.written = model.rows.len() as u64;
            }
            Step::SyncWritten => {
                store.sync_written().expect("syncs");
                // A large append is written on its way.
                model.visible = store.visible(NODE).1;
                assert!((model.written..=model.rows.len() as u64).contains(&model.visible));
            }
            Step::Evict { rows, bytes } => {
                store.set_retention(NODE, Retention { rows, bytes, age: None }).expect("set");
                let evicted = store.evict(0).expect("evicts");
                model.all_synced(); // an eviction syncs first
                let (first, next) = store.visible(NODE);
                assert_eq!(first, first_id + evicted.rows);
                first_id = first;
                if let Some(rows) = rows {
                    // The segment that was open may have been larger than the new limit asks for.
                    assert!(next - first <= rows + segment_rows.max(rows / 16), "{first} {next}");
                }
            }
            Step::Reopen => {
                model.sync(&store);
                store = engine.reopen(store, dir.path(), options(segment_rows, stage_bytes));
            }
            Step::Ask => {
                model.sync(&store);
                ask_everything(&store, &mut model);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 30, ..ProptestConfig::default() })]

    #[test]
    fn answers_like_a_naive_model(
        seed in any::<u64>(),
        segment_rows in prop::sample::select(vec![7u64, 60, 700, 1_000_000]),
        stage_bytes in prop::sample::select(vec![2_000usize, 1 << 20]),
        steps in proptest::collection::vec(step(), 5..25),
    ) {
        for &engine in Engine::ALL {
            play(engine, seed, segment_rows, stage_bytes, &steps);
        }
    }
}

/// The same with enough rows that several blocks of 1,024 ids lie in a segment and segments begin within blocks.
#[test]
fn answers_like_a_naive_model_over_many_blocks() {
    let burst = |agent| Step::Burst { agent, messages: 900 };
    let steps = [
        burst(0),
        burst(1),
        Step::Ask,
        burst(0),
        Step::Reopen,
        burst(1),
        burst(0),
        Step::Resend { agent: 0, again: 500 },
        Step::Evict { rows: Some(4_000), bytes: None },
        Step::Ask,
        burst(1),
    ];
    for &engine in Engine::ALL {
        play(engine, 1, 2_500, 1 << 20, &steps);
    }
}
