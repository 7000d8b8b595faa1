//! Files of runs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chainscope_latency::database::{Database, Error};
use chainscope_latency::{
    Block, Function, Histogram, Location, LossReason, Resolution, Run, RunId, RunInfo, Time, Transaction, TransactionId,
};
use rusqlite::Connection;

fn run(id: u8) -> Run {
    let location = |pattern: &str, symbol: &str| Location {
        pattern: pattern.into(),
        symbols: vec![symbol.into(), "\"ü\"".into()],
    };
    let mut histogram = Histogram::default();
    [0, 31, 365, 1 << 40].into_iter().for_each(|value| histogram.record(value));
    let block = |function, start, histogram| Block {
        function,
        start: Time(start),
        length: Duration::from_secs(30),
        histogram,
        returns: BTreeMap::from([(-399, 1), (0, 3)]),
        unended: 2,
        lost: LossReason::ALL.into_iter().map(|reason| (reason, 7)).collect(),
    };
    Run {
        info: RunInfo {
            id: RunId([id; 16]),
            node: Some("main".into()),
            pid: 4_000_000,
            executable: "/opt/node".into(),
            build_id: Some("00ff".into()),
            version: Some("2.0".into()),
            commit: Some("abc123".into()),
            tags: BTreeSet::from(["x".into(), "y".into()]),
            host: "host".into(),
            kernel: "6.18".into(),
            start: Time(1_700_000_000_000_000_001),
            end: None,
            block: Duration::from_secs(30),
            resolution: Resolution::LogLinear,
        },
        functions: vec![
            Function { name: "payment".into(), entry: location("*preflight*", "a"), exit: location("*doApply*", "b") },
            Function { name: "offer".into(), entry: Location::default(), exit: Location::default() },
        ],
        blocks: vec![block(0, 10, histogram), block(1, 10, Histogram::default()), block(0, 40, Histogram::default())],
        transactions: vec![Transaction {
            id: TransactionId([9; 32]),
            kind: 1,
            result: -99,
            duration_ns: 5,
            time: Time(50),
        }],
    }
}

#[test]
fn a_run_is_read_as_it_was_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("runs.db");
    let mut database = Database::create_or_open(&path).unwrap();
    let mut written = run(1);
    database.insert(&written).unwrap();
    database.insert(&run(2)).unwrap();
    assert!(matches!(database.insert(&run(2)), Err(Error::Exists { .. })));
    database.end_run(written.info.id, Time(99)).unwrap();
    written.info.end = Some(Time(99));

    // Another connection reads while the first is open.
    let reader = Database::open(&path).unwrap();
    let infos = reader.runs().unwrap();
    assert_eq!(infos.len(), 2);
    assert_eq!(reader.run(&infos[0]).unwrap(), written);
    assert_eq!(reader.select("0202").unwrap(), [run(2).info]);
    assert_eq!(reader.select("latest").unwrap(), [run(2).info]);
    assert_eq!(reader.select("abc").unwrap().len(), 2);
    let error = reader.select("z").unwrap_err().to_string();
    assert!(error.contains("\"z\"") && error.contains("x, y, 0101"), "{error}");
}

/// A recorder that is killed within a block: what was written before is whole.
#[test]
fn blocks_are_added_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("runs.db");
    let mut database = Database::create_or_open(&path).unwrap();
    let run = run(1);
    database.begin_run(&run.info, &run.functions).unwrap();
    database.append(run.info.id, &run.blocks[..1], &[]).unwrap();
    let no_such_function = Block { function: 7, ..Block::default() };
    database.append(run.info.id, &[run.blocks[2].clone(), no_such_function], &run.transactions).unwrap_err();
    let read = Database::open(&path).unwrap().run(&run.info).unwrap();
    assert_eq!((read.blocks, read.transactions), (run.blocks[..1].to_vec(), Vec::new()));
}

#[test]
fn other_files_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("runs.db");
    assert!(matches!(Database::open(&path), Err(Error::Sqlite { .. })), "no such file");
    Database::create_or_open(&path).unwrap().insert(&run(1)).unwrap();

    let change = |name: &str, sql: &str| {
        let copy = directory.path().join(name);
        std::fs::copy(&path, &copy).unwrap();
        Connection::open(&copy).unwrap().execute_batch(sql).unwrap();
        copy
    };
    assert!(matches!(
        Database::open(&change("newer.db", "PRAGMA user_version = 2")),
        Err(Error::Version { found: 2, supported: 1, .. })
    ));
    assert!(matches!(Database::open(&change("other.db", "PRAGMA application_id = 5")), Err(Error::Foreign { .. })));
    assert!(matches!(Database::open(&change("less.db", "DROP TABLE losses")), Err(Error::Damaged { .. })));

    for (name, sql, expected) in [
        ("count.db", "UPDATE buckets SET count = 5 WHERE bucket = 0", "the buckets of block 1 contradict its counts"),
        ("max.db", "UPDATE blocks SET max_ns = 5 WHERE id = 1", "the buckets of block 1 contradict its counts"),
        (
            "loss.db",
            "UPDATE losses SET reason = 'bored' WHERE block = 1 AND reason = 'no_entry'",
            "loss \"bored\" of block 1",
        ),
        ("id.db", "UPDATE transactions SET id = 'q'", "id \"q\" of a transaction"),
        ("symbols.db", "UPDATE functions SET exit_symbols = '{'", "symbols of function 1"),
        ("negative.db", "UPDATE returns SET count = -1", "negative.db"),
    ] {
        let database = Database::open(&change(name, sql)).unwrap();
        let error = database.run(&run(1).info).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(name), "{error}");
    }
}
