//! The command line, with help for a first-time user: a module for each command.

mod api;
#[cfg_attr(not(feature = "rocksdb"), expect(dead_code, reason = "only `db::maintenance` reads them"))]
mod db;
mod demo;
mod logs;
mod memory;
mod messages;
mod run;
mod support_bundle;
mod tracepoints;

use clap::{Parser, Subcommand};
use clap_complete::Shell;

#[cfg(feature = "rocksdb")]
pub(crate) use self::db::DbCommand;
pub(crate) use self::{
    api::ApiArgs,
    db::DbArgs,
    demo::DemoArgs,
    logs::LogsArgs,
    memory::MemoryArgs,
    messages::{Initiator, MessagesArgs, Sender},
    run::RunArgs,
    support_bundle::SupportBundleArgs,
    tracepoints::TracepointsArgs,
};

/// See inside a running blockchain node without touching it.
///
/// Chainscope records a Tezos node's peer-to-peer messages from outside, by eBPF: the node is neither changed nor
/// restarted. Messages are decrypted with the node's own identity, decoded, stored, and served over HTTP, beside the
/// node's log and a profile of its memory.
#[derive(Debug, Parser)]
#[command(name = "chainscope", version, propagate_version = true, after_help = FIRST_STEPS)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const FIRST_STEPS: &str = "\
First steps:
  chainscope run --p2p-port 9732          record the node that listens for peers on port 9732
  chainscope messages --live              its peers and their messages, as a live table
  chainscope logs --follow                what it logs
  chainscope memory --pid 4711            show which code holds the memory of a process
  curl 'localhost:17732/v2/p2p?limit=5'   the newest five, as JSON
  http://localhost:17732/docs             the API in a browser";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Record the nodes of this machine and serve the API
    Run(RunArgs),
    /// Start a demo node, record it, and show its messages, its log and its memory
    Demo(DemoArgs),
    /// Follow the messages of a node in this terminal, one per line or as a live table of its peers
    #[command(visible_alias = "p2p")]
    Messages(MessagesArgs),
    /// Show the log of a node: filter, search, follow
    Logs(LogsArgs),
    /// Show which code holds a node's memory, or that of any process
    Memory(MemoryArgs),
    /// List the static tracepoints (USDT) of a program, and check them
    Tracepoints(TracepointsArgs),
    /// Check, back up, restore or compact the database of a stopped server
    Db(DbArgs),
    /// Write an archive for troubleshooting: configuration, self-check, counters, logs; no secrets
    SupportBundle(SupportBundleArgs),
    /// Print completions for a shell
    Completions { shell: Shell },
    /// Print the manual page, or that of a command
    Man { command: Option<String> },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
