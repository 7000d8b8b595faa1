//! The program `chainscope-operator`.
#![forbid(unsafe_code)]

use std::{io::Write as _, process::ExitCode};

use clap::{Parser, Subcommand};

/// Chainscope's operator.
#[derive(Debug, Parser)]
#[command(name = "chainscope-operator", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prints the definition of `TezosNode` as YAML.
    Crd,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
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

fn print_crd() -> anyhow::Result<()> {
    std::io::stdout().write_all(chainscope_operator::crd::yaml()?.as_bytes())?;
    Ok(())
}
