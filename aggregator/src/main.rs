//! `chainscope-aggregator`: ingests records from the agents of other hosts and serves the API.

#![forbid(unsafe_code)]

mod program;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    match program::start(program::Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // On standard error even if logging is disabled.
            eprintln!("chainscope-aggregator: {error:#}");
            ExitCode::FAILURE
        }
    }
}
