//! The verdict on runs whose blocks are known exactly: its design, pooling of sparse blocks, the shift function, and change points.
#![expect(clippy::unwrap_used, reason = "a failed test shows the line")]

use std::collections::BTreeSet;
use std::time::Duration;

use chainscope_latency::verdict::{Design, FunctionComparison, Options, Reason, Side, Verdict, change_points, compare};
use chainscope_latency::{Block, Function, Histogram, Location, Resolution, Run, RunId, RunInfo, Time};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const BLOCK: Duration = Duration::from_secs(30);

/// A run that starts in this hour, of blocks with these durations in nanoseconds, for each function.
fn run(hour: u8, functions: &[Vec<Vec<u64>>]) -> Run {
    let start = i64::from(hour) * 3_600_000_000_000;
    let blocks = functions.iter().enumerate().flat_map(|(function, blocks)| {
        (0_i64..).zip(blocks).map(move |(index, durations)| {
            let mut histogram = Histogram::default();
            durations.iter().for_each(|duration| histogram.record(*duration));
            let start = Time(start + index * 30_000_000_000);
            Block { function, start, length: BLOCK, histogram, ..Block::default() }
        })
    });
    let function =
        |index| Function { name: format!("f{index}"), entry: Location::default(), exit: Location::default() };
    Run {
        info: RunInfo {
            id: RunId([hour; 16]),
            node: None,
            pid: 1,
            executable: "/bin/node".into(),
            build_id: None,
            version: None,
            commit: Some(format!("commit{hour}")),
            tags: BTreeSet::new(),
            host: "host".into(),
            kernel: "6.18".into(),
            start: Time(start),
            end: None,
            block: BLOCK,
            resolution: Resolution::LogLinear,
        },
        blocks: blocks.collect(),
        functions: (0..functions.len()).map(function).collect(),
        transactions: Vec::new(),
    }
}

/// 1,000 durations from 100 to 200 µs, of which those above the 90th percentile take longer by a factor, as all do by another one.
fn durations(factor: f64, tail: f64) -> Vec<u64> {
    let of = |rank: u32| {
        let tail = if rank >= 900 { tail } else { 1.0 };
        ((100_000.0 + 100.0 * f64::from(rank)) * factor * tail) as u64
    };
    (0..1_000).map(of).collect()
}

/// 8 blocks that vary by up to 1 %.
fn blocks(factor: f64) -> Vec<Vec<u64>> {
    (0..8).map(|index| durations(factor * (1.0 + 0.01 * f64::from(index * 5 % 8) / 8.0), 1.0)).collect()
}

fn compared(a: &[Run], b: &[Run]) -> FunctionComparison {
    compare(Side { runs: a }, Side { runs: b }, &Options::default()).functions.remove(0)
}

#[test]
fn eight_runs_a_side_are_the_units() {
    // Each run has a level of its own: 0 to 3.5 %.
    let side = |first: u8, factor: f64, count: u8| -> Vec<Run> {
        let level = |index: u8| factor * (1.0 + 0.005 * f64::from(index * 3 % 8));
        (0..count).map(|index| run(first + index, &[blocks(level(index))])).collect()
    };
    let (old, equal, slower) = (side(0, 1.0, 8), side(20, 1.0, 8), side(40, 1.2, 9));
    let found = compared(&old, &slower);
    assert_eq!((found.design, found.verdict), (Design::Runs, Verdict::Slower));
    assert!(found.quantiles.iter().all(|quantile| quantile.units == 8), "{found:?}");
    assert!((found.quantiles[0].change_percent.unwrap() - 20.0).abs() < 1.0, "{found:?}");
    let found = compared(&old, &equal);
    assert_eq!((found.design, found.verdict), (Design::Runs, Verdict::Same));
    // The levels' standard deviation is 1.2 %: the interval is t(0.975; 14) * 1.2 % * sqrt(2 / 8) = 1.3 % on either side, or wider.
    let half = (found.quantiles[0].high_percent.unwrap() - found.quantiles[0].low_percent.unwrap()) / 2.0;
    assert!((1.2..3.0).contains(&half), "{half}");
    // With seven the units are blocks, and the runs still show how much they differ.
    let found = compared(&old[..7], &equal[..7]);
    assert_eq!((found.design, found.quantiles[0].units), (Design::Blocks, 56));
    let half = (found.quantiles[0].high_percent.unwrap() - found.quantiles[0].low_percent.unwrap()) / 2.0;
    assert!((1.2..3.0).contains(&half), "{half}");
}

#[test]
fn two_runs_that_differ_are_no_change() {
    // Each side has runs at two levels; blocks hardly vary.
    let side = |first: u8, levels: [f64; 2]| -> Vec<Run> {
        (0..2).map(|index| run(first + index, &[blocks(levels[usize::from(index)])])).collect()
    };
    let found = compared(&side(0, [1.0, 1.15]), &side(20, [1.12, 1.3]));
    assert_eq!((found.verdict, found.reason), (Verdict::Inconclusive, Some(Reason::Uncertain)), "{found:?}");
    let found = compared(&side(0, [1.0, 1.002]), &side(20, [1.2, 1.203]));
    assert_eq!(found.verdict, Verdict::Slower, "{found:?}");
}

#[test]
fn sparse_blocks_are_pooled() {
    // 10 spans for p50, 50 for p90, 500 for p99.
    let sparse = |factor: f64, spans: usize, blocks: u64| -> Vec<Vec<u64>> {
        let block = |index: u64| {
            let all = durations(factor * (1.0 + 0.002 * (index % 3) as f64), 1.0);
            // Of all ranks alike.
            all.into_iter().step_by(1_000 / spans).collect()
        };
        (0..blocks).map(block).collect()
    };
    let units = |spans, blocks| -> Vec<usize> {
        let found = compared(&[run(0, &[sparse(1.0, spans, blocks)])], &[run(20, &[sparse(1.0, spans, blocks)])]);
        found.quantiles.iter().map(|quantile| quantile.units).collect()
    };
    // 50 spans a block: enough for p90; ten blocks are one unit of p99.
    assert_eq!(units(50, 40), [40, 40, 4]);
    // 5 spans a block: two blocks a unit of p50, ten of p90, and 39 * 5 spans are none of p99.
    assert_eq!(units(5, 39), [19, 3, 0]);
    // Pooled units lose no span.
    let (a, b) = ([run(0, &[sparse(1.0, 5, 39)])], [run(20, &[sparse(1.2, 5, 39)])]);
    let found = compared(&a, &b);
    assert_eq!((found.a_spans, found.b_spans, found.verdict), (195, 195, Verdict::Slower));
    let change = found.quantiles[0].change_percent.unwrap();
    // Buckets of few spans are not interpolated well.
    assert!((change - 20.0).abs() < 3.5 && found.quantiles[2].change_percent.is_none(), "{found:?}");
}

#[test]
fn the_shift_function_shows_where_it_changed() {
    let vary = |index: i32| 1.0 + 0.003 * f64::from(index * 5 % 8) / 8.0;
    let side = |hour, tail: f64| [run(hour, &[(0..16).map(|index| durations(vary(index), tail)).collect()])];
    let found = compared(&side(0, 1.0), &side(20, 1.5));
    assert_eq!(found.shift.len(), 11);
    for point in &found.shift {
        // At the 90th percentile itself the change begins.
        let expected = if point.quantile < 0.9 { 0.0 } else { 50.0 };
        let is_near = (point.change_percent - expected).abs() < 1.0 && point.high_percent - point.low_percent < 3.0;
        assert!(is_near || (point.quantile - 0.9).abs() < 0.01, "{point:?}");
        assert!(point.low_percent <= point.change_percent && point.change_percent <= point.high_percent, "{point:?}");
    }
    assert_eq!(found.verdict, Verdict::Slower, "at p99");
    assert!(found.quantiles[0].change_percent.unwrap().abs() < 1.0, "not at p50");
}

/// Runs whose medians are these, of each function.
fn history(medians: &[Vec<f64>]) -> Vec<Run> {
    let runs = medians[0].len();
    let of_run = |index: usize| {
        let functions: Vec<Vec<Vec<u64>>> =
            medians.iter().map(|medians| vec![vec![(1e9 * medians[index]) as u64; 3]]).collect();
        run(u8::try_from(index).unwrap(), &functions)
    };
    (0..runs).map(of_run).collect()
}

#[test]
fn changes_are_found_where_they_are() {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let medians: Vec<f64> = (0..36)
        .map(|index| {
            if index < 12 {
                1.0
            } else if index < 24 {
                1.3
            } else {
                1.1
            }
        })
        .map(|level: f64| level * (1.0 + 0.02 * random.random::<f64>()))
        .collect();
    let found = change_points(&history(&[medians.clone(), vec![1.0; 36]]), 0.05);
    let changes = &found[0].changes;
    assert_eq!(
        changes.iter().map(|change| change.commit.as_deref().unwrap()).collect::<Vec<_>>(),
        ["commit12", "commit24"]
    );
    // The histogram is exact to 3.1 %.
    assert!(
        (changes[0].change_percent - 30.0).abs() < 4.0 && (changes[1].change_percent + 15.4).abs() < 4.0,
        "{found:?}"
    );
    assert!(changes.iter().all(|change| change.p_value < 0.05) && found[1].changes.is_empty(), "{found:?}");
    // The margin.
    assert!(change_points(&history(&[medians]), 0.5)[0].changes.is_empty());
}

/// Histories without a change: the chance that any of the functions has one is what is bounded.
#[test]
fn changes_that_are_none_are_rare() {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    for (functions, runs, histories) in [(1, 8, 400), (1, 30, 400), (8, 20, 200)] {
        let mut wrong = 0;
        for _ in 0..histories {
            let medians: Vec<Vec<f64>> = (0..functions)
                .map(|_| (0..runs).map(|_| 1.0 + 0.2 * random.random::<f64>() * random.random::<f64>()).collect())
                .collect();
            wrong +=
                u32::from(change_points(&history(&medians), 0.0).iter().any(|history| !history.changes.is_empty()));
        }
        let rate = f64::from(wrong) / f64::from(histories);
        println!("{functions} functions, {runs} runs: {rate}");
        // 5 %, and three standard deviations of what this number of histories gives.
        assert!(rate <= 0.05 + 3.0 * (0.05 * 0.95 / f64::from(histories)).sqrt(), "{functions} {runs}: {rate}");
    }
}
