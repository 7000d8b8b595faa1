//! The command line, with help for a first-time user: a module for each command.

mod api;
mod connection;
mod db;
mod demo;
mod latency;
mod logs;
mod manual;
mod memory;
mod messages;
mod nodes;
mod output;
mod plugin;
mod range;
mod run;
mod support_bundle;
pub(crate) mod trace;
mod tracepoints;

use clap::{Parser, Subcommand};

#[cfg(feature = "rocksdb")]
pub(crate) use self::db::DbCommand;
pub(crate) use self::{
    api::{ApiArgs, NodeArgs, NodeOption},
    connection::ConnectionFilters,
    db::DbArgs,
    demo::DemoArgs,
    latency::{
        CompareArgs, ExportArgs, ExportFormat, FailOn, LatencyArgs, LatencyCommand, ListArgs, ProbedExits, RecordArgs,
        RecordedProcess, ReportArgs, SourceArgs, TransactionsArgs,
    },
    logs::LogsArgs,
    manual::{CompletionsArgs, ExecArgs, ManArgs},
    memory::MemoryArgs,
    messages::{Initiator, MessageArgs, MessagesArgs, Sender},
    nodes::{ConnectionState, ConnectionsArgs, NodesArgs, StatsArgs},
    output::{Format, GlobalArgs, OutputArgs},
    plugin::command,
    range::{Period, Range},
    run::RunArgs,
    support_bundle::SupportBundleArgs,
    trace::TraceArgs,
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
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const FIRST_STEPS: &str = "\
First steps:
  sudo chainscope run --p2p-port 9732    record the node of this P2P port
  chainscope messages --live             its peers and messages, as a live table
  chainscope message 1104                a message, decoded, beside its bytes
  chainscope logs -f                     what it logs
  sudo chainscope memory --pid 4711      which code holds a process's memory
  chainscope nodes --kube                the nodes that are recorded in a cluster
  curl 'localhost:17732/v2/p2p?limit=5'  the newest five messages, as JSON
  http://localhost:17732/docs            the API in a browser

Exit codes:
  0  success
  1  error
  2  wrong command line, or a right or a prerequisite is missing
  3  latency compare: a function is slower; 4: inconclusive (--fail-on)";

/// The commands. Their descriptions are those of their arguments: of a variant, only the short one would be shown.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunArgs),
    Demo(DemoArgs),
    Nodes(NodesArgs),
    #[command(visible_alias = "p2p")]
    Messages(MessagesArgs),
    Message(MessageArgs),
    Connections(ConnectionsArgs),
    Logs(LogsArgs),
    Memory(MemoryArgs),
    Stats(StatsArgs),
    Tracepoints(TracepointsArgs),
    Trace(TraceArgs),
    Latency(LatencyArgs),
    Db(DbArgs),
    SupportBundle(SupportBundleArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
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
