//! Log messages: every filter with and without a text query, in both orders and from cursors, with resends, files that are read
//! again, evictions and reopening in between, indexed or not, compared with a naive model that splits texts by itself.

use std::{collections::BTreeMap, path::Path};

use chainscope_proto::v1::{LogEncoding, LogLevel, LogMessage, LogPosition, Record, record::Kind};
use chainscope_store::{Budget, Error, LogQuery, Order, Retention, Store, StoreOptions, TextIndexState, TextQuery};
use chainscope_testing::wait::until_true;
use proptest::prelude::*;
use rand::{Rng as _, SeedableRng as _, rngs::SmallRng, seq::IndexedRandom as _};

const NODE: &str = "node";
const AGENTS: [&str; 2] = ["host-a", "host-b"];
const LEVELS: [LogLevel; 4] = [LogLevel::Debug, LogLevel::Info, LogLevel::Warning, LogLevel::Error];
const WORDS: [&str; 11] = [
    "peer",
    "branch",
    "Head",
    "chain",
    "ADDRESS",
    "ip",
    "message",
    "connection",
    "Größe",
    "10.0.0.1:9732",
    "non-final",
];

fn long() -> String {
    "x".repeat(40)
}

/// The words of a text, by position; none for one that is too long to be found.
type Text = Vec<Option<String>>;

fn split(text: &str) -> Text {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(|word| (word.len() < 40).then(|| word.chars().flat_map(char::to_lowercase).collect())).collect()
}

fn has(text: &Text, word: &str) -> bool {
    text.iter().flatten().any(|found| found == word)
}

/// Whether these words follow one another; "*" is any.
fn follow(text: &Text, words: &[&str]) -> bool {
    let is = |found: &Option<String>, word: &str| word == "*" || found.as_deref() == Some(word);
    text.windows(words.len()).any(|window| window.iter().zip(words).all(|(found, word)| is(found, word)))
}

/// A text query, and what it means.
type Case = (String, Box<dyn Fn(&Text) -> bool>);

fn cases() -> Vec<Case> {
    fn case(query: &str, means: impl Fn(&Text) -> bool + 'static) -> Case {
        (query.to_owned(), Box::new(means))
    }
    let long = long();
    vec![
        case("peer", |text| has(text, "peer")),
        case("PEER nothing branch", |text| has(text, "peer") || has(text, "branch")),
        case("peer -branch", |text| has(text, "peer") && !has(text, "branch")),
        case("+ip +address", |text| has(text, "ip") && has(text, "address")),
        case("+head +chain +branch -peer -connection", |text| {
            ["head", "chain", "branch"].iter().all(|word| has(text, word))
                && !has(text, "peer")
                && !has(text, "connection")
        }),
        case("-peer", |text| !has(text, "peer")),
        case("\"branch head\"", |text| follow(text, &["branch", "head"])),
        case("validator.block", |text| follow(text, &["validator", "block"])),
        case("10.0.0.1:9732", |text| follow(text, &["10", "0", "0", "1", "9732"])),
        case("größe AND (ip OR NOT head)", |text| has(text, "größe") && (has(text, "ip") || !has(text, "head"))),
        case("peer AND branch OR chain AND NOT head", |text| {
            has(text, "peer") && has(text, "branch") || has(text, "chain") && !has(text, "head")
        }),
        case(&long, |_| false),
        case(&format!("\"peer {long} ip\""), |text| follow(text, &["peer", "*", "ip"])),
        case("\"peer branch", |text| has(text, "peer") || has(text, "branch")),
        case("\"%%\"", |_| false),
        case("continued", |text| has(text, "continued")),
        case("never", |_| false),
    ]
}

/// A random query with parentheses everywhere.
#[derive(Clone, Debug)]
enum Expr {
    Word(usize),
    Phrase(usize, usize),
    All(Vec<Self>),
    Any(Vec<Self>),
    Not(Box<Self>),
}

impl Expr {
    fn strategy() -> impl Strategy<Value = Self> {
        let word = || 0..WORDS.len();
        let leaf = prop_oneof![
            3 => word().prop_map(Self::Word),
            1 => (word(), word()).prop_map(|(one, other)| Self::Phrase(one, other)),
        ];
        leaf.prop_recursive(2, 9, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 1..4).prop_map(Self::All),
                prop::collection::vec(inner.clone(), 1..4).prop_map(Self::Any),
                inner.prop_map(|inner| Self::Not(Box::new(inner))),
            ]
        })
    }

    fn query(&self) -> String {
        let join =
            |all: &[Self], with: &str| format!("({})", all.iter().map(Self::query).collect::<Vec<_>>().join(with));
        match self {
            Self::Word(word) => WORDS[*word].to_owned(),
            Self::Phrase(one, other) => format!("\"{} {}\"", WORDS[*one], WORDS[*other]),
            Self::All(all) => join(all, " AND "),
            Self::Any(all) => join(all, " "),
            Self::Not(inner) => format!("(NOT {})", inner.query()),
        }
    }

    fn holds(&self, text: &Text) -> bool {
        let phrase = |wanted: &str| {
            let words = split(wanted);
            follow(text, &words.iter().map(|word| word.as_deref().unwrap_or("*")).collect::<Vec<_>>())
        };
        match self {
            Self::Word(word) => phrase(WORDS[*word]),
            Self::Phrase(one, other) => phrase(&format!("{} {}", WORDS[*one], WORDS[*other])),
            Self::All(all) => all.iter().all(|inner| inner.holds(text)),
            Self::Any(all) => all.iter().any(|inner| inner.holds(text)),
            Self::Not(inner) => !inner.holds(text),
        }
    }
}

/// A message and what a person reads in it.
#[derive(Clone)]
struct Row {
    record: Record,
    text: Text,
}

#[derive(Clone, Debug)]
enum Step {
    /// `messages` messages of one of the agents.
    Burst {
        agent: usize,
        messages: usize,
    },
    /// A batch of the last records of an agent comes again, with a new one behind.
    Resend {
        agent: usize,
        again: usize,
    },
    /// An agent that lost all it knew begins a new stream and reads its files again from somewhere.
    Reread {
        agent: usize,
        again: usize,
    },
    Sync,
    Evict {
        rows: Option<u64>,
        bytes: Option<u64>,
    },
    Reopen,
    /// Waits until everything is indexed.
    Index,
    /// Every question, answers compared.
    Ask,
}

fn step() -> impl Strategy<Value = Step> {
    let agent = || 0..AGENTS.len();
    prop_oneof![
        6 => (agent(), 1..100usize).prop_map(|(agent, messages)| Step::Burst { agent, messages }),
        2 => (agent(), 1..60usize).prop_map(|(agent, again)| Step::Resend { agent, again }),
        2 => (agent(), 1..200usize).prop_map(|(agent, again)| Step::Reread { agent, again }),
        2 => Just(Step::Sync),
        2 => (prop::option::of(1..500u64), prop::option::of(10_000..200_000u64))
            .prop_map(|(rows, bytes)| Step::Evict { rows, bytes }),
        1 => Just(Step::Reopen),
        2 => Just(Step::Index),
        1 => Just(Step::Ask),
    ]
}

/// What the store should hold.
struct Model {
    rng: SmallRng,
    epochs: [u8; AGENTS.len()],
    /// The records of each agent's stream, and how many are appended.
    streams: [Vec<Row>; AGENTS.len()],
    appended: [usize; AGENTS.len()],
    /// By id.
    rows: Vec<Row>,
    /// Of each agent and file, the greatest end that is stored.
    positions: BTreeMap<(usize, u64), u64>,
    /// Of each agent and file, the greatest end that was read.
    read: BTreeMap<(usize, u64), u64>,
    visible: u64,
}

impl Model {
    fn new(seed: u64) -> Self {
        Self {
            rng: SmallRng::seed_from_u64(seed),
            epochs: [0; AGENTS.len()],
            streams: Default::default(),
            appended: [0; AGENTS.len()],
            rows: Vec::new(),
            positions: BTreeMap::new(),
            read: BTreeMap::new(),
            visible: 0,
        }
    }

    fn make(&mut self, agent: usize) -> Row {
        let rng = &mut self.rng;
        let mut words: Vec<String> =
            (0..rng.random_range(1..7)).map(|_| WORDS.choose(rng).copied().unwrap_or_default().to_owned()).collect();
        if rng.random_ratio(1, 10) {
            words.insert(words.len() / 2, long());
        }
        let text = words.join(if rng.random() { " " } else { ", " });
        let (plain, syslog) = (LogEncoding::Plain, LogEncoding::Syslog);
        let (encoding, raw, shown) = match rng.random_range(0..6) {
            0 => (plain, format!("Mar 31 16:10:22.937 INFO {text}").into_bytes(), text),
            1 => (
                plain,
                format!("Apr  8 16:49:28.172 - validator.block: {text}").into_bytes(),
                format!("validator.block {text}"),
            ),
            2 => {
                let header = "<27>1 2021-07-14T12:00:00Z wsvl eb3fdbc716e5 665 eb3fdbc716e5 - Jul 14 12:00:00.000 WARN";
                (syslog, format!("{header} {text}").into_bytes(), text)
            }
            3 => {
                let text = format!("{text}\n    continued {}", WORDS[0]);
                (plain, text.clone().into_bytes(), text)
            }
            4 => (plain, [text.as_bytes(), b"\xff\xfe", text.as_bytes()].concat(), format!("{text} {text}")),
            _ => (plain, text.clone().into_bytes(), text),
        };
        let file = rng.random_range(0..4);
        let end = self.read.entry((agent, file)).or_default();
        *end += rng.random_range(1..100);
        let message = LogMessage {
            raw,
            encoding: encoding.into(),
            level: LEVELS.choose(rng).copied().unwrap_or_default().into(),
            // What arrives over the network has no position.
            position: (file > 0).then_some(LogPosition { file, end: *end }),
            ..LogMessage::default()
        };
        let time_ns = 10 * self.rows.len() as i64 + rng.random_range(-200..200);
        let target = ["pid 1", "pid 2"].choose(rng).copied().unwrap_or_default().to_owned();
        Row { record: Record { time_ns, target, kind: Some(Kind::LogMessage(message)) }, text: split(&shown) }
    }

    /// Appends what is in the agent's stream, from `first` on.
    fn append(&mut self, store: &Store, agent: usize, first: usize) {
        let records: Vec<Record> = self.streams[agent][first..].iter().map(|row| row.record.clone()).collect();
        let epoch = [self.epochs[agent]];
        let next = store.append(NODE, AGENTS[agent], &epoch, first as u64, &records).expect("appends");
        assert_eq!(next, self.streams[agent].len() as u64);
        for row in &self.streams[agent][self.appended[agent]..] {
            let Some(Kind::LogMessage(message)) = &row.record.kind else { unreachable!("made above") };
            if let Some(LogPosition { file, end }) = message.position {
                let stored = self.positions.entry((agent, file)).or_default();
                if end <= *stored {
                    continue;
                }
                *stored = end;
            }
            self.rows.push(row.clone());
        }
        self.appended[agent] = self.streams[agent].len();
    }

    fn sync(&mut self, store: &Store) {
        store.sync().expect("syncs");
        self.visible = self.rows.len() as u64;
    }
}

/// A filter besides the text: what it asks of the store, and what it means.
type Filter = (fn(&mut LogQuery), fn(&Record, LogLevel) -> bool);

const FILTERS: &[Filter] = &[
    (|_| (), |_, _| true),
    (|query| query.levels = vec![LogLevel::Warning], |_, level| level == LogLevel::Warning),
    (
        |query| query.levels = vec![LogLevel::Error, LogLevel::Debug, LogLevel::Fatal],
        |_, level| level == LogLevel::Error || level == LogLevel::Debug,
    ),
    (|query| query.target = Some("pid 2".to_owned()), |record, _| record.target == "pid 2"),
    (|query| query.from_ns = Some(2_000), |record, _| record.time_ns >= 2_000),
    (
        |query| {
            (query.from_ns, query.to_ns) = (Some(900), Some(4_000));
            query.levels = vec![LogLevel::Info, LogLevel::Warning];
            query.target = Some("pid 1".to_owned());
        },
        |record, level| {
            (900..4_000).contains(&record.time_ns)
                && (level == LogLevel::Info || level == LogLevel::Warning)
                && record.target == "pid 1"
        },
    ),
];

fn level(record: &Record) -> LogLevel {
    match &record.kind {
        Some(Kind::LogMessage(message)) => message.level(),
        other => panic!("{other:?}"),
    }
}

fn ask_everything(store: &Store, model: &mut Model, random: &[Expr]) {
    let (first, next) = store.visible_logs(NODE);
    assert_eq!(next, model.visible, "ids are dense");
    let middle = first + (next - first) / 2;
    let cursors = [None, Some(0), Some(first), Some(middle), next.checked_sub(1), Some(u64::MAX)];
    let random = random.iter().cloned().map(|expr| {
        let case: Case = (expr.query(), Box::new(move |text| expr.holds(text)));
        case
    });
    let texts = cases().into_iter().chain(random).map(|(query, means)| (Some(query), means));
    let everything = (None, Box::new(|_: &Text| true) as _);
    for (text, means) in std::iter::once(everything).chain(texts) {
        let parsed = text.as_deref().map(|text| TextQuery::parse(text).expect("a query"));
        // Every filter without a text, and with each text some of them.
        let rng = &mut model.rng;
        let filters: Vec<&Filter> = match &text {
            None => FILTERS.iter().collect(),
            Some(_) => FILTERS[..1].iter().chain(FILTERS[1..].choose_multiple(rng, 2)).collect(),
        };
        for (set, is) in filters {
            let is_wanted = |id: &u64| {
                let row = &model.rows[*id as usize];
                means(&row.text) && is(&row.record, level(&row.record))
            };
            let wanted: Vec<u64> = (first..next).filter(is_wanted).collect();
            for order in [Order::OldestFirst, Order::NewestFirst] {
                let cursor = *cursors.choose(&mut model.rng).expect("not empty");
                let limit = *[0, 1, 3, 100, u64::MAX].choose(&mut model.rng).expect("not empty");
                let mut query = LogQuery { order, cursor, limit, text: parsed.clone(), ..LogQuery::default() };
                set(&mut query);
                let limit = usize::try_from(limit).unwrap_or(usize::MAX);
                let mut expected = wanted.clone();
                match order {
                    Order::OldestFirst => expected.retain(|id| cursor.is_none_or(|at| *id >= at)),
                    Order::NewestFirst => {
                        expected.retain(|id| cursor.is_none_or(|at| *id <= at));
                        expected.reverse();
                    }
                }
                expected.truncate(limit);
                let found = store.log_messages(NODE, &query).expect("answers");
                let ids: Vec<u64> = found.iter().map(|(id, _)| *id).collect();
                assert_eq!(ids, expected, "{text:?}: {query:?}, rows {first} to {next}");
                assert!(found.iter().all(|(id, record)| *record == model.rows[*id as usize].record));
            }
        }
    }
    let report = store.verify().expect("reads");
    assert!(report.is_sound(), "{:#?}", report.problems);
}

fn options(segment_rows: u64) -> StoreOptions {
    StoreOptions {
        block_cache_bytes: 1 << 20,
        write_buffer_bytes: 256 << 10,
        stage_bytes: 20_000,
        ballast_bytes: 0,
        min_free_bytes: 0,
        segment_rows,
        ..StoreOptions::default()
    }
}

fn open(is_on_disk: bool, dir: &Path, options: StoreOptions) -> Store {
    if is_on_disk { Store::open(dir, options) } else { Store::in_memory(options) }.expect("opens")
}

fn wait_until_indexed(store: &Store) {
    until_true("everything is indexed", || store.text_index(NODE).pending == 0);
    assert_eq!(store.text_index_errors(), 0);
}

fn play(is_on_disk: bool, seed: u64, segment_rows: u64, steps: &[Step], random: &[Expr]) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut store = open(is_on_disk, dir.path(), options(segment_rows));
    let mut model = Model::new(seed);
    let mut first_id = 0;
    for step in steps.iter().chain([&Step::Ask, &Step::Index, &Step::Ask]) {
        match *step {
            Step::Burst { agent, messages } => {
                for _ in 0..messages {
                    let row = model.make(agent);
                    model.streams[agent].push(row);
                }
                let first = model.appended[agent];
                model.append(&store, agent, first);
            }
            Step::Resend { agent, again } => {
                let row = model.make(agent);
                model.streams[agent].push(row);
                let first = model.appended[agent].saturating_sub(again);
                model.append(&store, agent, first);
            }
            Step::Reread { agent, again } => {
                let from = model.streams[agent].len().saturating_sub(again);
                model.streams[agent].drain(..from);
                let row = model.make(agent);
                model.streams[agent].push(row);
                model.epochs[agent] += 1;
                model.appended[agent] = 0;
                model.append(&store, agent, 0);
            }
            Step::Sync => model.sync(&store),
            Step::Evict { rows, bytes } => {
                store.set_log_retention(NODE, Retention { rows, bytes, age: None }).expect("set");
                let evicted = store.evict(0).expect("evicts");
                model.visible = model.rows.len() as u64; // an eviction syncs first
                let (first, _) = store.visible_logs(NODE);
                assert_eq!(first, first_id + evicted.rows);
                first_id = first;
            }
            Step::Reopen => {
                model.sync(&store);
                if is_on_disk {
                    drop(store);
                    store = open(is_on_disk, dir.path(), options(segment_rows));
                }
            }
            Step::Index => {
                model.sync(&store);
                wait_until_indexed(&store);
            }
            Step::Ask => {
                model.sync(&store);
                ask_everything(&store, &mut model, random);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, max_shrink_iters: 10, ..ProptestConfig::default() })]

    #[test]
    fn answers_like_a_naive_model(
        seed in any::<u64>(),
        segment_rows in prop::sample::select(vec![40u64, 300, 1_000_000]),
        steps in prop::collection::vec(step(), 3..15),
        random in prop::collection::vec(Expr::strategy(), 8),
    ) {
        for is_on_disk in [true, false] {
            play(is_on_disk, seed, segment_rows, &steps, &random);
        }
    }
}

const START: i64 = 1_626_264_000;
const SECOND: i64 = 1_000_000_000;

/// A line as a TezEdge node sends it to syslog, of a second after [`START`].
fn line(second: i64, level: LogLevel, text: &str) -> Record {
    let name = match level {
        LogLevel::Warning => "WARN",
        LogLevel::Error => "ERROR",
        _ => "INFO",
    };
    let header = "<27>1 2021-07-14T12:00:00+00:00 wsvl eb3fdbc716e5 665 eb3fdbc716e5 - Jul 14 12:00:00.000";
    let message = LogMessage {
        raw: format!("{header} {name} {text}").into_bytes(),
        encoding: LogEncoding::Syslog.into(),
        level: level.into(),
        ..LogMessage::default()
    };
    Record { time_ns: (START + second) * SECOND, target: String::new(), kind: Some(Kind::LogMessage(message)) }
}

fn level_at(second: i64) -> LogLevel {
    match (START + second) % 19 {
        1 | 4 | 5 | 8 => LogLevel::Warning,
        7 | 10 => LogLevel::Error,
        _ => LogLevel::Info,
    }
}

/// The rows that a query gives, as numbers of seconds since [`START`].
fn seconds(store: &Store, query: &LogQuery) -> Vec<i64> {
    let rows = store.log_messages(NODE, query).expect("answers");
    rows.iter().map(|(_, record)| record.time_ns / SECOND - START).collect()
}

fn check_lines(store: &Store, count: i64) {
    let all = || (0..count).rev();
    assert_eq!(store.visible_logs(NODE), (0, count as u64));
    let query = |limit| LogQuery { limit, ..LogQuery::default() };
    use LogLevel::{Error, Info, Warning};
    for levels in [vec![Info], vec![Warning], vec![Error], vec![Info, Warning], vec![Info, Error], vec![Warning, Error]]
    {
        let of_levels = || all().filter(|second| levels.contains(&level_at(*second)));
        let newest = LogQuery { levels: levels.clone(), ..query(1000) };
        assert_eq!(seconds(store, &newest), of_levels().take(1000).collect::<Vec<_>>());
        let oldest = LogQuery { order: Order::OldestFirst, ..newest };
        assert_eq!(seconds(store, &oldest), of_levels().rev().take(1000).collect::<Vec<_>>());
    }
    // Pages of 1,000, from beyond the last id.
    let mut cursor = 2 * count;
    let mut seen = Vec::new();
    while cursor >= 0 {
        let page = seconds(store, &LogQuery { cursor: Some(cursor as u64), ..query(1000) });
        assert_eq!(page.len(), 1000);
        cursor = page[999] - 1;
        seen.extend(page);
    }
    assert_eq!(seen, all().collect::<Vec<_>>());
    assert_eq!(seconds(store, &LogQuery { cursor: Some(1234), ..query(1000) }), (235..=1234).rev().collect::<Vec<_>>());
    // A moment: what is at or before it, and what is after it.
    for (offset, backward, forward) in [(321, 322, 500), (6789, 500, 500), (9876, 500, 123)] {
        if offset < count {
            let behind = Some((START + offset) * SECOND + 1);
            let rows = seconds(store, &LogQuery { to_ns: behind, ..query(500) });
            assert_eq!(rows, (offset + 1 - backward..=offset).rev().collect::<Vec<_>>());
            let forward = forward.min(count - offset - 1);
            let rows = seconds(store, &LogQuery { from_ns: behind, order: Order::OldestFirst, ..query(500) });
            assert_eq!(rows, (offset + 1..=offset + forward).collect::<Vec<_>>());
        }
    }
    assert_eq!(seconds(store, &query(0)), [0; 0]);
}

#[test]
fn ten_thousand_lines_are_filtered_paged_and_searched_over_restarts() {
    const TOPICS: [&str; 8] = ["peer", "branch", "head", "chain", "address", "ip", "message", "connection"];
    let mut rng = SmallRng::seed_from_u64(6);
    for is_on_disk in [true, false] {
        let dir = tempfile::tempdir().expect("a directory");
        let mut store = open(is_on_disk, dir.path(), options(1500));
        let append = |store: &Store, records: &[Record]| {
            for records in records.chunks(250) {
                let mark = store.high_water_mark(NODE, "host", b"epoch");
                store.append(NODE, "host", b"epoch", mark, records).expect("appends");
                store.sync().expect("syncs");
            }
        };
        let mut texts = Vec::new();
        for half in [0..5000, 5000..10_000] {
            let end = half.end;
            let lines: Vec<Record> = half
                .map(|second| {
                    let words: Vec<String> = (0..16).map(|_| format!("{:016x}", rng.random::<u64>())).collect();
                    texts.push(format!("some {}", words.join(" ")));
                    line(second, level_at(second), &texts[texts.len() - 1])
                })
                .collect();
            append(&store, &lines);
            check_lines(&store, end);
            if is_on_disk {
                drop(store);
                store = open(is_on_disk, dir.path(), options(1500));
                check_lines(&store, end);
            }
        }
        let mut subsets: Vec<u32> = (1..256).collect();
        rand::seq::SliceRandom::shuffle(subsets.as_mut_slice(), &mut rng);
        let of_topics = |subset: &u32| {
            let words = TOPICS.iter().enumerate().filter(|(at, _)| subset & (1 << at) != 0);
            words.map(|(_, word)| *word).collect::<Vec<_>>().join(" ")
        };
        let topics: Vec<String> = subsets.iter().map(of_topics).collect();
        append(&store, &topics.iter().map(|text| line(0, LogLevel::Info, text)).collect::<Vec<_>>());
        texts.extend(topics);

        let search = |store: &Store, text: &str, limit| {
            let text = Some(TextQuery::parse(text).expect("a query"));
            let rows = store.log_messages(NODE, &LogQuery { text, limit, ..LogQuery::default() }).expect("answers");
            rows.into_iter().map(|(id, _)| id).collect::<Vec<_>>()
        };
        let check = |store: &Store| {
            type Means = fn(&dyn Fn(&str) -> bool) -> bool;
            let cases: [(&str, u64, Means); 9] = [
                ("peer", 1000, |has| has("peer")),
                ("peer -branch", 1000, |has| has("peer") && !has("branch")),
                ("peer chain -branch", 1000, |has| (has("peer") || has("chain")) && !has("branch")),
                ("peer -branch -head", 1000, |has| has("peer") && !has("branch") && !has("head")),
                ("ip address -peer", 1000, |has| (has("ip") || has("address")) && !has("peer")),
                ("+ip +address", 16, |has| has("ip") && has("address")),
                ("+head +chain +branch -peer -connection", 4, |has| {
                    has("head") && has("chain") && has("branch") && !has("peer") && !has("connection")
                }),
                ("\"message connection\"", 1000, |has| has("message") && has("connection")),
                ("some", 100, |has| has("some")),
            ];
            for (query, limit, means) in cases {
                let is_wanted = |text: &String| means(&|word| text.split(' ').any(|found| found == word));
                let ids = (0..).zip(&texts).filter(|(_, text)| is_wanted(text)).map(|(id, _)| id);
                let expected: Vec<u64> = ids.collect::<Vec<_>>().into_iter().rev().take(limit as usize).collect();
                assert!(!expected.is_empty());
                assert_eq!(search(store, query, limit), expected, "{query}");
            }
        };
        check(&store);
        wait_until_indexed(&store);
        assert_eq!(store.text_index(NODE), TextIndexState { rows: 10_255, pending: 0 });
        check(&store);
        if is_on_disk {
            drop(store);
            store = open(is_on_disk, dir.path(), options(1500));
            check(&store);
            wait_until_indexed(&store);
        }
        // One of 10,255 rows is found without reading the others.
        let word = texts[777].split(' ').next_back().expect("a word");
        let rare = LogQuery {
            text: Some(TextQuery::parse(word).expect("a query")),
            budget: Budget { rows: Some(200), ..Budget::default() },
            ..LogQuery::default()
        };
        assert_eq!(seconds(&store, &rare), [777]);
        // Without it the budget ends the query.
        let frequent = LogQuery { text: Some(TextQuery::parse("some").expect("a query")), limit: 1000, ..rare };
        assert!(matches!(store.log_messages(NODE, &frequent), Err(Error::Budget { .. })));
    }
}
