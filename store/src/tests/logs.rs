//! Log messages: stored once whatever is sent again, kept by limits of their own, searched whatever became of the index.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use chainscope_proto::v1::{LogLevel, LogMessage, LogPosition, Record, record::Kind};
use chainscope_testing::wait::until_true;

use super::support::*;
use crate::{
    LogQuery, Order, Retention, Store, StoreOptions, TextIndexState, TextQuery,
    engine::{Engine, memory::MemoryEngine},
    keys,
    positions::MAX_FILES,
    schema::KINDS,
};

/// A message that ends at a position of a file.
fn log_at(file: u64, end: u64) -> Record {
    let text = format!("file{file} end{end} {}", if end.is_multiple_of(2) { "even" } else { "odd" });
    let position = Some(LogPosition { file, end });
    let level = LogLevel::Info.into();
    record(end as i64, Kind::LogMessage(LogMessage { raw: text.into_bytes(), level, position, ..Default::default() }))
}

fn log(number: u64) -> Record {
    log_at(1, number + 1)
}

fn logs(numbers: std::ops::Range<u64>) -> Vec<Record> {
    numbers.map(log).collect()
}

fn all(store: &Store) -> Vec<Record> {
    let query = LogQuery { limit: u64::MAX, order: Order::OldestFirst, ..LogQuery::default() };
    store.log_messages(NODE, &query).unwrap().into_iter().map(|(_, record)| record).collect()
}

/// The ids that a text query finds, newest first.
fn find(store: &Store, query: &str) -> Vec<u64> {
    let text = Some(TextQuery::parse(query).unwrap());
    let query = LogQuery { limit: u64::MAX, text, ..LogQuery::default() };
    store.log_messages(NODE, &query).unwrap().into_iter().map(|(id, _)| id).collect()
}

/// What is found of the messages of these numbers, whose ids they are.
fn check_search(store: &Store, kept: std::ops::Range<u64>) {
    let odd = |id: &u64| id.is_multiple_of(2); // the end is one more
    assert_eq!(find(store, "odd"), kept.clone().rev().filter(odd).collect::<Vec<_>>());
    assert_eq!(find(store, "-odd"), kept.clone().rev().filter(|id| !odd(id)).collect::<Vec<_>>());
    for id in [kept.start, kept.end - 1] {
        assert_eq!(find(store, &format!("end{}", id + 1)), [id]);
    }
    assert_eq!(find(store, &format!("\"file1 end{}\"", kept.start)), [0; 0], "evicted, or never there");
}

fn wait_until_indexed(store: &Store) {
    until_true("everything is indexed", || store.text_index(NODE).pending == 0);
}

/// The directories of indexes.
fn index_dirs(db: &Path) -> BTreeSet<PathBuf> {
    let list = |dir: &Path| {
        let entries = fs::read_dir(dir).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    list(&db.join("text")).iter().flat_map(|node| list(node)).collect()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for path in fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
        let to = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy(&path, &to),
            false if path.ends_with("LOCK") => {}
            false => drop(fs::copy(&path, to).unwrap()),
        }
    }
}

#[test]
fn a_file_that_is_read_again_is_stored_once() {
    each_engine(|open| {
        let store = open(small_segments(5));
        let append = |agent: &str, epoch: &[u8], records: &[Record]| {
            let mark = store.high_water_mark(NODE, agent, epoch);
            store.append(NODE, agent, epoch, mark, records).unwrap();
            store.sync().unwrap();
            assert_eq!(store.durable_high_water_mark(NODE, agent, epoch), mark + records.len() as u64);
        };
        append("a", b"1", &logs(0..20));
        // The agent lost its data directory: a new stream, from the middle of the file on.
        append("a", b"2", &logs(7..25));
        assert_eq!(all(&store), logs(0..25));
        assert_eq!(store.nodes()[0].totals.duplicates, 13);
        assert_eq!(store.nodes()[0].totals.log_messages, 25);
        // Another agent's file, and another file, are others; what has no position is never the same.
        append("b", b"1", &logs(0..2));
        append("a", b"2", &[log_at(2, 1), log_at(2, 1)]);
        let message = |record: &mut Record| match &mut record.kind {
            Some(Kind::LogMessage(message)) => message.position = None,
            other => panic!("{other:?}"),
        };
        let mut without = log(0);
        message(&mut without);
        append("a", b"2", &[without.clone(), without.clone()]);
        let expected = [logs(0..25), logs(0..2), vec![log_at(2, 1), without.clone(), without]].concat();
        assert_eq!(all(&store), expected);
        assert_sound(&store);
    });
}

#[test]
fn a_log_cut_anywhere_keeps_rows_and_positions_together() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("db");
    let store = open(&db, small_segments(7));
    for round in 0..10 {
        put(&store, &logs(3 * round..3 * round + 3));
    }
    let synced = store.log_files().unwrap();
    for round in 10..30 {
        put(&store, &logs(3 * round..3 * round + 3));
    }
    let after = store.log_files().unwrap();
    assert_eq!((synced.len(), after.len()), (1, 1));
    let (from, to) = (synced[0].1, after[0].1);
    wait_until_indexed(&store);
    let mut ends = BTreeSet::new();
    for step in 0..=25 {
        let copied = dir.path().join(format!("cut {step}"));
        copy(&db, &copied);
        let log = copied.join(synced[0].0.file_name().unwrap());
        fs::OpenOptions::new().write(true).open(log).unwrap().set_len(from + (to - from) * step / 25).unwrap();
        let crashed = open(&copied, small_segments(7));
        let rows = crashed.visible_logs(NODE).1;
        assert!((30..=90).contains(&rows) && rows.is_multiple_of(3), "{rows}");
        assert_eq!(crashed.high_water_mark(NODE, AGENT, EPOCH), rows);
        // A new stream reads the whole file again. The index, which may have more than the database, follows.
        crashed.append(NODE, AGENT, b"another", 0, &logs(0..100)).unwrap();
        crashed.sync().unwrap();
        assert_eq!(all(&crashed), logs(0..100));
        assert_eq!(crashed.nodes()[0].totals.duplicates, rows);
        wait_until_indexed(&crashed);
        check_search(&crashed, 0..100);
        assert_sound(&crashed);
        ends.insert(rows);
    }
    assert!(ends.len() > 5, "the cuts fell into different batches: {ends:?}");
}

#[test]
fn the_files_that_advanced_latest_are_remembered() {
    let engine = Arc::new(MemoryEngine::new(u64::MAX));
    let open = || Store::with_engine(Arc::clone(&engine) as Arc<dyn Engine>, options(), KINDS).unwrap();
    let store = open();
    let files = MAX_FILES as u64;
    put(&store, &(0..files).map(|file| log_at(file, 10)).collect::<Vec<_>>());
    put(&store, &[log_at(0, 20), log_at(files, 10), log_at(files + 1, 10)]);
    drop(store);
    let store = open();
    let rows = || store.visible_logs(NODE).1;
    let before = rows();
    put(&store, &[log_at(0, 20), log_at(3, 10), log_at(files, 10), log_at(files + 1, 10)]);
    assert_eq!(rows(), before, "known");
    put(&store, &[log_at(1, 10), log_at(2, 10)]);
    assert_eq!(rows(), before + 2, "forgotten");
    let range = keys::table_range(1, keys::STATE, keys::POSITION);
    let snapshot = engine.snapshot();
    let mut cursor = snapshot.cursor(&range.start..&range.end);
    let mut stored = 0;
    cursor.first().unwrap();
    while cursor.entry().is_some() {
        stored += 1;
        cursor.next().unwrap();
    }
    assert_eq!(stored, MAX_FILES);
}

#[test]
fn a_flood_of_log_messages_evicts_no_other_record_and_the_other_way_round() {
    each_engine(|open| {
        let store = open(small_segments(10));
        let rows = |rows| Retention { rows: Some(rows), ..Retention::default() };
        store.set_retention(NODE, rows(100)).unwrap();
        store.set_log_retention(NODE, rows(50)).unwrap();
        put(&store, &traffic(1, 0, 30));
        put(&store, &logs(0..1000));
        let evicted = store.evict(0).unwrap();
        assert_eq!(store.visible(NODE), (0, 30));
        let (first_log, _) = store.visible_logs(NODE);
        assert!((950..=953).contains(&first_log) && evicted.rows == first_log, "{first_log} {evicted:?}");
        put(&store, &traffic(1, 30, 500));
        store.evict(0).unwrap();
        let (first, _) = store.visible(NODE);
        assert!((430..=436).contains(&first), "{first}");
        let info = &store.nodes()[0];
        assert_eq!((info.totals.evicted_rows, info.totals.evicted_log_messages), (first, first_log));
        assert_eq!((info.log_ids.clone(), info.rows), (first_log..1000, 530 - first));
        assert!(info.log_bytes > 0);
        check_search(&store, first_log..1000);
        assert_sound(&store);
    });
}

#[test]
fn log_messages_grow_old_though_the_node_is_idle() {
    each_engine(|open| {
        let store = open(options());
        let age = |seconds| Retention { age: Some(std::time::Duration::from_secs(seconds)), ..Retention::default() };
        store.set_log_retention(NODE, age(160)).unwrap();
        put(&store, &logs(0..3));
        put(&store, &traffic(1, 0, 3));
        let second = 1_000_000_000;
        assert_eq!(store.evict(100 * second).unwrap().segments, 0);
        assert_eq!(store.evict(161 * second).unwrap().rows, 3);
        assert_eq!((store.visible_logs(NODE), store.visible(NODE)), ((3, 3), (0, 3)));
        assert_eq!(find(&store, "odd"), [0; 0]);
        assert_sound(&store);
    });
}

#[test]
fn a_full_disk_takes_from_what_is_largest() {
    each_engine(|open| {
        let store = open(small_segments(10));
        put(&store, &traffic(1, 0, 5));
        put(&store, &logs(0..100));
        for kept in [10, 20, 30] {
            assert_eq!(store.evict_for_space().unwrap().rows, 10);
            assert_eq!((store.visible(NODE), store.visible_logs(NODE)), ((0, 5), (kept, 100)));
        }
        assert!(store.can_evict_for_space().unwrap());
    });
}

#[test]
fn the_index_goes_with_its_segment_and_what_is_left_over_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), small_segments(10));
    put(&store, &logs(0..95));
    wait_until_indexed(&store);
    assert_eq!(index_dirs(dir.path()).len(), 10);
    store.set_log_retention(NODE, Retention { rows: Some(30), ..Retention::default() }).unwrap();
    store.evict(0).unwrap();
    check_search(&store, 70..95);
    until_true("evicted indexes are removed", || index_dirs(dir.path()).len() == 3);
    assert_eq!(store.text_index(NODE), TextIndexState { rows: 25, pending: 0 });
    drop(store);
    let kept = index_dirs(dir.path());
    for orphan in ["text/1/1", "text/1/99", "text/7/1"] {
        fs::create_dir_all(dir.path().join(orphan)).unwrap();
        fs::write(dir.path().join(orphan).join("file"), "left over").unwrap();
    }
    let store = open(dir.path(), small_segments(10));
    until_true("left over indexes are removed", || index_dirs(dir.path()) == kept);
    assert!(!dir.path().join("text/7").exists());
    check_search(&store, 70..95);
}

/// A file of the index of segment 1 whose name ends so.
fn file(db: &Path, end: &str) -> PathBuf {
    let mut files = fs::read_dir(db.join("text/1/1")).unwrap().map(|entry| entry.unwrap().path());
    files.find(|path| path.to_str().unwrap().ends_with(end)).unwrap()
}

#[test]
fn a_damaged_or_absent_index_is_made_anew() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 7] = [
        ("all is gone", |db| fs::remove_dir_all(db.join("text")).unwrap()),
        ("no meta.json", |db| fs::remove_file(file(db, "meta.json")).unwrap()),
        ("meta.json is cut", |db| {
            let text = fs::read_to_string(file(db, "meta.json")).unwrap();
            fs::write(file(db, "meta.json"), &text[..text.len() / 2]).unwrap();
        }),
        ("another version", |db| {
            let text = fs::read_to_string(file(db, "meta.json")).unwrap();
            assert!(text.contains("\"1 40\""), "{text}");
            fs::write(file(db, "meta.json"), text.replace("\"1 40\"", "\"0 40\"")).unwrap();
        }),
        ("no words", |db| fs::remove_file(file(db, ".term")).unwrap()),
        ("words are cut", |db| fs::File::options().write(true).open(file(db, ".idx")).unwrap().set_len(9).unwrap()),
        ("a bit is wrong", |db| {
            let mut bytes = fs::read(file(db, ".term")).unwrap();
            bytes[3] ^= 0x55;
            fs::write(file(db, ".term"), bytes).unwrap();
        }),
    ];
    for (what, damage) in damages {
        let dir = tempfile::tempdir().unwrap();
        let db = dir.path().join("db");
        let store = open(&db, options());
        put(&store, &logs(0..40));
        wait_until_indexed(&store);
        drop(store);
        damage(&db);
        let store = open(&db, options());
        // Written to again, so that its files are checked.
        put(&store, &logs(40..50));
        check_search(&store, 0..50);
        wait_until_indexed(&store);
        check_search(&store, 0..50);
        drop(store);
        let store = open(&db, options());
        check_search(&store, 0..50);
        wait_until_indexed(&store);
        assert_eq!(store.text_index_errors(), 0, "{what}");
    }
}

#[test]
fn an_index_that_is_damaged_while_it_is_used_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), small_segments(40));
    put(&store, &logs(0..50));
    wait_until_indexed(&store);
    fs::remove_dir_all(dir.path().join("text/1/1")).unwrap();
    check_search(&store, 0..50);
    assert_eq!(store.text_index_errors(), 1);
    until_true("the index is there again", || store.text_index(NODE).pending == 0 && index_dirs(dir.path()).len() == 2);
    check_search(&store, 0..50);
    assert_eq!(store.text_index_errors(), 1);
}

#[test]
fn an_index_that_cannot_be_written_stops_neither_intake_nor_search() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), options());
    fs::write(dir.path().join("text"), "no directory").unwrap();
    put(&store, &logs(0..30));
    until_true("the failure is counted", || store.text_index_errors() > 0);
    put(&store, &logs(30..60));
    check_search(&store, 0..60);
    assert_eq!(store.text_index(NODE), TextIndexState { rows: 60, pending: 60 });
    // It goes on when it can.
    fs::remove_file(dir.path().join("text")).unwrap();
    wait_until_indexed(&store);
    check_search(&store, 0..60);
}

#[test]
fn while_the_disk_is_nearly_full_nothing_is_indexed() {
    let dir = tempfile::tempdir().unwrap();
    put(&open(dir.path(), options()), &logs(0..30));
    fs::remove_dir_all(dir.path().join("text")).ok();
    let store = open(dir.path(), StoreOptions { min_free_bytes: u64::MAX, ..options() });
    until_true("the failure is counted", || store.text_index_errors() > 0);
    assert_eq!(index_dirs(dir.path()), BTreeSet::new());
    check_search(&store, 0..30);
}

#[test]
fn a_backup_has_no_index_and_makes_one_when_it_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("db"), small_segments(10));
    put(&store, &logs(0..35));
    wait_until_indexed(&store);
    store.checkpoint(dir.path().join("backup")).unwrap();
    assert!(!dir.path().join("backup/text").exists());
    Store::restore(dir.path().join("backup"), dir.path().join("restored")).unwrap();
    let restored = open(&dir.path().join("restored"), small_segments(10));
    check_search(&restored, 0..35);
    wait_until_indexed(&restored);
    assert_eq!(index_dirs(&dir.path().join("restored")).len(), 4);
    check_search(&restored, 0..35);
    // And it knows what is stored.
    put(&restored, &logs(0..36));
    assert_eq!(all(&restored), logs(0..36));
}

#[test]
fn many_nodes_are_indexed_in_turns() {
    each_engine(|open| {
        let store = open(options());
        let names: Vec<String> = (0..20).map(|node| format!("node {node}")).collect();
        for round in 0..3 {
            for name in &names {
                store.append(name, AGENT, EPOCH, 10 * round, &logs(10 * round..10 * round + 10)).unwrap();
            }
            store.sync().unwrap();
            let is_indexed = |name: &String| store.text_index(name).pending == 0;
            until_true("all nodes are indexed", || names.iter().all(is_indexed));
        }
        for name in &names {
            let text = Some(TextQuery::parse("end7 end28").unwrap());
            let rows = store.log_messages(name, &LogQuery { text, ..LogQuery::default() }).unwrap();
            assert_eq!(rows.into_iter().map(|(id, _)| id).collect::<Vec<_>>(), [27, 6]);
        }
        assert_eq!(store.text_index_errors(), 0);
    });
}
