//! Blocks of the latency of functions: every filter, after a restart and after evictions, on disk and in memory, compared with a
//! naive model. Events of tracepoints are stored beside them: they share the limits.
#![expect(clippy::unwrap_used, reason = "a panic shows the line of the failure")]

mod common;

use std::ops::ControlFlow;

use chainscope_proto::v1::{LatencyBlock, LatencyCounts, LatencyRun, Record, TraceEvent, record::Kind};
use chainscope_store::{Budget, Error, LatencyQuery, Retention, Store};
use common::open;

const NODE: &str = "node";
const SEGMENT_ROWS: u64 = 300;
const BLOCKS: i64 = 3_000;

/// Block `number` of three runs of two processes in turn; each 50th block of a run describes it.
fn record(number: i64) -> Record {
    let run = number % 3;
    let counts = LatencyCounts { function: 0, buckets: vec![7], counts: vec![1], ..LatencyCounts::default() };
    let block = LatencyBlock {
        run_id: vec![u8::try_from(run).unwrap(); 16],
        run: (number / 3 % 50 == 0).then(|| LatencyRun { pid: 4711, ..LatencyRun::default() }),
        length_ns: 30,
        functions: vec![counts; 3],
        end_ns: None,
    };
    let target = if run == 0 { "pid 1" } else { "pid 2" }.to_owned();
    Record { time_ns: 10 * number, target, kind: Some(Kind::LatencyBlock(block)) }
}

fn event(number: i64) -> Record {
    let event = TraceEvent { provider: "net".to_owned(), attachment: vec![7; 300].into(), ..TraceEvent::default() };
    Record { time_ns: 10 * number, kind: Some(Kind::TraceEvent(event)), ..Record::default() }
}

fn is_described(record: &Record) -> bool {
    matches!(&record.kind, Some(Kind::LatencyBlock(block)) if block.run.is_some())
}

fn stored(store: &Store, query: &LatencyQuery) -> Result<Vec<Record>, Error> {
    let mut records = Vec::new();
    store.each_latency_block(NODE, query, &mut |_, record| {
        records.push(record);
        ControlFlow::Continue(())
    })?;
    Ok(records)
}

/// The stored blocks are the newest of all; every filter selects what it means among them.
fn check(store: &Store) -> usize {
    let all = stored(store, &LatencyQuery::default()).unwrap();
    let expected: Vec<Record> = (BLOCKS - all.len() as i64..BLOCKS).map(record).collect();
    assert_eq!(all, expected);
    let run = |number: u8| [number; 16];
    let of_run = |record: &Record, numbers: &[u8]| matches!(&record.kind, Some(Kind::LatencyBlock(block)) if numbers.contains(&block.run_id[0]));
    type Filter<'a> = (LatencyQuery, &'a dyn Fn(&Record) -> bool);
    let filters: [Filter<'_>; 6] = [
        (LatencyQuery { runs: vec![run(1)], ..LatencyQuery::default() }, &|record| of_run(record, &[1])),
        (LatencyQuery { runs: vec![run(0), run(2)], ..LatencyQuery::default() }, &|record| of_run(record, &[0, 2])),
        (LatencyQuery { runs: vec![run(9)], ..LatencyQuery::default() }, &|_| false),
        (LatencyQuery { is_described: true, ..LatencyQuery::default() }, &is_described),
        (LatencyQuery { target: Some("pid 1".to_owned()), ..LatencyQuery::default() }, &|record| {
            record.target == "pid 1"
        }),
        (
            LatencyQuery {
                runs: vec![run(2)],
                is_described: true,
                from_ns: Some(20_000),
                to_ns: Some(29_000),
                ..LatencyQuery::default()
            },
            &|record| of_run(record, &[2]) && is_described(record) && (20_000..29_000).contains(&record.time_ns),
        ),
    ];
    for (query, matches) in filters {
        let matching: Vec<Record> = all.iter().filter(|record| matches(record)).cloned().collect();
        assert_eq!(stored(store, &query).unwrap(), matching, "{query:?}");
    }
    all.len()
}

fn feed(store: &Store) {
    let mut sequence = 0;
    for first in (0..BLOCKS).step_by(500) {
        let records: Vec<Record> = (first..first + 500).flat_map(|number| [record(number), event(number)]).collect();
        let next = sequence + records.len() as u64;
        store.append(NODE, "host", &[1], sequence, &records).unwrap();
        sequence = next;
    }
    store.sync().unwrap();
}

fn limit(store: &Store, bytes: Option<u64>, rows: Option<u64>) {
    store.set_trace_retention(NODE, Retention { rows, bytes, age: None }).unwrap();
}

#[test]
fn blocks_are_found_by_run_time_and_process_until_they_are_evicted() {
    let dir = tempfile::tempdir().unwrap();
    for is_on_disk in [true, false] {
        let folder = is_on_disk.then_some(dir.path());
        let mut store = open(folder, SEGMENT_ROWS);
        feed(&store);
        assert_eq!(check(&store), BLOCKS as usize);
        if is_on_disk {
            drop(store);
            store = open(folder, SEGMENT_ROWS);
            assert_eq!(check(&store), BLOCKS as usize);
        }
        limit(&store, Some(300_000), None);
        store.evict(0).unwrap();
        let left = check(&store);
        assert!((1..BLOCKS as usize).contains(&left), "{left}");
        // A limit of rows is one of events; the blocks that lie beside the evicted ones go with them.
        limit(&store, None, Some(200));
        store.evict(0).unwrap();
        assert!((1..left).contains(&check(&store)));
        let (first, next) = store.visible_traces(NODE);
        assert!(next - first <= 300, "{first} {next}");
        let totals = store.nodes()[0].totals;
        assert_eq!((totals.latency_blocks, totals.trace_events), (BLOCKS as u64, BLOCKS as u64));
        assert_eq!(totals.evicted_trace_events, first, "blocks are no events");
        let report = store.verify().unwrap();
        assert!(report.is_sound(), "{:#?}", report.problems);
    }
}

#[test]
fn a_query_that_examines_too_much_is_an_error() {
    let store = open(None, SEGMENT_ROWS);
    feed(&store);
    let budget = Budget { rows: Some(100), ..Budget::default() };
    let query = LatencyQuery { budget, ..LatencyQuery::default() };
    assert!(matches!(stored(&store, &query), Err(Error::Budget { examined: 100 })));
}
