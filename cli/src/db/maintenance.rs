//! The commands, on a database that is opened for maintenance.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use bytesize::ByteSize;
use chainscope_hygiene::{Escaped, EscapedJson};
use chainscope_store::{Error, Offline, Report, Store};
use serde_json::{Value, json};

use super::progress::report;
use crate::{
    args::{DbArgs, DbCommand, Format},
    failure::Failure,
    progress::Progress,
    run::{default_config, read_config},
    terminal,
};

pub(crate) fn run(args: DbArgs) -> anyhow::Result<()> {
    let DbArgs { data_dir, config, command } = args;
    let database = match data_dir {
        Some(data_dir) => data_dir,
        None => configured_data_dir(config.as_deref())?,
    };
    let database = database.join("db");
    match command {
        DbCommand::Check { output } => check(&database, output.format()),
        DbCommand::Backup { to } => backup(&database, &to),
        DbCommand::Restore { from } => restore(&from, &database),
        DbCommand::Compact => compact(&database),
    }
}

/// The data directory that the configuration file names.
fn configured_data_dir(config: Option<&Path>) -> anyhow::Result<PathBuf> {
    let Some(path) = config.map(Path::to_owned).or_else(default_config) else {
        let missing =
            Failure::refused("--data-dir is missing, and there is no configuration file that names the data directory");
        return Err(missing.hint("name the data directory of the server with --data-dir").into());
    };
    Ok(read_config(Some(&path))?.config.data_dir)
}

fn open(database: &Path) -> anyhow::Result<Offline> {
    let opened = Progress::during(format!("opening {}", database.display()), || Offline::open(database));
    opened.map_err(|error| advise(error, database))
}

fn check(database: &Path, format: Format) -> anyhow::Result<()> {
    let offline = open(database)?;
    let found = report(&format!("checking {}", database.display()), |progress| {
        offline.check(&mut |report| progress.set(format!("{} rows, {} chunks", report.rows, report.chunks)))
    });
    let found = found.map_err(|error| advise(error, database))?;
    match format {
        Format::Table => terminal::write(summary(&found).as_bytes())?,
        Format::Json | Format::Jsonl => terminal::line(&EscapedJson(&document(&found).to_string()).to_string())?,
    }
    if found.is_sound() {
        return if format == Format::Table { terminal::line("no problems found") } else { Ok(()) };
    }
    let problems = Failure::new(format!("problems found in {}: {}", database.display(), found.problem_count));
    Err(problems.hint(start_again(database)).into())
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

/// The same as JSON. `problems` has the first ones.
fn document(report: &Report) -> Value {
    let Report { nodes, segments, rows, postings, chunks, chunks_absent, problems, problem_count } = report;
    json!({
        "nodes": nodes,
        "segments": segments,
        "rows": rows,
        "index_entries": postings,
        "chunks": chunks,
        "chunks_absent": chunks_absent,
        "problem_count": problem_count,
        "problems": problems,
    })
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
        Error::NoDatabase { .. } => {
            Failure::new(error.to_string()).hint("name a directory that `chainscope db backup` has written").into()
        }
        Error::Corrupt(_) | Error::Engine(_) => {
            Failure::new(format!("{}: {error}", from.display())).hint("name another backup").into()
        }
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
    if is_denied(&error) {
        let denied = Failure::refused(format!("{}: {error}", at.display()));
        return denied.hint("run the command as the user of the server, or as root").into();
    }
    let hint = match &error {
        Error::Locked { .. } => {
            String::from("stop the server first; `chainscope db --help` says how to back up a running one")
        }
        Error::NoDatabase { path } => {
            let parent = path.parent().unwrap_or(Path::new(""));
            format!("is {} the data directory of the server (--data-dir)?", parent.display())
        }
        Error::NotAStore { .. } => String::from("name the data directory of a server with --data-dir"),
        Error::NotEmpty { .. } => String::from("name another directory, or move this one away"),
        Error::DiskFull { .. } | Error::NoSpace { .. } => {
            String::from("delete something else there, or use another disk")
        }
        Error::Corrupt(_) | Error::Engine(_) | Error::Failed(_) => start_again(at),
        _ => return error.into(),
    };
    Failure::new(error.to_string()).hint(hint).into()
}

/// Whether a right to files is missing. The engine says so in its text only.
fn is_denied(error: &Error) -> bool {
    match error {
        Error::NoDatabase { path } => {
            fs::read_dir(path).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
        }
        Error::Io { source, .. } => source.kind() == ErrorKind::PermissionDenied,
        Error::Engine(text) => text.contains("Permission denied"),
        _ => false,
    }
}

/// What to do about a damaged database.
fn start_again(database: &Path) -> String {
    format!(
        "move {} away; then restore a backup with `chainscope db restore`, or start the server with an empty database",
        database.display()
    )
}
