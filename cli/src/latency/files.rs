//! `chainscope latency import` and `export`.

use std::{fs::File, io::Write as _, path::Path};

use anyhow::Context as _;
use chainscope_latency::{
    Run, RunInfo,
    database::{Database, Error},
    export,
};

use super::source;
use crate::{
    args::{ExportArgs, ExportFormat},
    failure::{self, Failure},
    progress::Progress,
    terminal,
};

pub(super) fn import(db: &Path, from: &Path) -> anyhow::Result<()> {
    let mut database = Database::create_or_open(db)?;
    let imported =
        Progress::during(format!("importing {}", from.display()), || database.import(from)).map_err(|error| {
            let hint = match &error {
                Error::Exists { .. } => "it was imported before: `latency list` shows its runs",
                _ => "`latency import` reads a database of the rippled sample (tx_latency.py --db)",
            };
            Failure::new(error.to_string()).hint(hint)
        })?;
    terminal::note(&format!(
        "imported: runs {}, blocks {}, transactions {}; rows in several collections {}, in none {}",
        imported.runs.len(),
        imported.blocks,
        imported.transactions,
        imported.ambiguous,
        imported.outside
    ));
    Ok(())
}

pub(super) fn export(db: &Path, args: &ExportArgs) -> anyhow::Result<()> {
    let database = source::open(db)?;
    let infos = source::select(&database, &args.runs, None)?;
    let path = args.to.display();
    Progress::during(format!("exporting to {path}"), || write(&database, &infos, args))?;
    terminal::note(&format!("runs exported to {path}: {}", infos.len()));
    Ok(())
}

/// Writes runs to a file that does not exist.
fn write(database: &Database, infos: &[RunInfo], args: &ExportArgs) -> anyhow::Result<()> {
    const HINT: &str = "name another file";
    if args.format == ExportFormat::Probes {
        return database.export(infos, &args.to).map_err(|error| match error {
            Error::Target { .. } => failure::with_hint(error, HINT),
            _ => error.into(),
        });
    }
    let runs: Vec<Run> = infos.iter().map(|info| database.run(info)).collect::<Result<_, _>>()?;
    let bytes = match args.format {
        ExportFormat::Otlp => export::otlp(&runs).into_bytes(),
        _ => export::prometheus(&runs),
    };
    let path = args.to.display();
    let mut file = File::create_new(&args.to).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            anyhow::Error::from(Failure::new(format!("{path} exists; an export does not overwrite")).hint(HINT))
        }
        _ => anyhow::Error::from(error).context(path.to_string()),
    })?;
    file.write_all(&bytes).with_context(|| path.to_string())
}
