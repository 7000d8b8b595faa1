//! The command line of `chainscope trace`.

use std::path::PathBuf;

use chainscope_trace::{Condition, Pattern, view::Unit};
use clap::{Args, Subcommand, ValueEnum};

use super::live::Live;
use crate::time;

/// Show what the static tracepoints (USDT) of a node say.
///
/// Lines are those of the example scripts of Bitcoin Core and Tapyrus, and the last one says how often tracepoints were hit and
/// what was lost. In a terminal p2p-monitor and mempool fill the screen.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TraceArgs {
    #[command(subcommand)]
    pub(super) what: What,
    #[command(flatten)]
    pub(super) options: Options,
}

const EXAMPLES: &str = "\
Examples:
  chainscope trace p2p --pid $(pidof bitcoind)
  chainscope trace blocks 0 0 100 --file ./src/tapyrusd
  chainscope trace raw --pid $(pidof bitcoind) --record node.trace
  chainscope trace info node.trace
  chainscope trace replay node.trace p2p
  chainscope trace replay node.trace blocks 0 0 100
  chainscope trace replay node.trace any 'mempool:*' --filter 'fee>1000' --format '{time} {txid} {fee}'
  chainscope trace copy node.trace blocks.trace --tracepoint 'validation:*'
docs/tracepoints.md describes the views and the format of recordings.";

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Print one JSON object per event, and one at the end
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// Only events for which this holds: NAME=VALUE with = != < <= > >= or ~ (contains); all of several must hold. NAME is an
    /// argument, or pid, tid, cpu, comm, tracepoint
    #[arg(long, global = true, value_name = "CONDITION")]
    pub(super) filter: Vec<Condition>,
}

#[derive(Debug, Subcommand)]
pub(super) enum What {
    #[command(flatten)]
    Live(ViewArgs<Live>),
    /// Show a recording in any of the views, as when it was recorded
    Replay(ReplayArgs),
    /// Show what is in a recording
    Info {
        /// The recording
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Copy the events of a recording that are selected
    Copy(CopyArgs),
}

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// The recording
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
    #[command(subcommand)]
    pub(super) view: ViewArgs<Replayed>,
    #[command(flatten)]
    pub(super) times: Times,
}

#[derive(Debug, Args)]
pub(super) struct CopyArgs {
    /// The recording
    #[arg(value_name = "FROM")]
    pub(super) from: PathBuf,
    /// The file to write
    #[arg(value_name = "TO")]
    pub(super) to: PathBuf,
    /// Only these tracepoints, as PROVIDER:NAME with * and ?
    #[arg(long, value_name = "PATTERN")]
    pub(super) tracepoint: Vec<Pattern>,
    #[command(flatten)]
    pub(super) times: Times,
}

#[derive(Debug, Args)]
pub(super) struct Times {
    /// Only events of this time or later: 10m (ago), 2026-11-23T17:00:00Z, or seconds or milliseconds since 1970
    #[arg(long, global = true, value_name = "TIME", value_parser = time::parse)]
    pub(super) since: Option<u64>,
    /// Only events of this time or earlier, as for --since
    #[arg(long, global = true, value_name = "TIME", value_parser = time::parse)]
    pub(super) until: Option<u64>,
}

/// Where the events of a replay come from: the recording, which precedes the view.
#[derive(Debug, Args)]
pub(super) struct Replayed {}

/// What is shown. `S` says where events come from.
#[derive(Debug, Subcommand)]
pub(super) enum ViewArgs<S: Args> {
    /// Every P2P message on a line; in the end sums and rates by type and peer
    #[command(visible_alias = "log_p2p_traffic")]
    P2p(S),
    /// The peers of a node and their latest messages
    #[command(visible_alias = "p2p_monitor")]
    P2pMonitor(S),
    /// P2P messages with their payloads
    #[command(visible_alias = "log_raw_p2p_msgs")]
    Raw(S),
    /// Time to connect blocks
    #[command(visible_alias = "connectblock_benchmark")]
    Blocks(BlocksArgs<S>),
    /// Flushes of the UTXO cache
    #[command(visible_alias = "log_utxocache_flush")]
    Utxocache(S),
    /// Coins that are added to, spent from and uncached from the UTXO cache
    #[command(visible_alias = "log_utxos")]
    Utxos(S),
    /// Transactions that enter and leave the mempool, counts and rates
    #[command(visible_alias = "mempool_monitor")]
    Mempool(S),
    /// Coin selection of wallets
    #[command(visible_alias = "log_coinselection")]
    Coins(S),
    /// Connections that are opened, closed and evicted, and peers that misbehave (Bitcoin Core v29)
    #[command(visible_alias = "log_p2p_connections")]
    Connections(S),
    /// Which peers announce and deliver blocks, which do not answer, and how long each stage takes (Bitcoin Core)
    Relay(S),
    /// Any tracepoints, with all arguments
    Any(Box<AnyArgs<S>>),
}

impl<S: Args> ViewArgs<S> {
    /// Where events come from.
    pub(super) fn source(&self) -> &S {
        match self {
            Self::P2p(source)
            | Self::P2pMonitor(source)
            | Self::Raw(source)
            | Self::Utxocache(source)
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
pub(super) struct BlocksArgs<S: Args> {
    /// First height of the benchmark; 0: begin at once
    #[arg(value_name = "START")]
    pub(super) start: u32,
    /// Last height; 0: none
    #[arg(value_name = "END")]
    pub(super) end: u32,
    /// Blocks of any height that take longer are printed
    #[arg(value_name = "THRESHOLD_MS")]
    pub(super) threshold_ms: u64,
    /// Unit of the duration [default: that of the contract, unless it is impossible]
    #[arg(long, value_enum)]
    pub(super) unit: Option<UnitArg>,
    #[command(flatten)]
    pub(super) source: S,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum UnitArg {
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
pub(super) struct AnyArgs<S: Args> {
    /// Tracepoints, as PROVIDER:NAME with *, ? and {a,b}
    #[arg(value_name = "PROVIDER:NAME")]
    pub(super) tracepoints: Pattern,
    /// Line of an event, with names in braces: '{time} {peer_id} {message_type}'
    #[arg(long, value_name = "FORMAT")]
    pub(super) format: Option<String>,
    #[command(flatten)]
    pub(super) source: S,
}
