//! Transactions of runs: every filter in both orders, from cursors and by duration, after a restart and after evictions, on disk and in
//! memory, compared with a naive model. Blocks of runs are stored beside them: each has ids of its own.
#![expect(clippy::unwrap_used, reason = "a panic shows the line of the failure")]

mod common;

use std::{cmp::Reverse, ops::ControlFlow};

use chainscope_proto::v1::{LatencyBlock, LatencyTransaction, Record, record::Kind};
use chainscope_store::{Budget, Error, Order, Retention, Store, TransactionQuery};
use common::open;
use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};

const NODE: &str = "node";
const SEGMENT_ROWS: u64 = 300;
const COUNT: usize = 3_000;

/// Transactions of three runs of two processes, durations of 0 up to all 64 bits.
fn transactions() -> Vec<Record> {
    let mut rng = SmallRng::seed_from_u64(7);
    let record = |number| {
        let run = rng.random_range(0..3_u8);
        let transaction = LatencyTransaction {
            run_id: vec![run; 16],
            id: vec![rng.random_range(0..200); 32],
            r#type: rng.random_range(-1..3),
            result: [0, 125, -99, i64::MIN][rng.random_range(0..4)],
            duration_ns: rng.random::<u64>() >> rng.random_range(0..64),
        };
        let target = if run == 0 { "pid 1" } else { "pid 2" }.to_owned();
        Record { time_ns: 10 * number, target, kind: Some(Kind::LatencyTransaction(transaction)) }
    };
    (0..COUNT as i64).map(record).collect()
}

fn of(record: &Record) -> &LatencyTransaction {
    match &record.kind {
        Some(Kind::LatencyTransaction(transaction)) => transaction,
        other => panic!("{other:?}"),
    }
}

fn found(store: &Store, query: &TransactionQuery) -> Result<Vec<(u64, Record)>, Error> {
    let mut records = Vec::new();
    store.each_transaction(NODE, query, &mut |id, record| {
        records.push((id, record));
        ControlFlow::Continue(())
    })?;
    Ok(records)
}

type Filter<'a> = (TransactionQuery, &'a dyn Fn(&Record) -> bool);

/// The stored ones are the newest of all; every filter selects what it means among them.
fn check(store: &Store, all: &[Record]) -> usize {
    let (first, next) = store.visible_transactions(NODE);
    assert_eq!(next, COUNT as u64);
    let kept: Vec<(u64, Record)> = (first..next).map(|id| (id, all[id as usize].clone())).collect();
    let of_run = |record: &Record, runs: &[u8]| runs.contains(&of(record).run_id[0]);
    let default = TransactionQuery::default;
    let filters: [Filter<'_>; 9] = [
        (default(), &|_| true),
        (TransactionQuery { runs: vec![[1; 16]], ..default() }, &|record| of_run(record, &[1])),
        (TransactionQuery { runs: vec![[0; 16], [2; 16]], ..default() }, &|record| of_run(record, &[0, 2])),
        (TransactionQuery { ids: vec![[7; 32], [8; 32]], ..default() }, &|record| [7, 8].contains(&of(record).id[0])),
        (TransactionQuery { types: vec![-1, 2], ..default() }, &|record| [-1, 2].contains(&of(record).r#type)),
        (TransactionQuery { results: vec![i64::MIN], ..default() }, &|record| of(record).result == i64::MIN),
        (TransactionQuery { target: Some("pid 1".to_owned()), ..default() }, &|record| record.target == "pid 1"),
        (TransactionQuery { runs: vec![[9; 16]], ..default() }, &|_| false),
        (
            TransactionQuery {
                runs: vec![[1; 16], [2; 16]],
                types: vec![0],
                results: vec![0, 125],
                from_ns: Some(20_000),
                to_ns: Some(29_000),
                ..default()
            },
            &|record| {
                of_run(record, &[1, 2])
                    && of(record).r#type == 0
                    && [0, 125].contains(&of(record).result)
                    && (20_000..29_000).contains(&record.time_ns)
            },
        ),
    ];
    for (query, matches) in filters {
        let matching: Vec<(u64, Record)> = kept.iter().filter(|(_, record)| matches(record)).cloned().collect();
        for limit in [0, 1, 10, u64::MAX] {
            let most = usize::try_from(limit).unwrap_or(usize::MAX);
            let query = TransactionQuery { limit, ..query.clone() };
            let oldest = TransactionQuery { order: Order::OldestFirst, ..query.clone() };
            assert_eq!(
                found(store, &oldest).unwrap(),
                matching.iter().take(most).cloned().collect::<Vec<_>>(),
                "{query:?}"
            );
            let newest: Vec<_> = matching.iter().rev().take(most).cloned().collect();
            assert_eq!(found(store, &query).unwrap(), newest, "{query:?}");
            let mut slowest = matching.clone();
            slowest.sort_by_key(|(id, record)| (Reverse(of(record).duration_ns), *id));
            slowest.truncate(most);
            assert_eq!(store.slowest_transactions(NODE, &query, &|_| true).unwrap(), slowest, "{query:?}");
        }
        let cursor = matching.get(matching.len() / 2).map(|(id, _)| *id);
        let from_cursor = TransactionQuery { cursor, order: Order::OldestFirst, limit: u64::MAX, ..query };
        let rest: Vec<_> = matching[matching.len() / 2..].to_vec();
        assert_eq!(found(store, &from_cursor).unwrap(), rest, "{from_cursor:?}");
    }
    let odd = store.slowest_transactions(NODE, &TransactionQuery { limit: 5, ..default() }, &|of| of.id[0] % 2 == 1);
    assert!(odd.unwrap().iter().all(|(_, record)| of(record).id[0] % 2 == 1));
    kept.len()
}

fn feed(store: &Store, all: &[Record]) {
    let mut sequence = 0;
    for part in all.chunks(500) {
        let block = |record: &Record| Record {
            time_ns: record.time_ns,
            kind: Some(Kind::LatencyBlock(LatencyBlock { run_id: vec![1; 16], ..LatencyBlock::default() })),
            ..Record::default()
        };
        let records: Vec<Record> = part.iter().flat_map(|record| [record.clone(), block(record)]).collect();
        store.append(NODE, "host", &[1], sequence, &records).unwrap();
        sequence += records.len() as u64;
        // While they are written: a segment holds a part of what is kept.
        limit(store);
    }
    store.sync().unwrap();
}

fn limit(store: &Store) {
    store.set_trace_retention(NODE, Retention { rows: None, bytes: Some(200_000), age: None }).unwrap();
}

#[test]
fn transactions_are_found_by_what_they_are_until_they_are_evicted() {
    let (dir, all) = (tempfile::tempdir().unwrap(), transactions());
    for is_on_disk in [true, false] {
        let folder = is_on_disk.then_some(dir.path());
        let mut store = open(folder, SEGMENT_ROWS);
        feed(&store, &all);
        assert_eq!(check(&store, &all), COUNT);
        if is_on_disk {
            drop(store);
            store = open(folder, SEGMENT_ROWS);
            assert_eq!(check(&store, &all), COUNT);
        }
        // A limit is not stored.
        limit(&store);
        store.evict(0).unwrap();
        let left = check(&store, &all);
        assert!((1..COUNT).contains(&left), "{left}");
        let totals = store.nodes()[0].totals;
        assert_eq!((totals.latency_transactions, totals.latency_blocks), (COUNT as u64, COUNT as u64));
        let report = store.verify().unwrap();
        assert!(report.is_sound(), "{:#?}", report.problems);
    }
}

#[test]
fn a_query_that_examines_too_much_is_an_error() {
    let (store, all) = (open(None, SEGMENT_ROWS), transactions());
    feed(&store, &all);
    let budget = Budget { rows: Some(100), ..Budget::default() };
    let query = TransactionQuery { limit: u64::MAX, budget, ..TransactionQuery::default() };
    assert!(matches!(found(&store, &query), Err(Error::Budget { examined: 100 })));
}
