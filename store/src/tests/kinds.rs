//! A kind of fact that only this test declares: filters, paging, eviction, the check of the database, crashes.

use std::{fs, path::Path, sync::Arc};

use chainscope_proto::v1::{Record, TargetEvent, record::Kind};

use super::support::*;
use crate::{
    Error, Order, Retention, Store, StoreOptions,
    engine::{Batch, Engine, memory::MemoryEngine, rocks::Rocks},
    keys,
    kind::{FactKind, Index, RetentionClass},
    network,
    query::{Budget, Filter, Query},
    schema::Schema,
};

/// Target events in place of log lines, found by text and target; their time is not that of the record.
static NOTES: FactKind = FactKind {
    name: "note",
    table: 128,
    accepts: |record| matches!(record.kind, Some(Kind::TargetEvent(_))),
    time: |record| 10 * record.time_ns,
    indexes: &[
        Index {
            values: |record, add| {
                if let Some(Kind::TargetEvent(note)) = &record.kind {
                    note.event.split(' ').for_each(|word| add(word.as_bytes()));
                }
            },
        },
        Index { values: |record, add| add(record.target.as_bytes()) },
    ],
    text: None,
    position: None,
    group: None,
    retention: RetentionClass::Records,
    counted: true,
    total: |totals, _| totals.target_events += 1,
};

static SCHEMA: Schema = &[&network::MESSAGES, &NOTES, &network::CONNECTION_EVENTS, &network::LOSSES];

fn in_memory(options: StoreOptions) -> Store {
    Store::with_engine(Arc::new(MemoryEngine::new(u64::MAX)), options, SCHEMA).unwrap()
}

fn on_disk(dir: &Path, options: StoreOptions) -> Store {
    Store::with_engine(Arc::new(Rocks::open(dir, &options).unwrap()), options, SCHEMA).unwrap()
}

/// The number, twice a word of a few, and now and then a text that is too long for a key.
fn note(number: u64) -> Record {
    let long = "x".repeat(300);
    let tail = if number % 50 == 7 { format!("{long}{}", number % 100) } else { format!("w{}", number % 7) };
    let event = format!("n{} {tail}", number % 3);
    let target = format!("pid {}", number % 2);
    Record {
        time_ns: number as i64,
        target,
        kind: Some(Kind::TargetEvent(TargetEvent { event, ..TargetEvent::default() })),
    }
}

fn query(filters: &[(usize, &[&str])], order: Order, cursor: Option<u64>, limit: u64) -> Query {
    let filter = |(index, values): &(usize, &[&str])| Filter {
        index: *index,
        values: values.iter().map(|value| value.as_bytes().to_vec()).collect(),
    };
    let filters = filters.iter().map(filter).collect();
    Query { cursor, limit, order, filters, text: None, from_ns: None, to_ns: None, budget: Budget::default() }
}

fn ids(store: &Store, query: &Query) -> Vec<u64> {
    let found = store.facts(NODE, &NOTES, query).unwrap();
    found.iter().for_each(|(id, record)| assert_eq!(*record, note(*id)));
    found.into_iter().map(|(id, _)| id).collect()
}

/// Notes and messages alternate, so that both have ids of their own, dense from 0.
fn fill(store: &Store, notes: std::ops::Range<u64>) {
    for number in notes {
        put(store, &[note(number)]);
        if number % 4 == 0 {
            put(store, &traffic(1, number / 4, 1));
        }
    }
}

fn check_queries(store: &Store, kept: std::ops::Range<u64>) {
    let matching = |matches: &dyn Fn(u64) -> bool| kept.clone().filter(|id| matches(*id)).collect::<Vec<_>>();
    let long = format!("{}7", "x".repeat(300));
    /// Filters by the position of an index, and which ids they select.
    type Case<'a> = (&'a [(usize, &'a [&'a str])], Box<dyn Fn(u64) -> bool>);
    let cases: [Case<'_>; 6] = [
        (&[], Box::new(|_| true)),
        (&[(0, &["n1"])], Box::new(|id| id % 3 == 1)),
        (&[(0, &["n1", "w2", "w2"])], Box::new(|id| id % 3 == 1 || (id % 50 != 7 && id % 7 == 2))),
        (&[(0, &["n0"]), (1, &["pid 1"])], Box::new(|id| id % 3 == 0 && id % 2 == 1)),
        (&[(0, &[&long])], Box::new(|id| id % 100 == 7)),
        (&[(1, &["pid 9"])], Box::new(|_| false)),
    ];
    for (filters, matches) in cases {
        let mut expected = matching(&*matches);
        assert_eq!(ids(store, &query(filters, Order::OldestFirst, None, u64::MAX)), expected);
        // In pages, each from the id before the last one of the page before.
        expected.reverse();
        let (mut found, mut cursor) = (Vec::new(), None);
        loop {
            let page = ids(store, &query(filters, Order::NewestFirst, cursor, 13));
            found.extend_from_slice(&page);
            match page.last().and_then(|last| last.checked_sub(1)) {
                Some(next) if page.len() == 13 => cursor = Some(next),
                _ => break,
            }
        }
        assert_eq!(found, expected);
    }
    let times = Query { from_ns: Some(3_000), to_ns: Some(3_100), ..query(&[], Order::OldestFirst, None, 100) };
    assert_eq!(ids(store, &times), matching(&|id| (300..310).contains(&id)));
    assert_sound(store);
}

#[test]
fn a_declared_kind_is_filtered_paged_and_evicted() {
    let dir = tempfile::tempdir().unwrap();
    for store in [in_memory(small_segments(100)), on_disk(dir.path(), small_segments(100))] {
        let seen = store.generation();
        fill(&store, 0..1500);
        assert_ne!(store.generation(), seen, "subscribers are notified");
        check_queries(&store, 0..1500);
        assert_eq!(store.visible(NODE), (0, 375), "messages have ids of their own");
        assert_eq!(store.nodes()[0].totals.target_events, 1500);

        store.set_retention(NODE, Retention { rows: Some(400), ..Retention::default() }).unwrap();
        let evicted = store.evict(0).unwrap();
        let first = ids(&store, &query(&[], Order::OldestFirst, None, 1))[0];
        assert_eq!(evicted.rows, first + store.visible(NODE).0, "both kinds count against the limit");
        assert!((1100..1300).contains(&first), "{first}");
        check_queries(&store, first..1500);
        fill(&store, 1500..1600);
        check_queries(&store, first..1600);
    }
}

#[test]
fn a_declared_kind_survives_a_crash_with_its_mark() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("db");
    let store = on_disk(&db, small_segments(40));
    fill(&store, 0..100);
    let synced = store.log_files().unwrap();
    fill(&store, 100..140);
    let after = store.log_files().unwrap();
    assert_eq!((synced.len(), after.len()), (1, 1));
    let (from, to) = (synced[0].1, after[0].1);
    for step in 0..=12 {
        let copied = dir.path().join(format!("cut {step}"));
        fs::create_dir(&copied).unwrap();
        for path in fs::read_dir(&db).unwrap().map(|entry| entry.unwrap().path()) {
            if path.file_name().is_some_and(|name| name != "LOCK") {
                fs::copy(&path, copied.join(path.file_name().unwrap())).unwrap();
            }
        }
        let log = copied.join(after[0].0.file_name().unwrap());
        fs::OpenOptions::new().write(true).open(log).unwrap().set_len(from + (to - from) * step / 12).unwrap();
        let crashed = on_disk(&copied, small_segments(40));
        let rows = ids(&crashed, &query(&[], Order::OldestFirst, None, u64::MAX)).len() as u64;
        assert!((100..=140).contains(&rows));
        let messages = crashed.visible(NODE).1;
        assert_eq!(crashed.high_water_mark(NODE, AGENT, EPOCH), rows + 2 * messages);
        check_queries(&crashed, 0..rows);
        put(&crashed, &[note(rows)]);
        assert_sound(&crashed);
    }
}

#[test]
fn a_kind_can_be_added_to_a_database_and_be_unknown_to_an_older_build() {
    static OLDER: Schema = &[&network::MESSAGES, &network::CONNECTION_EVENTS, &network::LOSSES];
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new(u64::MAX));
    let open = |schema| Store::with_engine(Arc::clone(&engine), small_segments(100), schema).unwrap();
    let notes = |store: &Store| ids(store, &query(&[], Order::OldestFirst, None, u64::MAX));

    put(&open(OLDER), &traffic(2, 0, 130));
    // Into a segment that the older build opened, then over the end of it.
    let upgraded = open(SCHEMA);
    fill(&upgraded, 0..20);
    assert_eq!(notes(&upgraded), (0..20).collect::<Vec<_>>());
    assert_sound(&upgraded);
    fill(&upgraded, 20..150);
    drop(upgraded);
    // The older build opens further segments, which do not know the kind.
    let rolled_back = open(OLDER);
    put(&rolled_back, &traffic(2, 130, 250));
    assert_eq!(rolled_back.visible(NODE), (0, 418));
    drop(rolled_back);

    let again = open(SCHEMA);
    fill(&again, 150..300);
    assert_eq!(notes(&again), (0..300).collect::<Vec<_>>());
    let page = |cursor| ids(&again, &query(&[(1, &["pid 1"])], Order::NewestFirst, Some(cursor), 2));
    assert_eq!([page(299), page(150), page(19)], [[299, 297], [149, 147], [19, 17]]);
    assert_sound(&again);
    drop(again);
    assert_eq!(notes(&open(SCHEMA)), (0..300).collect::<Vec<_>>());
}

#[test]
fn a_contradiction_in_a_declared_kind_is_found() {
    type Damage = fn(&mut Batch);
    let cases: [(Damage, &str); 4] = [
        (|batch| batch.delete(&keys::row(1, 1, 128, 3)), "where 3 should be"),
        (|batch| batch.delete(&keys::row(1, 1, 129, 0)), "zone 0 of segment 1 is missing"),
        (
            |batch| {
                let key = [keys::posting_prefix(1, 1, 131, b"pid 1"), 0u64.to_be_bytes().to_vec()].concat();
                batch.delete(&key);
            },
            "posting \"pid 1\" of index 1 of note and block 0 is missing",
        ),
        (|batch| batch.put(&keys::row(1, 1, 128, 9), b"\0\0\0\x01\xff"), "cannot be read"),
    ];
    for (damage, expected) in cases {
        let engine = Arc::new(MemoryEngine::new(u64::MAX));
        let store = Store::with_engine(Arc::clone(&engine) as Arc<dyn Engine>, options(), SCHEMA).unwrap();
        put(&store, &(0..9).map(note).collect::<Vec<_>>());
        assert_sound(&store);
        let mut batch = Batch::default();
        damage(&mut batch);
        engine.write(&batch).unwrap();
        let report = store.verify().unwrap();
        assert!(report.problems.iter().any(|problem| problem.contains(expected)), "{expected}: {:?}", report.problems);
    }
}

#[test]
fn a_query_of_a_declared_kind_is_bounded() {
    let store = in_memory(options());
    put(&store, &(0..100).map(note).collect::<Vec<_>>());
    let budget = Budget { rows: Some(10), ..Budget::default() };
    let wide = Query { budget, ..query(&[], Order::NewestFirst, None, 100) };
    assert!(matches!(store.facts(NODE, &NOTES, &wide), Err(Error::Budget { examined: 10 })));
}
