//! Arguments of `chainscope messages`.

use clap::{Args, ValueEnum};

use super::ApiArgs;
use crate::time;

/// Follow the messages of a node in this terminal.
///
/// Prints the last messages, then each new one as it is recorded; with --live a table of the peers instead, with their
/// counts, bytes, rates and latest types, from which a peer's messages and a message's decoded body and bytes open. All
/// filters given must hold.
#[derive(Debug, Args)]
#[command(after_help = MESSAGES_EXAMPLES)]
pub(crate) struct MessagesArgs {
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    /// The node, by name or alias [default: the only one]
    #[arg(long, short, value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// Show a live table of the peers: arrows or j and k select, Enter opens, Esc goes back, q quits
    #[arg(long, conflicts_with_all = ["until", "no_follow", "json"])]
    pub(crate) live: bool,
    /// Only these message types, separated by commas: connection_message, metadata, ack_message, current_head, …
    #[arg(long, short, value_name = "TYPES")]
    pub(crate) types: Option<String>,
    /// Only messages from the peer (remote) or from the node (local)
    #[arg(long, value_enum)]
    pub(crate) sender: Option<Sender>,
    /// Only connections that the peer (remote) or the node (local) opened
    #[arg(long, value_enum)]
    pub(crate) initiator: Option<Initiator>,
    /// Only this peer's address, as ADDRESS:PORT or [ADDRESS]:PORT
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) remote: Option<String>,
    /// Only connections with the peer of this identity
    #[arg(long, value_name = "ID")]
    pub(crate) peer_id: Option<String>,
    /// Only this observed process, by its label such as "pid 4711", as listed by /v3/connections
    #[arg(long, value_name = "NAME")]
    pub(crate) target: Option<String>,
    /// Only messages of this time or later: 10m (ago), 2026-11-23T17:00:00Z, or seconds or milliseconds since 1970
    #[arg(long, visible_alias = "from", value_name = "TIME", value_parser = time::parse)]
    pub(crate) since: Option<u64>,
    /// Only messages of this time or earlier, as for --since; implies --no-follow
    #[arg(long, visible_alias = "to", value_name = "TIME", value_parser = time::parse)]
    pub(crate) until: Option<u64>,
    /// Number of past messages to begin with [default: 10; with --live 1000]
    #[arg(long, visible_alias = "last", value_name = "N")]
    pub(crate) limit: Option<u64>,
    /// Exit after the past messages
    #[arg(long)]
    pub(crate) no_follow: bool,
    /// Print one JSON object per line, as returned by the API
    #[arg(long)]
    pub(crate) json: bool,
}

const MESSAGES_EXAMPLES: &str = "\
Examples:
  chainscope messages --live
  chainscope messages --types current_head,current_branch --sender remote
  chainscope messages --since 1h --until 30m --limit 1000
  chainscope messages --limit 1000 --no-follow --json | jq -r .kind | sort | uniq -c";

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Sender {
    /// The peer sent it
    Remote,
    /// The node sent it
    Local,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Initiator {
    /// The node connected to the peer
    Local,
    /// The peer connected to the node
    Remote,
}
