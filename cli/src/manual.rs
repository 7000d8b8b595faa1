//! `chainscope completions` and `chainscope man`.

use std::{fs, io::ErrorKind, path::Path};

use anyhow::Context as _;
use clap_mangen::Man;

use crate::{
    args::{self, CompletionsArgs, ManArgs},
    failure::{self, Failure},
    program, terminal,
};

/// Prints the completions of a shell.
pub(crate) fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut args::command(), "chainscope", &mut text);
    terminal::write(&text)
}

/// Prints a manual page, or writes all of them.
pub(crate) fn man(args: &ManArgs) -> anyhow::Result<()> {
    match &args.out {
        Some(directory) => write_all(directory),
        None => print(&args.command),
    }
}

fn print(names: &[String]) -> anyhow::Result<()> {
    let mut page = args::command();
    page.build();
    for name in names {
        let found = page.find_subcommand(name).cloned();
        page = found.ok_or_else(|| {
            let failure = Failure::refused(format!("there is no command {name:?}"));
            failure.hint(format!("`{} --help` lists the commands", program::name()))
        })?;
    }
    let mut text = Vec::new();
    Man::new(page).render(&mut text)?;
    terminal::write(&text)
}

fn write_all(directory: &Path) -> anyhow::Result<()> {
    let written = fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(args::command(), directory));
    let advice = [
        (ErrorKind::AlreadyExists, "name a directory with --out, not a file"),
        (ErrorKind::PermissionDenied, "run it as root, or name another directory with --out"),
    ];
    written
        .with_context(|| format!("cannot write to {}", directory.display()))
        .map_err(|error| failure::of_file(error, &advice))
}
