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
fn a_segment_that_cannot_be_read_for_a_while_keeps_its_sequence_numbers() {
    let dir = folder();
    let mut spool = open(dir.path(), 4_000_000);
    fill(&mut spool, "a", 0, 5);
    let mut durable = Durable::default();
    spool.begin_session(&[], &spool.names());
    let batch = spool.next_batch(&BTreeSet::new()).unwrap();
    assert!(batch.records.len() > 5);
    durable.take(&Batch { records: batch.records[..5].to_vec(), ..batch });
    let path = files_of(&spool, "a").swap_remove(0);
    let away = dir.path().join("away");
    for is_reopened in [false, true] {
        if is_reopened {
            spool = open(dir.path(), 4_000_000);
        }
        fs::rename(&path, &away).unwrap();
        assert!(spool.begin_session(&durable.marks(), &spool.names()).is_empty());
        assert_eq!(spool.next_batch(&BTreeSet::new()), None);
        fs::rename(&away, &path).unwrap();
        let batch = spool.next_batch(&BTreeSet::new()).unwrap();
        assert_eq!((batch.first_sequence, batch.records[0].time_ns), (5, 5));
    }
    // `take` refuses a record under two sequence numbers.
    deliver(&mut spool, &mut durable);
    let ids: Vec<i64> = durable.stream("a").iter().map(|record| record.time_ns).collect();
    assert_eq!(ids, (0..50).collect::<Vec<_>>());
}

#[test]
fn records_are_not_sent_under_sequence_numbers_of_another_segment() {
    let dir = folder();
    let mut spool = open(dir.path(), 4_000_000);
    fill(&mut spool, "a", 0, 5);
    spool.begin_session(&[], &spool.names());
    while spool.next_batch(&BTreeSet::new()).is_some() {}
    let stream = spool.streams.get_mut("a").unwrap();
    stream.rewind();
    let (_, records) = stream.take(1, u64::MAX).unwrap().unwrap();
    assert_eq!(records.len(), 1);
    // One record too many was counted.
    stream.cursor.sequence += 1;
    let error = loop {
        match stream.take(usize::MAX, u64::MAX) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the next segment was entered"),
            Err(error) => break error.to_string(),
        }
    };
    let second = files_of(&spool, "a").swap_remove(1);
    assert!(error.starts_with(second.to_str().unwrap()), "{error}");
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
