//! Blocks: the benchmark's lines, and the unit of the duration.

use chainscope_trace::{
    Event, Process, Selection, Value,
    view::{Blocks, Unit, View as _},
};

use crate::support::{START, attachment, event, hash, lines, output};

const HASH: &str = "00000000000000000001c2a1b6d0b1a6d8c0d5d5b0f9c5f0b6a3c2d1e0f9a8b7";

/// A block with 10 transactions, 20 inputs and 30 signature operations.
fn block(contract: &str, ms: u64, height: i64, duration: i64) -> Event {
    let attachment = attachment(contract, "validation:block_connected");
    let unsigned = attachment.arguments[5].meaning.kind == chainscope_usdt::Kind::Scalar(chainscope_usdt::Scalar::U64);
    let duration = if unsigned { Value::Unsigned(duration.cast_unsigned()) } else { Value::Signed(duration) };
    let counts = [Value::Signed(height), Value::Unsigned(10), Value::Signed(20), Value::Signed(30)];
    event(&attachment, ms, [hash(HASH)].into_iter().chain(counts).chain([duration]).collect())
}

fn blocks(first: i64, last: i64, threshold: u64) -> Blocks {
    Blocks::new(first, last, threshold, None).expect("valid")
}

#[test]
fn a_benchmark_between_two_heights() {
    // Microseconds: below 1 ms, 1 ms, 5 ms, 5 ms; the last one after a pause of three seconds; others are out of range.
    let events = [
        block("tapyrus", 100, 9, 300),
        block("tapyrus", 200, 10, 300),
        block("tapyrus", 300, 11, 1_000),
        block("tapyrus", 1_400, 12, 5_000),
        block("tapyrus", 4_400, 13, 5_999),
        block("tapyrus", 4_500, 14, 300),
    ];
    let expected = [
        "ConnectBlock benchmark between height 10 and 13 inclusive",
        "Logging blocks taking longer than 4 ms to connect.",
        "Starting Connect Block Benchmark between height 10 and 13.",
        "BENCH    2 blk/s     20 tx/s      40 inputs/s       60 sigops/s (height 11)",
        &format!("Block 12 ({HASH})    10 tx     20 ins     30 sigops  took    5 ms"),
        "BENCH    1 blk/s     10 tx/s      20 inputs/s       30 sigops/s (height 12)",
        &format!("Block 13 ({HASH})    10 tx     20 ins     30 sigops  took    5 ms"),
        "",
        "Took 4200 ms to connect the blocks between height 10 and 13.",
        "",
        "Histogram of block connection times in milliseconds (ms).",
        "@durations: ",
        "[0]                    1 |@@@@@@@@@@@@@@@@@@@@@@@@@@                          |",
        "[1]                    1 |@@@@@@@@@@@@@@@@@@@@@@@@@@                          |",
        "[2, 4)                 0 |                                                    |",
        "[4, 8)                 2 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|",
        "",
        "4 blocks: min 0.300 ms, p50 1.000 ms, p90 5.999 ms, p99 5.999 ms, max 5.999 ms",
        "6 hits = 6 delivered + 0 dropped",
    ];
    assert_eq!(lines(&mut blocks(10, 13, 4), &events), expected);
}

#[test]
fn all_blocks_and_the_sample_of_the_documentation() {
    let events: Vec<Event> = (1..=397).map(|height| block("tapyrus", height * 10, height.cast_signed(), 700)).collect();
    let found = lines(&mut blocks(0, 0, 0), &events);
    assert_eq!(found[0], "ConnectBlock logging starting at height 0");
    assert_eq!(found[1], "BENCH   99 blk/s    990 tx/s    1980 inputs/s     2970 sigops/s (height 99)");
    let histogram = &found[found.len() - 5..found.len() - 2];
    let expected =
        ["@durations: ", "[0]                  397 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|", ""];
    assert_eq!(histogram, expected);
}

#[test]
fn large_intervals_have_suffixes() {
    let events = [block("tapyrus", 10_000_000, 1, 1_500_000), block("tapyrus", 20_000_000, 2, 2_100_000_000)];
    let found = lines(&mut blocks(0, 0, 10_000_000), &events);
    assert!(found.contains(&format!("{:<16}{:>8} |{}|", "[1K, 2K)", 1, "@".repeat(52))), "{found:#?}");
    assert!(found.contains(&format!("{:<16}{:>8} |{}|", "[2M, 4M)", 1, "@".repeat(52))), "{found:#?}");
}

#[test]
fn heights_in_the_wrong_order_are_refused() {
    let error = Blocks::new(5, 0, 0, None).unwrap_err();
    assert_eq!(error, "start height (5) larger than end height (0)!");
}

#[test]
fn the_unit_is_that_of_the_contract() {
    // 5 ms in nanoseconds: the release documents microseconds.
    let found = lines(&mut blocks(0, 0, 4), &[block("bitcoin-core-v27", 10, 1, 5_000_000)]);
    assert!(found[2].ends_with("took    5 ms"), "{found:#?}");
    let found = lines(&mut blocks(0, 0, 4), &[block("bitcoin-core-v24", 10, 1, 5_000)]);
    assert!(found[2].ends_with("took    5 ms"), "{found:#?}");
}

#[test]
fn a_unit_that_cannot_be_is_corrected() {
    // Documented as microseconds, passed as nanoseconds: 5 ms each, every 10 ms.
    let events: Vec<Event> = (1..=3).map(|n| block("moneyrocket", n * 10, n.cast_signed(), 5_000_000)).collect();
    let found = lines(&mut blocks(0, 0, 4), &events);
    let note = "Note: durations are taken as ns: block 2 would have taken 5000 ms, 10 ms after the one before it. --unit names the unit.";
    let took =
        |ms: u64, block: u64| format!("Block {block} ({HASH})    10 tx     20 ins     30 sigops  took {ms:4} ms");
    // Nothing contradicts the first one; in the sums it is right.
    let expected = [took(5000, 1), note.to_owned(), took(5, 2), took(5, 3)];
    assert_eq!(found[2..6], expected);
    assert!(
        found.contains(&"3 blocks: min 5.000 ms, p50 5.000 ms, p90 5.000 ms, p99 5.000 ms, max 5.000 ms".to_owned())
    );

    let mut named = Blocks::new(0, 0, 4, Some(Unit::Us)).unwrap();
    let found = lines(&mut named, &events);
    assert_eq!(found[2..5], [took(5000, 1), took(5000, 2), took(5000, 3)], "it is not checked if it is named");
}

#[test]
fn the_first_block_cannot_have_taken_longer_than_the_machine_runs() {
    // The machine runs for 5000 s.
    let found = lines(&mut blocks(0, 0, 1), &[block("moneyrocket", 0, 1, 6_000_000_000)]);
    assert!(found[2].starts_with("Note: durations are taken as ns"), "{found:#?}");
    assert!(found[3].ends_with("took 6000 ms"), "{found:#?}");
}

#[test]
fn the_first_block_cannot_have_taken_longer_than_its_process_runs() {
    // For 6 s, and its thread is another one for each block: 5 ms in nanoseconds would be 5 s, and 7 ms 7 s.
    let process = Process { pid: 4711, start_ns: START.monotonic_ns - 6_000_000_000 };
    for (duration, expected) in [(5_000_000, "took 5000 ms"), (7_000_000, "took    7 ms")] {
        let mut view = blocks(0, 0, 1);
        view.process(process);
        let found = lines(&mut view, &[block("moneyrocket", 0, 1, duration)]);
        let note =
            found[2].starts_with("Note: durations are taken as ns: block 1 would have taken 7000 ms, 6000 ms after");
        assert_eq!(note, duration == 7_000_000, "{found:#?}");
        assert!(found[2 + usize::from(note)].ends_with(expected), "{found:#?}");
        assert!(!note || found[2].contains(" after the start of the process. "), "{found:#?}");
    }
}

#[test]
fn a_duration_as_long_as_the_time_since_the_last_block_is_possible() {
    let events = [block("tapyrus", 0, 1, 100), block("tapyrus", 10, 2, 10_000), block("tapyrus", 20, 3, 10_000)];
    let found = lines(&mut blocks(0, 0, 1), &events);
    assert!(!found.iter().any(|line| line.starts_with("Note")), "{found:#?}");
    assert!(found[2].ends_with("took   10 ms"), "{found:#?}");
}

#[test]
fn json_has_the_duration_in_one_unit() {
    let events = [block("tapyrus", 0, 7, 1_500)];
    let output = output(&mut blocks(0, 0, 0), Selection::default(), true, &events);
    let lines: Vec<serde_json::Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["duration_ns"], 1_500_000);
    assert_eq!(lines[0]["arguments"]["height"], 7);
    assert_eq!(lines[0]["arguments"]["hash"], HASH);
    assert_eq!(lines[1]["summary"]["duration_ns"]["p99"], 1_500_000);
    assert_eq!(lines[1]["accounting"]["total"]["residual"], 0);
}
