//! `chainscope messages`: the messages of a node, one per line.

use chainscope_hygiene::Escaped;
use clap::builder::styling::{AnsiColor, Style};
use unicode_width::UnicodeWidthStr as _;

use crate::{
    api::{Api, Query},
    args::{Initiator, MessagesArgs, Sender},
    failure, live,
    message_row::Row,
    rows::Source,
    table, terminal, time,
};

/// Past messages without --limit and --since.
const DEFAULT_LIMIT: u64 = 10;

pub(crate) fn run(args: MessagesArgs) -> anyhow::Result<()> {
    let advice = "name known types with --types, separated by commas; without it all are shown";
    show(args).map_err(|error| failure::of_parameter(error, "types", advice))
}

fn show(args: MessagesArgs) -> anyhow::Result<()> {
    let api = args.api.client()?;
    let node: Query = args.node.name().map(|name| ("node_name", name)).into_iter().collect();
    let filters = filters(&args);
    if args.live {
        return live::run(api, [node, filters].concat(), args.range.limit);
    }
    let source = Source { node, filters, ..source(&api) };
    let format = args.output.of_stream(args.follow)?;
    let mut lines = Lines::new(time::rfc3339);
    source.print(format, args.follow, args.range.limit(DEFAULT_LIMIT), &mut |row| lines.print(row))
}

/// The messages of the only node.
fn source(api: &Api) -> Source<'_> {
    Source { api, list: "/v2/p2p", stream: "/v2/p2p/stream", node: Vec::new(), filters: Vec::new() }
}

/// Calls `each` with every message of the only node from id `next` on, as it is recorded.
pub(crate) fn follow(
    api: &Api,
    next: u64,
    each: &mut dyn FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<std::convert::Infallible> {
    source(api).follow(next, each)
}

/// The filters of the command line as query parameters.
fn filters(args: &MessagesArgs) -> Query {
    let connection = &args.connection;
    let sender = args.sender.map(|sender| matches!(sender, Sender::Remote).to_string());
    let initiator = args.initiator.map(|initiator| match initiator {
        Initiator::Local => String::from("local"),
        Initiator::Remote => String::from("remote"),
    });
    [
        ("types", args.types.clone()),
        ("incoming", sender),
        ("source_type", initiator),
        ("remote_addr", connection.remote.map(|remote| remote.to_string())),
        ("peer_id", connection.peer_id.clone()),
        ("target", connection.target.clone()),
    ]
    .into_iter()
    .filter_map(|(name, value)| value.map(|value| (name, value)))
    .chain(args.range.period.query())
    .collect()
}

/// Messages as lines. Columns grow with their values, so that lines are aligned with those before them.
pub(crate) struct Lines {
    /// Shows a time, nanoseconds since 1970.
    time: fn(i64) -> String,
    columns: Option<usize>,
    has_colours: bool,
    widths: [usize; 3],
}

impl Lines {
    pub(crate) fn new(time: fn(i64) -> String) -> Self {
        Self { time, columns: terminal::columns(), has_colours: terminal::has_colours(), widths: [3, 15, 12] }
    }

    /// Prints a row.
    pub(crate) fn print(&mut self, row: &str) -> anyhow::Result<()> {
        terminal::line(&self.line(&Row::parse(row)?))
    }

    /// The line of a row, with everything from the peer escaped.
    fn line(&mut self, row: &Row) -> String {
        let values = [row.id.to_string(), Escaped(&row.remote_addr).to_string(), row.kind()];
        for (width, value) in self.widths.iter_mut().zip(&values) {
            *width = value.width().max(*width);
        }
        let [id, remote, kind] = values;
        let [id_width, remote_width, kind_width] = self.widths;
        let time = (self.time)(row.timestamp);
        let used = time.width() + id_width + remote_width + kind_width + 6;
        let preview = match self.columns {
            Some(columns) => table::cut(&row.preview(), columns.saturating_sub(used)),
            None => row.preview(),
        };
        let style = |style: Style| if self.has_colours { style } else { Style::new() };
        let (faint, colour) = (style(table::faint()), style(arrow_style(row.incoming)));
        format!(
            "{faint}{time}{faint:#} {id:>id_width$} {colour}{}{colour:#} {remote:<remote_width$} {colour}{kind:<kind_width$}{colour:#} {preview}",
            row.arrow()
        )
    }
}

/// What the peer sent is green, what the node sent blue.
fn arrow_style(is_incoming: bool) -> Style {
    if is_incoming { AnsiColor::Green.on_default() } else { AnsiColor::Blue.on_default() }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader, Write as _},
        net::TcpListener,
        thread,
    };

    use clap::Parser as _;

    use super::{Lines, Row};
    use crate::{
        args::{Cli, Command},
        time,
    };

    /// The request line that a server receives for these arguments.
    fn requested(arguments: &[&str]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]").unwrap();
            head.into_iter().next().unwrap()
        });
        let fixed = ["chainscope", "messages", "--api", &url, "--limit", "5"];
        let Command::Messages(args) = Cli::parse_from(fixed.iter().chain(arguments)).command else { panic!("another") };
        super::run(args).unwrap();
        server.join().unwrap()
    }

    #[test]
    fn each_filter_is_a_parameter_of_the_request() {
        assert_eq!(requested(&[]), "GET /v2/p2p?limit=5 HTTP/1.1");
        assert_eq!(
            requested(&[
                "--peer-id",
                "idsDEqQ5iDq5XYFbQbxKyeH6EyA5QX",
                "--since",
                "1626264123",
                "--until",
                "2021-07-14T12:02:04Z"
            ]),
            "GET /v2/p2p?peer_id=idsDEqQ5iDq5XYFbQbxKyeH6EyA5QX&from=1626264123&to=1626264124000&limit=5 HTTP/1.1"
        );
        assert_eq!(
            requested(&["--target", "pid 7 in a&b=c+d", "--remote", "[::1]:9732", "--sender", "remote"]),
            "GET /v2/p2p?incoming=true&remote_addr=%5B%3A%3A1%5D%3A9732&target=pid%207%20in%20a%26b%3Dc%2Bd&limit=5 HTTP/1.1"
        );
    }

    #[test]
    fn a_line_shows_a_row_and_escapes_control_characters() {
        let row: Row = serde_json::from_str(
            r#"{"id":6,"timestamp":1626264123456000000,"remote_addr":"127.0.0.1:29733","source_type":"local",
                "incoming":true,"category":"p2p","kind":"advertise","message_preview":"{\"Advertise\":{\"id\":[\"\u001b[2J"}"#,
        )
        .unwrap();
        let lines = |columns| Lines { time: time::rfc3339, columns, has_colours: false, widths: [1, 5, 5] };
        assert_eq!(
            lines(None).line(&row),
            r#"2021-07-14T12:02:03.456Z 6 ← 127.0.0.1:29733 advertise {"Advertise":{"id":["\u{1b}[2J"#
        );
        assert_eq!(lines(Some(60)).line(&row), r#"2021-07-14T12:02:03.456Z 6 ← 127.0.0.1:29733 advertise {"Ad…"#);
    }
}
