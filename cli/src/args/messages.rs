//! Arguments of `chainscope messages` and `chainscope message`.

use clap::{Args, ValueEnum};

use super::{ApiArgs, ConnectionFilters, NodeArgs, NodeOption, OutputArgs, Range};

/// Show the messages of a node: filter, follow, or as a live table of its peers.
///
/// Prints the newest messages, oldest first, one per line: time, id, direction (→ sent, ← received), peer, type, and the
/// beginning of the decoded message. With --follow it goes on with each new one, and reconnects after the last one if the
/// connection is lost; with --live it shows a table of the peers with their counts, bytes, rates and latest types, from which a
/// peer's messages and a message's decoded body and bytes open. All filters given must hold.
#[derive(Debug, Args)]
#[command(after_help = MESSAGES_EXAMPLES)]
#[command(mut_arg("limit", |limit| limit.help(MESSAGES_LIMIT)))]
pub(crate) struct MessagesArgs {
    #[command(flatten)]
    pub(crate) node: NodeArgs,
    /// Print each new message as it is recorded
    #[arg(long, short, conflicts_with = "until")]
    pub(crate) follow: bool,
    /// Show a live table of the peers: arrows or j and k select, Enter opens, Esc goes back, q quits
    #[arg(long, conflicts_with_all = ["until", "follow", "json", "output"])]
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
    #[command(flatten)]
    pub(crate) connection: ConnectionFilters,
    #[command(flatten)]
    pub(crate) range: Range,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

const MESSAGES_LIMIT: &str = "Number of past ones to begin with [default: 10; with --since all; with --live 1000]";
const MESSAGES_EXAMPLES: &str = "\
Examples:
  chainscope messages -f --types current_head,current_branch --sender remote
  chainscope messages --since 5m
  chainscope messages --since 2026-11-23T17:00:00Z --until 2026-11-23T17:05:00Z
  chainscope messages --since 1h -o jsonl | jq -r .kind | sort | uniq -c
  chainscope messages tezos/rolling --live --kube";

/// Show a message: the decoded message as a tree, beside its bytes in hex.
///
/// The first column of `chainscope messages` after the time is the id.
#[derive(Debug, Args)]
#[command(after_help = MESSAGE_EXAMPLES)]
pub(crate) struct MessageArgs {
    /// Id of the message
    #[arg(value_name = "ID")]
    pub(crate) id: u64,
    #[command(flatten)]
    pub(crate) node: NodeOption,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

const MESSAGE_EXAMPLES: &str = "\
Examples:
  chainscope message 1104
  chainscope message 1104 --node tezos/rolling --kube
  chainscope message 1104 -o json | jq -r '.decrypted_bytes | join(\"\")' | xxd -r -p > message.bin";

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
