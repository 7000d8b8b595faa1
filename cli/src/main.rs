//! `chainscope`: everything for one machine in one program.
//!
//! Each command is a module; what they share is [`api`] (the HTTP client), [`terminal`] (safe and quiet output) and
//! [`logs`] (own logs).

#![forbid(unsafe_code)]

mod api;
mod args;
mod demo;
mod logs;
mod memory;
mod p2p;
mod run;
mod support_bundle;
mod terminal;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Run(args) => run::run(args),
        Command::Demo(args) => demo::run(args),
        Command::P2p(args) => p2p::run(args),
        Command::Memory(args) => memory::run(args),
        Command::SupportBundle(args) => support_bundle::run(args),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "chainscope", &mut text);
            terminal::write(&text)
        }
        Command::Man => {
            let mut text = Vec::new();
            clap_mangen::Man::new(Cli::command())
                .render(&mut text)
                .map_err(Into::into)
                .and_then(|()| terminal::write(&text))
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if terminal::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chainscope: {error:#}");
            ExitCode::FAILURE
        }
    }
}
