//! The command line, with help for a first-time user.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::{api::Api, time, trace::TraceArgs};

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
    /// Show what the tracepoints of a node say: P2P messages, blocks, mempool, coins; from a recording
    Trace(TraceArgs),
    /// Write an archive for troubleshooting: configuration, self-check, counters, logs; no secrets
    SupportBundle(SupportBundleArgs),
    /// Print completions for a shell
    Completions { shell: Shell },
    /// Print the manual page, or that of a command
    Man { command: Option<String> },
}

/// Record the nodes of this machine and serve the API.
///
/// The configuration file (./chainscope.toml, ./config.toml, /etc/chainscope/chainscope.toml, or --config) lists the nodes to
/// record; --p2p-port records a single node without a file. A node that already runs is recorded, too; its sessions that
/// began earlier cannot be decrypted and are marked as such.
#[derive(Debug, Args)]
#[command(after_help = RUN_NEEDS)]
pub(crate) struct RunArgs {
    /// Configuration file
    #[arg(long, short, value_name = "FILE", env = "CHAINSCOPE_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Record the node that listens for peers on this port, without a configuration file
    #[arg(long, value_name = "PORT", conflicts_with = "config")]
    pub(crate) p2p_port: Option<u16>,
    /// The node's identity.json [default: found from the node's arguments]
    #[arg(long, value_name = "FILE", requires = "p2p_port")]
    pub(crate) identity: Option<PathBuf>,
    /// Directory of the database, instead of the configured one
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Keep records in memory only; they are lost when this process exits
    #[arg(long)]
    pub(crate) ephemeral: bool,
    /// Address of the API, instead of the configured one
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Option<std::net::SocketAddr>,
    /// Check prerequisites and exit
    #[arg(long)]
    pub(crate) check: bool,
}

const RUN_NEEDS: &str = "\
Needs Linux 5.17 or newer, or an older one with bpf_loop backported, with BTF, and root or the capabilities BPF, PERFMON,
SYS_PTRACE and DAC_READ_SEARCH; `chainscope run --check` lists what is missing. RUST_LOG=debug shows more detail.";

/// Start a demo node, record it, and show its messages, its log and its memory.
///
/// Records are kept in memory and lost when the demo ends; `chainscope run` stores them in RocksDB.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Address of the API
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:17732")]
    pub(crate) listen: std::net::SocketAddr,
    /// Show the log and the memory and exit after this many messages [default: 40, or at Ctrl-C in a terminal]
    #[arg(long, value_name = "N")]
    pub(crate) messages: Option<u64>,
    /// Messages per second that the demo node sends and receives
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) rate: u32,
    /// The demo node's binary [default: chainscope-demo-node beside this binary]
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) demo_node: Option<PathBuf>,
}

/// The server to request from.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct ApiArgs {
    /// URL of the Chainscope API, of any aggregator [default: http://127.0.0.1:17732]
    #[arg(long, visible_alias = "aggregator", value_name = "URL", env = "CHAINSCOPE_URL")]
    pub(crate) url: Option<String>,
    /// Bearer token; other users of this machine cannot see it in the variable
    #[arg(long, value_name = "TOKEN", env = "CHAINSCOPE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// CA bundle to verify an https server with
    #[arg(long, value_name = "FILE", env = "CHAINSCOPE_CA_FILE")]
    ca_file: Option<PathBuf>,
}

impl ApiArgs {
    /// A client of the server.
    pub(crate) fn client(&self) -> anyhow::Result<Api> {
        Api::connect(self.url.as_deref(), self.token.as_deref(), self.ca_file.as_deref())
    }
}

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

/// Show which code holds a node's memory, or that of any process.
///
/// Without --pid the memory tree of a node that `chainscope run` observes is requested. With --pid this command observes the
/// process itself: memory allocated earlier is one line, `[resident before attach]`; memory allocated meanwhile is shown by
/// function.
#[derive(Debug, Args)]
#[command(after_help = MEMORY_EXAMPLES)]
pub(crate) struct MemoryArgs {
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    /// The node, by name or alias [default: the only one]
    #[arg(long, short, value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// Process to show; without --node and --url this command observes it, with the privileges that `chainscope run` needs
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
    pub(crate) since: Option<u64>,
    /// Show the snapshot of this time instead of the current state, as for --since
    #[arg(long, value_name = "TIME", conflicts_with = "pid", value_parser = time::parse)]
    pub(crate) at: Option<u64>,
    /// Print the tree as JSON, as returned by the API
    #[arg(long)]
    pub(crate) json: bool,
}

const MEMORY_EXAMPLES: &str = "\
Examples:
  chainscope memory --node 9732 --reverse
  chainscope memory --pid $(pidof postgres | cut -d' ' -f1) --for 1m
  chainscope memory --since 1day
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

/// List the static tracepoints (USDT) of a program, and check them.
///
/// Reads the notes of an ELF file, or of every file that a process executes. Arguments of well-known nodes are shown with
/// their names and types. Nothing is attached.
#[derive(Debug, Args)]
#[command(after_help = TRACEPOINTS_EXAMPLES)]
#[command(group = ArgGroup::new("source").required(true).args(["file", "pid", "container"]))]
pub(crate) struct TracepointsArgs {
    /// Executable or shared library
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Process: every file that it executes, with the current values of semaphores
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: Option<u32>,
    /// Container, by id (at least 12 digits) or by its name in Docker: all of its processes
    #[arg(long, value_name = "NAME")]
    pub(crate) container: Option<String>,
    /// Only these providers, as a pattern with * and ?
    #[arg(long, value_name = "GLOB")]
    pub(crate) provider: Option<String>,
    /// Compare with the contract and print only what disagrees; exit code 1 if anything does
    #[arg(long)]
    pub(crate) check: bool,
    /// Name of a built-in contract, or a contract file [default: the best match]
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) contract: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const TRACEPOINTS_EXAMPLES: &str = "\
Examples:
  chainscope tracepoints /usr/bin/bitcoind
  chainscope tracepoints --pid $(pidof tapyrusd) --provider 'mempool*'
  chainscope tracepoints --check --contract bitcoin-core-v28 ./src/bitcoind
docs/tracepoints.md says how to write a contract, and how to add a tracepoint to a node.";

/// Write an archive for troubleshooting: configuration, self-check, counters, logs; no secrets.
#[derive(Debug, Args)]
pub(crate) struct SupportBundleArgs {
    /// File to write
    #[arg(long, short, value_name = "FILE", default_value = "chainscope-support.tar.gz")]
    pub(crate) output: PathBuf,
    /// Configuration file, as for `run`
    #[arg(long, short, value_name = "FILE", env = "CHAINSCOPE_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
