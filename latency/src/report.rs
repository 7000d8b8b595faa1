//! What is shown of runs, as JSON: the terminal, the page and the API show the same numbers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Histogram;
use crate::model::{Block, Resolution, Run, RunId, RunInfo, Time, Transaction};
use crate::verdict::{Comparison, History, Options, Side, Verdict, change_points, compare};

/// Transactions of a report.
const SLOWEST: usize = 20;

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunSummary {
    /// Its id.
    pub id: String,
    /// Name of the node.
    pub node: Option<String>,
    /// Process id.
    pub pid: u32,
    /// Path of the executable.
    pub executable: String,
    /// Its build id.
    pub build_id: Option<String>,
    /// Version that it reports.
    pub version: Option<String>,
    /// Commit that it was built from.
    pub commit: Option<String>,
    /// Tags.
    pub tags: Vec<String>,
    /// Name of the host.
    pub host: String,
    /// Release of its kernel.
    pub kernel: String,
    /// Start, in RFC 3339.
    pub start: String,
    /// End, in RFC 3339; absent while it runs, or when it was killed.
    pub end: Option<String>,
    /// Length of a block, in seconds.
    pub block_seconds: f64,
    /// Relative error of a duration, in percent; 100 for bins of powers of two.
    pub resolution_percent: f64,
}

/// Spans that are summed up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = SpanStatistics))]
pub struct Statistics {
    /// Number of spans.
    pub spans: u64,
    /// Exact sum of their durations.
    pub sum_ns: u64,
    /// Exact mean.
    pub mean_ns: Option<f64>,
    /// Exact minimum.
    pub min_ns: Option<u64>,
    /// Median.
    pub p50_ns: Option<u64>,
    /// 90th percentile.
    pub p90_ns: Option<u64>,
    /// 99th percentile.
    pub p99_ns: Option<u64>,
    /// 99.9th percentile.
    pub p999_ns: Option<u64>,
    /// Exact maximum.
    pub max_ns: Option<u64>,
    /// Spans that never ended.
    pub unended: u64,
    /// What is missing, by reason.
    pub lost: BTreeMap<String, u64>,
    /// Return codes, most frequent first.
    pub returns: Vec<ReturnCount>,
}

/// A return code.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReturnCount {
    /// The code.
    pub code: i64,
    /// How often it was returned.
    pub count: u64,
}

/// A bucket of a histogram.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BucketCount {
    /// Least value.
    pub least_ns: u64,
    /// Greatest value.
    pub greatest_ns: u64,
    /// Spans.
    pub count: u64,
}

/// One function in all runs of a side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SideReport {
    /// All spans.
    #[serde(flatten)]
    pub statistics: Statistics,
    /// Their histogram.
    pub histogram: Vec<BucketCount>,
}

/// One function in one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunStatistics {
    /// Id of the run.
    pub run: String,
    /// Its tags.
    pub tags: Vec<String>,
    /// Its commit.
    pub commit: Option<String>,
    /// Its spans.
    #[serde(flatten)]
    pub statistics: Statistics,
}

/// One function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FunctionReport {
    /// Its name.
    pub function: String,
    /// Where a span starts.
    pub entry: String,
    /// Where it ends.
    pub exit: String,
    /// Both sides of a comparison, or all runs.
    pub sides: Vec<SideReport>,
    /// The runs, in order of time.
    pub runs: Vec<RunStatistics>,
}

/// One application of a transaction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TransactionRow {
    /// Its id, in hexadecimal.
    pub id: String,
    /// Its type.
    pub r#type: i64,
    /// Its result.
    pub result: i64,
    /// How long it took.
    pub duration_ns: u64,
    /// When it ended, in RFC 3339.
    pub time: String,
    /// Id of the run.
    pub run: String,
}

/// Runs, or two sides of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = LatencyReport))]
pub struct Report {
    /// Runs of each side; one side without a comparison.
    pub sides: Vec<Vec<RunSummary>>,
    /// What changed from the first side to the second.
    pub comparison: Option<Comparison>,
    /// Functions, most significant change first; without a comparison by total time.
    pub functions: Vec<FunctionReport>,
    /// Lasting changes over the runs; empty below 8 runs.
    pub histories: Vec<History>,
    /// The slowest transactions, slowest first.
    pub slowest_transactions: Vec<TransactionRow>,
}

/// A time in RFC 3339.
#[must_use]
pub fn rfc3339(time: Time) -> String {
    let timestamp = jiff::Timestamp::from_nanosecond(i128::from(time.0)).unwrap_or(jiff::Timestamp::MIN);
    timestamp.to_string()
}

impl From<&RunInfo> for RunSummary {
    fn from(info: &RunInfo) -> Self {
        Self {
            id: info.id.to_string(),
            node: info.node.clone(),
            pid: info.pid,
            executable: info.executable.clone(),
            build_id: info.build_id.clone(),
            version: info.version.clone(),
            commit: info.commit.clone(),
            tags: info.tags.iter().cloned().collect(),
            host: info.host.clone(),
            kernel: info.kernel.clone(),
            start: rfc3339(info.start),
            end: info.end.map(rfc3339),
            block_seconds: info.block.as_secs_f64(),
            resolution_percent: match info.resolution {
                Resolution::LogLinear => 3.125,
                Resolution::PowersOfTwo => 100.0,
            },
        }
    }
}

impl TransactionRow {
    /// A transaction of a run.
    #[must_use]
    pub fn new(run: RunId, transaction: &Transaction) -> Self {
        Self {
            id: transaction.id.to_string(),
            r#type: transaction.kind,
            result: transaction.result,
            duration_ns: transaction.duration_ns,
            time: rfc3339(transaction.time),
            run: run.to_string(),
        }
    }
}

/// Blocks that are summed up.
fn statistics<'a>(blocks: impl Iterator<Item = &'a Block>) -> (Statistics, Histogram) {
    let mut histogram = Histogram::default();
    let mut returns = BTreeMap::<i64, u64>::new();
    let mut lost = BTreeMap::<String, u64>::new();
    let mut unended = 0_u64;
    for block in blocks {
        histogram.merge(&block.histogram);
        unended = unended.saturating_add(block.unended);
        for (&code, count) in &block.returns {
            let held = returns.entry(code).or_default();
            *held = held.saturating_add(*count);
        }
        for (reason, count) in &block.lost {
            let held = lost.entry(reason.as_str().to_owned()).or_default();
            *held = held.saturating_add(*count);
        }
    }
    let mut returns: Vec<ReturnCount> = returns.into_iter().map(|(code, count)| ReturnCount { code, count }).collect();
    returns.sort_by_key(|held| std::cmp::Reverse(held.count));
    let quantile = |q| histogram.quantile(q);
    let statistics = Statistics {
        spans: histogram.count(),
        sum_ns: histogram.sum(),
        mean_ns: histogram.mean(),
        min_ns: histogram.min(),
        p50_ns: quantile(0.5),
        p90_ns: quantile(0.9),
        p99_ns: quantile(0.99),
        p999_ns: quantile(0.999),
        max_ns: histogram.max(),
        unended,
        lost,
        returns,
    };
    (statistics, histogram)
}

/// Blocks of a function by name.
fn blocks<'a>(run: &'a Run, function: &str) -> impl Iterator<Item = &'a Block> {
    let index = run.functions.iter().position(|known| known.name == function);
    index.into_iter().flat_map(|index| run.blocks_of(index))
}

fn function_report(sides: &[&[Run]], name: &str) -> FunctionReport {
    let all = || sides.iter().copied().flatten();
    let known = all().flat_map(|run| &run.functions).rfind(|function| function.name == name);
    let side_report = |runs: &&[Run]| {
        let (statistics, histogram) = statistics(runs.iter().flat_map(|run| blocks(run, name)));
        let bucket =
            |held: crate::Bucket| BucketCount { least_ns: held.least, greatest_ns: held.greatest, count: held.count };
        SideReport { statistics, histogram: histogram.buckets().map(bucket).collect() }
    };
    let runs =
        all().filter(|run| run.functions.iter().any(|function| function.name == name)).map(|run| RunStatistics {
            run: run.info.id.to_string(),
            tags: run.info.tags.iter().cloned().collect(),
            commit: run.info.commit.clone(),
            statistics: statistics(blocks(run, name)).0,
        });
    FunctionReport {
        function: name.to_owned(),
        entry: known.map(|known| known.entry.pattern.clone()).unwrap_or_default(),
        exit: known.map(|known| known.exit.pattern.clone()).unwrap_or_default(),
        sides: sides.iter().map(side_report).collect(),
        runs: runs.collect(),
    }
}

impl Report {
    /// Report of runs in order of time.
    #[must_use]
    pub fn of_runs(runs: &[Run], options: &Options) -> Self {
        let mut report = Self::new(&[runs], None);
        report.functions.sort_by_key(|function| std::cmp::Reverse(function.sides[0].statistics.sum_ns));
        report.histories = change_points(runs, options.margin);
        report.histories.retain(|history| !history.changes.is_empty());
        report
    }

    /// Report of what changed from `a` to `b`.
    #[must_use]
    pub fn of_comparison(a: &[Run], b: &[Run], options: &Options) -> Self {
        let comparison = compare(Side { runs: a }, Side { runs: b }, options);
        let mut report = Self::new(&[a, b], None);
        let rank = |name: &str| comparison.functions.iter().position(|function| function.function == name);
        report.functions.sort_by_key(|function| rank(&function.function));
        report.comparison = Some(comparison);
        report
    }

    fn new(sides: &[&[Run]], comparison: Option<Comparison>) -> Self {
        let runs = || sides.iter().copied().flatten();
        let mut names: Vec<&String> = runs().flat_map(|run| &run.functions).map(|function| &function.name).collect();
        names.sort_unstable();
        names.dedup();
        let mut slowest: Vec<(RunId, &Transaction)> =
            runs().flat_map(|run| run.transactions.iter().map(|transaction| (run.info.id, transaction))).collect();
        slowest.sort_by_key(|(_, transaction)| std::cmp::Reverse(transaction.duration_ns));
        slowest.truncate(SLOWEST);
        Self {
            sides: sides.iter().map(|runs| runs.iter().map(|run| RunSummary::from(&run.info)).collect()).collect(),
            comparison,
            functions: names.into_iter().map(|name| function_report(sides, name)).collect(),
            histories: Vec::new(),
            slowest_transactions: slowest.into_iter().map(|(run, fact)| TransactionRow::new(run, fact)).collect(),
        }
    }
}

/// What makes a comparison fail in CI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailOn {
    /// A function that is slower.
    #[default]
    Slower,
    /// A function that is not shown to be the same or faster.
    Inconclusive,
}

/// Exit code of a comparison that fails: 1 and 2 are errors of the program itself.
pub const EXIT_SLOWER: u8 = 3;

/// Exit code of a comparison without a verdict, with [`FailOn::Inconclusive`].
pub const EXIT_INCONCLUSIVE: u8 = 4;

/// Exit code of a comparison: 0, or why it fails.
#[must_use]
pub fn exit_code(comparison: &Comparison, fail_on: FailOn) -> u8 {
    match (comparison.verdict, fail_on) {
        (Verdict::Slower, _) => EXIT_SLOWER,
        (Verdict::Inconclusive, FailOn::Inconclusive) => EXIT_INCONCLUSIVE,
        _ => 0,
    }
}
