//! Segments over their life: roll-over, eviction, connections and chunks that span them, backup.

use std::{ops::ControlFlow, time::Duration};

use chainscope_proto::v1::{connection_event::Event, record::Kind};
use proptest::prelude::*;
use rand::{Rng as _, SeedableRng as _, distr::Alphanumeric, rngs::SmallRng};

use super::support::*;
use crate::{
    ChunkQuery, ConnectionQuery, Error, MessageQuery, Order, Retention, StoreOptions,
    evict::excess,
    meta::SegmentMeta,
    network::{MAX_COMMENTS, MORE_COMMENTS, fold, keyframe},
};

#[test]
fn a_message_keeps_its_chunks_when_the_segment_rolls_over_between() {
    let dir = tempfile::tempdir().unwrap();
    for reopen in [false, true] {
        for synced in [false, true] {
            let dir = dir.path().join(format!("{reopen} {synced}"));
            let mut store = open(&dir, small_segments(2));
            // Connection 2 fills segments while connection 1 sends the chunks of one long message, in both directions.
            for counter in 0..10 {
                stage(&store, &[chunk(1, false, counter), chunk(1, true, counter)]);
                stage(&store, &traffic(2, counter, 1));
                if synced {
                    store.sync().unwrap();
                }
                if reopen {
                    store.sync().unwrap();
                    drop(store);
                    store = open(&dir, small_segments(2));
                }
            }
            put(&store, &[message(1, false, 0, 9)]);
            assert_sound(&store);
            let chunks = store.message_chunks(NODE, 10).unwrap().unwrap();
            assert_eq!(chunks, (0..10).map(|counter| chunk(1, false, counter)).collect::<Vec<_>>());
            assert_eq!(store.verify().unwrap().chunks_absent, 0);

            // The older segments go; the message stays whole. Its copies are listed once.
            let listed = store.chunks(NODE, &ChunkQuery { connection: Some(1), ..ChunkQuery::default() }).unwrap();
            let both = |counter| [chunk(1, false, counter), chunk(1, true, counter)];
            assert_eq!(listed, (0..10).flat_map(both).collect::<Vec<_>>());
            // The same from any place on, in pages.
            for (at, wanted) in listed.chunks(3).enumerate() {
                let from = Some((1, (at as u64 * 3) / 2, (at * 3) % 2 == 1));
                let page = ChunkQuery { from, limit: 3, ..ChunkQuery::default() };
                // Of every connection: those of the next follow.
                assert!(store.chunks(NODE, &page).unwrap().starts_with(wanted));
                assert_eq!(store.chunks(NODE, &ChunkQuery { connection: Some(1), ..page }).unwrap(), wanted);
            }
            let beyond = ChunkQuery { from: Some((1, 10, false)), connection: Some(1), ..ChunkQuery::default() };
            assert!(store.chunks(NODE, &beyond).unwrap().is_empty());
            store.set_retention(NODE, Retention { rows: Some(1), ..Retention::default() }).unwrap();
            store.evict(0).unwrap();
            assert_eq!(store.visible(NODE), (10, 11));
            assert_eq!(store.message_chunks(NODE, 10).unwrap().unwrap(), chunks);
            assert_eq!(store.message_chunks(NODE, 9).unwrap(), None);
            assert_sound(&store);
        }
    }
}

#[test]
fn chunks_stream_until_told_to_stop() {
    each_engine(|open| {
        let store = open(options());
        put(&store, &[chunk(1, true, 0), chunk(1, true, 1), chunk(1, true, 2), message(1, true, 0, 2)]);
        let mut seen = 0;
        let mut each = |_| {
            seen += 1;
            if seen == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        store.stored_message(NODE, 0).unwrap().unwrap().each_chunk(&mut each).unwrap();
        assert_eq!(seen, 2);
    });
}

#[test]
fn a_message_that_is_evicted_while_it_is_read_stays_whole() {
    each_engine(|open| {
        let store = open(small_segments(1));
        put(&store, &traffic(1, 0, 3));
        let stored = store.stored_message(NODE, 0).unwrap().unwrap();
        store.set_retention(NODE, Retention { rows: Some(1), ..Retention::default() }).unwrap();
        store.evict(0).unwrap();
        assert!(store.stored_message(NODE, 0).unwrap().is_none());
        assert_eq!(stored.record(), &message(1, false, 0, 0));
        for _ in 0..2 {
            let mut chunks = Vec::new();
            let mut each = |chunk| {
                chunks.push(chunk);
                ControlFlow::Continue(())
            };
            stored.each_chunk(&mut each).unwrap();
            assert_eq!(chunks, [chunk(1, false, 0)]);
        }
    });
}

#[test]
fn messages_have_the_chunks_of_their_own_agent() {
    each_engine(|open| {
        let store = open(small_segments(3));
        let chunk_of = |agent: &str, counter| {
            let mut record = chunk(1, false, counter);
            if let Some(Kind::Chunk(chunk)) = &mut record.kind {
                chunk.plain = agent.to_owned().into();
            }
            record
        };
        // Two hosts have a connection of the same key; their records alternate over several segments.
        for counter in 0..10 {
            for agent in ["host-a", "host-b"] {
                let mark = store.high_water_mark(NODE, agent, EPOCH);
                let records = [chunk_of(agent, counter), message(1, false, counter.saturating_sub(1), counter)];
                store.append(NODE, agent, EPOCH, mark, &records).unwrap();
            }
        }
        store.sync().unwrap();
        for id in 0..20u64 {
            let (agent, counter) = (["host-a", "host-b"][id as usize % 2], id / 2);
            let expected: Vec<_> =
                (counter.saturating_sub(1)..=counter).map(|counter| chunk_of(agent, counter)).collect();
            assert_eq!(store.message_chunks(NODE, id).unwrap().unwrap(), expected, "message {id}");
        }
        let all = store.chunks(NODE, &ChunkQuery::default()).unwrap();
        assert_eq!(all.len(), 20);
        assert_eq!(store.verify().unwrap().chunks_absent, 0);
        assert_sound(&store);
    });
}

#[test]
fn nonsense_chunk_ranges_do_no_harm() {
    each_engine(|open| {
        let store = open(small_segments(2));
        put(&store, &traffic(1, 0, 5));
        put(&store, &[message(1, false, 4, 2), message(1, false, 0, u64::MAX), message(9, true, u64::MAX, u64::MAX)]);
        assert_eq!(store.message_chunks(NODE, 5).unwrap().unwrap(), []);
        assert_eq!(store.message_chunks(NODE, 6).unwrap().unwrap().len(), 5);
        assert_eq!(store.message_chunks(NODE, 7).unwrap().unwrap(), []);
        assert_sound(&store);
    });
}

#[test]
fn live_connections_outlive_their_segments_closed_ones_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path(), small_segments(4));
    put(
        &store,
        &[opened(1), identified(1, "idone"), opened(2), closed(2), event(1, 9, Event::Comment("first".to_owned()))],
    );
    put(&store, &traffic(1, 0, 6));
    put(&store, &[event(1, 50, Event::Comment("second".to_owned())), opened(3)]);
    let before = store.connections(NODE, &ConnectionQuery::default()).unwrap();
    assert_eq!(before.iter().map(|connection| connection.key).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(before[0].summary.comments, ["first", "second"]);

    store.set_retention(NODE, Retention { rows: Some(2), ..Retention::default() }).unwrap();
    for round in 0..3 {
        put(&store, &traffic(1, 6 + 5 * round, 5));
        store.evict(0).unwrap();
        drop(store);
        store = open(dir.path(), small_segments(4));
        store.set_retention(NODE, Retention { rows: Some(2), ..Retention::default() }).unwrap();
    }
    let after = store.connections(NODE, &ConnectionQuery::default()).unwrap();
    assert_eq!(after, [before[0].clone(), before[2].clone()]);
    assert_eq!(store.connection(NODE, 1).unwrap().as_ref(), Some(&before[0]));
    assert_eq!(store.connection(NODE, 2).unwrap(), None);
    assert_sound(&store);
}

#[test]
fn connections_come_in_both_orders_from_any_key() {
    each_engine(|open| {
        let store = open(small_segments(2));
        for key in [0, 7, 3, u64::MAX, 5] {
            put(&store, &[opened(key), identified(key, &format!("id{key}"))]);
            put(&store, &traffic(key, 0, 1));
        }
        let keys = |from, limit, order| {
            let query = ConnectionQuery { from, limit, order, ..ConnectionQuery::default() };
            let found = store.connections(NODE, &query).unwrap();
            assert!(
                found
                    .iter()
                    .all(|found| found.summary.identified.as_ref().unwrap().peer_id == format!("id{}", found.key))
            );
            found.iter().map(|found| found.key).collect::<Vec<_>>()
        };
        use Order::{NewestFirst, OldestFirst};
        assert_eq!(keys(None, 10, OldestFirst), [0, 3, 5, 7, u64::MAX]);
        assert_eq!(keys(None, 10, NewestFirst), [u64::MAX, 7, 5, 3, 0]);
        assert_eq!(keys(Some(4), 2, OldestFirst), [5, 7]);
        assert_eq!(keys(Some(4), 2, NewestFirst), [3, 0]);
        assert_eq!(keys(Some(5), 1, NewestFirst), [5]);
        assert_eq!(keys(Some(u64::MAX), 2, OldestFirst), [u64::MAX]);
        assert_eq!(keys(None, 0, OldestFirst), [0; 0]);
    });
}

#[test]
fn eviction_by_age_takes_idle_nodes_too() {
    each_engine(|open| {
        let clock = std::sync::Arc::new(std::sync::atomic::AtomicI64::new(0));
        let now = clock.clone();
        let options = StoreOptions {
            clock: std::sync::Arc::new(move || now.load(std::sync::atomic::Ordering::Relaxed)),
            ..options()
        };
        let store = open(options);
        let second = 1_000_000_000;
        store.set_retention(NODE, Retention { age: Some(Duration::from_secs(160)), ..Retention::default() }).unwrap();
        put(&store, &[opened(1)]);
        put(&store, &traffic(1, 0, 3)); // times of a few nanoseconds
        assert_eq!(store.evict(5 * second).unwrap().segments, 0);
        assert_eq!(store.evict(100 * second).unwrap().segments, 0, "closed, not yet old");
        assert_eq!(store.nodes()[0].segments, 2);
        let evicted = store.evict(161 * second).unwrap();
        assert_eq!((evicted.segments, evicted.rows), (1, 3));
        assert_eq!(store.visible(NODE), (3, 3));
        assert!(store.connection(NODE, 1).unwrap().is_some(), "still open");
        for later in 200..210 {
            assert_eq!(store.evict(later * second).unwrap().segments, 0, "a summary alone does not grow old");
        }
        clock.store(300 * second, std::sync::atomic::Ordering::Relaxed);
        put(&store, &traffic(1, 3, 1));
        assert_eq!(store.visible(NODE), (3, 4));
        assert_sound(&store);
    });
}

#[test]
fn excess_is_counted_from_the_oldest() {
    let segment = |rows, bytes, least_ns, greatest_ns, closed_ns| {
        std::sync::Arc::new(SegmentMeta {
            rows,
            bytes,
            facts: rows,
            least_ns,
            greatest_ns,
            closed_ns,
            ..SegmentMeta::default()
        })
    };
    let segments =
        [segment(5, 50, 0, 10, 11), segment(5, 50, 5, 900, 21), segment(5, 50, 15, 30, 31), segment(5, 50, 30, 40, 0)];
    let rows = |rows| Retention { rows: Some(rows), ..Retention::default() };
    let bytes = |bytes| Retention { bytes: Some(bytes), ..Retention::default() };
    let age = |age| Retention { age: Some(Duration::from_nanos(age)), ..Retention::default() };
    for (retention, expected) in [
        (Retention::default(), 0),
        (rows(20), 0),
        (rows(19), 1),
        (rows(15), 1),
        (rows(10), 2),
        (rows(0), 3),
        (bytes(120), 2),
        (bytes(0), 3),
        (age(1000), 0),
        (age(95), 0),
        (age(85), 1),
        // A time in the future does not hold a segment that was closed long ago.
        (age(75), 2),
        (age(1), 3),
        (Retention { rows: Some(15), bytes: Some(90), age: None }, 3),
    ] {
        assert_eq!(excess(&segments, &retention, 100), expected, "{retention:?}");
    }
    assert_eq!(excess(&[], &rows(0), 100), 0);
}

#[test]
fn a_query_in_flight_sees_what_was_there_when_it_began() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), StoreOptions { write_buffer_bytes: 192 << 10, ..small_segments(50) });
    // Rows that do not compress, so that there are many files, and files of old segments alone.
    let row = |id: u64| {
        let mut record = message(1, false, id, id);
        if let Some(Kind::Message(message)) = &mut record.kind {
            let mut noise = SmallRng::seed_from_u64(id);
            message.preview = Some((0..1000).map(|_| noise.sample(Alphanumeric) as char).collect());
        }
        record
    };
    for round in 0..100 {
        put(&store, &(50 * round..50 * (round + 1)).map(row).collect::<Vec<_>>());
    }
    let mut ids = Vec::new();
    let query = MessageQuery { limit: u64::MAX, order: Order::OldestFirst, ..MessageQuery::default() };
    let mut evicted = 0;
    store
        .each_message(NODE, &query, &mut |id, record| {
            assert_eq!(record, row(id));
            ids.push(id);
            if id == 10 {
                store.set_retention(NODE, Retention { rows: Some(100), ..Retention::default() }).unwrap();
                evicted = store.evict(0).unwrap().rows;
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(evicted >= 4800, "{evicted}");
    assert_eq!(ids, (0..5000).collect::<Vec<_>>());
    assert_eq!(store.visible(NODE).0, evicted);
    store.evict(0).unwrap();
    assert_sound(&store);
}

#[test]
fn what_is_evicted_gives_its_space_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), StoreOptions { stage_bytes: 256 << 10, ..small_segments(200) });
    let bulky = |counter: u64| {
        let mut noise = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let wire = std::iter::repeat_with(|| {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            noise as u8
        });
        let mut record = chunk(1, false, counter);
        if let Some(Kind::Chunk(chunk)) = &mut record.kind {
            chunk.wire = wire.take(20_000).collect::<Vec<_>>().into();
        }
        [record, message(1, false, counter, counter)]
    };
    store.set_retention(NODE, Retention { rows: Some(200), ..Retention::default() }).unwrap();
    let size = || -> u64 {
        let files = std::fs::read_dir(dir.path()).unwrap().filter_map(Result::ok);
        files
            .filter(|file| file.path().extension().is_some_and(|kind| kind == "sst"))
            .filter_map(|file| Some(file.metadata().ok()?.len())) // or deleted meanwhile
            .sum()
    };
    let mut greatest = 0;
    for round in 0..100 {
        put(&store, &(50 * round..50 * (round + 1)).flat_map(bulky).collect::<Vec<_>>());
        store.evict(0).unwrap();
        greatest = greatest.max(size());
    }
    // 100 MB went in, about 4 MB are kept.
    assert!(greatest < 40 << 20, "{greatest} bytes");
    assert_sound(&store);
}

#[test]
fn a_checkpoint_restores_to_an_equal_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("db"), small_segments(3));
    put(&store, &[opened(1), loss(2), account(4)]);
    put(&store, &traffic(1, 0, 10));
    stage(&store, &traffic(1, 10, 1)); // appended, not synced: in the checkpoint nevertheless
    let backup = dir.path().join("backup");
    store.checkpoint(&backup).unwrap();
    put(&store, &traffic(1, 11, 5));

    let restored = dir.path().join("restored");
    crate::Store::restore(&backup, &restored).unwrap();
    let again = open(&restored, small_segments(3));
    assert_eq!(again.visible(NODE), (0, 11));
    assert_eq!(again.high_water_mark(NODE, AGENT, EPOCH), 25);
    let query = MessageQuery { limit: 11, order: Order::OldestFirst, ..MessageQuery::default() };
    assert_eq!(again.messages(NODE, &query).unwrap(), store.messages(NODE, &query).unwrap());
    assert_eq!(again.connections(NODE, &ConnectionQuery::default()).unwrap().len(), 1);
    put(&again, &traffic(1, 11, 2));
    assert_sound(&again);

    assert!(matches!(store.checkpoint(&backup), Err(Error::NotEmpty { .. })));
    assert!(matches!(crate::Store::restore(&backup, &restored), Err(Error::NotEmpty { .. })));
    assert!(matches!(crate::Store::restore(dir.path(), dir.path().join("new")), Err(Error::NoDatabase { .. })));
}

fn events() -> impl Strategy<Value = Vec<chainscope_proto::v1::Record>> {
    let one = (0..6u8, 0..50i64).prop_map(|(kind, time)| match kind {
        0 => opened(7),
        1 => identified(7, &format!("id{time}")),
        2 => closed(7),
        3 => event(7, time, Event::Gap(chainscope_proto::v1::Gap { lost_bytes: time as u64, ..Default::default() })),
        4 => event(
            7,
            time,
            Event::StateChanged(chainscope_proto::v1::ConnectionStateChanged {
                state: (time % 6) as i32,
                ..Default::default()
            }),
        ),
        _ => event(7, time, Event::Comment(format!("comment {time}"))),
    });
    proptest::collection::vec(one, 0..150)
}

proptest! {
    #[test]
    fn a_summary_stands_for_all_before_it(events in events(), at in any::<prop::sample::Index>()) {
        let folded = |events: &[_]| {
            let mut summary = Default::default();
            events.iter().for_each(|event| fold(&mut summary, event));
            summary
        };
        let whole = folded(&events);
        let (before, after) = events.split_at(at.index(events.len() + 1));
        let mut from_summary = vec![keyframe(7, &folded(before))];
        from_summary.extend_from_slice(after);
        prop_assert_eq!(&folded(&from_summary), &whole);
        prop_assert!(whole.comments.len() <= MAX_COMMENTS + 1);
        prop_assert_eq!(whole.comments.len() > MAX_COMMENTS, whole.comments.iter().any(|comment| comment == MORE_COMMENTS));
    }
}
