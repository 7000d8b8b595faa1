//! Arguments of `chainscope tracepoints`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::OutputArgs;

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
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

const TRACEPOINTS_EXAMPLES: &str = "\
Examples:
  chainscope tracepoints /usr/bin/bitcoind
  chainscope tracepoints --pid $(pidof tapyrusd) --provider 'mempool*'
  chainscope tracepoints --check --contract bitcoin-core-v28 ./src/bitcoind
docs/tracepoints.md says how to write a contract, and how to add a tracepoint to a node.";
