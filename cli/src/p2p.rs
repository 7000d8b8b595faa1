//! `chainscope p2p`: the messages of a node, one per line.

use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context as _;
use chainscope_hygiene::{Escaped, EscapedJson, EscapedTruncated};
use serde::Deserialize;

use crate::{
    api::Api,
    args::{Initiator, P2pArgs, Sender},
    terminal,
};

/// A row of `/v2/p2p`.
#[derive(Debug, Deserialize)]
struct Row {
    id: u64,
    /// Nanoseconds since 1970.
    timestamp: i64,
    remote_addr: String,
    incoming: bool,
    category: String,
    kind: Option<String>,
    message_preview: Option<String>,
}

pub(crate) fn run(args: P2pArgs) -> anyhow::Result<()> {
    let api = Api::new(&args.url);
    let filters = filters(&args);
    let mut query = filters.clone();
    query.push(("limit", args.last.to_string()));
    let response = api.json("/v2/p2p", &query)?;
    let rows = response.as_array().context("/v2/p2p did not return a list")?;
    let mut next = None;
    for row in rows.iter().rev() {
        let text = row.to_string();
        next = Some(show(&text, args.json)? + 1);
    }
    if args.no_follow || args.to.is_some() {
        return Ok(());
    }
    follow(&api, filters, next, |text| show(text, args.json).map(drop))
}

/// Calls `each` with every message from id `next` on, as it is recorded; without `next` with new ones only.
pub(crate) fn follow(
    api: &Api,
    mut filters: Vec<(&'static str, String)>,
    next: Option<u64>,
    each: impl FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if let Some(next) = next {
        filters.push(("cursor", next.to_string()));
    }
    api.events("/v2/p2p/stream", &filters, each)?;
    anyhow::bail!("the server ended the stream")
}

/// The filters of the command line as query parameters.
fn filters(args: &P2pArgs) -> Vec<(&'static str, String)> {
    let sender = args.sender.map(|sender| matches!(sender, Sender::Remote).to_string());
    let initiator = args.initiator.map(|initiator| match initiator {
        Initiator::Local => String::from("local"),
        Initiator::Remote => String::from("remote"),
    });
    [
        ("node_name", args.node.clone()),
        ("types", args.types.clone()),
        ("incoming", sender),
        ("source_type", initiator),
        ("remote_addr", args.remote.clone()),
        ("peer_id", args.peer_id.clone()),
        ("target", args.target.clone()),
        ("from", args.from.map(|time| time.to_string())),
        ("to", args.to.map(|time| time.to_string())),
    ]
    .into_iter()
    .filter_map(|(name, value)| value.map(|value| (name, value)))
    .collect()
}

/// Prints a row and returns its id.
pub(crate) fn show(text: &str, json: bool) -> anyhow::Result<u64> {
    let row: Row =
        serde_json::from_str(text).with_context(|| format!("not a message row: {}", EscapedTruncated(text)))?;
    if json {
        terminal::line(&EscapedJson(text).to_string())?
    } else {
        terminal::line(&line(&row))?
    }
    Ok(row.id)
}

/// The line of a row, with everything from the peer escaped.
fn line(row: &Row) -> String {
    let time = time_of_day(row.timestamp).unwrap_or_else(|| row.timestamp.to_string());
    let arrow = if row.incoming { '←' } else { '→' };
    let kind = row.kind.as_deref().unwrap_or(&row.category);
    let preview = row.message_preview.as_deref().unwrap_or("(not decoded)");
    let (id, remote, kind) = (row.id, Escaped(&row.remote_addr).to_string(), Escaped(kind).to_string());
    format!("{time} {id:>7} {arrow} {remote:<24} {kind:<28} {}", Escaped(preview))
}

/// The time of day in UTC with milliseconds, "17:01:29.123", of nanoseconds since 1970.
fn time_of_day(timestamp: i64) -> Option<String> {
    let since = Duration::from_nanos(u64::try_from(timestamp).ok()?);
    // "2018-02-14T17:01:29.123Z"
    let time = humantime::format_rfc3339_millis(UNIX_EPOCH + since).to_string();
    time.get(11..23).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader, Write as _},
        net::TcpListener,
        thread,
    };

    use clap::Parser as _;

    use super::{Row, line};
    use crate::args::{Cli, Command};

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
        let fixed = ["chainscope", "p2p", "--url", &url, "--no-follow", "--last", "5"];
        let Command::P2p(args) = Cli::parse_from(fixed.iter().chain(arguments)).command else { panic!("not p2p") };
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
                "--from",
                "1626264123",
                "--to",
                "1626264124000"
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
        let text = line(&row);
        assert!(text.starts_with("12:02:03.456") && text.contains("6 ← 127.0.0.1:29733"), "{text}");
        assert!(text.contains("advertise") && text.contains("\\u{1b}[2J"), "{text}");
    }
}
