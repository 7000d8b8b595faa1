//! Runs drawn from a known distribution, to see how often a verdict is wrong.
//!
//! A block has the quantiles of a log-normal distribution, times a factor that follows a first-order autoregression from block to
//! block; the slow end has one of its own. The second side is slower by a known share.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chainscope_latency::verdict::{Design, MIN_UNITS, Options, Side, Verdict, compare};
use chainscope_latency::{Block, Function, Histogram, Location, Resolution, Run, RunId, RunInfo, Time};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use statrs::distribution::{ContinuousCDF, Normal};

/// What pairs of runs are drawn from.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    pairs: u32,
    blocks: usize,
    /// Autocorrelation of neighbouring blocks.
    rho: f64,
    /// Standard deviation of a block's factor.
    noise: f64,
    /// True relative change: 0.1 is 10 % slower.
    change: f64,
    functions: usize,
    options: Options,
    /// Both sides at the same time, with the same noise and a little of their own.
    simultaneous: bool,
    /// Runs of each side, each with as many blocks.
    runs: (usize, usize),
    /// Standard deviation of a run's factor.
    run_effect: f64,
}

impl Default for Scenario {
    fn default() -> Self {
        let options = Options::default();
        Self {
            pairs: 0,
            blocks: 20,
            rho: 0.5,
            noise: 0.03,
            change: 0.0,
            functions: 1,
            options,
            simultaneous: false,
            runs: (1, 1),
            run_effect: 0.0,
        }
    }
}

/// Share of pairs with each verdict.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    slower: f64,
    faster: f64,
    same: f64,
}

struct Noise {
    random: ChaCha8Rng,
    normal: Normal,
}

impl Noise {
    fn shock(&mut self) -> f64 {
        self.normal.inverse_cdf(self.random.random_range(1e-12..1.0))
    }

    fn series(&mut self, blocks: usize, rho: f64, deviation: f64) -> Vec<f64> {
        let mut state = self.shock();
        (0..blocks)
            .map(|_| {
                state = rho * state + (1.0 - rho * rho).sqrt() * self.shock();
                state * deviation
            })
            .collect()
    }
}

/// Quantiles of a log-normal distribution around 100 µs, with how many spans each stands for.
fn shape() -> Vec<(f64, f64, u64)> {
    let normal = Normal::standard();
    (0..50)
        .map(|step| {
            let q = (f64::from(step) + 0.5) / 50.0;
            (q, 100_000.0 * (0.4 * normal.inverse_cdf(q)).exp(), 20)
        })
        .chain([(0.995, 400_000.0, 10), (0.999, 600_000.0, 3)])
        .collect()
}

/// A run of one or more functions with these factors of each block.
fn run(id: u8, start: i64, factors: &[(Vec<f64>, Vec<f64>)]) -> Run {
    let shape = shape();
    let length = Duration::from_secs(30);
    let mut blocks = Vec::new();
    for (function, (body, tail)) in factors.iter().enumerate() {
        for (index, (body, tail)) in (0_i64..).zip(body.iter().zip(tail)) {
            let mut histogram = Histogram::default();
            for &(q, value, count) in &shape {
                histogram.record_many((value * (body + q.powi(8) * tail).exp()) as u64, count);
            }
            let start = Time(start + index * 30_000_000_000);
            blocks.push(Block { function, start, length, histogram, ..Block::default() });
        }
    }
    blocks.sort_by_key(|block| (block.start, block.function));
    let functions = (0..factors.len()).map(|index| Function {
        name: format!("f{index}"),
        entry: Location::default(),
        exit: Location::default(),
    });
    Run {
        info: RunInfo {
            id: RunId([id; 16]),
            node: None,
            pid: 1,
            executable: "/bin/node".into(),
            build_id: None,
            version: None,
            commit: None,
            tags: BTreeSet::new(),
            host: "host".into(),
            kernel: "6.18".into(),
            start: Time(start),
            end: None,
            block: length,
            resolution: Resolution::LogLinear,
        },
        functions: functions.collect(),
        blocks,
        transactions: Vec::new(),
    }
}

/// Factors of the blocks of each function: of their bodies and of their slow ends.
type Factors = Vec<(Vec<f64>, Vec<f64>)>;

/// Draw the runs of both sides, in order.
fn draw(scenario: &Scenario, noise: &mut Noise) -> [Vec<Factors>; 2] {
    let Scenario { blocks, rho, noise: deviation, .. } = *scenario;
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for number in 0..scenario.runs.0.max(scenario.runs.1) {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for _ in 0..scenario.functions {
            let shared = noise.series(blocks, rho, deviation);
            let mut side = |change: f64| {
                let own = if scenario.simultaneous {
                    let own = noise.series(blocks, 0.0, deviation / 10.0);
                    shared.iter().zip(own).map(|(shared, own)| shared + own).collect()
                } else {
                    noise.series(blocks, rho, deviation)
                };
                let effect = if scenario.run_effect > 0.0 { scenario.run_effect * noise.shock() } else { 0.0 };
                let body: Vec<f64> = own.iter().map(|factor: &f64| factor + change.ln_1p() + effect).collect();
                (body, noise.series(blocks, rho, deviation))
            };
            first.push(side(0.0));
            second.push(side(scenario.change));
        }
        if number < scenario.runs.0 {
            a.push(first);
        }
        if number < scenario.runs.1 {
            b.push(second);
        }
    }
    [a, b]
}

/// Draws pairs and compares them. The rates are those of pairs with the verdict for any function.
fn simulate(scenario: &Scenario) -> Rates {
    let mut noise = Noise { random: ChaCha8Rng::seed_from_u64(19), normal: Normal::standard() };
    let mut counts = BTreeMap::<Verdict, u32>::new();
    let design = match scenario.runs {
        _ if scenario.simultaneous => Design::Paired,
        (a, b) if a.min(b) >= MIN_UNITS => Design::Runs,
        _ => Design::Blocks,
    };
    let later = if scenario.simultaneous { 7_000_000_000 } else { 864_000_000_000_000 };
    for _ in 0..scenario.pairs {
        let mut starts = [0, later];
        let [a, b] = draw(scenario, &mut noise).map(|runs| {
            let [start, rest] = starts;
            starts = [rest, rest];
            let runs = (0_u8..).zip(runs).map(|(number, factors)| {
                run(number + if start == 0 { 0 } else { 100 }, start + i64::from(number) * 7_200_000_000_000, &factors)
            });
            runs.collect::<Vec<Run>>()
        });
        let comparison = compare(Side { runs: &a }, Side { runs: &b }, &scenario.options);
        assert!(comparison.functions.iter().all(|function| function.design == design), "{design:?}");
        let mut verdicts: Vec<Verdict> = comparison.functions.iter().map(|function| function.verdict).collect();
        verdicts.sort_unstable();
        verdicts.dedup();
        for verdict in verdicts {
            *counts.entry(verdict).or_default() += 1;
        }
    }
    let rate = |verdict| f64::from(counts.get(&verdict).copied().unwrap_or_default()) / f64::from(scenario.pairs);
    let rates = Rates { slower: rate(Verdict::Slower), faster: rate(Verdict::Faster), same: rate(Verdict::Same) };
    eprintln!("{scenario:?}\n  {rates:?}");
    rates
}

/// Greatest share that a rate of 5 % gives by chance: 5 % and three standard deviations.
fn bound(pairs: u32) -> f64 {
    0.05 + 3.0 * (0.05 * 0.95 / f64::from(pairs)).sqrt()
}

/// The promises of the verdict.
pub(crate) fn verify(pairs: u32, blocks: &[usize], autocorrelations: &[f64]) {
    let base = Scenario { pairs, ..Scenario::default() };
    let bound = bound(pairs);
    let no_margin = Options { margin: 0.0, ..Options::default() };
    for &blocks in blocks {
        for &rho in autocorrelations {
            let rates = simulate(&Scenario { blocks, rho, options: no_margin, ..base });
            assert!(rates.slower + rates.faster <= bound, "no change, no margin: {rates:?}");
            let rates = simulate(&Scenario { blocks, rho, change: 0.05, ..base });
            assert!(rates.slower + rates.faster <= bound, "a change of the margin judged more: {rates:?}");
            assert!(rates.same <= bound, "a change of the margin judged the same: {rates:?}");
        }
    }
    let rates = simulate(&base);
    assert!(rates.slower + rates.faster <= 0.001, "no change: {rates:?}");
    let rates = simulate(&Scenario { noise: 0.01, ..base });
    assert!(rates.same > 0.9, "no change should be seen as such: {rates:?}");
    let rates = simulate(&Scenario { change: 0.02, ..base });
    assert!(rates.slower <= 0.001, "2 % within a margin of 5 %: {rates:?}");
    let rates = simulate(&Scenario { change: 0.10, noise: 0.01, rho: 0.0, ..base });
    assert!(rates.slower >= 1.0, "10 %: {rates:?}");
    // Twenty blocks that drift together look like a trend now and then: then there is no verdict.
    let rates = simulate(&Scenario { change: 0.10, noise: 0.01, ..base });
    assert!(rates.slower >= 0.95 && rates.same + rates.faster <= 0.0, "10 %, autocorrelated: {rates:?}");
    // Many functions: the chance of any wrong verdict is what is bounded.
    let many = Scenario { functions: 10, pairs: pairs / 10, options: no_margin, ..base };
    let rates = simulate(&many);
    assert!(rates.slower + rates.faster <= self::bound(many.pairs), "ten functions: {rates:?}");
    // At the same time, noise of both is taken out: a change far below it is seen.
    let together = Scenario { simultaneous: true, noise: 0.2, rho: 0.6, ..base };
    let rates = simulate(&Scenario { options: no_margin, ..together });
    assert!(rates.slower + rates.faster <= bound, "no change, recorded together: {rates:?}");
}

/// Runs that differ from start to start, by as much as blocks do or more.
pub(crate) fn verify_runs(pairs: u32) {
    let bound = bound(pairs);
    let no_margin = Options { margin: 0.0, ..Options::default() };
    let base = Scenario { pairs, blocks: 8, rho: 0.3, noise: 0.01, run_effect: 0.03, ..Scenario::default() };
    for runs in [(2, 2), (3, 3), (5, 5), (7, 7), (8, 8), (12, 8), (1, 6), (7, 2)] {
        let rates = simulate(&Scenario { runs, options: no_margin, ..base });
        assert!(rates.slower + rates.faster <= bound, "no change, {runs:?} runs: {rates:?}");
        let rates = simulate(&Scenario { runs, change: 0.05, ..base });
        assert!(rates.slower + rates.faster <= bound, "a change of the margin, {runs:?} runs: {rates:?}");
        assert!(rates.same <= bound, "a change of the margin judged the same, {runs:?} runs: {rates:?}");
    }
    let together = Scenario { simultaneous: true, noise: 0.1, options: no_margin, ..base };
    for runs in [(2, 2), (4, 4), (9, 9)] {
        let rates = simulate(&Scenario { runs, ..together });
        assert!(rates.slower + rates.faster <= bound, "no change, {runs:?} runs recorded together: {rates:?}");
    }
    // What runs show is enough to see a change.
    let rates = simulate(&Scenario { runs: (8, 8), run_effect: 0.01, change: 0.10, ..base });
    assert!(rates.slower > 0.75, "10 %, eight runs: {rates:?}");
    let rates = simulate(&Scenario { runs: (4, 4), run_effect: 0.005, change: 0.10, ..base });
    assert!(rates.slower > 0.7, "10 %, four runs: {rates:?}");
    let rates = simulate(&Scenario { runs: (8, 8), run_effect: 0.01, ..base });
    assert!(rates.same > 0.5, "no change, eight runs: {rates:?}");
}
