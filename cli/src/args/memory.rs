//! Arguments of `chainscope memory`.

use clap::{Args, ValueEnum};

use super::{ApiArgs, NodeArgs, OutputArgs};
use crate::time;

/// Show which code holds a node's memory, or that of any process.
///
/// Without --pid the memory tree of a node that `chainscope run` observes is requested. With --pid this command observes the
/// process itself: memory allocated earlier is one line, `[resident before attach]`; memory allocated meanwhile is shown by
/// function.
#[derive(Debug, Args)]
#[command(after_help = MEMORY_EXAMPLES)]
pub(crate) struct MemoryArgs {
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    /// Process to show; without a node and a server this command observes it, with the privileges that `chainscope run` needs
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: Option<u32>,
    /// How long to observe the process of --pid: "10s", "5m"; Ctrl-C shows it earlier
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub(crate) observe: std::time::Duration,
    /// Begin with entry points and thread starts instead of the allocating functions
    #[arg(long, short)]
    pub(crate) reverse: bool,
    /// Hide lines below this many kibibytes [default: a hundredth of the total]
    #[arg(long, short, value_name = "KIB")]
    pub(crate) threshold: Option<u64>,
    /// Kinds of memory [default: anonymous and page cache]
    #[arg(long, short, value_enum)]
    pub(crate) kind: Option<MemoryKind>,
    /// Show the difference to the snapshot of this time: 10m (ago), 2026-11-23T17:00:00Z, or seconds or milliseconds since 1970
    #[arg(long, value_name = "TIME", conflicts_with = "pid", value_parser = time::parse)]
    pub(crate) diff: Option<u64>,
    /// Show the snapshot of this time instead of the current state, as for --diff
    #[arg(long, value_name = "TIME", conflicts_with = "pid", value_parser = time::parse)]
    pub(crate) at: Option<u64>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

const MEMORY_EXAMPLES: &str = "\
Examples:
  chainscope memory tezos/rolling --reverse --kube
  sudo chainscope memory --pid $(pidof postgres | cut -d' ' -f1) --for 1m
  chainscope memory --diff 1day                what has grown since yesterday
In a browser: /v1/flamegraph. For `go tool pprof`: /v1/pprof.";

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum MemoryKind {
    /// Heap, stacks, private copies of mapped files
    Anon,
    /// Page cache read or written by the process
    Cache,
    /// Page tables, socket buffers and other kernel memory
    Kernel,
    /// All kinds
    All,
}

fn duration(text: &str) -> Result<std::time::Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("not a duration such as 10s: {error}"))
}
