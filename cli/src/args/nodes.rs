//! Arguments of `chainscope nodes`, `chainscope stats` and `chainscope connections`.

use std::net::SocketAddr;

use clap::{Args, ValueEnum};

use super::{ApiArgs, NodeArgs, OutputArgs};
use crate::time;

/// List the nodes of a server with their state, messages and losses.
///
/// STATE is recording (an agent delivers its records), silent (there are records, but no agent now), waiting (no records yet)
/// or deleted. LOST counts records, and their bytes, that were seen and could not be stored; `chainscope stats` says why.
#[derive(Debug, Args)]
#[command(after_help = NODES_EXAMPLES)]
pub(crate) struct NodesArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

const NODES_EXAMPLES: &str = "\
Examples:
  chainscope nodes
  chainscope nodes -o json | jq -r '.[] | select(.state != \"recording\") | .name'
  chainscope nodes --kube --context production";

/// Show what was seen, stored and lost, and why.
///
/// Every byte that agents see is accounted for: captured, of another protocol, or dropped for a reason. Counters that should
/// agree and do not are listed.
#[derive(Debug, Args)]
#[command(after_help = STATS_EXAMPLES)]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

const STATS_EXAMPLES: &str = "\
Examples:
  chainscope stats
  chainscope stats tezos/rolling --kube
  chainscope stats -o json | jq '.nodes[].losses'";

/// List the connections of a node with its peers, oldest first.
///
/// Prints the newest 100, or with --since all since then. All filters given must hold. DIR is out if the node connected to the
/// peer, and in if the peer connected to the node.
#[derive(Debug, Args)]
#[command(after_help = CONNECTIONS_EXAMPLES)]
pub(crate) struct ConnectionsArgs {
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    /// Only these states, separated by commas
    #[arg(long, short, value_name = "STATES", value_enum, value_delimiter = ',')]
    pub(crate) state: Vec<ConnectionState>,
    /// Only this peer's address, as ADDRESS:PORT or [ADDRESS]:PORT
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) remote: Option<SocketAddr>,
    /// Only with the peer of this identity
    #[arg(long, value_name = "ID")]
    pub(crate) peer_id: Option<String>,
    /// Only of this observed process, by its label such as "pid 4711"
    #[arg(long, value_name = "NAME")]
    pub(crate) target: Option<String>,
    /// Only those opened at this time or later: 10m (ago), 2026-11-23T17:00:00Z, or seconds or milliseconds since 1970
    #[arg(long, visible_alias = "from", value_name = "TIME", value_parser = time::parse)]
    pub(crate) since: Option<u64>,
    /// Only those opened at this time or earlier, as for --since
    #[arg(long, visible_alias = "to", value_name = "TIME", value_parser = time::parse)]
    pub(crate) until: Option<u64>,
    /// Number of connections [default: 100; with --since all]
    #[arg(long, visible_alias = "last", value_name = "N")]
    pub(crate) limit: Option<u64>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

const CONNECTIONS_EXAMPLES: &str = "\
Examples:
  chainscope connections --since 1h
  chainscope connections --state undecryptable          those whose messages cannot be read, and why
  chainscope connections -o jsonl | jq -r '.[1].peer_id' | sort | uniq -c";

/// What is recorded of a connection.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ConnectionState {
    /// The handshake is not complete
    Handshake,
    /// Messages are decoded
    Decoding,
    /// Chunks are recorded and cannot be decrypted
    Undecryptable,
    /// Chunks are recorded; their protocol is not decoded
    Raw,
    /// It has ended
    Closed,
}
