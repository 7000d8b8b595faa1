//! Which records a full spool drops, and which streams have a share.

use chainscope_proto::v1::NetworkAccount;

use super::*;

fn account(value: u64) -> Record {
    let account = NetworkAccount { bytes_seen: value, ..Default::default() };
    Record { time_ns: 0, target: "t".to_owned(), kind: Some(Kind::NetworkAccount(account)) }
}

#[test]
fn a_busy_stream_drops_its_oldest_records_and_others_keep_their_share() {
    let dir = folder();
    let mut spool = open(dir.path(), 2_000_000);
    fill(&mut spool, "b", 0, 5);
    fill(&mut spool, "a", 0, 100);
    assert!(spool.bytes() <= 2_000_000);
    let mut durable = Durable::default();
    deliver(&mut spool, &mut durable);
    assert_eq!(durable.stream("b").len(), 50);
    let a = durable.stream("a");
    let reported = losses(a);
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert_eq!(
        (reported[0].stage.as_str(), reported[0].reason.as_str(), reported[0].from_ns),
        ("spool", "spool full", 0)
    );
    assert_eq!(reported[0].records as usize + a.len() - 1, 1_000);
    assert!(a.len() > 100, "it may exceed its share: {}", a.len());
    assert_eq!(spool.status()[0].dropped.records, reported[0].records);
}

#[test]
fn what_can_wait_leaves_half_of_a_share() {
    let dir = folder();
    let mut spool = open(dir.path(), 2_000_000);
    let mut tens = 0;
    while spool.has_room("a") {
        fill(&mut spool, "a", tens * 10, 1);
        tens += 1;
    }
    assert!((400_000..600_000).contains(&spool.bytes()), "{}", spool.bytes());
    assert!(spool.has_room("b") && !spool.has_room("unknown"));
    deliver(&mut spool, &mut Durable::default());
    assert!(spool.has_room("a"), "all of it is acknowledged");
}

#[test]
fn sent_records_are_kept_in_a_full_stream() {
    let dir = folder();
    let mut spool = open(dir.path(), 2_000_000);
    fill(&mut spool, "a", 0, 2);
    spool.begin_session(&[], &spool.names());
    let mut sent = Vec::new();
    while let Some(batch) = spool.next_batch(&BTreeSet::new()) {
        sent.push(batch);
    }
    drop(spool);
    let mut spool = open(dir.path(), 2_000_000);
    fill(&mut spool, "a", 20, 50);
    let mut durable = Durable::default();
    for batch in &sent {
        durable.take(batch);
    }
    deliver(&mut spool, &mut durable);
    let stream = durable.stream("a");
    assert!(stream.iter().zip(0..20).all(|(record, id)| record.time_ns == id));
    let reported = losses(stream);
    assert_eq!((reported.len(), reported[0].from_ns), (1, 20));
    assert_eq!(reported[0].records as usize + stream.len() - 1, 520);
}

#[test]
fn dropped_states_cause_no_loss_and_losses_are_never_dropped() {
    let dir = folder();
    let mut spool = open(dir.path(), 1_000_000);
    let gone =
        Loss { stage: "kernel".into(), reason: "ring full".into(), bytes: 5, from_ns: 1, to_ns: 1, ..Loss::default() };
    let gone = Record { time_ns: 1, target: "t".to_owned(), kind: Some(Kind::Loss(gone)) };
    for round in 0..3_000 {
        spool.append("a", &[account(round), gone.clone()]);
        if round % 10 == 0 {
            spool.append("a", &[fact(round as i64, 10_000)]);
        }
        sync(&mut spool);
    }
    let mut durable = Durable::default();
    deliver(&mut spool, &mut durable);
    let lost = losses(durable.stream("a"));
    let of = |stage: &str, count: fn(&Loss) -> u64| {
        lost.iter().filter(|loss| loss.stage == stage).map(|loss| count(loss)).sum::<u64>()
    };
    assert_eq!(of("kernel", |loss| loss.bytes), 15_000);
    let facts = durable.stream("a").iter().filter(|record| matches!(record.kind, Some(Kind::Chunk(_)))).count() as u64;
    assert_eq!(of("spool", |loss| loss.records), 300 - facts);
}

#[test]
fn only_streams_in_use_have_a_share() {
    let dir = folder();
    let mut spool = Spool::open(dir.path(), &EPOCH, 1_000_000, NOW).unwrap();
    for stream in 0..100 {
        spool.open_stream(&format!("old{stream}"), false).unwrap();
    }
    spool.open_stream("a", false).unwrap();
    spool.open_stream("old0", false).unwrap();
    assert_eq!(spool.share(), 1_000_000 / 101);
    fill(&mut spool, "old0", 0, 1);
    spool.expect(&BTreeSet::from(["a".to_owned(), "not here".to_owned()]));
    assert_eq!(spool.share(), 500_000, "one is expected, one holds something");
    let mut durable = Durable::default();
    deliver(&mut spool, &mut durable);
    assert_eq!(files_of(&spool, "old0").len(), 1, "its last segment is active");
    spool.expect(&BTreeSet::from(["a".to_owned()]));
    assert_eq!((files_of(&spool, "old0").len(), spool.share()), (0, 1_000_000));

    // A record of a node that is not expected: the stream gets a share and continues its sequence.
    let next = durable.stream("old0").len() as u64;
    fill(&mut spool, "a", 0, 20);
    fill(&mut spool, "old0", 10, 1);
    assert_eq!(spool.share(), 500_000);
    assert_eq!(spool.streams.by_node["old0"].pending(), 10);
    let batch = std::iter::from_fn(|| spool.next_batch(&BTreeSet::new())).find(|batch| batch.node == "old0").unwrap();
    assert_eq!(batch.first_sequence, next);
    spool.rewind("a");
    spool.rewind("old0");
    deliver(&mut spool, &mut durable);
    assert_eq!(durable.stream("old0").len() as u64, next + 10);
    assert_eq!(spool.dropped().keys().collect::<Vec<_>>(), ["a"]);

    // After a restart the aggregator sends the same high-water mark.
    spool.expect(&BTreeSet::new());
    assert_eq!((files_of(&spool, "a").len(), files_of(&spool, "old0").len()), (0, 0));
    drop(spool);
    let mut spool = Spool::open(dir.path(), &EPOCH, 1_000_000, NOW).unwrap();
    fill(&mut spool, "old0", 20, 1);
    assert_eq!(spool.next_batch(&BTreeSet::new()), None);
    deliver(&mut spool, &mut durable);
    assert_eq!(durable.stream("old0").len() as u64, next + 20);
}

#[test]
fn unacknowledged_records_of_unexpected_nodes_are_kept() {
    let dir = folder();
    let mut spool = open(dir.path(), 2_000_000);
    fill(&mut spool, "a", 0, 1);
    spool.begin_session(&[], &spool.names());
    let batch = spool.next_batch(&BTreeSet::new()).unwrap();
    spool.expect(&BTreeSet::new());
    spool.acknowledge("a", batch.records.len() as u64 - 1).unwrap();
    spool.expect(&BTreeSet::new());
    assert_eq!((files_of(&spool, "a").len(), spool.streams.by_node["a"].pending()), (1, 1));
    // Written and not synced.
    spool.acknowledge("a", batch.records.len() as u64).unwrap();
    spool.append("a", &[fact(10, 10)]);
    spool.expect(&BTreeSet::new());
    sync(&mut spool);
    let mut durable = Durable::default();
    durable.take(&batch);
    deliver(&mut spool, &mut durable);
    assert_eq!(durable.stream("a").last().unwrap().time_ns, 10);
}
