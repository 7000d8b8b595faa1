//! Arguments of `chainscope demo`.

use std::path::PathBuf;

use clap::Args;

/// Start a demo node, record it, and show its messages, its log and its memory.
///
/// Records are kept in memory and lost when the demo ends; `chainscope run` stores them in RocksDB.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
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

const EXAMPLES: &str = "\
Examples:
  sudo chainscope demo
  sudo chainscope demo --messages 100 --rate 20";
