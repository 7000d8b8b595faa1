//! The command line of `chainscope latency`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{ApiArgs, Format, NodeOption, Period};

/// Show how long functions took, run by run, and whether they got slower.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LatencyArgs {
    /// File of runs [default: latency.db, if no server is given]
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) db: Option<PathBuf>,
    /// Format of the output
    #[arg(long = "output", short, value_name = "FORMAT", value_enum, default_value_t = Format::Table, global = true)]
    output: Format,
    /// The same as --output json
    #[arg(long, conflicts_with = "output", global = true)]
    json: bool,
    #[command(subcommand)]
    pub(crate) command: LatencyCommand,
}

impl LatencyArgs {
    /// The format of the output.
    pub(crate) fn format(&self) -> Format {
        if self.json { Format::Json } else { self.output }
    }
}

const EXAMPLES: &str = "\
Runs are read from the file of `latency record`, or with --api, --kube or CHAINSCOPE_API from an aggregator.

RUN is a tag, the start of a commit or of a run's id, or `latest`. A tag or commit means all of its runs. /host=NAME,
/kernel=RELEASE and /node=NAME behind it, or alone without the first /, narrow it: 1.4.0-b4/host=node-7.

Examples:
  sudo chainscope latency record -p 1234 -f 'Payment::*' -d 600 -t 1.4.0-b4
  chainscope latency import probes.db
  chainscope latency list
  chainscope latency report 1.4.0-b4 --html report.html
  chainscope latency compare 1.4.0-b3 1.4.0-b4 --margin 3
  chainscope latency compare v2.3 v2.4 --kube --node payments/rippled --html page.html
docs/latency.md explains the verdict and the file.";

#[derive(Debug, Subcommand)]
pub(crate) enum LatencyCommand {
    /// Time functions of a running program, and add the run to the file
    Record(RecordArgs),
    /// List runs
    List(ListArgs),
    /// Show percentiles, return codes, lasting changes and the slowest transactions
    Report(ReportArgs),
    /// Say which functions are slower, faster or the same in B; exit code 3 if one is slower
    Compare(CompareArgs),
    /// Find transactions
    Transactions(TransactionsArgs),
    /// Add the runs of a database of the rippled sample (probes.db)
    Import(ImportArgs),
    /// Write runs for other programs: a database of the rippled sample, OTLP or Prometheus
    Export(ExportArgs),
}

/// Where runs are read from, besides a file.
#[derive(Debug, Args)]
pub(crate) struct SourceArgs {
    #[command(flatten)]
    pub(crate) node: NodeOption,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

const LIST_EXAMPLES: &str = "\
Examples:
  chainscope latency list
  chainscope latency list --tag nightly --host node-7
  chainscope latency list --kernel 6.18 -o jsonl
  chainscope latency list --api http://10.0.0.5:17732 --node rippled";

#[derive(Debug, Args)]
#[command(after_help = LIST_EXAMPLES)]
pub(crate) struct ListArgs {
    /// Only runs with this tag
    #[arg(long, value_name = "TAG")]
    pub(crate) tag: Option<String>,
    /// Only runs on this host
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Option<String>,
    /// Only runs on this kernel, or on one whose release begins so
    #[arg(long, value_name = "RELEASE")]
    pub(crate) kernel: Option<String>,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

const IMPORT_EXAMPLES: &str = "\
Examples:
  chainscope latency import probes.db
  chainscope latency import probes.db --db nightly.db";

#[derive(Debug, Args)]
#[command(after_help = IMPORT_EXAMPLES)]
pub(crate) struct ImportArgs {
    /// The database
    #[arg(value_name = "FILE")]
    pub(crate) from: PathBuf,
}

const EXPORT_EXAMPLES: &str = "\
Examples:
  chainscope latency export probes.db 1.4.0-b4
  chainscope latency export metrics.json latest --format otlp
  chainscope latency export metrics.pb --format prometheus
otlp is a request of OTLP/HTTP: POST it to /v1/metrics of a collector.";

#[derive(Debug, Args)]
#[command(after_help = EXPORT_EXAMPLES)]
pub(crate) struct ExportArgs {
    /// File to create
    #[arg(value_name = "FILE")]
    pub(crate) to: PathBuf,
    /// Runs; all if there are none
    #[arg(value_name = "RUN")]
    pub(crate) runs: Vec<String>,
    /// Format of the file
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ExportFormat::Probes)]
    pub(crate) format: ExportFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// Database of the rippled sample, with powers of two of microseconds
    Probes,
    /// OTLP/JSON: an exponential histogram of each block, as a delta
    Otlp,
    /// Protobuf of Prometheus: a native histogram of each run
    Prometheus,
}

const RECORD_EXAMPLES: &str = "\
Examples:
  sudo chainscope latency record -p $(pidof rippled) -d 600 -c $(git rev-parse HEAD) -t 1.4.0-b4 --db latency.db
  sudo chainscope latency record -p 1234 -f 'BlockValidator::*' --plan        # what would be timed, at what cost
  sudo chainscope latency record -p 1234 -f 'Validator::*' --max-functions 1000
  sudo chainscope latency record -p 1234 --span Payment::preflight..Payment::doApply --returns
  sudo chainscope latency record -p 1234 -e /usr/lib/x86_64-linux-gnu/librocksdb.so.7.8 -f rocksdb_put
  sudo chainscope latency record -e /usr/lib/postgresql/15/bin/postgres -f ExecutorRun -d 300 -t before
  sudo chainscope latency record -p 1234=1.4.0-b3 -p 5678=1.4.0-b4 -d 600     # then: latency compare 1.4.0-b3 1.4.0-b4
docs/latency-recording.md explains patterns, costs and limits.";

#[derive(Debug, Args)]
#[command(after_help = RECORD_EXAMPLES)]
pub(crate) struct RecordArgs {
    /// Process, and a tag of its run; several times for processes that are recorded at the same time [default: every process that
    /// runs --exe, those that start later as well]
    #[arg(short, long, value_name = "PID[=TAG]", required_unless_present = "exe", value_parser = process)]
    pub(crate) pid: Vec<RecordedProcess>,
    /// Executable, or a library of the process [default: what the process executes]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) exe: Option<PathBuf>,
    /// Seconds that are recorded; -1: until a signal, or the process ends
    #[arg(short, long, value_name = "SECONDS", default_value_t = -1, allow_negative_numbers = true)]
    pub(crate) duration: i64,
    /// Seconds of a block, the unit of a comparison
    #[arg(short = 's', long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) timeslice: u64,
    /// Commit that the executable was built from
    #[arg(short, long, value_name = "COMMIT")]
    pub(crate) commit: Option<String>,
    /// Tags of the run, separated by commas
    #[arg(short, long, value_name = "TAG", value_delimiter = ',')]
    pub(crate) tags: Vec<String>,
    /// Time calls of the functions of this name, with * and ?; several times for more
    #[arg(short, long, value_name = "PATTERN")]
    pub(crate) function: Vec<String>,
    /// Time from the entry of one function to the exit of another in the same thread, as ENTRY..EXIT
    #[arg(long, value_name = "ENTRY..EXIT")]
    pub(crate) span: Vec<String>,
    /// Time the spans of a ready set [default: rippled, if nothing else is timed]
    #[arg(long, value_name = "NAME")]
    pub(crate) set: Vec<String>,
    /// Count return codes of --function and --span
    #[arg(long)]
    pub(crate) returns: bool,
    /// How exits are probed
    #[arg(long, value_enum, default_value_t = ProbedExits::Auto)]
    pub(crate) exits: ProbedExits,
    /// Number of functions that a pattern may select
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    pub(crate) max_functions: usize,
    /// Print what would be timed, and what that costs, and exit
    #[arg(long)]
    pub(crate) plan: bool,
}

/// A process that is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordedProcess {
    pub(crate) pid: u32,
    /// A tag of its run only.
    pub(crate) tag: Option<String>,
}

fn process(text: &str) -> Result<RecordedProcess, String> {
    let (pid, tag) = match text.split_once('=') {
        Some((_, "")) => return Err("no tag after =".to_owned()),
        Some((pid, tag)) => (pid, Some(tag.to_owned())),
        None => (text, None),
    };
    match pid.parse() {
        Ok(0) | Err(_) => Err("not a process id".to_owned()),
        Ok(pid) => Ok(RecordedProcess { pid, tag }),
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ProbedExits {
    /// Return probes in a process without exceptions and coroutines, otherwise instructions
    Auto,
    /// Return probes: an exception that leaves a function, or a coroutine that it switches to, ends the process
    Return,
    /// The instructions that leave a function
    Instruction,
}

const REPORT_EXAMPLES: &str = "\
Examples:
  chainscope latency report
  chainscope latency report 1.4.0-b4 --html report.html
  chainscope latency report 1.4.0-b3 1.4.0-b4 -o json | jq '.functions[].sides[0].p99_ns'
  chainscope latency report latest --kube --node payments/rippled";

#[derive(Debug, Args)]
#[command(after_help = REPORT_EXAMPLES)]
pub(crate) struct ReportArgs {
    /// Runs; all if there are none
    #[arg(value_name = "RUN")]
    pub(crate) runs: Vec<String>,
    /// Write the report as one page without scripts
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

const COMPARE_EXAMPLES: &str = "\
Examples:
  chainscope latency compare 1.4.0-b3 1.4.0-b4
  chainscope latency compare 1.4.0-b3 1.4.0-b4 --margin 3 --fail-on inconclusive --html page.html
  chainscope latency compare 1.4.0-b3/host=node-7 1.4.0-b4/host=node-7
  chainscope latency compare v2.3 v2.4 --api http://10.0.0.5:17732 -o json | jq .comparison.verdict

Exit codes: 0 no function is slower, 3 one is slower, 4 inconclusive (--fail-on), 1 and 2 errors.";

#[derive(Debug, Args)]
#[command(after_help = COMPARE_EXAMPLES)]
pub(crate) struct CompareArgs {
    /// Runs that are compared with
    #[arg(value_name = "A")]
    pub(crate) a: String,
    /// Runs that may be slower
    #[arg(value_name = "B")]
    pub(crate) b: String,
    /// Least change that matters, in percent
    #[arg(long, value_name = "PERCENT", default_value = "5", value_parser = margin)]
    pub(crate) margin: f64,
    /// What makes the exit code 3 (slower) or 4 (inconclusive)
    #[arg(long, value_name = "VERDICT", default_value = "slower")]
    pub(crate) fail_on: FailOn,
    /// Write the comparison as one page without scripts
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum FailOn {
    /// A function is slower
    Slower,
    /// A function is slower, or not shown to be the same or faster
    Inconclusive,
}

const TRANSACTIONS_EXAMPLES: &str = "\
Examples:
  chainscope latency transactions --id 9F3C
  chainscope latency transactions --slowest --limit 50
  chainscope latency transactions --type 0 --result 125 --since 2026-11-23T17:00:00Z
  chainscope latency transactions --run 1.4.0-b4 --slowest --kube --node payments/rippled";

#[derive(Debug, Args)]
#[command(after_help = TRANSACTIONS_EXAMPLES)]
pub(crate) struct TransactionsArgs {
    /// Start of the id, in hexadecimal
    #[arg(long, value_name = "PREFIX")]
    pub(crate) id: Option<String>,
    /// Type, as the node numbers it
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(crate) r#type: Option<i64>,
    /// Result, as the node numbers it
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(crate) result: Option<i64>,
    /// Only those of these runs; several times for more
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Vec<String>,
    #[command(flatten)]
    pub(crate) period: Period,
    /// Slowest first, instead of by time
    #[arg(long)]
    pub(crate) slowest: bool,
    /// At most this many
    #[arg(long, value_name = "NUMBER", default_value = "20")]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

fn margin(text: &str) -> Result<f64, String> {
    let margin: f64 = text.parse().map_err(|_| "not a number")?;
    if (0.0..=1000.0).contains(&margin) { Ok(margin) } else { Err("not within 0 to 1000".to_owned()) }
}
