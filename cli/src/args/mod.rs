//! The command line, with help for a first-time user: a module for each command.

mod api;
#[cfg_attr(not(feature = "rocksdb"), expect(dead_code, reason = "only `db::maintenance` reads them"))]
mod db;
mod demo;
mod logs;
mod manual;
mod memory;
mod messages;
mod nodes;
mod output;
mod run;
mod support_bundle;
mod tracepoints;

use clap::{Parser, Subcommand};

#[cfg(feature = "rocksdb")]
pub(crate) use self::db::DbCommand;
pub(crate) use self::{
    api::{ApiArgs, NodeArgs, NodeOption},
    db::DbArgs,
    demo::DemoArgs,
    logs::LogsArgs,
    manual::{CompletionsArgs, ExecArgs, ManArgs},
    memory::MemoryArgs,
    messages::{Initiator, MessageArgs, MessagesArgs, Sender},
    nodes::{ConnectionState, ConnectionsArgs, NodesArgs, StatsArgs},
    output::{Format, GlobalArgs, OutputArgs},
    run::RunArgs,
    support_bundle::SupportBundleArgs,
    tracepoints::TracepointsArgs,
};
use crate::trace::TraceArgs;

/// See inside a running blockchain node without touching it.
///
/// Chainscope records a Tezos node's peer-to-peer messages from outside, by eBPF: the node is neither changed nor
/// restarted. Messages are decrypted with the node's own identity, decoded, stored, and served over HTTP, beside the
/// node's log and a profile of its memory.
#[derive(Debug, Parser)]
#[command(name = "chainscope", version, propagate_version = true, after_help = FIRST_STEPS)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const FIRST_STEPS: &str = "\
First steps:
  chainscope run --p2p-port 9732         record the node of this P2P port
  chainscope messages --live             its peers and messages, as a live table
  chainscope message 1104                a message, decoded, beside its bytes
  chainscope logs -f                     what it logs
  chainscope memory --pid 4711           which code holds a process's memory
  chainscope nodes --kube                the nodes that are recorded in a cluster
  curl 'localhost:17732/v2/p2p?limit=5'  the newest five messages, as JSON
  http://localhost:17732/docs            the API in a browser

Exit codes:
  0  success
  1  error
  2  wrong command line, or a right or a prerequisite is missing";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Record the nodes of this machine and serve the API
    Run(RunArgs),
    /// Start a demo node, record it, and show its messages, its log and its memory
    Demo(DemoArgs),
    /// List the nodes of a server with their state, messages and losses
    Nodes(NodesArgs),
    /// Show the messages of a node: filter, follow, or as a live table of its peers
    #[command(visible_alias = "p2p")]
    Messages(MessagesArgs),
    /// Show a message: the decoded message as a tree, beside its bytes in hex
    Message(MessageArgs),
    /// List the connections of a node with its peers
    Connections(ConnectionsArgs),
    /// Show the log of a node: filter, search, follow
    Logs(LogsArgs),
    /// Show which code holds a node's memory, or that of any process
    Memory(MemoryArgs),
    /// Show what was seen, stored and lost, and why
    Stats(StatsArgs),
    /// List the static tracepoints (USDT) of a program, and check them
    Tracepoints(TracepointsArgs),
    /// Show what the tracepoints of a node say: P2P messages, blocks, mempool, coins; from a recording
    Trace(TraceArgs),
    /// Check, back up, restore or compact the database of a stopped server
    Db(DbArgs),
    /// Write an archive for troubleshooting: configuration, self-check, counters, logs; no secrets
    SupportBundle(SupportBundleArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
    /// Print the manual page of the program or of a command, or write all of them
    Man(ManArgs),
    /// Become a program that ends with the process that started it
    #[command(name = "exec-with-parent", hide = true)]
    Exec(ExecArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
