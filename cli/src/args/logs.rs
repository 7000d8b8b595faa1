//! Arguments of `chainscope logs`.

use clap::Args;

use super::ApiArgs;
use crate::time;

/// Show the log of a node: filter, search, follow.
///
/// Prints the newest log messages, oldest first, and exits; with --follow it goes on with each new one. All filters given
/// must hold. Times are in UTC. In a terminal levels have colours, unless NO_COLOR is set.
#[derive(Debug, Args)]
#[command(after_help = LOGS_EXAMPLES)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    /// The node, by name or alias [default: the only one]
    #[arg(value_name = "NODE")]
    pub(crate) named: Option<String>,
    /// The same as NODE
    #[arg(long, short, value_name = "NAME", conflicts_with = "named")]
    pub(crate) node: Option<String>,
    /// Print each new log message as it is recorded
    #[arg(long, short, conflicts_with = "until")]
    pub(crate) follow: bool,
    /// Only these levels, separated by commas: trace, debug, info, notice, warning, error, fatal
    #[arg(long, short, value_name = "LEVELS")]
    pub(crate) level: Option<String>,
    /// Only log messages with any of these words; +WORD must, -WORD must not be in it; "a phrase" in quotes
    #[arg(long, short, value_name = "TEXT")]
    pub(crate) query: Option<String>,
    /// Only log messages of this time or later: 10m (ago), 2026-11-23T17:00:00Z, or seconds or milliseconds since 1970
    #[arg(long, visible_alias = "from", value_name = "TIME", value_parser = time::parse)]
    pub(crate) since: Option<u64>,
    /// Only log messages of this time or earlier, as for --since
    #[arg(long, visible_alias = "to", value_name = "TIME", value_parser = time::parse)]
    pub(crate) until: Option<u64>,
    /// Number of past log messages to begin with
    #[arg(long, visible_alias = "last", value_name = "N", default_value_t = 100)]
    pub(crate) limit: u64,
    /// Print one JSON object per line, as returned by the API
    #[arg(long)]
    pub(crate) json: bool,
}

const LOGS_EXAMPLES: &str = "\
Examples:
  chainscope logs --follow
  chainscope logs --level warning,error,fatal --since 1h
  chainscope logs --query 'validation failed' --limit 1000 --json | jq -r .message
  chainscope logs tezos/rolling --aggregator https://localhost:17732 --ca-file ca.crt";
