//! Streams, ids, visibility: what `append` and `sync` promise.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::support::*;
use crate::{Error, FactQuery, MAX_NODE_NAME, MessageQuery, Order};

#[test]
fn a_resend_is_recognised_even_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let records = traffic(1, 0, 10);
    let store = open(dir.path(), options());
    assert_eq!(store.append(NODE, AGENT, EPOCH, 0, &records[..8]).unwrap(), 8);
    assert_eq!(store.append(NODE, AGENT, EPOCH, 4, &records[4..12]).unwrap(), 12);
    store.sync().unwrap();
    drop(store);

    let store = open(dir.path(), options());
    assert_eq!(store.durable_high_water_mark(NODE, AGENT, EPOCH), 12);
    assert_eq!(store.append(NODE, AGENT, EPOCH, 0, &records[..6]).unwrap(), 12);
    assert_eq!(store.append(NODE, AGENT, EPOCH, 0, &records).unwrap(), 20);
    store.sync().unwrap();

    assert_eq!(store.visible(NODE), (0, 10));
    let totals = store.nodes()[0].totals;
    assert_eq!((totals.messages, totals.chunks, totals.duplicates), (10, 10, 4 + 6 + 12));
    assert_sound(&store);
}

#[test]
fn a_hole_is_refused_and_can_be_accepted_as_a_loss() {
    each_engine(|open| {
        let store = open(options());
        let records = traffic(1, 0, 2);
        let error = store.append(NODE, AGENT, EPOCH, 5, &records).unwrap_err();
        assert!(matches!(error, Error::Hole { expected: 0, found: 5, .. }), "{error}");
        assert_eq!(store.accept_hole(NODE, AGENT, EPOCH, 5).unwrap(), 5);
        assert_eq!(store.accept_hole(NODE, AGENT, EPOCH, 3).unwrap(), 5);
        assert_eq!(store.append(NODE, AGENT, EPOCH, 5, &records).unwrap(), 9);
        store.sync().unwrap();
        assert_eq!(store.visible(NODE), (0, 2));
        let losses = store.losses(NODE, &FactQuery::default()).unwrap();
        assert_eq!(losses.len(), 1);
        assert_eq!(store.nodes()[0].totals.lost_records, 5);
    });
}

#[test]
fn only_what_is_synced_is_seen() {
    each_engine(|open| {
        let store = open(options());
        let calls = Arc::new(AtomicUsize::new(0));
        let counter = calls.clone();
        let subscription = store.on_visible(Box::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        }));
        let before = store.generation();
        stage(&store, &[opened(1), chunk(1, false, 0), message(1, false, 0, 0), loss(3), account(1)]);

        assert_eq!(store.visible(NODE), (0, 0));
        assert_eq!(store.messages(NODE, &MessageQuery::default()).unwrap(), []);
        assert_eq!(store.message(NODE, 0).unwrap(), None);
        assert_eq!(store.chunk(NODE, 1, false, 0).unwrap(), None);
        assert_eq!(store.connection(NODE, 1).unwrap(), None);
        assert_eq!(store.durable_high_water_mark(NODE, AGENT, EPOCH), 0);
        assert_eq!(store.wait(before, Duration::ZERO), before);

        store.sync().unwrap();
        assert_eq!(store.visible(NODE), (0, 1));
        assert_eq!(store.messages(NODE, &MessageQuery::default()).unwrap().len(), 1);
        assert!(store.chunk(NODE, 1, false, 0).unwrap().is_some());
        assert!(store.connection(NODE, 1).unwrap().unwrap().is_open());
        assert_eq!(store.durable_high_water_mark(NODE, AGENT, EPOCH), 5);
        assert_ne!(store.wait(before, Duration::from_secs(60)), before);
        assert_eq!(calls.load(Ordering::Relaxed), 1);

        drop(subscription);
        put(&store, &traffic(1, 1, 1));
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        store.sync().unwrap();
        assert_eq!(store.generation(), before + 2, "nothing staged, nothing moved");
    });
}

#[test]
fn a_waiting_reader_wakes_up() {
    each_engine(|open| {
        let store = open(options());
        let seen = store.generation();
        let reader = std::thread::spawn({
            let store = store.clone();
            move || {
                store.wait(seen, Duration::from_secs(600));
                store.visible(NODE)
            }
        });
        put(&store, &traffic(1, 0, 3));
        assert_eq!(reader.join().unwrap(), (0, 3));
    });
}

#[test]
fn nodes_do_not_mix() {
    each_engine(|open| {
        let store = open(small_segments(3));
        for round in 0..10 {
            for node in ["a", "b"] {
                let records = traffic(u64::from(node == "b"), round, 1);
                store.append(node, AGENT, EPOCH, 2 * round, &records).unwrap();
            }
        }
        store.sync().unwrap();
        for (node, connection) in [("a", 0), ("b", 1)] {
            assert_eq!(store.visible(node), (0, 10));
            let rows = store.messages(node, &MessageQuery { order: Order::OldestFirst, ..Default::default() }).unwrap();
            assert_eq!(rows.iter().map(|(id, _)| *id).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
            assert_eq!(rows[3].1, message(connection, false, 3, 3));
        }
        assert_eq!(store.nodes().len(), 2);
        assert_eq!(store.visible("c"), (0, 0));
        assert_eq!(store.messages("c", &MessageQuery::default()).unwrap(), []);
        assert_sound(&store);
    });
}

#[test]
fn unknown_kinds_advance_the_mark_and_are_counted() {
    each_engine(|open| {
        let store = open(options());
        let unknown = crate::tests::support::account(0);
        let unknown = chainscope_proto::v1::Record { kind: None, ..unknown };
        stage(&store, &[unknown.clone(), message(1, false, 0, 0), unknown]);
        store.sync().unwrap();
        assert_eq!(store.durable_high_water_mark(NODE, AGENT, EPOCH), 3);
        assert_eq!(store.nodes()[0].totals.unknown_kinds, 2);
        assert_eq!(store.visible(NODE), (0, 1));
    });
}

#[test]
fn names_that_are_too_long_are_refused_values_are_cut() {
    each_engine(|open| {
        let store = open(options());
        let long = "x".repeat(300);
        let records = traffic(1, 0, 1);
        let longest = "x".repeat(MAX_NODE_NAME);
        assert_eq!(store.append(&longest, AGENT, EPOCH, 0, &records).unwrap(), 2);
        store.sync().unwrap();
        assert_eq!(store.visible(&longest), (0, 1));
        let longer = format!("{longest}x");
        assert!(matches!(store.append(&longer, AGENT, EPOCH, 0, &records), Err(Error::TooLong { length: 508, .. })));
        assert!(matches!(store.append(NODE, &long, EPOCH, 0, &records), Err(Error::TooLong { .. })));
        assert!(matches!(store.append(NODE, AGENT, long.as_bytes(), 0, &records), Err(Error::TooLong { .. })));

        // Two kinds that begin alike for 299 bytes: one posting, distinguished by their rows.
        let with_kind = |kind: &str| {
            let mut record = message(1, false, 0, 0);
            if let Some(chainscope_proto::v1::record::Kind::Message(message)) = &mut record.kind {
                message.kind = kind.to_owned();
            }
            record
        };
        let other = format!("{}y", "x".repeat(299));
        put(&store, &[with_kind(&long), with_kind(&other)]);
        let ids = |kind: &str| {
            let query = MessageQuery { kinds: vec![kind.to_owned()], ..MessageQuery::default() };
            store.messages(NODE, &query).unwrap().iter().map(|(id, _)| *id).collect::<Vec<_>>()
        };
        assert_eq!(ids(&long), [0]);
        assert_eq!(ids(&other), [1]);
        assert_sound(&store);
    });
}

#[test]
fn a_long_append_is_written_on_its_way_with_the_right_mark() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), crate::StoreOptions { stage_bytes: 1000, ..options() });
    let records = traffic(1, 0, 500);
    store.append(NODE, AGENT, EPOCH, 0, &records).unwrap();
    assert_eq!(store.durable_high_water_mark(NODE, AGENT, EPOCH), 0);
    // The last records are not written: what was written on the way must say exactly how far it got.
    store.sync_written().unwrap();
    let durable = store.durable_high_water_mark(NODE, AGENT, EPOCH);
    assert!(durable > 900 && durable < 1000, "{durable}");
    drop(store);

    let store = open(dir.path(), options());
    assert_eq!(store.high_water_mark(NODE, AGENT, EPOCH), durable);
    assert_eq!(store.visible(NODE).1, durable / 2);
    store.append(NODE, AGENT, EPOCH, 0, &records).unwrap();
    store.sync().unwrap();
    assert_eq!(store.visible(NODE), (0, 500));
    assert_sound(&store);
}

#[test]
fn records_that_are_given_again_because_the_disk_was_full_are_no_duplicates() {
    let options = crate::StoreOptions { stage_bytes: 1_000, memory_limit_bytes: 20_000, ..options() };
    let store = crate::Store::in_memory(options).unwrap();
    let records = traffic(1, 0, 200);
    let append = |first: usize| store.append(NODE, AGENT, EPOCH, first as u64, &records[first..]);
    let duplicates = || store.nodes()[0].totals.duplicates;
    for _ in 0..3 {
        let failed = append(0);
        assert!(matches!(failed, Err(Error::DiskFull { .. })), "{failed:?}");
    }
    assert!((1..400).contains(&store.high_water_mark(NODE, AGENT, EPOCH)));
    // Eviction makes room and writes what is staged, the totals included.
    let mut tries = 0;
    while let Err(error) = append(0).and_then(|_| store.sync()) {
        assert!(matches!(error, Error::DiskFull { .. }), "{error}");
        store.evict_for_space().unwrap();
        assert_eq!(duplicates(), 0);
        tries += 1;
        assert!(tries < 200, "eviction does not help");
    }
    assert_eq!((tries > 0, duplicates()), (true, 0));

    // What was acknowledged and comes again is a duplicate.
    assert_eq!(append(390).unwrap(), 400);
    store.evict_for_space().unwrap();
    assert_eq!(duplicates(), 10);
}

#[test]
fn losses_target_events_and_accounts_are_kept() {
    each_engine(|open| {
        let store = open(small_segments(2));
        for round in 0..10 {
            put(&store, &[loss(round), target_event(&format!("event {round}")), account(round)]);
            put(&store, &traffic(1, round, 1));
        }
        let query = |cursor, limit, order| FactQuery { cursor, limit, order };
        let ids = |query: &FactQuery| store.losses(NODE, query).unwrap().iter().map(|(id, _)| *id).collect::<Vec<_>>();
        assert_eq!(ids(&query(None, 3, Order::NewestFirst)), [9, 8, 7]);
        assert_eq!(ids(&query(Some(4), 3, Order::NewestFirst)), [4, 3, 2]);
        assert_eq!(ids(&query(Some(4), 3, Order::OldestFirst)), [4, 5, 6]);
        assert_eq!(ids(&query(None, 0, Order::OldestFirst)), [0; 0]);
        assert_eq!(ids(&query(Some(u64::MAX), 2, Order::NewestFirst)), [9, 8]);
        assert_eq!(ids(&query(Some(u64::MAX), 2, Order::OldestFirst)), [0; 0]);
        let events = store.target_events(NODE, &query(Some(7), 1, Order::NewestFirst)).unwrap();
        assert_eq!(events, [(7, target_event("event 7"))]);

        let accounts = store.accounts(NODE).unwrap();
        assert_eq!(accounts.len(), 1);
        assert_eq!((accounts[0].agent.as_str(), accounts[0].epoch.as_slice()), (AGENT, EPOCH));
        assert_eq!(accounts[0].record, account(9));
        assert_eq!(store.nodes()[0].totals.lost_bytes, 450);
    });
}

#[test]
fn readers_beside_a_writer_and_evictions_see_dense_rows_with_their_chunks() {
    each_engine(|open| {
        let store = open(crate::StoreOptions { write_buffer_bytes: 192 << 10, ..small_segments(20) });
        store.set_retention(NODE, crate::Retention { rows: Some(100), ..Default::default() }).unwrap();
        put(&store, &traffic(1, 0, 1));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let readers: Vec<_> = [Order::NewestFirst, Order::OldestFirst]
                .into_iter()
                .map(|order| {
                    let (store, done) = (&store, &done);
                    scope.spawn(move || {
                        let mut pages = 0;
                        while !done.load(Ordering::Relaxed) {
                            let query = MessageQuery { order, incoming: Some(false), ..MessageQuery::default() };
                            let rows = store.messages(NODE, &query).unwrap();
                            assert!(!rows.is_empty());
                            for (id, record) in &rows {
                                assert_eq!(*record, message(1, false, *id, *id));
                            }
                            let step = if order == Order::NewestFirst { -1 } else { 1 };
                            assert!(rows.windows(2).all(|pair| pair[1].0 as i64 - pair[0].0 as i64 == step));
                            let id = rows[0].0;
                            // Gone meanwhile, or whole.
                            if let Some(chunks) = store.message_chunks(NODE, id).unwrap() {
                                assert_eq!(chunks, [chunk(1, false, id)]);
                            }
                            pages += 1;
                        }
                        pages
                    })
                })
                .collect();
            for round in 0..600 {
                put(&store, &traffic(1, 1 + 5 * round, 5));
                store.evict(0).unwrap();
            }
            done.store(true, Ordering::Relaxed);
            for reader in readers {
                assert!(reader.join().unwrap() > 0);
            }
        });
        assert_eq!(store.visible(NODE).1, 3001);
        assert_sound(&store);
    });
}
