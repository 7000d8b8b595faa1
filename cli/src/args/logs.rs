//! Arguments of `chainscope logs`.

use clap::Args;

use super::{ApiArgs, NodeArgs, OutputArgs, Range};

/// Show the log of a node: filter, search, follow.
///
/// Prints the newest log messages, oldest first; with --follow it goes on with each new one, and reconnects after the last one
/// if the connection is lost. All filters given must hold. Times are in UTC.
#[derive(Debug, Args)]
#[command(after_help = LOGS_EXAMPLES)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    /// Print each new log message as it is recorded
    #[arg(long, short, conflicts_with = "until")]
    pub(crate) follow: bool,
    /// Only these levels, separated by commas: trace, debug, info, notice, warning, error, fatal
    #[arg(long, short, value_name = "LEVELS")]
    pub(crate) level: Option<String>,
    /// Only log messages with any of these words; +WORD must, -WORD must not be in it; "a phrase" in quotes
    #[arg(long, value_name = "TEXT")]
    pub(crate) query: Option<String>,
    #[command(flatten)]
    pub(crate) range: Range,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

const LOGS_EXAMPLES: &str = "\
Examples:
  chainscope logs -f
  chainscope logs --level warning,error,fatal --since 1h
  chainscope logs --query 'validation failed' --limit 1000 -o jsonl | jq -r .message
  chainscope logs tezos/rolling --kube --service-account tezos/reader";
