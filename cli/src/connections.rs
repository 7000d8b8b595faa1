//! `chainscope connections`: the connections of a node.

use std::{collections::VecDeque, net::SocketAddr};

use anyhow::Context as _;
use bytesize::ByteSize;
use clap::{ValueEnum as _, builder::styling::Style};
use serde::Deserialize;

use crate::{
    api::Api,
    args::{ConnectionsArgs, Format},
    output::JsonRows,
    rows::elements,
    table::{Table, cell, faint, good, left, right, warning},
    terminal, time,
};

/// Connections requested at a time.
const PAGE: u64 = 1000;
/// Connections that are shown.
const DEFAULT_LIMIT: u64 = 100;
const NS_PER_S: u64 = 1_000_000_000;

/// A value of `/v3/connections`.
#[derive(Debug, Deserialize)]
struct Connection {
    initiator: String,
    remote_addr: String,
    peer_id: String,
    comments: Vec<String>,
    state: String,
    reason: String,
    network: String,
    target: String,
    gaps: u64,
    lost_bytes: u64,
    closed: Option<Closed>,
}

#[derive(Debug, Deserialize)]
struct Closed {
    by: String,
    sent_bytes: u64,
    received_bytes: u64,
}

/// A connection and its key, which is the time at which it was opened.
struct Entry {
    /// Nanoseconds since 1970.
    key: u64,
    json: String,
    connection: Connection,
}

pub(crate) fn run(args: &ConnectionsArgs) -> anyhow::Result<()> {
    let api = args.api.client()?;
    let limit = usize::try_from(args.range.limit(DEFAULT_LIMIT).unwrap_or(u64::MAX))?;
    let mut newest = VecDeque::new();
    let mut left_out = 0_u64;
    each(&api, args, &mut |entry| {
        newest.push_back(entry);
        if newest.len() > limit {
            newest.pop_front();
            left_out += 1;
        }
    })?;
    let format = args.output.format();
    if format == Format::Table {
        print(&newest)?;
    } else {
        let mut rows = JsonRows::new(format);
        newest.iter().try_for_each(|entry| rows.row(&entry.json))?;
        rows.end()?;
    }
    if left_out > 0 && args.range.limit.is_none() {
        terminal::note(&format!(
            "{left_out} older ones are not shown; --limit {} shows all",
            left_out + newest.len() as u64
        ));
    }
    Ok(())
}

/// Passes every connection that the filters admit, oldest first.
fn each(api: &Api, args: &ConnectionsArgs, pass: &mut dyn FnMut(Entry)) -> anyhow::Result<()> {
    let mut from = args.range.period.since.map(time::nanoseconds);
    loop {
        let mut query = vec![("limit", PAGE.to_string())];
        query.extend(args.node.name().map(|node| ("node_name", node)));
        query.extend(from.map(|key| ("cursor", format!("{}.{}", key / NS_PER_S, key % NS_PER_S))));
        let text = api.text("/v3/connections", &query)?;
        let rows = elements(&text)?;
        for row in &rows {
            let context = "/v3/connections did not return connections";
            let (key, connection): (String, Connection) = serde_json::from_str(row).context(context)?;
            let key = parse_key(&key).context(context)?;
            from = Some(key + 1);
            let entry = Entry { key, json: (*row).to_owned(), connection };
            if admits(args, &entry) {
                pass(entry);
            }
        }
        if (rows.len() as u64) < PAGE {
            return Ok(());
        }
    }
}

/// A key, `<seconds>.<nanoseconds>`, as nanoseconds since 1970.
fn parse_key(key: &str) -> Option<u64> {
    let (seconds, nanos) = key.split_once('.')?;
    seconds.parse::<u64>().ok()?.checked_mul(NS_PER_S)?.checked_add(nanos.parse().ok()?)
}

fn admits(args: &ConnectionsArgs, Entry { key, connection, .. }: &Entry) -> bool {
    let states = &args.state;
    let is_state = |state: &crate::args::ConnectionState| {
        state.to_possible_value().is_some_and(|value| value.get_name() == connection.state)
    };
    args.range.period.until.is_none_or(|until| *key <= time::nanoseconds(until))
        && (states.is_empty() || states.iter().any(is_state))
        && args.connection.peer_id.as_ref().is_none_or(|id| *id == connection.peer_id)
        && args.connection.remote.is_none_or(|remote| is_same(&connection.remote_addr, remote))
        && args.connection.target.as_ref().is_none_or(|target| *target == connection.target)
}

/// Whether a socket is this one, either of which may have an IPv4 address or its IPv4-mapped form.
fn is_same(socket: &str, other: SocketAddr) -> bool {
    let canonical = |socket: SocketAddr| SocketAddr::new(socket.ip().to_canonical(), socket.port());
    socket.parse().is_ok_and(|socket| canonical(socket) == canonical(other))
}

/// A socket, with an IPv4-mapped address as IPv4.
fn unmapped(socket: &str) -> String {
    match socket.strip_prefix("[::ffff:").and_then(|rest| rest.split_once(']')) {
        Some((ip, port)) if ip.contains('.') => format!("{ip}{port}"),
        _ => socket.to_owned(),
    }
}

fn print(entries: &VecDeque<Entry>) -> anyhow::Result<()> {
    let mut table = Table::new(&[
        left("OPENED"),
        left("ADDRESS"),
        left("DIR"),
        left("STATE"),
        right("SENT").rank(3),
        right("RECEIVED").rank(3),
        right("LOST").rank(2),
        left("PEER ID").rank(4),
        left("NETWORK").rank(6),
        left("CLOSED BY").rank(5),
        left("REMARKS").rank(1),
    ]);
    for Entry { key, connection, .. } in entries {
        let closed = connection.closed.as_ref();
        let bytes = |of: fn(&Closed) -> u64| {
            closed.map_or_else(|| "-".to_owned(), |closed| ByteSize::b(of(closed)).to_string())
        };
        let direction = match connection.initiator.as_str() {
            "local" => "out",
            "remote" => "in",
            _ => "?",
        };
        let lost = match (connection.gaps, connection.lost_bytes) {
            (0, 0) => cell("0"),
            (_, bytes) => cell(ByteSize::b(bytes)).style(warning()),
        };
        let reason = Some(&connection.reason).filter(|reason| !reason.is_empty());
        let remarks: Vec<_> = reason.into_iter().chain(&connection.comments).cloned().collect();
        table.row(vec![
            cell(time::rfc3339_seconds(i64::try_from(*key).unwrap_or(i64::MAX))),
            cell(unmapped(&connection.remote_addr)),
            cell(direction),
            cell(&connection.state).style(state_style(&connection.state)),
            cell(bytes(|closed| closed.sent_bytes)),
            cell(bytes(|closed| closed.received_bytes)),
            lost,
            cell(if connection.peer_id == "unknown" { "-" } else { &connection.peer_id }),
            cell(&connection.network),
            cell(closed.map_or("", |closed| &closed.by)),
            cell(remarks.join("; ")),
        ]);
    }
    if table.is_empty() {
        terminal::note("no connections");
        return Ok(());
    }
    table.print()
}

fn state_style(state: &str) -> Style {
    match state {
        "decoding" => good(),
        "undecryptable" | "raw" => warning(),
        _ => faint(),
    }
}

#[cfg(test)]
mod tests {
    use super::{parse_key, unmapped};

    #[test]
    fn keys_and_addresses_are_read() {
        assert_eq!(parse_key("1617005682.51"), Some(1_617_005_682_000_000_051));
        assert_eq!((parse_key("x.1"), parse_key("1")), (None, None));
        assert_eq!(unmapped("[::ffff:10.0.0.1]:9732"), "10.0.0.1:9732");
        assert_eq!((unmapped("[2001:db8::1]:1"), unmapped("unknown")), ("[2001:db8::1]:1".into(), "unknown".into()));
    }
}
