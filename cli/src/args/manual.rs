//! Arguments of `chainscope completions`, `chainscope man` and of the command that starts `kubectl`.

use std::{ffi::OsString, path::PathBuf};

use clap::Args;
use clap_complete::Shell;

/// Print completions for a shell.
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  chainscope completions bash > /etc/bash_completion.d/chainscope
  chainscope completions zsh > ~/.zfunc/_chainscope
  chainscope completions fish > ~/.config/fish/completions/chainscope.fish";

/// Print the manual page of the program or of a command, or write all of them.
#[derive(Debug, Args)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct ManArgs {
    /// The command, such as logs [default: the program]
    pub(crate) command: Vec<String>,
    /// Write the pages of the program and of all commands to this directory
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "command")]
    pub(crate) out: Option<PathBuf>,
}

const MAN_EXAMPLES: &str = "\
Examples:
  chainscope man logs | man -l -
  chainscope man --out /usr/local/share/man/man1";

/// Become a program that ends with the process that started it.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// Id of the process
    pub(crate) parent: u32,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub(crate) command: Vec<OsString>,
}
