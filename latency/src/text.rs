//! Runs, reports and comparisons as text for a terminal.

use std::fmt::Write as _;

use chainscope_hygiene::Escaped;
use unicode_width::UnicodeWidthStr as _;

use crate::format::{change, count, duration, quantile, seconds};
use crate::report::{Report, RunSummary, Statistics, TransactionRow};
use crate::verdict::{Comparison, FunctionComparison};

/// Digits of a run's id that are shown.
const SHORT_ID: usize = 8;

/// Columns aligned by their widest cell: the first `left` to the left, the others to the right.
fn table(header: &[&str], left: usize, rows: Vec<Vec<String>>) -> String {
    let mut lines = vec![header.iter().map(ToString::to_string).collect::<Vec<_>>()];
    lines.extend(rows.into_iter().map(|row| row.iter().map(|cell| Escaped(cell).to_string()).collect()));
    let width = |column: usize| lines.iter().map(|line| line[column].width()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let mut shown = String::new();
        for (column, cell) in line.iter().enumerate() {
            let gap = " ".repeat(widths[column] - cell.width());
            let separator = if column == 0 { "" } else { "  " };
            shown += &if column < left { format!("{separator}{cell}{gap}") } else { format!("{separator}{gap}{cell}") };
        }
        text += shown.trim_end();
        text.push('\n');
    }
    text
}

fn short(id: &str) -> String {
    id.chars().take(SHORT_ID).collect()
}

fn optional(nanoseconds: Option<u64>) -> String {
    nanoseconds.map_or_else(|| "-".to_owned(), duration)
}

/// `chainscope latency list`.
#[must_use]
pub fn list(runs: &[RunSummary]) -> String {
    let rows = runs.iter().map(|run| {
        vec![
            short(&run.id),
            run.start.chars().take(19).collect(),
            run.tags.join(","),
            run.commit.as_deref().map(short).unwrap_or_default(),
            run.version.clone().unwrap_or_default(),
            run.node.clone().unwrap_or_else(|| run.pid.to_string()),
            run.host.clone(),
            if run.end.is_some() { "ended" } else { "running or killed" }.to_owned(),
        ]
    });
    table(&["RUN", "START (UTC)", "TAGS", "COMMIT", "VERSION", "NODE", "HOST", "STATE"], 8, rows.collect())
}

fn statistics_row(name: String, statistics: &Statistics) -> Vec<String> {
    let lost: u64 = statistics.lost.values().fold(0, |sum, count| sum.saturating_add(*count));
    vec![
        name,
        count(statistics.spans),
        optional(statistics.p50_ns),
        optional(statistics.p90_ns),
        optional(statistics.p99_ns),
        optional(statistics.max_ns),
        count(statistics.unended),
        count(lost),
    ]
}

/// `chainscope latency report`.
#[must_use]
pub fn report(report: &Report) -> String {
    let mut text = String::new();
    let header = ["FUNCTION", "SPANS", "P50", "P90", "P99", "MAX", "UNENDED", "LOST"];
    let sides = report.functions.iter().flat_map(|function| {
        function.sides.iter().enumerate().map(|(index, side)| {
            let side_name = if function.sides.len() > 1 { ["", " (B)"][index.min(1)] } else { "" };
            statistics_row(format!("{}{side_name}", function.function), &side.statistics)
        })
    });
    text += &table(&header, 1, sides.collect());
    for function in &report.functions {
        let returns: Vec<String> = function
            .sides
            .iter()
            .flat_map(|side| &side.statistics.returns)
            .map(|held| format!("{} × {}", held.code, count(held.count)))
            .collect();
        if !returns.is_empty() {
            let _ = writeln!(text, "\n{} returned {}", Escaped(&function.function), returns.join(", "));
        }
    }
    for history in &report.histories {
        for change_point in &history.changes {
            let commit =
                change_point.commit.as_deref().map(|commit| format!(", commit {}", short(commit))).unwrap_or_default();
            let _ = writeln!(
                text,
                "\n{}: median {} since run {}{}",
                Escaped(&history.function),
                change(change_point.change_percent),
                short(&change_point.run),
                Escaped(&commit),
            );
        }
    }
    if !report.slowest_transactions.is_empty() {
        text.push('\n');
        text += &transactions(&report.slowest_transactions);
    }
    text
}

/// Transactions, as they are given.
#[must_use]
pub fn transactions(rows: &[TransactionRow]) -> String {
    let rows = rows.iter().map(|row| {
        vec![
            row.id.clone(),
            row.time.clone(),
            short(&row.run),
            row.r#type.to_string(),
            row.result.to_string(),
            duration(row.duration_ns),
        ]
    });
    table(&["TRANSACTION", "TIME", "RUN", "TYPE", "RESULT", "DURATION"], 3, rows.collect())
}

/// `chainscope latency compare`.
#[must_use]
pub fn comparison(comparison: &Comparison) -> String {
    let interval = |function: &FunctionComparison, index: usize| {
        let shown =
            function.quantiles.get(index).and_then(|q| Some((q.change_percent?, q.low_percent?, q.high_percent?)));
        shown.map_or_else(
            || "-".to_owned(),
            |(value, low, high)| format!("{} [{}, {}]", change(value), change(low), change(high)),
        )
    };
    let rows = comparison.functions.iter().map(|function| {
        let verdict = function.verdict.as_str().to_owned();
        vec![function.function.clone(), verdict, interval(function, 0), interval(function, 1), interval(function, 2)]
    });
    let percentiles: Vec<String> = [0.5, 0.9, 0.99].into_iter().map(|q| quantile(q).to_uppercase()).collect();
    let header = ["FUNCTION", "VERDICT", &percentiles[0], &percentiles[1], &percentiles[2]];
    let mut text = table(&header, 2, rows.collect());
    for function in &comparison.functions {
        if let Some(reason) = function.reason {
            let _ = write!(text, "\n{}: {}", Escaped(&function.function), reason.describe());
            if let Some(total) = function.record_seconds {
                let _ = write!(text, "; {} a side would do", seconds(total));
            }
            text.push('\n');
        }
    }
    let _ = writeln!(
        text,
        "\n{}: margin {} %, {} % chance of any wrong verdict",
        comparison.verdict.as_str(),
        comparison.margin_percent,
        comparison.alpha * 100.0,
    );
    text
}
