//! Arguments of `chainscope trace`.

use std::path::PathBuf;

use chainscope_agent::trace::{MAX_PAYLOAD, MAX_STRING};
use chainscope_trace::{Condition, Pattern, view::Unit};
use clap::{Args, Subcommand, ValueEnum};

use super::{Format, Period};
use crate::failure::Failure;

/// Show what the static tracepoints (USDT) of a node say.
///
/// Lines are those of the example scripts of Bitcoin Core and Tapyrus, and the last one says how often tracepoints were hit and
/// what was lost. In a terminal p2p-monitor and mempool fill the screen.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TraceArgs {
    #[command(subcommand)]
    pub(crate) what: What,
    #[command(flatten)]
    pub(crate) options: Options,
}

const EXAMPLES: &str = "\
Examples:
  chainscope trace p2p --pid $(pidof bitcoind)
  chainscope trace blocks 0 0 100 --file ./src/tapyrusd
  chainscope trace raw --pid $(pidof bitcoind) --record node.trace
  chainscope trace raw --pid $(pidof bitcoind) --pcapng messages.pcapng
  chainscope trace info node.trace
  chainscope trace replay node.trace p2p
  chainscope trace replay node.trace blocks 0 0 100
  chainscope trace replay node.trace any 'mempool:*' --filter 'fee>1000' --format '{time} {txid} {fee}'
  chainscope trace copy node.trace blocks.trace --tracepoint 'validation:*'
docs/tracepoints.md describes the views and the format of recordings.";

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Format of the output: the lines of the view, or one JSON object per event and one at the end (jsonl)
    #[arg(long, short, global = true, value_name = "FORMAT", value_enum, default_value_t = Format::Table)]
    output: Format,
    /// The same as --output jsonl
    #[arg(long, global = true, conflicts_with = "output")]
    json: bool,
    /// Only events for which this holds: NAME=VALUE with = != < <= > >= or ~ (contains); all of several must hold. NAME is an
    /// argument, or pid, tid, cpu, comm, tracepoint
    #[arg(long, global = true, value_name = "CONDITION")]
    pub(crate) filter: Vec<Condition>,
}

impl Options {
    /// The format.
    pub(crate) fn format(&self) -> Format {
        if self.json { Format::Jsonl } else { self.output }
    }

    /// Whether events are JSON, of which there is no document.
    pub(crate) fn is_json(&self) -> anyhow::Result<bool> {
        match self.format() {
            Format::Table => Ok(false),
            Format::Jsonl => Ok(true),
            Format::Json => Err(Failure::refused("--output json cannot be used with events: they have no end")
                .hint("--output jsonl prints one object per line")
                .into()),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum What {
    #[command(flatten)]
    Live(ViewArgs<Live>),
    /// Show a recording in any of the views, as when it was recorded
    #[command(after_help = "\
Examples:
  chainscope trace replay node.trace p2p
  chainscope trace replay node.trace blocks 840000 850000 100
  chainscope trace replay node.trace --since 2026-11-23T17:00:00Z mempool --filter 'fee>10000'
  chainscope trace replay node.trace raw --pcapng messages.pcapng")]
    Replay(ReplayArgs),
    /// Show what is in a recording
    #[command(after_help = "\
Examples:
  chainscope trace info node.trace
  chainscope trace info node.trace --json | jq .accounting.total.dropped")]
    Info {
        /// The recording
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Copy the events of a recording that are selected
    #[command(after_help = "\
Examples:
  chainscope trace copy node.trace blocks.trace --tracepoint 'validation:*'
  chainscope trace copy node.trace peer.trace --tracepoint 'net:*' --filter peer_id=7
  chainscope trace copy node.trace hour.trace --since 2026-11-23T17:00:00Z --until 2026-11-23T18:00:00Z")]
    Copy(CopyArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// The recording
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(subcommand)]
    pub(crate) view: ViewArgs<Replayed>,
    #[command(flatten)]
    pub(crate) period: Period,
}

#[derive(Debug, Args)]
pub(crate) struct CopyArgs {
    /// The recording
    #[arg(value_name = "FROM")]
    pub(crate) from: PathBuf,
    /// The file to write
    #[arg(value_name = "TO")]
    pub(crate) to: PathBuf,
    /// Only these tracepoints, as PROVIDER:NAME with * and ?
    #[arg(long, value_name = "PATTERN")]
    pub(crate) tracepoint: Vec<Pattern>,
    #[command(flatten)]
    pub(crate) period: Period,
}

/// Where the events of a view come from: a running program.
#[derive(Debug, Args)]
pub(crate) struct Live {
    #[command(flatten)]
    pub(crate) program: Program,
    /// Name of a built-in contract, or a contract file [default: the best match]
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) contract: Option<String>,
    /// Longest text that is captured whole, in bytes; at most 16384
    #[arg(long, value_name = "BYTES", env = "BPFTRACE_STRLEN", default_value_t = 4096,
          value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_STRING)))]
    pub(crate) max_text: u32,
    /// Longest payload that is captured whole, in bytes; at most 1 GiB
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20,
          value_parser = clap::value_parser!(u64).range(..=MAX_PAYLOAD))]
    pub(crate) max_payload: u64,
    /// Pages of the ring buffer, rounded up to a power of two [default: 8192; with payloads 65536, of raw 262144]
    #[arg(long, value_name = "PAGES", env = "BPFTRACE_PERF_RB_PAGES")]
    pub(crate) ring_pages: Option<u32>,
    /// Captured events that may wait for slow output, in bytes; what the ring buffer has no room for meanwhile is lost and counted
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30)]
    pub(crate) queue_bytes: u64,
    /// Also write the events to this new file, with payloads, for `trace replay`
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
}

/// One of these.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Program {
    /// Process or file, where the scripts have it
    #[arg(value_name = "PID|FILE")]
    pub(crate) target: Option<String>,
    /// Process, with the libraries that it has loaded
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: Option<u32>,
    /// File: every process that executes it, or a file that replaces it; those that start later as well
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Container, by id (at least 12 digits) or by its name in Docker: all of its processes, those that start later as well
    #[arg(long, value_name = "NAME")]
    pub(crate) container: Option<String>,
}

/// Where the events of a replay come from: the recording, which precedes the view.
#[derive(Debug, Args)]
pub(crate) struct Replayed {}

/// What is shown. `S` says where events come from.
#[derive(Debug, Subcommand)]
pub(crate) enum ViewArgs<S: Args> {
    /// Every P2P message on a line; in the end sums and rates by type and peer
    #[command(
        visible_alias = "log_p2p_traffic",
        after_help = "\
Examples:
  chainscope trace p2p --pid $(pidof bitcoind)
  chainscope trace p2p --pid $(pidof bitcoind) --decode --json --filter message_type=inv
  chainscope trace replay node.trace p2p --filter peer_id=7"
    )]
    P2p(MessagesArgs<S>),
    /// The peers of a node and their latest messages
    #[command(
        visible_alias = "p2p_monitor",
        after_help = "\
Examples:
  chainscope trace p2p-monitor --pid $(pidof bitcoind)
  chainscope trace p2p-monitor --container node --json | tail -1 | jq .summary.peers
  chainscope trace replay node.trace p2p-monitor"
    )]
    P2pMonitor(MessagesArgs<S>),
    /// P2P messages with their payloads
    #[command(
        visible_alias = "log_raw_p2p_msgs",
        after_help = "\
Examples:
  chainscope trace raw --file ./src/tapyrusd
  chainscope trace raw --pid $(pidof bitcoind) --pcapng messages.pcapng
  chainscope trace replay node.trace raw --filter message_type=block"
    )]
    Raw(RawArgs<S>),
    /// Time to connect blocks
    #[command(
        visible_alias = "connectblock_benchmark",
        after_help = "\
Examples:
  chainscope trace blocks 0 0 100 --pid $(pidof bitcoind)
  chainscope trace blocks 840000 850000 100 --file ./src/bitcoind --record before.trace
  chainscope trace replay before.trace blocks 840000 845000 50"
    )]
    Blocks(BlocksArgs<S>),
    /// Flushes of the UTXO cache
    #[command(
        visible_alias = "log_utxocache_flush",
        after_help = "\
Examples:
  chainscope trace utxocache --pid $(pidof bitcoind)
  chainscope trace utxocache --pid $(pidof bitcoind) --json --filter 'duration>1000000'"
    )]
    Utxocache(S),
    /// Coins that are added to, spent from and uncached from the UTXO cache
    #[command(
        visible_alias = "log_utxos",
        after_help = "\
Examples:
  chainscope trace utxos --pid $(pidof bitcoind)
  chainscope trace utxos --pid $(pidof bitcoind) --filter tracepoint=utxocache:spent"
    )]
    Utxos(S),
    /// Transactions that enter and leave the mempool, counts and rates
    #[command(
        visible_alias = "mempool_monitor",
        after_help = "\
Examples:
  chainscope trace mempool --pid $(pidof bitcoind)
  chainscope trace mempool --pid $(pidof bitcoind) --json --filter reason=sizelimit
  chainscope trace replay node.trace mempool --filter 'fee>10000'"
    )]
    Mempool(S),
    /// Coin selection of wallets
    #[command(
        visible_alias = "log_coinselection",
        after_help = "\
Examples:
  chainscope trace coins --pid $(pidof bitcoind)
  chainscope trace coins --pid $(pidof bitcoind) --json | tail -1 | jq .summary.transactions"
    )]
    Coins(S),
    /// Connections that are opened, closed and evicted, and peers that misbehave (Bitcoin Core v29)
    #[command(
        visible_alias = "log_p2p_connections",
        after_help = "\
Examples:
  chainscope trace connections --pid $(pidof bitcoind)
  chainscope trace connections --pid $(pidof bitcoind) --filter tracepoint=net:misbehaving_connection"
    )]
    Connections(S),
    /// Which peers announce and deliver blocks, which do not answer, and how long each stage takes
    #[command(after_help = "\
Examples:
  chainscope trace relay --pid $(pidof bitcoind)
  chainscope trace relay --file ./src/tapyrusd --record blocks.trace
  chainscope trace replay blocks.trace relay --json | tail -1 | jq .summary.blocks")]
    Relay(S),
    /// Any tracepoints, with all arguments
    #[command(after_help = "\
Examples:
  chainscope trace any 'mempool:*' --pid $(pidof bitcoind) --filter 'fee>1000' --format '{time} {txid} {fee}'
  chainscope trace any '*:*' --pid $(pidof rippled) --json
  chainscope trace any 'app:*' --file ./app --contract app.toml")]
    Any(Box<AnyArgs<S>>),
}

impl<S: Args> ViewArgs<S> {
    /// Where events come from.
    pub(crate) fn source(&self) -> &S {
        match self {
            Self::P2p(args) | Self::P2pMonitor(args) => &args.source,
            Self::Raw(args) => &args.messages.source,
            Self::Utxocache(source)
            | Self::Utxos(source)
            | Self::Mempool(source)
            | Self::Coins(source)
            | Self::Connections(source)
            | Self::Relay(source) => source,
            Self::Blocks(args) => &args.source,
            Self::Any(args) => &args.source,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct MessagesArgs<S: Args> {
    /// Also show the content of messages, decoded, as JSON; what cannot be decoded with its bytes and the reason
    #[arg(long)]
    pub(crate) decode: bool,
    #[command(flatten)]
    pub(crate) source: S,
}

#[derive(Debug, Args)]
pub(crate) struct RawArgs<S: Args> {
    /// Instead of lines write the messages to this new file, as packets that Wireshark decodes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["decode", "json", "output"])]
    pub(crate) pcapng: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) messages: MessagesArgs<S>,
}

#[derive(Debug, Args)]
pub(crate) struct BlocksArgs<S: Args> {
    /// First height of the benchmark; 0: begin at once
    #[arg(value_name = "START")]
    pub(crate) start: u32,
    /// Last height; 0: none, if START is 0 as well
    #[arg(value_name = "END")]
    pub(crate) end: u32,
    /// Blocks of any height that take longer are printed
    #[arg(value_name = "THRESHOLD_MS")]
    pub(crate) threshold_ms: u64,
    /// Unit of the duration [default: that of the contract, unless it is impossible]
    #[arg(long, value_enum)]
    pub(crate) unit: Option<UnitArg>,
    #[command(flatten)]
    pub(crate) source: S,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum UnitArg {
    /// Nanoseconds
    Ns,
    /// Microseconds
    Us,
    /// Milliseconds
    Ms,
    /// Seconds
    S,
}

impl From<UnitArg> for Unit {
    fn from(unit: UnitArg) -> Self {
        match unit {
            UnitArg::Ns => Self::Ns,
            UnitArg::Us => Self::Us,
            UnitArg::Ms => Self::Ms,
            UnitArg::S => Self::S,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct AnyArgs<S: Args> {
    /// Tracepoints, as PROVIDER:NAME with *, ? and {a,b}
    #[arg(value_name = "PROVIDER:NAME")]
    pub(crate) tracepoints: Pattern,
    /// Line of an event, with names in braces: '{time} {peer_id} {message_type}'
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<String>,
    #[command(flatten)]
    pub(crate) source: S,
}
