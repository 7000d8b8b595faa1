//! Files that are damaged, of another epoch or cannot be written: unreadable records become losses, the others are sent.

use std::os::unix::fs::symlink;

use proptest::prelude::*;

use super::{format::Header, *};

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn hostile_bytes_are_read_to_the_first_that_is_no_record(
        sizes in prop::collection::vec(0..200_usize, 0..8),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1..=255_u8), 0..3),
        cut in any::<prop::sample::Index>(),
        noise in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut bytes = Header { ordinal: 3, last: 3 }.encode().to_vec();
        let mut ends = vec![bytes.len()];
        for (id, size) in sizes.iter().enumerate() {
            format::put(&mut bytes, 3, 0, &fact(id as i64, *size));
            ends.push(bytes.len());
        }
        let mut hurt = bytes.clone();
        hurt.truncate(cut.index(bytes.len() + 1));
        hurt.extend_from_slice(&noise);
        for (place, flip) in &flips {
            if !hurt.is_empty() {
                let place = place.index(hurt.len());
                hurt[place] ^= flip;
            }
        }
        // Records before the first damaged byte are unchanged.
        let same = bytes.iter().zip(&hurt).take_while(|(a, b)| a == b).count();
        let scan = format::scan(&hurt.into());
        let whole = ends.iter().filter(|end| **end <= same).count();
        prop_assert_eq!(scan.header.is_some(), whole > 0);
        prop_assert_eq!(scan.records, whole.saturating_sub(1) as u64);
        prop_assert_eq!(scan.valid_bytes, whole.checked_sub(1).map_or(0, |last| ends[last] as u64));
    }
}

/// Makes reads of a file fail with EIO, as those of a damaged sector: nothing is mapped at the address 0.
fn fail_reads_of(path: &Path) {
    fs::remove_file(path).unwrap();
    symlink("/proc/self/mem", path).unwrap();
    assert!(files::is_disk_error(&fs::read(path).unwrap_err()));
}

#[test]
fn damaged_records_that_were_sent_become_losses_under_the_same_sequence_numbers() {
    let dir = folder();
    let mut spool = open(dir.path(), 4_000_000);
    fill(&mut spool, "a", 0, 5);
    spool.begin_session(&[], &spool.names());
    while spool.next_batch(&BTreeSet::new()).is_some() {}
    let path = files_of(&spool, "a").swap_remove(0);
    assert_eq!(path.extension().unwrap(), "out");
    let whole = format::scan(&fs::read(&path).unwrap().into()).records;
    let mut bytes = fs::read(&path).unwrap();
    bytes[30_000] ^= 1;
    // The damage is detected while the records are sent, or when the spool is opened.
    for is_reopened in [false, true] {
        fs::write(&path, &bytes).unwrap();
        if is_reopened {
            spool = open(dir.path(), 4_000_000);
        }
        let mut durable = Durable::default();
        spool.begin_session(&[], &spool.names());
        while let Some(batch) = spool.next_batch(&BTreeSet::new()) {
            durable.take(&batch);
        }
        let stream = durable.stream("a");
        assert_eq!(stream.len(), 50);
        let lost = losses(stream);
        assert_eq!(lost.len() as u64, whole - 2, "the third record and what follows in the file");
        assert!(lost.iter().all(|loss| loss.records == 1 && loss.reason == "spool damaged"), "{lost:?}");
        assert_eq!(
            stream[usize::try_from(whole).unwrap()].time_ns,
            whole as i64,
            "the others keep their sequence numbers"
        );
    }
}

#[test]
fn damaged_records_that_were_never_sent_become_a_loss_of_unknown_amount() {
    let dir = folder();
    let mut spool = open(dir.path(), 4_000_000);
    fill(&mut spool, "a", 0, 5);
    let path = files_of(&spool, "a").swap_remove(0);
    assert_eq!(path.extension().unwrap(), "seg");
    let mut bytes = fs::read(&path).unwrap();
    let whole = format::scan(&bytes.clone().into()).records;
    for (place, left) in [(30_000, 2), (3, 0)] {
        bytes[place] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let mut again = open(dir.path(), 4_000_000);
        let mut durable = Durable::default();
        again.begin_session(&[], &again.names());
        while let Some(batch) = again.next_batch(&BTreeSet::new()) {
            durable.take(&batch);
        }
        // Not acknowledged, so that the second round finds the files again.
        let stream = durable.stream("a");
        assert_eq!(stream.len() as u64, 50 - whole + left + 1);
        let lost = losses(stream);
        assert!(lost.len() == 1 && lost[0].amount_unknown, "{lost:?}");
        for file in files_of(&again, "a") {
            fs::remove_file(file).unwrap();
        }
        drop(again);
        let mut fresh = open(dir.path(), 4_000_000);
        fill(&mut fresh, "a", 0, 5);
        assert_eq!(files_of(&fresh, "a")[0], path);
        bytes = fs::read(&path).unwrap();
    }
}

#[test]
fn records_that_the_disk_cannot_read_become_losses_and_other_streams_are_sent() {
    for is_reopened in [false, true] {
        let dir = folder();
        let mut spool = open(dir.path(), 4_000_000);
        fill(&mut spool, "a", 0, 5);
        fill(&mut spool, "b", 100, 1);
        spool.begin_session(&[], &spool.names());
        while spool.next_batch(&BTreeSet::new()).is_some() {}
        let path = files_of(&spool, "a").swap_remove(0);
        let lost = format::scan(&fs::read(&path).unwrap().into()).records;
        fail_reads_of(&path);
        if is_reopened {
            spool = open(dir.path(), 4_000_000);
        }
        let mut durable = Durable::default();
        deliver(&mut spool, &mut durable);
        let stream = durable.stream("a");
        assert_eq!(stream.len(), 50);
        for (record, sequence) in stream.iter().zip(0..) {
            match losses(std::slice::from_ref(record)).first() {
                Some(loss) => assert!(sequence < lost && loss.records == 1 && loss.reason == "spool damaged"),
                None => assert!(sequence >= lost && record.time_ns == sequence as i64, "{sequence}: {record:?}"),
            }
        }
        assert_eq!(durable.stream("b").len(), 10);
    }
}

#[test]
fn a_last_segment_that_the_disk_cannot_read_becomes_a_loss_of_unknown_amount() {
    for is_sent in [false, true] {
        let dir = folder();
        let mut spool = open(dir.path(), 4_000_000);
        let mut durable = Durable::default();
        fill(&mut spool, "a", 0, 5);
        fill(&mut spool, "b", 100, 1);
        if is_sent {
            spool.begin_session(&[], &spool.names());
            while spool.next_batch(&BTreeSet::new()).is_some() {}
        }
        let path = files_of(&spool, "a").pop().unwrap();
        let lost = format::scan(&fs::read(&path).unwrap().into()).records;
        drop(spool);
        fail_reads_of(&path);
        deliver(&mut open(dir.path(), 4_000_000), &mut durable);
        let stream = durable.stream("a");
        assert_eq!(stream.len() as u64, 50 - lost + 1);
        let loss = losses(&stream[stream.len() - 1..])[0];
        assert!(loss.amount_unknown && loss.reason == "spool damaged", "{loss:?}");
        assert_eq!(durable.stream("b").len(), 10);
    }
}

#[test]
fn an_error_that_can_end_by_itself_removes_no_spool() {
    let dir = folder();
    let mut spool = open(dir.path(), 4_000_000);
    fill(&mut spool, "a", 0, 5);
    let folder = spool.streams.by_node["a"].dir().to_owned();
    drop(spool);
    // An error of reading that is no damage: a file that cannot be followed to.
    let segment = fs::read_dir(&folder).unwrap().map(|item| item.unwrap().path()).min().unwrap();
    for name in [folder.join("node"), segment] {
        let away = dir.path().join("away");
        fs::rename(&name, &away).unwrap();
        symlink(&name, &name).unwrap();
        Spool::open(dir.path(), &EPOCH, 4_000_000, NOW).unwrap_err();
        fs::rename(&away, &name).unwrap();
    }
    let mut durable = Durable::default();
    deliver(&mut open(dir.path(), 4_000_000), &mut durable);
    assert_eq!(durable.stream("a").len(), 50);
}

#[test]
fn a_sent_segment_after_one_that_was_never_sent_makes_the_spool_a_loss_of_unknown_amount() {
    let dir = folder();
    let mut spool = open(dir.path(), 4_000_000);
    fill(&mut spool, "a", 0, 5);
    spool.begin_session(&[], &spool.names());
    while spool.next_batch(&BTreeSet::new()).is_some() {}
    let files = files_of(&spool, "a");
    drop(spool);
    // The disk has the earlier name of the first segment.
    let (ordinal, _) = files[0].file_name().unwrap().to_str().unwrap().split_once('-').unwrap();
    fs::rename(&files[0], files[0].with_file_name(format!("{ordinal}.seg"))).unwrap();
    for _ in 0..2 {
        let mut durable = Durable::default();
        let mut spool = open(dir.path(), 4_000_000);
        spool.write_pending_losses();
        sync(&mut spool);
        spool.begin_session(&[], &spool.names());
        while let Some(batch) = spool.next_batch(&BTreeSet::new()) {
            durable.take(&batch);
        }
        let stream = durable.stream("a");
        let lost = losses(stream);
        assert!(stream.len() == 1 && lost[0].amount_unknown && lost[0].reason == "spool damaged", "{stream:?}");
    }
}

#[test]
fn the_spool_of_another_epoch_becomes_a_loss() {
    let dir = folder();
    let mut spool = open(dir.path(), 2_000_000);
    fill(&mut spool, "a", 0, 1);
    drop(spool);
    let mut spool = Spool::open(dir.path(), &Epoch([8; 16]), 2_000_000, NOW).unwrap();
    spool.open_stream("a", false).unwrap();
    spool.open_stream("b", false).unwrap();
    assert_eq!(fs::read_dir(dir.path().join("spool")).unwrap().count(), 1);
    let mut durable = Durable::default();
    deliver(&mut spool, &mut durable);
    let lost = losses(durable.stream("a"));
    assert!(lost.len() == 1 && lost[0].amount_unknown && lost[0].reason == "spool of another epoch", "{lost:?}");
    assert!(durable.stream("b").is_empty());
}

#[test]
fn a_spool_of_another_epoch_without_a_name_becomes_a_loss_of_every_stream() {
    let dir = folder();
    let mut spool = open(dir.path(), 2_000_000);
    fill(&mut spool, "a", 0, 5);
    let name = spool.streams.by_node["a"].dir().join("node");
    drop(spool);
    fail_reads_of(&name);
    let mut spool = Spool::open(dir.path(), &Epoch([8; 16]), 2_000_000, NOW).unwrap();
    spool.open_stream("a", false).unwrap();
    spool.open_stream("b", false).unwrap();
    let mut durable = Durable::default();
    deliver(&mut spool, &mut durable);
    for node in ["a", "b"] {
        let lost = losses(durable.stream(node));
        assert!(lost.len() == 1 && lost[0].amount_unknown && lost[0].reason == "spool of another epoch", "{lost:?}");
    }
    // Only once.
    drop(spool);
    let mut spool = Spool::open(dir.path(), &Epoch([8; 16]), 2_000_000, NOW).unwrap();
    deliver(&mut spool, &mut durable);
    assert!(durable.stream("a").len() == 1 && durable.stream("b").len() == 1);
}

#[test]
fn records_that_cannot_be_written_are_counted_and_become_a_loss_later() {
    let dir = folder();
    let mut spool = open(dir.path(), 2_000_000);
    let folder = spool.streams.by_node["a"].dir().to_owned();
    let away = dir.path().join("away");
    fs::rename(&folder, &away).unwrap();
    spool.append("a", &[fact(1, 10), fact(2, 10)]);
    spool.append("a", &[fact(3, 10)]);
    assert_eq!(spool.pending_loss_ns(), Some(1));
    assert_eq!(spool.status()[0].dropped.records, 3);
    fs::rename(&away, &folder).unwrap();
    spool.append("a", &[fact(4, 10)]);
    let mut durable = Durable::default();
    deliver(&mut spool, &mut durable);
    let stream = durable.stream("a");
    let lost = losses(stream);
    assert_eq!((lost.len(), lost[0].records, lost[0].from_ns, lost[0].to_ns), (1, 3, 1, 3));
    assert_eq!((stream.len(), stream[1].time_ns), (2, 4));
}

#[test]
fn a_spool_without_a_name_becomes_a_loss_of_the_streams_that_were_there_before() {
    let dir = folder();
    let mut spool = open(dir.path(), 4_000_000);
    fill(&mut spool, "a", 0, 5);
    fill(&mut spool, "b", 100, 1);
    let name = spool.streams.by_node["a"].dir().join("node");
    drop(spool);
    fail_reads_of(&name);
    let mut spool = open(dir.path(), 4_000_000);
    spool.open_stream("new", false).unwrap();
    let mut durable = Durable::default();
    deliver(&mut spool, &mut durable);
    let lost = losses(durable.stream("a"));
    assert!(lost.len() == 1 && lost[0].amount_unknown && lost[0].reason == "spool damaged", "{lost:?}");
    assert!(durable.stream("b").len() == 10 && durable.stream("new").is_empty());
    // Only once.
    drop(spool);
    let mut spool = open(dir.path(), 4_000_000);
    deliver(&mut spool, &mut durable);
    assert_eq!(durable.stream("a").len(), 1);
}
