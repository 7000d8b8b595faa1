//! What the store asks of the disk, seen and made to fail by strace. Needs the right to trace this process.

use std::{collections::BTreeSet, fs::File, io::Write as _, path::Path};

use chainscope_testing::syscalls::{Call, Effect, Trace, acknowledged_after_sync};

use super::support::*;
use crate::{Error, Store};

fn is_log(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "log")
}

#[test]
fn the_log_is_synced_between_a_write_and_its_acknowledgement() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("db"), options());
    let path = dir.path().join("acknowledged");
    let mut acknowledged = File::create(&path).unwrap();
    let trace = Trace::of_this_thread(&dir.path().join("calls"), &[]);
    let write_and_sync: fn(&Store) -> Result<(), Error> = |store| {
        store.write_appended()?;
        store.sync_written()
    };
    for counter in 0..10 {
        stage(&store, &traffic(1, counter, 1));
        let commit = if counter < 5 { Store::sync } else { write_and_sync };
        commit(&store).unwrap();
        assert_eq!(store.durable_high_water_mark(NODE, AGENT, EPOCH), 2 * (counter + 1));
        acknowledged.write_all(b"a").unwrap();
    }
    assert_eq!(acknowledged_after_sync(&trace.stop(), &path, is_log), 10);
}

#[test]
fn a_log_is_synced_before_the_next_one_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("db"), crate::StoreOptions { write_buffer_bytes: 192 << 10, ..options() });
    let trace = Trace::of_this_thread(&dir.path().join("calls"), &[]);
    let mut next = 0;
    for messages in (1..=40).cycle().take(200) {
        stage(&store, &traffic(1, next, messages));
        store.write_appended().unwrap();
        next += messages;
    }
    let (mut begun, mut unsynced) = (BTreeSet::new(), BTreeSet::new());
    for Call { effect, path } in trace.stop().into_iter().filter(|call| is_log(&call.path)) {
        match effect {
            Effect::Write => {
                assert!(unsynced.iter().all(|other| *other == path), "{path:?} beside {unsynced:?}");
                unsynced.insert(path.clone());
                begun.insert(path);
            }
            Effect::Sync => drop(unsynced.remove(&path)),
        }
    }
    assert!(begun.len() >= 5, "{begun:?}");
}

#[test]
fn after_a_failed_sync_of_what_was_written_nothing_is_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("db");
    let store = open(&db, options());
    put(&store, &traffic(1, 0, 10));
    stage(&store, &traffic(1, 10, 1));
    store.write_appended().unwrap();
    // A single sync fails: the system may have dropped what it could not write, and says so once.
    let trace = Trace::of_this_thread(&dir.path().join("calls"), &["inject=fdatasync:error=EIO:when=1"]);
    let failed = store.sync_written();
    drop(trace.stop());
    assert!(matches!(failed, Err(Error::Failed(_))), "{failed:?}");
    for failed in [store.sync_written(), store.sync()] {
        assert!(matches!(failed, Err(Error::Failed(_))), "{failed:?}");
    }
    assert_eq!(store.visible(NODE), (0, 10));
    assert_eq!(store.durable_high_water_mark(NODE, AGENT, EPOCH), 20);
    drop(store);

    let store = open(&db, options());
    assert!(store.high_water_mark(NODE, AGENT, EPOCH) >= 20, "what was acknowledged is there");
    assert_sound(&store);
}

#[test]
fn after_an_io_error_nothing_is_written_until_the_database_is_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let db = dir.path().join("db");
    let store = open(&db, options());
    put(&store, &traffic(1, 0, 10));
    // A single sync fails; the disk is sound before and after.
    let trace = Trace::of_this_thread(&dir.path().join("calls"), &["inject=fdatasync:error=EIO:when=1"]);
    stage(&store, &traffic(1, 10, 1));
    let failed = store.sync();
    drop(trace.stop());
    assert!(matches!(failed, Err(Error::Failed(_))), "{failed:?}");
    let failed = store.sync();
    assert!(matches!(failed, Err(Error::Failed(_))), "{failed:?}");
    assert_eq!(store.visible(NODE), (0, 10), "reads go on");
    assert_eq!(store.message_chunks(NODE, 9).unwrap().unwrap(), [chunk(1, false, 9)]);
    assert_eq!(store.durable_high_water_mark(NODE, AGENT, EPOCH), 20);
    drop(store);

    let store = open(&db, options());
    let mark = store.high_water_mark(NODE, AGENT, EPOCH);
    assert!(mark >= 20, "what was acknowledged is there");
    put(&store, &traffic(1, mark / 2, 5));
    assert_eq!(store.visible(NODE), (0, mark / 2 + 5));
    assert_sound(&store);
}
