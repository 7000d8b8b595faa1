//! The command line as a plugin of kubectl shows it.

use clap::{Command, CommandFactory as _};

use super::Cli;
use crate::program;

/// Commands that are about this machine, which a plugin does not list.
const LOCAL_COMMANDS: [&str; 2] = ["run", "demo"];

const FIRST_STEPS: &str = "\
First steps:
  kubectl chainscope nodes                          the nodes that are recorded
  kubectl chainscope messages tezos/rolling --live  peers, as a live table
  kubectl chainscope logs tezos/rolling -f          what the node logs

Exit codes:
  0  success
  1  error
  2  wrong command line, or a right or a prerequisite is missing
  3  latency compare: a function is slower; 4: inconclusive (--fail-on)";

/// The command line under the name that this program was started with.
pub(crate) fn command() -> Command {
    let command = Cli::command();
    if !program::is_plugin() {
        return command;
    }
    let local =
        LOCAL_COMMANDS.into_iter().fold(command, |command, name| command.mut_subcommand(name, |it| it.hide(true)));
    as_plugin(local).bin_name(program::name()).display_name(program::name()).after_help(FIRST_STEPS)
}

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
