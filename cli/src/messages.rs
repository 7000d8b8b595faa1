//! `chainscope messages`: the messages of a node, one per line.

pub(crate) mod row;

use self::row::Row;
use anyhow::Context as _;
use chainscope_hygiene::{Escaped, EscapedJson};

use crate::{
    api::Api,
    args::{Initiator, MessagesArgs, Sender},
    live, terminal, time,
};

/// Number of past messages without --limit.
const DEFAULT_LIMIT: u64 = 10;

pub(crate) fn run(args: MessagesArgs) -> anyhow::Result<()> {
    let api = args.api.client()?;
    let filters = filters(&args);
    if args.live {
        return live::run(api, filters, args.limit);
    }
    let mut query = filters.clone();
    query.push(("limit", args.limit.unwrap_or(DEFAULT_LIMIT).to_string()));
    let response = api.json("/v2/p2p", &query)?;
    let rows = response.as_array().context("/v2/p2p did not return a list")?;
    let mut next = None;
    for row in rows.iter().rev() {
        let text = row.to_string();
        next = Some(show(&text, args.json)? + 1);
    }
    if args.no_follow || args.until.is_some() {
        return Ok(());
    }
    follow(&api, filters, next, |text| show(text, args.json).map(drop))
}

/// Calls `each` with every message from id `next` on, as it is recorded; without `next` with new ones only.
pub(crate) fn follow(
    api: &Api,
    mut filters: Vec<(&'static str, String)>,
    next: Option<u64>,
    mut each: impl FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if let Some(next) = next {
        filters.push(("cursor", next.to_string()));
    }
    let mut events = api.events("/v2/p2p/stream", &filters)?;
    while let Some(row) = events.next()? {
        each(&row)?;
    }
    anyhow::bail!("the server ended the stream")
}

/// The filters of the command line as query parameters.
fn filters(args: &MessagesArgs) -> Vec<(&'static str, String)> {
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
        ("from", args.since.map(|time| time.to_string())),
        ("to", args.until.map(|time| time.to_string())),
    ]
    .into_iter()
    .filter_map(|(name, value)| value.map(|value| (name, value)))
    .collect()
}

/// Prints a row and returns its id.
pub(crate) fn show(text: &str, json: bool) -> anyhow::Result<u64> {
    let row = Row::parse(text)?;
    if json {
        terminal::line(&EscapedJson(text).to_string())?
    } else {
        terminal::line(&line(&row))?
    }
    Ok(row.id)
}

/// The line of a row, with everything from the peer escaped.
fn line(row: &Row) -> String {
    let (time, remote) = (time::of_day(row.timestamp), Escaped(&row.remote_addr).to_string());
    format!("{time} {:>7} {} {remote:<24} {:<28} {}", row.id, row.arrow(), row.kind(), row.preview())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader, Write as _},
        net::TcpListener,
        thread,
    };

    use clap::Parser as _;

    use super::{line, row::Row};
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
        let fixed = ["chainscope", "messages", "--url", &url, "--no-follow", "--limit", "5"];
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
        let text = line(&row);
        assert!(text.starts_with("12:02:03.456") && text.contains("6 ← 127.0.0.1:29733"), "{text}");
        assert!(text.contains("advertise") && text.contains("\\u{1b}[2J"), "{text}");
    }
}
