//! The program `chainscope-operator`.
#![forbid(unsafe_code)]

use std::{
    io::{IsTerminal as _, Write as _},
    process::ExitCode,
};

use anyhow::Context as _;
use chainscope_operator::{
    crd::{definitions, yaml},
    run::{Options, run},
};
use clap::{Parser, Subcommand};
// Only linked: it overrides `malloc`.
use tikv_jemalloc_sys as _;
use tracing_subscriber::EnvFilter;

/// Operator for TezosNode and NodeTrace resources: configures the agents and the aggregator and writes the status
#[derive(Debug, Parser)]
#[command(name = "chainscope-operator", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the operator
    Run(Box<Options>),
    /// Print the CustomResourceDefinitions of TezosNode and NodeTrace as YAML
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
    // Identities from Secrets are in this process's memory: core dumps are disabled.
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
    let documents: Vec<_> = definitions().iter().map(yaml).collect::<anyhow::Result<_>>()?;
    std::io::stdout().write_all(documents.join("---\n").as_bytes())?;
    Ok(())
}
