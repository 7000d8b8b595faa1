//! Arguments of `chainscope nodes`, `chainscope stats` and `chainscope connections`.

use clap::{Args, ValueEnum};

use super::{ApiArgs, ConnectionFilters, NodeArgs, OutputArgs, Range};

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
    #[command(flatten)]
    pub(crate) connection: ConnectionFilters,
    #[command(flatten)]
    pub(crate) range: Range,
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
