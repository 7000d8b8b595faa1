//! The commands, on a database that is opened for maintenance.

use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use bytesize::ByteSize;
use chainscope_hygiene::Escaped;
use chainscope_store::{Error, Offline, Report, Store};

use super::progress::report;
use crate::{
    args::{DbArgs, DbCommand},
    run::read_config,
    terminal,
};

pub(crate) fn run(args: DbArgs) -> anyhow::Result<()> {
    let DbArgs { data_dir, config, command } = args;
    let data_dir = match data_dir {
        Some(data_dir) => data_dir,
        None => {
            read_config(config.as_deref())
                .context("--data-dir is missing, and no configuration file names the data directory")?
                .config
                .data_dir
        }
    };
    let database = data_dir.join("db");
    match command {
        DbCommand::Check => check(&database),
        DbCommand::Backup { to } => backup(&database, &to),
        DbCommand::Restore { from } => restore(&from, &database),
        DbCommand::Compact => compact(&database),
    }
}

fn open(database: &Path) -> anyhow::Result<Offline> {
    Offline::open(database).map_err(|error| advise(error, database))
}

fn check(database: &Path) -> anyhow::Result<()> {
    let offline = open(database)?;
    let found = report(&format!("checking {}", database.display()), |progress| {
        offline.check(&mut |report| progress.set(format!("{} rows, {} chunks", report.rows, report.chunks)))
    });
    let found = found.map_err(|error| advise(error, database))?;
    terminal::write(summary(&found).as_bytes())?;
    if found.is_sound() {
        return terminal::line("no problems found");
    }
    bail!("problems found in {}: {}; {}", database.display(), found.problem_count, start_again(database))
}

/// What was checked, and the problems, one per line.
fn summary(report: &Report) -> String {
    let Report { nodes, segments, rows, postings, chunks, chunks_absent, .. } = report;
    let mut text =
        format!("nodes: {nodes}\nsegments: {segments}\nrows: {rows}\nindex entries: {postings}\nchunks: {chunks}\n");
    if *chunks_absent > 0 {
        text.push_str(&format!("chunks that were lost before they were stored: {chunks_absent}\n"));
    }
    for problem in &report.problems {
        text.push_str(&format!("PROBLEM {}\n", Escaped(problem)));
    }
    let unlisted = report.problem_count.saturating_sub(report.problems.len() as u64);
    if unlisted > 0 {
        text.push_str(&format!("and {unlisted} more problems\n"));
    }
    text
}

fn backup(database: &Path, to: &Path) -> anyhow::Result<()> {
    let offline = open(database)?;
    let bytes = offline.bytes().map_err(|error| advise(error, database))?;
    let what = format!("backing up {} of {}", ByteSize(bytes), database.display());
    report(&what, |_| offline.backup(to)).map_err(|error| advise(error, to))?;
    terminal::line(&format!("{} has the backup; to restore it: chainscope db restore {0}", to.display()))
}

fn restore(from: &Path, database: &Path) -> anyhow::Result<()> {
    let what = format!("restoring {} to {}", from.display(), database.display());
    report(&what, |_| Store::restore(from, database)).map_err(|error| match &error {
        Error::NoDatabase { .. } => anyhow!("{error}: name a directory that `chainscope db backup` has written"),
        Error::Corrupt(_) | Error::Engine(_) => anyhow!("{}: {error}: name another backup", from.display()),
        _ => advise(error, database),
    })?;
    terminal::line(&format!("{} has the database; to check it: chainscope db check", database.display()))
}

fn compact(database: &Path) -> anyhow::Result<()> {
    let offline = open(database)?;
    let bytes = || offline.bytes().map(ByteSize).map_err(|error| advise(error, database));
    let before = bytes()?;
    report(&format!("compacting {before} of {}", database.display()), |_| offline.compact())
        .map_err(|error| advise(error, database))?;
    terminal::line(&format!("{}: {before} before, {} now", database.display(), bytes()?))
}

/// The error, with the next step. `at` is the directory that the command is about.
fn advise(error: Error, at: &Path) -> anyhow::Error {
    let advice = match &error {
        Error::Locked { .. } => {
            String::from("stop the server first; `chainscope db --help` says how to back up a running one")
        }
        Error::NoDatabase { path } => {
            let parent = path.parent().unwrap_or(Path::new(""));
            format!("is {} the data directory of the server (--data-dir)?", parent.display())
        }
        Error::NotEmpty { .. } => String::from("name another directory, or move this one away"),
        Error::DiskFull { .. } | Error::NoSpace { .. } => {
            String::from("delete something else there, or use another disk")
        }
        Error::Corrupt(_) | Error::Engine(_) | Error::Failed(_) => start_again(at),
        _ => return error.into(),
    };
    anyhow!("{error}: {advice}")
}

/// What to do about a damaged database.
fn start_again(database: &Path) -> String {
    format!(
        "move {} away; then restore a backup with `chainscope db restore`, or start the server with an empty database",
        database.display()
    )
}
