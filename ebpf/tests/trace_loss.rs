//! Hits are delivered in order, or counted: hits that the program counts itself = delivered + dropped.

mod trace_common;

use std::collections::BTreeMap;

use chainscope_ebpf::trace::{End, Fetch, TraceOptions};
use chainscope_testing::wait::WAIT_TIMEOUT;

use trace_common::{Target, Watcher, data, known, pattern, target_program, values, whole};

const NUMBER: (&str, &[Fetch]) = ("number", &[]);
const PAYLOAD: (&str, &[Fetch]) = ("payload", &[Fetch::Value, Fetch::Payload(0)]);

fn ring(bytes: u32) -> TraceOptions {
    TraceOptions { ring_bytes: bytes, wake_bytes: bytes / 16, ..TraceOptions::default() }
}

/// An event whose capture ends last, because the tracer waits for a page of its text, is delivered first: it began first. Those
/// of the other thread wait for it, though they are in the ring before it.
#[test]
fn order_across_threads() {
    let program = target_program("target_held");
    let text: (&str, &[Fetch]) = ("text", &[Fetch::Value, Fetch::String]);
    let options = TraceOptions { max_hold: 2 * WAIT_TIMEOUT, ..TraceOptions::default() };
    let mut watcher = Watcher::attach(&program, None, &[text, NUMBER], &options);
    let mut target = Target::start(&program);
    assert_eq!((target.call("hold"), target.call("numbers 5")), (1, 5));
    watcher.poll_until("events in the ring", |watcher| watcher.total().received == 5);
    assert_eq!((watcher.poll(), watcher.events.len(), watcher.total().hits), (0, 0, 6));
    assert_eq!(target.call("release"), 1);
    let events = watcher.settle();
    assert_eq!(whole(&events[0], 1), b"held");
    assert_eq!(events[1..].iter().map(|event| values(event)[1]).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert!(events.is_sorted_by_key(|event| event.time_ns));
    assert_ne!(events[0].tid, events[1].tid);
}

/// Threads on all processors: every event is delivered, those of a thread in the order of the program.
#[test]
fn hits_of_many_threads() {
    let program = target_program("target_order");
    let mut watcher = Watcher::attach(&program, None, &[NUMBER], &ring(64 << 20));
    let mut target = Target::start(&program);
    target.send("threads 8 20000");
    watcher.poll_until("all hits", |watcher| watcher.total().hits == 160_000);
    assert_eq!(target.reply(), 160_000);
    let events = watcher.settle();
    assert_eq!((watcher.total().hits, watcher.total().delivered, events.len()), (160_000, 160_000, 160_000));
    assert!(events.is_sorted_by_key(|event| event.time_ns));
    let mut next: BTreeMap<i64, i64> = BTreeMap::new();
    for event in &events {
        let values = values(event);
        let next = next.entry(values[0]).or_default();
        assert_eq!(values[1], *next);
        *next += 1;
    }
    assert_eq!(next.into_values().collect::<Vec<_>>(), [20_000; 8]);
    let cpus: std::collections::BTreeSet<u32> = events.iter().map(|event| event.cpu).collect();
    assert!(cpus.len() > 1, "all on one processor");
}

#[test]
fn a_stopped_reader_loses_a_counted_number() {
    let program = target_program("target_stopped");
    let mut watcher = Watcher::attach(&program, None, &[NUMBER], &ring(4096));
    let mut target = Target::start(&program);
    assert_eq!(target.call("numbers 1000"), 1000);
    let lost = watcher.total();
    assert_eq!((lost.hits, lost.delivered + lost.ring_full, lost.no_slot), (1000, 1000, 0));
    assert!(lost.ring_full > 900, "{lost:?}");
    // The first ones are there, and the ring is usable afterwards.
    let kept: Vec<i64> = watcher.settle().iter().map(|event| values(event)[1]).collect();
    assert_eq!(kept, (0..lost.delivered.cast_signed()).collect::<Vec<_>>());
    assert_eq!(target.call("numbers 3"), 3);
    assert_eq!(watcher.settle().len(), 3);
    assert_eq!((watcher.total().hits, watcher.total().received), (1003, lost.delivered + 3));
}

/// A burst as large as the removals at a block fits where a ring of a page would drop it.
#[test]
fn a_burst_is_not_dropped() {
    let program = target_program("target_burst");
    let mut watcher = Watcher::attach(&program, None, &[NUMBER], &TraceOptions::default());
    let mut target = Target::start(&program);
    assert_eq!(target.call("numbers 50000"), 50_000);
    assert_eq!(watcher.settle().len(), 50_000);
    assert_eq!(watcher.total().dropped(), 0);
}

/// As fast as the program can, and as many as the ring has room for: how fast this test reads does not matter.
#[test]
fn payloads_at_full_speed() {
    let program = target_program("target_full_speed");
    let mut watcher = Watcher::attach(&program, None, &[PAYLOAD], &ring(256 << 20));
    let mut target = Target::start(&program);
    let expected = pattern(3, 4_000_000);
    let mut whole = 0;
    target.send("payload 4000000 3 60");
    watcher.poll_until("all payloads", |watcher| {
        for event in watcher.events.drain(..) {
            assert_eq!(data(&event, 1).end, End::Whole);
            assert!(data(&event, 1).bytes == expected);
            whole += 1;
        }
        watcher.total().hits == 60 && whole == watcher.total().delivered
    });
    assert_eq!(target.reply(), 60);
    let total = watcher.total();
    assert_eq!((whole, total.dropped(), total.incomplete), (60, 0, 0), "{total:?}");
}

/// Payloads that do not fit are cut where the ring was full, and say so; the bytes before are right.
#[test]
fn payloads_larger_than_the_ring() {
    let program = target_program("target_small_ring");
    let mut watcher = Watcher::attach(&program, None, &[PAYLOAD, NUMBER], &ring(256 << 10));
    let mut target = Target::start(&program);
    // Nobody reads meanwhile.
    assert_eq!(target.call("payload 1000000 5 20"), 20);
    let counts = watcher.total();
    assert_eq!((counts.hits, counts.delivered + counts.ring_full), (20, 20));
    let events = watcher.settle();
    assert_eq!(events.len() as u64, counts.delivered);
    assert_eq!(counts.incomplete, counts.delivered);
    assert!(counts.delivered > 0);
    let expected = pattern(5, 1_000_000);
    for event in &events {
        assert_eq!(known(&event.arguments[0]), 1_000_000);
        let payload = data(event, 1);
        assert_eq!(payload.end, End::RingFull);
        assert!(expected.starts_with(&payload.bytes));
        assert!(payload.bytes.len() < 256 << 10);
    }
    assert_eq!(data(&events[0], 1).bytes.len(), 7 * 32_768);
    // Chunks whose event was dropped do not get into a later one.
    assert_eq!(target.call("payload 100000 6 1"), 1);
    let events = watcher.settle();
    assert_eq!(data(&events[0], 1).end, End::Whole);
    assert!(data(&events[0], 1).bytes == pattern(6, 100_000));
}
