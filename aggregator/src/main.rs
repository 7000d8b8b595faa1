//! `chainscope-aggregator`: takes records from the agents of other machines and serves the API.

#![forbid(unsafe_code)]

mod program;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    match program::start(program::Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One sentence for people; logs may be switched off.
            eprintln!("chainscope-aggregator: {error:#}");
            ExitCode::FAILURE
        }
    }
}
