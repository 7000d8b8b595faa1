//! Runs, reports and comparisons as text for a terminal.

use std::fmt::Write as _;

use chainscope_hygiene::Escaped;
use unicode_width::UnicodeWidthStr as _;

use crate::format::{change, count, duration, seconds};
use crate::report::{Report, RunSummary, SideDifference, Statistics, TransactionRow};
use crate::verdict::{Comparison, FunctionComparison};

/// Digits of a run's id that are shown.
const SHORT_ID: usize = 8;

/// Spaces between two columns.
const GAP: usize = 2;

/// Text for a terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    /// Lines, each with its end.
    pub text: String,
    /// Columns of tables that are left out, because the terminal is too narrow for them.
    pub omitted: Vec<&'static str>,
}

/// A column: its name, and a rank. Where a table is wider than the terminal, the column with the greatest rank is left out first; 0:
/// never.
type Column = (&'static str, u8);

/// Width of a table whose columns are as wide as their widest cells.
fn total(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)
}

/// Columns aligned by their widest cell, the first `left` of them to the left, the others to the right.
fn table(text: &mut Text, columns: &[Column], left: usize, rows: Vec<Vec<String>>, width: Option<usize>) {
    let mut lines = vec![columns.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>()];
    lines.extend(rows.into_iter().map(|row| row.iter().map(|cell| Escaped(cell).to_string()).collect()));
    let widest = |column: usize| lines.iter().map(|line| line[column].width()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..columns.len()).map(widest).collect();
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    let excess = |shown: &[usize]| {
        let widths: Vec<usize> = shown.iter().map(|column| widths[*column]).collect();
        width.is_some_and(|width| total(&widths) > width)
    };
    while excess(&shown) {
        let least =
            shown.iter().copied().filter(|column| columns[*column].1 > 0).max_by_key(|column| columns[*column].1);
        let Some(least) = least else { break };
        shown.retain(|column| *column != least);
        if !text.omitted.contains(&columns[least].0) {
            text.omitted.push(columns[least].0);
        }
    }
    for line in &lines {
        let mut row = String::new();
        for (place, column) in shown.iter().copied().enumerate() {
            let cell = &line[column];
            let gap = " ".repeat(widths[column] - cell.width());
            let separator = if place == 0 { String::new() } else { " ".repeat(GAP) };
            row += &if column < left { format!("{separator}{cell}{gap}") } else { format!("{separator}{gap}{cell}") };
        }
        text.text += row.trim_end();
        text.text.push('\n');
    }
}

fn short(id: &str) -> String {
    id.chars().take(SHORT_ID).collect()
}

fn optional(nanoseconds: Option<u64>) -> String {
    nanoseconds.map_or_else(|| "-".to_owned(), duration)
}

/// `chainscope latency list`, at most `width` columns wide.
#[must_use]
pub fn list(runs: &[RunSummary], width: Option<usize>) -> Text {
    let columns = [
        ("RUN", 0),
        ("START (UTC)", 0),
        ("TAGS", 0),
        ("COMMIT", 3),
        ("VERSION", 4),
        ("NODE", 1),
        ("HOST", 5),
        ("KERNEL", 6),
        ("STATE", 2),
    ];
    let rows = runs.iter().map(|run| {
        vec![
            short(&run.id),
            run.start.chars().take(19).collect(),
            run.tags.join(","),
            run.commit.as_deref().map(short).unwrap_or_default(),
            run.version_or_build(),
            run.node.clone().unwrap_or_else(|| run.pid.to_string()),
            run.host.clone(),
            run.kernel.clone(),
            if run.end.is_some() { "ended" } else { "running or killed" }.to_owned(),
        ]
    });
    let mut text = Text::default();
    table(&mut text, &columns, columns.len(), rows.collect(), width);
    text
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

/// `chainscope latency report`, tables at most `width` columns wide.
#[must_use]
pub fn report(report: &Report, width: Option<usize>) -> Text {
    let columns =
        [("FUNCTION", 0), ("SPANS", 0), ("P50", 0), ("P90", 2), ("P99", 0), ("MAX", 3), ("UNENDED", 1), ("LOST", 0)];
    let sides = report.functions.iter().flat_map(|function| {
        function.sides.iter().enumerate().map(|(index, side)| {
            let side_name = if function.sides.len() > 1 { ["", " (B)"][index.min(1)] } else { "" };
            statistics_row(format!("{}{side_name}", function.function), &side.statistics)
        })
    });
    let mut text = Text::default();
    table(&mut text, &columns, 1, sides.collect(), width);
    let lines = &mut text.text;
    for function in &report.functions {
        let returns: Vec<String> = function
            .sides
            .iter()
            .flat_map(|side| &side.statistics.returns)
            .map(|held| format!("{} × {}", held.code, count(held.count)))
            .collect();
        if !returns.is_empty() {
            let _ = writeln!(lines, "\n{} returned {}", Escaped(&function.function), returns.join(", "));
        }
    }
    for history in &report.histories {
        for change_point in &history.changes {
            let commit =
                change_point.commit.as_deref().map(|commit| format!(", commit {}", short(commit))).unwrap_or_default();
            let _ = writeln!(
                lines,
                "\n{}: median {} since run {}{}",
                Escaped(&history.function),
                change(change_point.change_percent),
                short(&change_point.run),
                Escaped(&commit),
            );
        }
    }
    if !report.slowest_transactions.is_empty() {
        lines.push('\n');
        add_transactions(&mut text, &report.slowest_transactions, width);
    }
    if !report.transaction_groups.is_empty() {
        text.text.push('\n');
        let rows = report.transaction_groups.iter().map(|group| {
            let results: Vec<String> =
                group.results.iter().map(|held| format!("{} × {}", held.code, count(held.count))).collect();
            vec![
                group.id.clone(),
                results.join(", "),
                count(group.applications),
                duration(group.min_ns),
                duration(group.max_ns),
            ]
        });
        let columns = [("TRANSACTION", 0), ("RESULTS", 3), ("APPLIED", 0), ("FASTEST", 2), ("SLOWEST", 1)];
        table(&mut text, &columns, 2, rows.collect(), width);
    }
    text
}

/// Transactions, as they are given, at most `width` columns wide.
#[must_use]
pub fn transactions(rows: &[TransactionRow], width: Option<usize>) -> Text {
    let mut text = Text::default();
    add_transactions(&mut text, rows, width);
    text
}

fn add_transactions(text: &mut Text, rows: &[TransactionRow], width: Option<usize>) {
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
    let columns = [("TRANSACTION", 0), ("TIME", 3), ("RUN", 4), ("TYPE", 2), ("RESULT", 1), ("DURATION", 0)];
    table(text, &columns, 3, rows.collect(), width);
}

/// `chainscope latency compare`, the table at most `width` columns wide.
#[must_use]
pub fn comparison(comparison: &Comparison, differences: &[SideDifference], width: Option<usize>) -> Text {
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
    let columns = [("FUNCTION", 0), ("VERDICT", 0), ("P50", 0), ("P90", 2), ("P99", 1)];
    let mut shown = Text::default();
    table(&mut shown, &columns, 2, rows.collect(), width);
    let text = &mut shown.text;
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
    for difference in differences {
        let _ = writeln!(text, "{}", Escaped(&difference.describe()));
    }
    shown
}
