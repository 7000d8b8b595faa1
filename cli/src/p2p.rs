//! `chainscope p2p`: the messages of a node, a line each.

use anyhow::Context as _;
use chainscope_quiet::Harmless;
use jiff::{Timestamp, tz::TimeZone};
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
    let answer = api.json("/v2/p2p", &query)?;
    let rows = answer.as_array().context("/v2/p2p gave no list")?;
    let mut next = None;
    for row in rows.iter().rev() {
        let text = row.to_string();
        next = Some(show(&text, args.json)? + 1);
    }
    if args.no_follow {
        return Ok(());
    }
    follow(&api, filters, next, |text| show(text, args.json).map(drop))
}

/// Calls for each message from id `next` on, as it is recorded. Without `next` only new ones come.
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
    ]
    .into_iter()
    .filter_map(|(name, value)| value.map(|value| (name, value)))
    .collect()
}

/// Prints one row, and returns its id.
pub(crate) fn show(text: &str, json: bool) -> anyhow::Result<u64> {
    let row: Row = serde_json::from_str(text).with_context(|| format!("not a message row: {text}"))?;
    if json {
        terminal::line(text)?
    } else {
        terminal::line(&line(&row))?
    }
    Ok(row.id)
}

fn line(row: &Row) -> String {
    let time = Timestamp::from_nanosecond(i128::from(row.timestamp)).map_or_else(
        |_| row.timestamp.to_string(),
        |time| time.to_zoned(TimeZone::system()).strftime("%H:%M:%S.%3f").to_string(),
    );
    let arrow = if row.incoming { '←' } else { '→' };
    let kind = row.kind.as_deref().unwrap_or(&row.category);
    let preview = row.message_preview.as_deref().unwrap_or("(not decoded)");
    let (id, remote, kind) = (row.id, Harmless(&row.remote_addr).to_string(), Harmless(kind).to_string());
    format!("{time} {id:>7} {arrow} {remote:<24} {kind:<28} {}", Harmless(preview))
}

#[cfg(test)]
mod tests {
    use super::{Row, line};

    #[test]
    fn a_line_shows_what_a_row_holds_and_obeys_no_peer() {
        let row: Row = serde_json::from_str(
            r#"{"id":6,"timestamp":1626264123456000000,"remote_addr":"127.0.0.1:29733","source_type":"local",
                "incoming":true,"category":"p2p","kind":"advertise","message_preview":"{\"Advertise\":{\"id\":[\"\u001b[2J"}"#,
        )
        .unwrap();
        let text = line(&row);
        assert!(text.contains(":03.456") && text.contains("6 ← 127.0.0.1:29733"), "{text}");
        assert!(text.contains("advertise") && text.contains("\\u{1b}[2J"), "{text}");
    }
}
