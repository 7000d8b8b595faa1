//! `chainscope latency`: runs of a file or of an aggregator as text, JSON or a page; comparison for CI.

mod files;
mod record;
mod source;

use std::{fs, path::Path};

use anyhow::Context as _;
use chainscope_latency::{
    html,
    report::{self, Report},
    text::{self, Text},
    verdict::{FunctionComparison, Verdict},
};

use self::source::{Answer, Source};
use crate::{
    args::{CompareArgs, FailOn, Format, LatencyArgs, LatencyCommand, ListArgs, ReportArgs, TransactionsArgs},
    failure::Failure,
    output::{self, JsonRows},
    rows, terminal,
};

/// The file of runs, unless another is named.
const DEFAULT_FILE: &str = "latency.db";

pub(crate) fn run(args: LatencyArgs) -> anyhow::Result<()> {
    let format = args.format();
    let LatencyArgs { db, command, .. } = args;
    let file = db.as_deref().unwrap_or(Path::new(DEFAULT_FILE));
    let db = db.as_deref();
    match command {
        LatencyCommand::Record(args) => record::run(file, &args),
        LatencyCommand::List(args) => list(db, &args, format),
        LatencyCommand::Report(args) => report(db, &args, format),
        LatencyCommand::Compare(args) => compare(db, &args, format),
        LatencyCommand::Transactions(args) => transactions(db, &args, format),
        LatencyCommand::Import(args) => files::import(file, &args.from),
        LatencyCommand::Export(args) => files::export(file, &args),
    }
}

/// Prints a list: as text, one document, or an object per line.
fn show_rows<T>(
    answer: &Answer<Vec<T>>,
    format: Format,
    text: impl FnOnce(&[T], Option<usize>) -> Text,
) -> anyhow::Result<()> {
    match format {
        Format::Table => show_text(&text(&answer.value, terminal::columns())),
        Format::Json => output::document(&answer.json),
        Format::Jsonl => {
            let mut lines = JsonRows::new(format);
            rows::elements(&answer.json)?.into_iter().try_for_each(|row| lines.row(row))?;
            lines.end()
        }
    }
}

/// Prints a document: as text or JSON, which has one line.
fn show(answer: &Answer<Report>, format: Format, text: impl FnOnce(Option<usize>) -> Text) -> anyhow::Result<()> {
    match format {
        Format::Table => show_text(&text(terminal::columns())),
        Format::Json | Format::Jsonl => output::document(&answer.json),
    }
}

fn show_text(text: &Text) -> anyhow::Result<()> {
    terminal::write(text.text.as_bytes())?;
    if !text.omitted.is_empty() {
        terminal::note(&format!("not shown at this width: {}; -o json has everything", text.omitted.join(", ")));
    }
    Ok(())
}

fn write_page(report: &Report, path: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    fs::write(path, html::render(report)).with_context(|| path.display().to_string())
}

fn list(db: Option<&Path>, args: &ListArgs, format: Format) -> anyhow::Result<()> {
    let runs = Source::open(db, &args.source)?.runs(args)?;
    show_rows(&runs, format, text::list)
}

fn report(db: Option<&Path>, args: &ReportArgs, format: Format) -> anyhow::Result<()> {
    let report = Source::open(db, &args.source)?.report(&args.runs)?;
    write_page(&report.value, args.html.as_deref())?;
    show(&report, format, |width| text::report(&report.value, width))
}

fn compare(db: Option<&Path>, args: &CompareArgs, format: Format) -> anyhow::Result<()> {
    let report = Source::open(db, &args.source)?.comparison(args)?;
    write_page(&report.value, args.html.as_deref())?;
    let comparison = report.value.comparison.as_ref().context("the server did not return a comparison")?;
    show(&report, format, |width| text::comparison(comparison, &report.value.differences, width))?;
    let fail_on = match args.fail_on {
        FailOn::Slower => report::FailOn::Slower,
        FailOn::Inconclusive => report::FailOn::Inconclusive,
    };
    match report::exit_code(comparison, fail_on) {
        0 => Ok(()),
        code => {
            let named = |function: &&FunctionComparison| match comparison.verdict {
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

fn transactions(db: Option<&Path>, args: &TransactionsArgs, format: Format) -> anyhow::Result<()> {
    let found = Source::open(db, &args.source)?.transactions(args)?;
    show_rows(&found, format, text::transactions)
}
