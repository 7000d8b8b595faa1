//! Databases of the rippled sample: every number as SQL on the file gives it, and the same again after an export.

use std::path::Path;

use chainscope_latency::database::{Database, Error, TransactionFilter};
use chainscope_latency::report::{Report, rfc3339};
use chainscope_latency::verdict::Options;
use chainscope_latency::{Run, Time};
use proptest::prelude::*;
use rusqlite::types::Value;
use rusqlite::{Connection, params};
use tempfile::TempDir;

const SCHEMA: &str = "
CREATE TABLE collections (id INTEGER PRIMARY KEY ASC, start INTEGER, end INTEGER, git_commit TEXT);
CREATE TABLE probes (id INTEGER PRIMARY KEY ASC, description TEXT);
CREATE TABLE timings (probe_id INTEGER, timestamp INTEGER, log_bin INTEGER, counts INTEGER);
CREATE TABLE ters (probe_id INTEGER, timestamp INTEGER, ter INTEGER, counts INTEGER);
CREATE TABLE tags (collection_id INTEGER, tag TEXT);
CREATE TABLE transactions (id CHARACTER(64), type INTEGER, timestamp INTEGER, duration INTEGER, ter INTEGER);
CREATE INDEX id_index ON transactions (id);
INSERT INTO probes VALUES (0, 'transactor'), (1, 'payment'), (2, 'offer_create');
";

/// Two collections and what a killed run left, as the sample writes them.
fn sample(path: &Path) -> Connection {
    let file = Connection::open(path).unwrap();
    file.execute_batch(SCHEMA).unwrap();
    file.execute_batch("BEGIN").unwrap();
    for (id, start, commit) in [(1, 1_571_000_000, "6bccf8c9"), (2, 1_571_000_500, "8cc52af7")] {
        file.execute("INSERT INTO collections VALUES (?1, ?2, ?3, ?4)", params![id, start, start + 73, commit])
            .unwrap();
        file.execute("INSERT INTO tags VALUES (?1, ?2), (?1, 'beta')", params![id, format!("1.4.0-b{id}")]).unwrap();
    }
    for (start, slices) in [(1_571_000_000_i64, 6), (1_571_000_500, 6), (1_571_002_000, 2)] {
        for slice in 1..=slices {
            let timestamp = start + slice * 12;
            for probe in 1..=2 {
                for bin in 7..=14_i64 {
                    let count = (bin * 7 + slice * 3 + probe) % 11;
                    if count > 0 {
                        file.execute("INSERT INTO timings VALUES (?1, ?2, ?3, ?4)", [probe, timestamp, bin, count])
                            .unwrap();
                    }
                }
                for (ter, count) in [(0, 40), (128, 3 + slice), (-99, 1), (199, 2)] {
                    file.execute("INSERT INTO ters VALUES (?1, ?2, ?3, ?4)", [probe, timestamp, ter, count]).unwrap();
                }
            }
            for number in 0..30_i64 {
                let id = format!("{:064X}", (number % 11) * 0x00AB_CDEF_0123);
                let fact = params![
                    id,
                    number % 8,
                    timestamp,
                    150_000 + number * 77_777,
                    if number % 5 == 0 { 125 } else { 0 }
                ];
                file.execute("INSERT INTO transactions VALUES (?1, ?2, ?3, ?4, ?5)", fact).unwrap();
            }
        }
    }
    file.execute_batch("COMMIT").unwrap();
    file
}

fn rows(file: &Connection, sql: &str) -> Vec<Vec<Value>> {
    let mut statement = file.prepare(sql).unwrap();
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| (0..columns).map(|column| row.get(column)).collect()).unwrap();
    rows.map(Result::unwrap).collect()
}

/// What the sample's report and notebook ask.
const QUERIES: [&str; 9] = [
    "SELECT id, start, end, git_commit FROM collections ORDER BY id",
    "SELECT collection_id, tag FROM tags ORDER BY collection_id, tag",
    "SELECT id, description FROM probes ORDER BY id",
    "SELECT probe_id, timestamp, log_bin, counts FROM timings ORDER BY 1, 2, 3",
    "SELECT probe_id, timestamp, ter, counts FROM ters ORDER BY 1, 2, 3",
    "SELECT c.id, probe_id, log_bin, sum(counts) FROM timings, collections c WHERE timestamp BETWEEN start AND end
       GROUP BY c.id, probe_id, log_bin ORDER BY 1, 2, 3",
    "SELECT probe_id, timestamp, sum(counts), min(log_bin), max(log_bin), sum(counts * (1 << log_bin)) FROM timings
       GROUP BY probe_id, timestamp ORDER BY 1, 2",
    "SELECT id, type, timestamp, duration, ter FROM transactions ORDER BY timestamp, id, duration",
    "SELECT type, ter, count(*), avg(duration), max(duration), count(DISTINCT id) FROM transactions GROUP BY type, ter ORDER BY 1, 2",
];

fn import(directory: &TempDir) -> (Connection, Database) {
    let path = directory.path().join("probes.db");
    let file = sample(&path);
    let mut database = Database::create_or_open(&directory.path().join("runs.db")).unwrap();
    let report = database.import(&path).unwrap();
    assert_eq!((report.runs.len(), report.ambiguous), (3, 0));
    assert_eq!(
        Value::from(i64::try_from(report.transactions).unwrap()),
        rows(&file, "SELECT count(*) FROM transactions")[0][0]
    );
    (file, database)
}

#[test]
fn queries_of_the_sample_give_the_same_after_import_and_export() {
    let directory = tempfile::tempdir().unwrap();
    let (file, database) = import(&directory);
    let path = directory.path().join("exported.db");
    database.export(&database.runs().unwrap(), &path).unwrap();
    let exported = Connection::open(&path).unwrap();
    for query in QUERIES {
        let expected = rows(&file, query);
        assert!(!expected.is_empty(), "{query}");
        assert_eq!(rows(&exported, query), expected, "{query}");
    }
    assert!(matches!(database.export(&[], &path), Err(Error::Target { .. })), "not overwritten");
}

#[test]
fn numbers_are_those_of_sql_on_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let (file, database) = import(&directory);
    let infos = database.select("1.4.0-b2").unwrap();
    assert_eq!(infos.len(), 1);
    assert_eq!(infos[0].commit.as_deref(), Some("8cc52af7"));
    let run = database.run(&infos[0]).unwrap();
    assert_eq!(database.select("beta").unwrap().len(), 2, "a tag selects all of its runs");
    let payments = run.blocks_of(1);
    let (mut spans, mut failed) = (0, 0);
    for block in payments {
        spans += block.histogram.count();
        failed += block.returns[&128];
    }
    let between = "probe_id = 1 AND timestamp BETWEEN 1571000500 AND 1571000573";
    let sum = |table: &str, and: &str| {
        rows(&file, &format!("SELECT sum(counts) FROM {table} WHERE {between} {and}"))[0][0].clone()
    };
    assert_eq!(Value::from(i64::try_from(spans).unwrap()), sum("timings", ""));
    assert_eq!(Value::from(i64::try_from(failed).unwrap()), sum("ters", "AND ter = 128"));

    let filter =
        TransactionFilter { kind: Some(5), result: Some(125), slowest_first: true, limit: 3, ..Default::default() };
    let found = database.transactions(&filter).unwrap();
    let expected =
        rows(&file, "SELECT duration FROM transactions WHERE type = 5 AND ter = 125 ORDER BY duration DESC LIMIT 3");
    let durations: Vec<Vec<Value>> =
        found.iter().map(|(_, fact)| vec![Value::from(i64::try_from(fact.duration_ns).unwrap())]).collect();
    assert_eq!(durations, expected);
    let id = found[0].1.id.to_string();
    let filter = TransactionFilter { id_prefix: Some(id[..60].to_lowercase()), limit: u32::MAX, ..Default::default() };
    let expected = rows(&file, &format!("SELECT count(*) FROM transactions WHERE id LIKE '{}%'", &id[..60]));
    assert_eq!(Value::from(i64::try_from(database.transactions(&filter).unwrap().len()).unwrap()), expected[0][0]);
}

/// The numbers of the whole report, as SQL on the file gives them. Bins stand for their middles.
#[test]
fn a_report_has_the_numbers_of_sql() {
    let directory = tempfile::tempdir().unwrap();
    let (file, database) = import(&directory);
    let integer = |value: &Value| match value {
        Value::Integer(number) => *number,
        other => panic!("{other:?}"),
    };
    let one = |sql: &str| integer(&rows(&file, sql)[0][0]);
    for (collection, tag) in [(1, "1.4.0-b1"), (2, "1.4.0-b2")] {
        let runs: Vec<Run> = database.select(tag).unwrap().iter().map(|info| database.run(info).unwrap()).collect();
        let report = Report::of_runs(&runs, &Options::default());
        let run = &report.sides[0][0];
        let of_run = rows(&file, &format!("SELECT git_commit, start, end FROM collections WHERE id = {collection}"));
        let text = |at: i64| rfc3339(Time(at * 1_000_000_000));
        assert_eq!(Value::from(run.commit.clone().unwrap()), of_run[0][0]);
        assert_eq!(
            (&run.start, run.end.as_ref()),
            (&text(integer(&of_run[0][1])), Some(&text(integer(&of_run[0][2]))))
        );
        let within = format!(
            "timestamp BETWEEN (SELECT start FROM collections WHERE id = {collection}) AND (SELECT end FROM collections WHERE id = {collection})"
        );
        for (probe, name) in [(1, "payment"), (2, "offer_create")] {
            let of = format!("probe_id = {probe} AND {within}");
            let function = report.functions.iter().find(|function| function.function == name).unwrap();
            let found = &function.sides[0].statistics;
            let number = |what: &str| one(&format!("SELECT {what} FROM timings WHERE {of}")).cast_unsigned();
            let count = number("sum(counts)");
            assert_eq!(found.spans, count);
            assert_eq!(found.sum_ns, number("sum(counts * (1500 << (log_bin - 1)))"));
            assert_eq!(found.mean_ns, Some(found.sum_ns as f64 / count as f64));
            assert_eq!(found.min_ns, Some(number("min(1500 << (log_bin - 1))")));
            assert_eq!(found.max_ns, Some(number("max(1500 << (log_bin - 1))")));
            for (percent, shown) in
                [(50.0, found.p50_ns), (90.0, found.p90_ns), (99.0, found.p99_ns), (99.9, found.p999_ns)]
            {
                let rank = (count as f64 * percent / 100.0).ceil();
                let exact = one(&format!(
                    "SELECT 1500 << (min(log_bin) - 1) FROM (SELECT log_bin, (SELECT sum(counts) FROM timings below
                       WHERE {of} AND below.log_bin <= timings.log_bin) AS upto FROM timings WHERE {of}) WHERE upto >= {rank}"
                ));
                let error = shown.unwrap() as f64 / exact as f64 - 1.0;
                assert!(error.abs() <= 0.016, "{name} {percent} %: {shown:?}, exactly {exact}");
            }
            let codes: Vec<Vec<Value>> =
                found.returns.iter().map(|held| vec![held.code.into(), signed(held.count)]).collect();
            let sql = format!("SELECT ter, sum(counts) FROM ters WHERE {of} GROUP BY ter ORDER BY 2 DESC, 1");
            assert_eq!(codes, rows(&file, &sql));
        }
        let slowest: Vec<Vec<Value>> = report
            .slowest_transactions
            .iter()
            .map(|row| vec![row.id.clone().into(), row.r#type.into(), row.result.into(), signed(row.duration_ns)])
            .collect();
        let sql = format!(
            "SELECT id, type, ter, duration FROM transactions WHERE {within} ORDER BY duration DESC, timestamp LIMIT {}",
            slowest.len()
        );
        assert!(slowest.len() >= 10);
        assert_eq!(slowest, rows(&file, &sql));
    }
}

fn signed(number: u64) -> Value {
    Value::from(i64::try_from(number).unwrap())
}

#[test]
fn every_bin_survives() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("probes.db");
    let file = Connection::open(&path).unwrap();
    file.execute_batch(SCHEMA).unwrap();
    for bin in 1..=40_i64 {
        file.execute("INSERT INTO timings VALUES (1, 100, ?1, ?2)", [bin, bin * bin]).unwrap();
    }
    let mut database = Database::create_or_open(&directory.path().join("runs.db")).unwrap();
    database.import(&path).unwrap();
    let exported = directory.path().join("exported.db");
    database.export(&database.runs().unwrap(), &exported).unwrap();
    let query = "SELECT timestamp, log_bin, counts FROM timings ORDER BY log_bin";
    assert_eq!(rows(&Connection::open(&exported).unwrap(), query), rows(&file, query));
}

#[test]
fn what_is_wrong_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let mut database = Database::create_or_open(&directory.path().join("runs.db")).unwrap();
    let mut refused = |name: &str, sql: &str| {
        let path = directory.path().join(name);
        let file = Connection::open(&path).unwrap();
        file.execute_batch(SCHEMA).unwrap();
        file.execute_batch(sql).unwrap();
        drop(file);
        let error = database.import(&path).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
        error
    };
    for (name, sql, expected) in [
        ("a.db", "DROP TABLE ters", "it needs the tables collections, probes, tags, ters"),
        ("b.db", "INSERT INTO timings VALUES (9, 1, 5, 1)", "row 1 of timings: no probe 9"),
        ("c.db", "INSERT INTO timings VALUES (1, 1, 41, 1)", "row 1 of timings: bin 41"),
        ("d.db", "INSERT INTO timings VALUES (1, 1, 5, -1)", "row 1 of timings: count -1"),
        ("e.db", "INSERT INTO transactions VALUES ('xyz', 1, 1, 1, 1)", "row 1 of transactions: id \"xyz\""),
        ("f.db", "INSERT INTO collections VALUES (4, 9, 8, NULL)", "collection 4 ends at 8, before its start at 9"),
        ("g.db", "INSERT INTO ters VALUES (1, 9223372036854775807, 5, 1)", "time 9223372036854775807 s"),
        ("h.db", "INSERT INTO timings VALUES (1, 'soon', 5, 1)", "Invalid column type"),
        (
            "i.db",
            "DROP TABLE timings; CREATE VIEW timings AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n)
             SELECT 1 probe_id, 1 timestamp, 1 log_bin, 1 counts FROM n",
            "it needs the tables",
        ),
    ] {
        let error = refused(name, sql);
        assert!(error.contains(expected), "{name}: {error}");
    }
    assert!(database.runs().unwrap().is_empty(), "nothing was added");

    let text = directory.path().join("text.db");
    std::fs::write(&text, "not a database, but long enough to be looked at as one".repeat(20)).unwrap();
    assert!(matches!(database.import(&text), Err(Error::Damaged { .. })));
    let path = directory.path().join("probes.db");
    sample(&path);
    assert!(matches!(Database::open(&path), Err(Error::Sample { .. })));
    database.import(&path).unwrap();
    assert!(matches!(database.import(&path), Err(Error::Exists { .. })), "twice");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever is done to the file: an error or an import whose numbers can be read, no panic.
    #[test]
    fn damaged_files_do_not_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
        length in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("probes.db");
        let file = Connection::open(&path).unwrap();
        file.execute_batch(SCHEMA).unwrap();
        file.execute_batch("INSERT INTO collections VALUES (1, 5, 20, 'c'); INSERT INTO timings VALUES (1, 10, 3, 4), (2, 12, 9, 1);
            INSERT INTO ters VALUES (1, 10, 0, 4); INSERT INTO tags VALUES (1, 't')").unwrap();
        drop(file);
        let mut bytes = std::fs::read(&path).unwrap();
        for (index, value) in changes {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        if cut {
            bytes.truncate(length.index(bytes.len()));
        }
        std::fs::write(&path, bytes).unwrap();
        let mut database = Database::create_or_open(&directory.path().join("runs.db")).unwrap();
        if database.import(&path).is_ok() {
            for info in database.runs().unwrap() {
                database.run(&info).unwrap();
            }
        }
    }
}
