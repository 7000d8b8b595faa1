//! What is shown of runs, as JSON: the terminal, the page and the API show the same numbers.

mod build;
mod timeline;
mod transactions;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::{
    timeline::Period,
    transactions::{SLOWEST, TransactionCourse, TransactionGroup, TransactionType},
};
use crate::Histogram;
use crate::model::{Resolution, RunId, RunInfo, Time, Transaction};
use crate::verdict::{Comparison, History, Verdict};

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
    /// Its course: periods in which the function was called, in order of time.
    #[serde(default)]
    pub timeline: Vec<Period>,
}

/// One function in the runs of a tag or of a commit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GroupStatistics {
    /// The tag, of a group by tag.
    pub tag: Option<String>,
    /// The commit, of a group by commit.
    pub commit: Option<String>,
    /// Number of its runs.
    pub run_count: usize,
    /// The spans of all of them.
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
    /// Runs together that have a tag or a commit in common; without those of one run, and of all.
    #[serde(default)]
    pub groups: Vec<GroupStatistics>,
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

/// What both sides of a comparison do not have in common, besides the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SideDifference {
    /// What differs: `host` or `kernel`.
    pub what: String,
    /// Its values on the first side.
    pub a: Vec<String>,
    /// Its values on the second side.
    pub b: Vec<String>,
}

impl SideDifference {
    /// The difference as a sentence.
    #[must_use]
    pub fn describe(&self) -> String {
        let list = |values: &[String]| values.join(", ");
        let Self { what, a, b } = self;
        format!("{what} of A: {}; of B: {}. A change may come from that", list(a), list(b))
    }
}

/// Runs, or two sides of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = LatencyReport))]
pub struct Report {
    /// Runs of each side; one side without a comparison.
    pub sides: Vec<Vec<RunSummary>>,
    /// What changed from the first side to the second.
    pub comparison: Option<Comparison>,
    /// Where the sides were recorded, if not at the same place.
    #[serde(default)]
    pub differences: Vec<SideDifference>,
    /// Functions, most significant change first; without a comparison by total time.
    pub functions: Vec<FunctionReport>,
    /// Lasting changes over the runs; empty below 8 runs.
    pub histories: Vec<History>,
    /// The slowest transactions, slowest first.
    pub slowest_transactions: Vec<TransactionRow>,
    /// Those of them that were applied several times.
    #[serde(default)]
    pub transaction_groups: Vec<TransactionGroup>,
    /// Transactions by type, the most frequent type first.
    #[serde(default)]
    pub transaction_types: Vec<TransactionType>,
}

/// A time in RFC 3339.
#[must_use]
pub fn rfc3339(time: Time) -> String {
    let timestamp = jiff::Timestamp::from_nanosecond(i128::from(time.0)).unwrap_or(jiff::Timestamp::MIN);
    timestamp.to_string()
}

impl RunSummary {
    /// The version, or the beginning of the build id of an executable whose version is not known.
    #[must_use]
    pub fn version_or_build(&self) -> String {
        let build = || self.build_id.as_deref().map(|id| format!("build {}", id.chars().take(8).collect::<String>()));
        self.version.clone().or_else(build).unwrap_or_default()
    }
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

/// Whether bytes begin with these hexadecimal digits, upper case.
#[must_use]
pub fn hex_prefix(bytes: &[u8], prefix: &str) -> bool {
    let whole = bytes.get(..prefix.len().div_ceil(2)).map(hex::encode_upper);
    whole.is_some_and(|whole| whole.starts_with(prefix))
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

/// Return codes, most frequent first.
fn return_counts(counts: BTreeMap<i64, u64>) -> Vec<ReturnCount> {
    let mut returns: Vec<ReturnCount> = counts.into_iter().map(|(code, count)| ReturnCount { code, count }).collect();
    returns.sort_by_key(|held| std::cmp::Reverse(held.count));
    returns
}

impl Statistics {
    fn new(histogram: &Histogram, returns: Vec<ReturnCount>, unended: u64, lost: BTreeMap<String, u64>) -> Self {
        let quantile = |q| histogram.quantile(q);
        Self {
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
