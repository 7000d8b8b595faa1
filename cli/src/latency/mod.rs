//! `chainscope latency`: runs of a file as text, JSON or a page; comparison for CI.

mod record;

use std::{fs, path::Path};

use anyhow::Context as _;
use chainscope_hygiene::EscapedJson;
use chainscope_latency::{
    Run, Time,
    database::{Database, TransactionFilter},
    html,
    report::{self, Report, RunSummary, TransactionRow},
    text,
    verdict::{Options, Verdict},
};
use serde::Serialize;

use crate::{
    args::{CompareArgs, FailOn, LatencyArgs, LatencyCommand, ReportArgs, TransactionsArgs},
    failure::Failure,
    terminal, time,
};

pub(crate) fn run(args: LatencyArgs) -> anyhow::Result<()> {
    let LatencyArgs { db, json, command } = args;
    match command {
        LatencyCommand::Record(args) => record::run(&db, &args),
        LatencyCommand::List => {
            let runs: Vec<RunSummary> = open(&db)?.runs()?.iter().map(RunSummary::from).collect();
            show(&runs, json, || text::list(&runs))
        }
        LatencyCommand::Report(args) => report(&open(&db)?, &args, json),
        LatencyCommand::Compare(args) => compare(&open(&db)?, &args, json),
        LatencyCommand::Transactions(args) => transactions(&open(&db)?, args, json),
        LatencyCommand::Import { from } => import(&db, &from),
        LatencyCommand::Export { to, runs } => {
            let database = open(&db)?;
            let mut selected = Vec::new();
            for selector in &runs {
                selected.extend(database.select(selector)?);
            }
            let selected = if runs.is_empty() { database.runs()? } else { selected };
            Ok(database.export(&selected, &to)?)
        }
    }
}

fn open(path: &Path) -> anyhow::Result<Database> {
    if path.exists() {
        return Ok(Database::open(path)?);
    }
    let missing = Failure::refused(format!("{}: no such file of runs", path.display()));
    Err(missing.hint("name it with --db, or add runs with `latency import`").into())
}

fn show(value: &impl Serialize, json: bool, text: impl FnOnce() -> String) -> anyhow::Result<()> {
    if json {
        return terminal::line(&EscapedJson(&serde_json::to_string(value)?).to_string());
    }
    terminal::write(text().as_bytes())
}

/// The runs that selectors mean, each once, in order of time; all without selectors.
fn select(database: &Database, selectors: &[String]) -> anyhow::Result<Vec<Run>> {
    let mut infos = Vec::new();
    for selector in selectors {
        infos.extend(database.select(selector)?);
    }
    if selectors.is_empty() {
        infos = database.runs()?;
    }
    infos.sort_by_key(|info| (info.start, info.id));
    infos.dedup_by_key(|info| info.id);
    infos.iter().map(|info| Ok(database.run(info)?)).collect()
}

fn write_page(report: &Report, path: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    fs::write(path, html::render(report)).with_context(|| path.display().to_string())
}

fn report(database: &Database, args: &ReportArgs, json: bool) -> anyhow::Result<()> {
    let report = Report::of_runs(&select(database, &args.runs)?, &Options::default());
    write_page(&report, args.html.as_deref())?;
    show(&report, json, || text::report(&report))
}

fn compare(database: &Database, args: &CompareArgs, json: bool) -> anyhow::Result<()> {
    let side = |selector: &String| select(database, std::slice::from_ref(selector));
    let (a, b) = (side(&args.a)?, side(&args.b)?);
    if let Some(both) = a.iter().find(|run| b.iter().any(|other| other.info.id == run.info.id)) {
        return Err(Failure::refused(format!("run {} is on both sides", both.info.id)).into());
    }
    let options = Options { margin: args.margin / 100.0, ..Options::default() };
    let report = Report::of_comparison(&a, &b, &options);
    write_page(&report, args.html.as_deref())?;
    let Some(comparison) = &report.comparison else { return Ok(()) };
    show(comparison, json, || text::comparison(comparison))?;
    let fail_on = match args.fail_on {
        FailOn::Slower => report::FailOn::Slower,
        FailOn::Inconclusive => report::FailOn::Inconclusive,
    };
    match report::exit_code(comparison, fail_on) {
        0 => Ok(()),
        code => {
            let named = |function: &&chainscope_latency::verdict::FunctionComparison| match comparison.verdict {
                Verdict::Slower => function.verdict == Verdict::Slower,
                _ => function.verdict == Verdict::Inconclusive,
            };
            let count = comparison.functions.iter().filter(named).count();
            let message =
                format!("{}: {count} of {} functions", comparison.verdict.as_str(), comparison.functions.len());
            Err(Failure::with_code(message, code).into())
        }
    }
}

fn transactions(database: &Database, args: TransactionsArgs, json: bool) -> anyhow::Result<()> {
    let at = |parameter: u64| Time(i64::try_from(time::nanoseconds(parameter)).unwrap_or(i64::MAX));
    let filter = TransactionFilter {
        id_prefix: args.id,
        kind: args.r#type,
        result: args.result,
        from: args.period.since.map(at),
        to: args.period.until.map(at),
        run: None,
        slowest_first: args.slowest,
        limit: args.limit,
    };
    let found = database.transactions(&filter)?;
    let rows: Vec<TransactionRow> = found.iter().map(|(run, fact)| TransactionRow::new(*run, fact)).collect();
    show(&rows, json, || text::transactions(&rows))
}

fn import(db: &Path, from: &Path) -> anyhow::Result<()> {
    let imported = Database::create_or_open(db)?.import(from)?;
    terminal::note(&format!(
        "{} runs, {} blocks, {} transactions; {} rows lie in several collections, {} in none",
        imported.runs.len(),
        imported.blocks,
        imported.transactions,
        imported.ambiguous,
        imported.outside
    ));
    Ok(())
}
