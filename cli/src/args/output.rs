//! How a command prints.

use clap::{Args, ColorChoice, ValueEnum};

use crate::{failure::Failure, terminal::Settings};

/// Arguments of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "General")]
pub(crate) struct GlobalArgs {
    /// When to use colours; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t = ColorChoice::Auto)]
    color: ColorChoice,
    /// Show requests, calls of kubectl and details of recording on standard error
    #[arg(long, short, global = true)]
    verbose: bool,
    /// Show errors only on standard error, no notes and no progress
    #[arg(long, short, global = true, conflicts_with = "verbose")]
    quiet: bool,
}

impl GlobalArgs {
    /// What they say about output.
    pub(crate) fn settings(&self) -> Settings {
        Settings { color: self.color, is_verbose: self.verbose, is_quiet: self.quiet }
    }
}

/// How output is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Text for people; not for programs: it may change
    Table,
    /// One JSON document, as the API returns it
    Json,
    /// One JSON object per line
    Jsonl,
}

/// The format of output.
#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Format of the output
    #[arg(long = "output", short, value_name = "FORMAT", value_enum, default_value_t = Format::Table)]
    output: Format,
    /// The same as --output jsonl
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

impl OutputArgs {
    /// The format.
    pub(crate) fn format(&self) -> Format {
        if self.json { Format::Jsonl } else { self.output }
    }

    /// The format of a list, which has no end if it is followed.
    pub(crate) fn of_stream(&self, is_followed: bool) -> anyhow::Result<Format> {
        match self.format() {
            Format::Json if is_followed => {
                let failure = Failure::refused("--output json cannot be used with --follow: the list has no end");
                Err(failure.hint("--output jsonl prints one object per line").into())
            }
            format => Ok(format),
        }
    }
}
