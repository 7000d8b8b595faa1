//! One stream: at which record a session begins, and when files are removed.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

#[test]
fn a_stream_follows_an_aggregator_that_lost_its_database() {
    let dir = folder();
    let mut spool = open(dir.path(), 2_000_000);
    fill(&mut spool, "a", 0, 3);
    let mut durable = Durable::default();
    deliver(&mut spool, &mut durable);
    fill(&mut spool, "a", 30, 3);
    spool.begin_session(&durable.marks(), &spool.names());
    let batch = spool.next_batch(&BTreeSet::new()).unwrap();
    assert_eq!(batch.first_sequence, 30);
    drop(spool);

    let mut spool = open(dir.path(), 2_000_000);
    let mut empty = Durable::default();
    assert_eq!(spool.begin_session(&[], &spool.names()), ["a"]);
    deliver(&mut spool, &mut empty);
    // Acknowledged records in the same file are sent once more; nothing is missing.
    let ids: Vec<i64> = empty.stream("a").iter().map(|record| record.time_ns).collect();
    assert!(ids.ends_with(&(30..60).collect::<Vec<_>>()), "{ids:?}");
    assert!(ids.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{ids:?}");
}

#[test]
fn a_segment_without_records_does_not_hold_up_those_after_it() {
    let dir = folder();
    let mut spool = open(dir.path(), 2_000_000);
    let mut durable = Durable::default();
    deliver(&mut spool, &mut durable);
    // The sync fails, so that the segment is empty again; the aggregator has records that were never sent.
    spool.append("a", &[fact(1, 10)]);
    spool.finish_sync("a", false);
    assert_eq!(spool.begin_session(&[HighWaterMark { node: "a".to_owned(), next_sequence: 7 }], &spool.names()), ["a"]);
    spool.append("a", &[fact(2, 10)]);
    sync(&mut spool);
    let batch = spool.next_batch(&BTreeSet::new()).unwrap();
    assert_eq!((batch.first_sequence, batch.records.len(), losses(&batch.records).len()), (7, 2, 1));
    assert_eq!(batch.records[1], fact(2, 10));
}

#[test]
fn a_suspended_stream_is_sent_from_its_first_unacknowledged_record() {
    let dir = folder();
    let mut spool = open(dir.path(), 2_000_000);
    fill(&mut spool, "a", 0, 1);
    fill(&mut spool, "b", 10, 1);
    spool.begin_session(&[], &spool.names());
    let first = spool.next_batch(&BTreeSet::new()).unwrap();
    let aside = BTreeSet::from([first.node.clone()]);
    assert_ne!(spool.next_batch(&aside).unwrap().node, first.node);
    assert_eq!(spool.next_batch(&aside), None);
    spool.rewind(&first.node);
    assert_eq!(spool.next_batch(&BTreeSet::new()).unwrap(), first);
}

#[test]
fn files_are_private_and_removed_after_delivery() {
    let dir = folder();
    let mut spool = open(dir.path(), 2_000_000);
    fill(&mut spool, "a", 0, 5);
    for file in files_of(&spool, "a") {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{}", file.display());
    }
    deliver(&mut spool, &mut Durable::default());
    assert_eq!(files_of(&spool, "a").len(), 1, "the active one");
    let mut spool = open(dir.path(), 2_000_000);
    spool.begin_session(&[HighWaterMark { node: "a".to_owned(), next_sequence: 50 }], &spool.names());
    assert!(files_of(&spool, "a").is_empty());
}
