//! The name of this program: `chainscope`, or `kubectl chainscope` as a plugin of kubectl.

use std::{env, ffi::OsStr, path::Path, sync::OnceLock};

use clap::{Command, CommandFactory as _};

use crate::args::Cli;

/// File name of this program as a plugin of kubectl.
const PLUGIN: &str = "kubectl-chainscope";
/// Commands that are about this machine, which a plugin does not list.
const LOCAL_COMMANDS: [&str; 2] = ["run", "demo"];

/// Whether this program was started as a plugin of kubectl.
pub(crate) fn is_plugin() -> bool {
    static IS_PLUGIN: OnceLock<bool> = OnceLock::new();
    let by_name = || env::args_os().next().is_some_and(|path| Path::new(&path).file_name() == Some(OsStr::new(PLUGIN)));
    *IS_PLUGIN.get_or_init(by_name)
}

/// What a user types to run this program.
pub(crate) fn name() -> &'static str {
    if is_plugin() { "kubectl chainscope" } else { "chainscope" }
}

/// The command line; that of a plugin shows it in its examples.
pub(crate) fn command() -> Command {
    let command = Cli::command();
    if !is_plugin() {
        return command;
    }
    let local =
        LOCAL_COMMANDS.into_iter().fold(command, |command, name| command.mut_subcommand(name, |it| it.hide(true)));
    as_plugin(local).bin_name(name()).display_name(name()).after_help(FIRST_STEPS)
}

const FIRST_STEPS: &str = "\
First steps:
  kubectl chainscope nodes                          the nodes that are recorded
  kubectl chainscope messages tezos/rolling --live  peers, as a live table
  kubectl chainscope logs tezos/rolling -f          what the node logs

Exit codes:
  0  success
  1  error
  2  wrong command line, or a right or a prerequisite is missing";

/// Replaces the program's name in examples.
fn as_plugin(mut command: Command) -> Command {
    let examples = command.get_after_help().map(|text| {
        let replaced = |line: &str| match line.strip_prefix("  chainscope ") {
            Some(rest) => format!("  kubectl chainscope {rest}"),
            None => line.to_owned(),
        };
        text.to_string().lines().map(replaced).collect::<Vec<_>>().join("\n")
    });
    if let Some(examples) = examples {
        command = command.after_help(examples);
    }
    let names: Vec<_> = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, as_plugin))
}
