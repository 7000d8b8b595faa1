//! The program `chainscope-operator`.
#![forbid(unsafe_code)]

use std::{
    io::{IsTerminal as _, Write as _},
    process::ExitCode,
};

use anyhow::Context as _;
use chainscope_operator::run::{Options, run};
use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Chainscope's operator: the resource TezosNode and what follows from it.
#[derive(Debug, Parser)]
#[command(name = "chainscope-operator", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Watches TezosNodes, tells agents and the aggregator what to do, and writes how it goes
    Run(Box<Options>),
    /// Prints the definition of `TezosNode` as YAML
    Crd,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(options) => start(*options),
        Command::Crd => print_crd(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "chainscope-operator: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(options: Options) -> anyhow::Result<()> {
    // Identities pass through this memory: none of it goes to a file.
    chainscope_hygiene::protect_process()?;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    tokio::runtime::Runtime::new().context("cannot start the runtime")?.block_on(run(options))
}

fn print_crd() -> anyhow::Result<()> {
    std::io::stdout().write_all(chainscope_operator::crd::yaml()?.as_bytes())?;
    Ok(())
}
