//! `chainscope logs`: the log of a node.

use anyhow::{Context as _, bail};
use chainscope_hygiene::{Escaped, EscapedJson, EscapedTruncated};
use clap::builder::styling::{AnsiColor, Style};
use serde::Deserialize;
use serde_json::Value;

use crate::{api::Api, args::LogsArgs, terminal, time};

/// Rows requested at a time.
const PAGE: u64 = 1000;

/// A row of `/v2/log`.
#[derive(Debug, Deserialize)]
struct Row {
    level: String,
    /// Nanoseconds since 1970.
    timestamp: i64,
    section: String,
    message: String,
}

/// How rows are printed.
#[derive(Clone, Copy)]
enum Output {
    Json,
    Text { colours: bool },
}

pub(crate) fn run(args: LogsArgs) -> anyhow::Result<()> {
    let api = args.api.client()?;
    let output = if args.json { Output::Json } else { Output::Text { colours: terminal::has_colours() } };
    let node = args.node.as_ref().or(args.named.as_ref()).map(|name| ("node_name", name.clone()));
    let filters: Vec<_> = [
        node.clone(),
        args.level.clone().map(|levels| ("log_level", levels)),
        args.query.clone().map(|text| ("query", text)),
        args.since.map(|time| ("from", time.to_string())),
        args.until.map(|time| ("to", time.to_string())),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !args.follow {
        return show_newest(&api, &filters, args.limit, output).map(drop);
    }
    // Requested first: what is logged after it is in the list or in the stream.
    let node: Vec<_> = node.into_iter().collect();
    let end = page(&api, &node, 1, None)?.first().map(id).transpose()?.map_or(0, |newest| newest + 1);
    let next = show_newest(&api, &filters, args.limit, output)?.map_or(end, |newest| newest + 1);
    let mut query = filters;
    query.push(("cursor", next.to_string()));
    let mut events = api.events("/v2/log/stream", &query)?;
    while let Some(row) = events.next()? {
        show(&row, output)?;
    }
    bail!("the server ended the stream")
}

/// Prints the newest `limit` log messages of the only node, oldest first.
pub(crate) fn print_newest(api: &Api, limit: u64) -> anyhow::Result<()> {
    show_newest(api, &[], limit, Output::Text { colours: terminal::has_colours() }).map(drop)
}

/// Prints the newest `limit` rows, oldest first, and returns the id of the newest.
fn show_newest(
    api: &Api,
    filters: &[(&'static str, String)],
    limit: u64,
    output: Output,
) -> anyhow::Result<Option<u64>> {
    let mut rows: Vec<String> = Vec::new();
    let (mut newest, mut cursor) = (None, None);
    while (rows.len() as u64) < limit {
        let page = page(api, filters, (limit - rows.len() as u64).min(PAGE), cursor)?;
        let Some(oldest) = page.last().map(id).transpose()? else { break };
        newest = newest.or(page.first().map(id).transpose()?);
        rows.extend(page.iter().map(Value::to_string));
        cursor = oldest.checked_sub(1);
        if cursor.is_none() {
            break;
        }
    }
    rows.iter().rev().try_for_each(|row| show(row, output))?;
    Ok(newest)
}

/// Requests up to `limit` rows, newest first, from the id `cursor` downwards.
fn page(api: &Api, filters: &[(&'static str, String)], limit: u64, cursor: Option<u64>) -> anyhow::Result<Vec<Value>> {
    let mut query = filters.to_vec();
    query.push(("limit", limit.to_string()));
    query.extend(cursor.map(|id| ("cursor", id.to_string())));
    match api.json("/v2/log", &query)? {
        Value::Array(rows) => Ok(rows),
        _ => bail!("/v2/log did not return a list"),
    }
}

fn id(row: &Value) -> anyhow::Result<u64> {
    row["id"].as_u64().with_context(|| format!("not a row of a log: {}", EscapedTruncated(&row.to_string())))
}

fn show(text: &str, output: Output) -> anyhow::Result<()> {
    match output {
        Output::Json => terminal::line(&EscapedJson(text).to_string()),
        Output::Text { colours } => {
            let row: Row = serde_json::from_str(text)
                .with_context(|| format!("not a row of a log: {}", EscapedTruncated(text)))?;
            terminal::line(&lines(&row, colours))
        }
    }
}

/// The lines of a row. A message of several lines has a `│` before each of its further lines, so that none looks like a
/// message of its own; everything from the node is escaped.
fn lines(row: &Row, colours: bool) -> String {
    let level = Escaped(&row.level.to_uppercase()).to_string();
    let style = if colours { style(&row.level) } else { Style::new() };
    let head = format!("{} {style}{level:<7}{style:#}", time::rfc3339(row.timestamp));
    let section = if row.section.is_empty() { String::new() } else { format!("{}: ", Escaped(&row.section)) };
    let mut text = row.message.split('\n').map(|line| Escaped(line.strip_suffix('\r').unwrap_or(line)));
    let first = text.next().map(|line| line.to_string()).unwrap_or_default();
    text.fold(format!("{head} {section}{first}"), |lines, line| format!("{lines}\n{:>32} │ {line}", ""))
}

fn style(level: &str) -> Style {
    match level {
        "Fatal" => AnsiColor::Red.on_default().bold(),
        "Error" => AnsiColor::Red.on_default(),
        "Warning" => AnsiColor::Yellow.on_default(),
        "Notice" => AnsiColor::Cyan.on_default(),
        "Debug" | "Trace" => Style::new().dimmed(),
        _ => Style::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Row, lines};

    fn row(level: &str, section: &str, message: &str) -> Row {
        let (section, message) = (section.to_owned(), message.to_owned());
        Row { level: level.to_owned(), timestamp: 1_626_264_123_456_789_000, section, message }
    }

    #[test]
    fn each_line_of_a_message_is_shown_escaped_and_marked() {
        let hostile = "evil \u{1b}[2J\u{202e}txt\r\n2021-07-14T12:02:03.456Z FATAL   forged\n\tend";
        assert_eq!(
            lines(&row("Warning", "p2p\u{7}", hostile), false).split('\n').collect::<Vec<_>>(),
            [
                "2021-07-14T12:02:03.456Z WARNING p2p\\u{7}: evil \\u{1b}[2J\\u{202e}txt",
                "                                 │ 2021-07-14T12:02:03.456Z FATAL   forged",
                "                                 │ \\u{9}end",
            ]
        );
        assert_eq!(lines(&row("Info", "", ""), false), "2021-07-14T12:02:03.456Z INFO    ");
    }

    #[test]
    fn levels_are_coloured_and_never_the_text() {
        let plain = lines(&row("Error", "", "x"), false);
        let coloured = lines(&row("Error", "", "x"), true);
        assert_eq!(coloured, plain.replace("ERROR  ", "\u{1b}[31mERROR  \u{1b}[0m"));
        assert_eq!(lines(&row("Info", "", "x"), true), lines(&row("Info", "", "x"), false));
        let unknown = lines(&row("\u{1b}[2J", "", "x"), true);
        assert!(!unknown.contains('\u{1b}'), "{unknown:?}");
    }
}
