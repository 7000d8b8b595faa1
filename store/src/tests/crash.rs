//! What is left after a crash: the database with its log cut somewhere behind the last sync, and databases that cannot
//! be opened.

use std::{fs, path::Path};

use super::support::*;
use crate::{
    Error, MessageQuery, Order, Retention, Store,
    engine::{Batch, Engine, rocks::Rocks},
    keys,
};

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().is_some_and(|name| name != "LOCK") {
            fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
        }
    }
}

#[test]
fn a_log_cut_anywhere_behind_the_last_sync_keeps_everything_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("db");
    let store = open(&db, small_segments(7));
    store.set_retention(NODE, Retention { rows: Some(100), ..Retention::default() }).unwrap();
    put(&store, &[opened(1)]);
    for round in 0..40 {
        put(&store, &traffic(1, 3 * round, 3));
        store.evict(0).unwrap();
    }
    let (first, next) = store.visible(NODE);
    assert!(first > 0);
    let acknowledged = store.durable_high_water_mark(NODE, AGENT, EPOCH);
    let synced = store.log_files().unwrap();
    // Ten more batches reach the log, each a roll-over or an eviction now and then.
    for round in 40..50 {
        put(&store, &traffic(1, 3 * round, 3));
        store.evict(0).unwrap();
    }
    let after = store.log_files().unwrap();
    assert_eq!(synced.len(), 1);
    assert_eq!(after.len(), 1, "the log was not changed for another");
    let (log, from) = &synced[0];
    let to = after[0].1;
    assert!(to > *from);

    let mut ends = std::collections::BTreeSet::new();
    for step in 0..=60 {
        let cut = from + (to - from) * step / 60;
        let copied = dir.path().join(format!("cut {cut}"));
        copy(&db, &copied);
        let log = fs::OpenOptions::new().write(true).open(copied.join(log.file_name().unwrap())).unwrap();
        log.set_len(cut).unwrap();

        let crashed = open(&copied, small_segments(7));
        assert_sound(&crashed);
        let mark = crashed.high_water_mark(NODE, AGENT, EPOCH);
        assert!(mark >= acknowledged, "{mark} of {acknowledged} at {cut}");
        let (first, end) = crashed.visible(NODE);
        assert!(end >= next);
        assert_eq!(mark, 1 + 2 * end, "rows and mark agree");
        let query = MessageQuery { limit: u64::MAX, order: Order::OldestFirst, ..MessageQuery::default() };
        let rows = crashed.messages(NODE, &query).unwrap();
        assert_eq!(rows, (first..end).map(|id| (id, message(1, false, id, id))).collect::<Vec<_>>());
        assert!(crashed.connection(NODE, 1).unwrap().is_some_and(|connection| connection.is_open()));
        ends.insert(end);
        // And it goes on.
        put(&crashed, &traffic(1, end, 5));
        assert_sound(&crashed);
    }
    assert!(ends.len() > 5, "the cuts fell into different batches: {ends:?}");
}

/// The error of opening a database with these keys.
fn open_with(entries: &[(&[u8], &[u8])]) -> Error {
    let dir = tempfile::tempdir().unwrap();
    {
        let engine = Rocks::open(dir.path(), &options()).unwrap();
        let mut batch = Batch::default();
        entries.iter().for_each(|(key, value)| batch.put(key, value));
        engine.write(&batch).unwrap();
    }
    Store::open(dir.path(), options()).err().unwrap()
}

#[test]
fn a_newer_schema_is_refused_in_one_sentence() {
    let error = open_with(&[(keys::SCHEMA, &3u32.to_be_bytes())]);
    assert!(matches!(error, Error::NewerSchema { found: 3, known: 2, .. }), "{error}");
    assert!(
        error.to_string().contains("has schema version 3, this build reads version 2: use a newer build"),
        "{error}"
    );
}

#[test]
fn a_database_of_version_1_is_refused_in_one_sentence() {
    // As version 1 wrote them: its schema version, and a node.
    let error = open_with(&[(b"\x01schema", &1u32.to_be_bytes()), (b"\x02\0\0\0\0", b"\x0a\x049732")]);
    assert!(matches!(error, Error::OlderSchema { found: 1, known: 2, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("has schema version 1, this build reads version 2 only: move the directory away"), "{text}");
}

#[test]
fn a_database_in_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), options());
    let error = Store::open(dir.path(), options()).err().unwrap();
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    drop(store);
    open(dir.path(), options());
}

#[test]
fn another_database_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    {
        let engine = Rocks::open(dir.path(), &options()).unwrap();
        let mut batch = Batch::default();
        batch.put(b"somebody's", b"data");
        engine.write(&batch).unwrap();
    }
    assert!(matches!(Store::open(dir.path(), options()), Err(Error::NotAStore { .. })));
}

#[test]
fn damage_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    put(&open(dir.path(), options()), &traffic(1, 0, 100));
    let manifest = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.file_name().unwrap().to_string_lossy().starts_with("MANIFEST"))
        .unwrap();
    let mut bytes = fs::read(&manifest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    fs::write(&manifest, bytes).unwrap();
    let error = Store::open(dir.path(), options()).err().unwrap();
    assert!(matches!(error, Error::Corrupt(_)), "{error}");
}
