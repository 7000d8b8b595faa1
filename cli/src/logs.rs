//! `chainscope logs`: the log of a node.

use anyhow::Context as _;
use chainscope_hygiene::{Escaped, EscapedTruncated};
use clap::builder::styling::{AnsiColor, Style};
use serde::Deserialize;

use crate::{api::Api, args::LogsArgs, failure, program, rows::Source, terminal, time};

/// Past log messages without --limit and --since.
const DEFAULT_LIMIT: u64 = 100;

/// A row of `/v2/log`.
#[derive(Debug, Deserialize)]
struct Row {
    level: String,
    /// Nanoseconds since 1970.
    timestamp: i64,
    section: String,
    message: String,
}

pub(crate) fn run(args: LogsArgs) -> anyhow::Result<()> {
    let api = args.api.client()?;
    let filters =
        [args.level.clone().map(|levels| ("log_level", levels)), args.query.clone().map(|text| ("query", text))];
    let source = Source {
        node: args.node.name().map(|name| ("node_name", name)).into_iter().collect(),
        filters: filters.into_iter().flatten().chain(args.range.period.query()).collect(),
        ..source(&api)
    };
    let format = args.output.of_stream(args.follow)?;
    let has_colours = terminal::has_colours();
    let shown = source.print(format, args.follow, args.range.limit(DEFAULT_LIMIT), &mut |row| show(row, has_colours));
    shown.map_err(|error| {
        let quote = "put text with parentheses, AND, OR or NOT in double quotes";
        failure::of_parameter(error, "query", &format!("{quote}; `{} logs --help` explains queries", program::name()))
    })
}

/// The log messages of the only node.
fn source(api: &Api) -> Source<'_> {
    Source { api, list: "/v2/log", stream: "/v2/log/stream", node: Vec::new(), filters: Vec::new() }
}

/// Prints the newest `limit` log messages of the only node, oldest first.
pub(crate) fn print_newest(api: &Api, limit: u64) -> anyhow::Result<()> {
    let has_colours = terminal::has_colours();
    source(api).past(Some(limit), &mut |row| show(row, has_colours)).map(drop)
}

fn show(text: &str, has_colours: bool) -> anyhow::Result<()> {
    let row: Row =
        serde_json::from_str(text).with_context(|| format!("not a row of a log: {}", EscapedTruncated(text)))?;
    terminal::line(&lines(&row, has_colours))
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
