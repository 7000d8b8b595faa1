//! Runs of the latency of functions, whole and as an agent sends them.

use std::{collections::BTreeMap, time::Duration};

use chainscope_latency::{
    Block, DEFAULT_BLOCK, Function, Histogram, Location, LossReason, Resolution, Run, RunId, RunInfo, Time,
    Transaction, TransactionId,
    record::{encode_counts, encode_run, encode_transaction, nanoseconds},
};
use chainscope_proto::v1::{LatencyBlock, Record, record::Kind};

use super::TIME;

/// A run of two functions with one tag, whose blocks begin `start_seconds` after [`TIME`]. `f` takes `nanoseconds` and up to a
/// tenth more; `g` is called once a block.
pub(crate) fn run(id: u8, tag: &str, start_seconds: i64, blocks: u32, nanoseconds: u64) -> Run {
    let start = Time(TIME + start_seconds * 1_000_000_000);
    let at = |number: u32| Time(start.0 + i64::from(number) * DEFAULT_BLOCK.as_nanos() as i64);
    let function = |name: &str| {
        let location = |pattern: &str| Location { pattern: pattern.to_owned(), symbols: vec![format!("{name}()")] };
        Function { name: name.to_owned(), entry: location(name), exit: location("return") }
    };
    let counted = |number: u32, function: usize| {
        let mut histogram = Histogram::default();
        match function {
            0 => (0..1000).for_each(|call| {
                let varied = (call * 7_919 + u64::from(number) * 104_729 * u64::from(id)) % (nanoseconds / 10);
                histogram.record(nanoseconds + varied);
            }),
            _ => histogram.record(5_000),
        }
        Block {
            function,
            start: at(number),
            length: DEFAULT_BLOCK,
            histogram,
            returns: BTreeMap::from([(-1, 3), (0, 997)]),
            unended: 1,
            lost: BTreeMap::from([(LossReason::NoEntry, 2)]),
        }
    };
    Run {
        info: RunInfo {
            id: RunId([id; 16]),
            node: Some("9732".to_owned()),
            pid: 4711,
            executable: "/usr/bin/rippled".to_owned(),
            build_id: Some("0badcafe".to_owned()),
            version: None,
            commit: Some(format!("c0ffee{id}")),
            tags: [tag.to_owned()].into(),
            host: "host-1".to_owned(),
            kernel: "6.18.5".to_owned(),
            start,
            end: Some(at(blocks)),
            block: DEFAULT_BLOCK,
            resolution: Resolution::LogLinear,
        },
        functions: vec![function("f"), function("g")],
        blocks: (0..blocks).flat_map(|number| [counted(number, 0), counted(number, 1)]).collect(),
        transactions: Vec::new(),
    }
}

/// The records of a run: its description first, a record for each period, its end in the last one.
pub(crate) fn records(run: &Run) -> Vec<Record> {
    let record = |time_ns, block| Record {
        time_ns,
        target: format!("pid {}", run.info.pid),
        kind: Some(Kind::LatencyBlock(block)),
    };
    let head = LatencyBlock { run_id: run.info.id.0.to_vec(), ..LatencyBlock::default() };
    let described = LatencyBlock { run: Some(encode_run(&run.info, &run.functions)), ..head.clone() };
    let mut periods = BTreeMap::<Time, (Duration, LatencyBlock)>::new();
    for block in &run.blocks {
        let (_, period) = periods.entry(block.start).or_insert_with(|| (block.length, head.clone()));
        period.length_ns = nanoseconds(block.length);
        period.functions.push(encode_counts(block));
    }
    let mut records = vec![record(run.info.start.0, described.clone())];
    records.extend(periods.into_iter().map(|(start, (_, block))| record(start.0, block)));
    if let Some(end) = run.info.end {
        records.push(record(end.0, LatencyBlock { end_ns: Some(end.0), ..described }));
    }
    records
}

/// Transactions that a run applied, one a second: five ids, two types and three results in turn.
pub(crate) fn applied(run: &Run) -> Vec<Transaction> {
    let of = |number: u8| Transaction {
        id: TransactionId([number % 5 * 0x2a; 32]),
        kind: if number.is_multiple_of(2) { 0 } else { 7 },
        result: [0, 125, -99][usize::from(number) % 3],
        duration_ns: (u64::from(number) * 7_919 + u64::from(run.info.id.0[0])) % 1_000 * 1_000,
        time: Time(run.info.start.0 + i64::from(number) * 1_000_000_000),
    };
    (0..60).map(of).collect()
}

/// The records of the transactions of a run.
pub(crate) fn transaction_records(run: &Run) -> impl Iterator<Item = Record> {
    run.transactions.iter().map(|transaction| Record {
        time_ns: transaction.time.0,
        target: format!("pid {}", run.info.pid),
        kind: Some(Kind::LatencyTransaction(encode_transaction(run.info.id, transaction))),
    })
}
