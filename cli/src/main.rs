//! `chainscope`: agent and aggregator for one machine in one process, and the command-line client of the API.
//!
//! Each command is a module. Shared by them: [`standalone`] (agent and aggregator in this process), [`api`] (HTTP client),
//! [`terminal`] (output), [`time`] and [`diagnostics`] (this program's own log).

#![forbid(unsafe_code)]

mod api;
mod args;
mod clock;
mod demo;
mod diagnostics;
mod live;
mod logs;
mod memory;
mod messages;
mod run;
mod standalone;
mod support_bundle;
mod terminal;
mod time;
mod trace;
mod tracepoints;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser as _};

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Run(args) => run::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Messages(args) => messages::run(args),
        Command::Logs(args) => logs::run(args),
        Command::Memory(args) => memory::run(args),
        Command::Tracepoints(args) => tracepoints::run(&args),
        Command::Trace(args) => trace::run(args),
        Command::SupportBundle(args) => support_bundle::run(args),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "chainscope", &mut text);
            terminal::write(&text)
        }
        Command::Man { command } => man(command.as_deref()),
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

/// Prints the manual page of the program, or of one of its commands.
fn man(command: Option<&str>) -> anyhow::Result<()> {
    let mut page = Cli::command();
    page.build();
    if let Some(name) = command {
        page = page.find_subcommand(name).with_context(|| format!("there is no command {name:?}"))?.clone();
    }
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text)?;
    terminal::write(&text)
}
