//! `chainscope`: agent and aggregator for one machine in one process, and the command-line client of the API.
//!
//! Each command is a module. Shared by them: [`standalone`] (agent and aggregator in this process), [`api`] (HTTP client),
//! [`kube`] (the aggregator of a cluster), [`rows`] (lists and their live streams), [`output`], [`table`], [`tree`] and [`terminal`]
//! (output), [`failure`] (exit codes and advice), [`time`] and [`diagnostics`] (this program's own log).

#![forbid(unsafe_code)]

mod api;
mod args;
mod clock;
mod connections;
mod db;
mod demo;
mod diagnostics;
mod failure;
mod hex;
mod keys;
mod kube;
mod latency;
mod live;
mod logs;
mod manual;
mod memory;
mod message;
mod message_row;
mod messages;
mod nodes;
mod output;
mod program;
mod progress;
mod rows;
mod run;
mod signals;
mod standalone;
mod stats;
mod support_bundle;
mod table;
mod terminal;
mod time;
mod trace;
mod tracepoints;
mod tree;

use std::process::ExitCode;

use clap::FromArgMatches as _;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    let cli = match Cli::from_arg_matches(&args::command().get_matches()) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    terminal::configure(cli.global.settings());
    match execute(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if terminal::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Messages escape names of processes and servers themselves; this is the last defence.
            eprintln!("{}: {}", program::name(), failure::escaped(&failure::one_line(&error)));
            if let Some(hint) = failure::hint(&error) {
                eprintln!("hint: {}", failure::escaped(hint));
            }
            ExitCode::from(failure::exit(&error).code())
        }
    }
}

fn execute(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Run(args) => run::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Nodes(args) => nodes::run(&args),
        Command::Messages(args) => messages::run(args),
        Command::Message(args) => message::run(&args),
        Command::Connections(args) => connections::run(&args),
        Command::Logs(args) => logs::run(args),
        Command::Memory(args) => memory::run(args),
        Command::Stats(args) => stats::run(&args),
        Command::Tracepoints(args) => tracepoints::run(&args),
        Command::Trace(args) => trace::run(args),
        Command::Latency(args) => latency::run(args),
        Command::Db(args) => db::run(args),
        Command::SupportBundle(args) => support_bundle::run(args),
        Command::Completions(args) => manual::completions(&args),
        Command::Man(args) => manual::man(&args),
        Command::Exec(args) => kube::exec_with_parent(args.parent, &args.command),
    }
}
