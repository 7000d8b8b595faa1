//! `chainscope nodes`: the nodes of a server, with their state.

use anyhow::Context as _;
use bytesize::ByteSize;
use clap::builder::styling::Style;
use serde::Deserialize;

use crate::{
    args::{Format, NodesArgs},
    output::JsonRows,
    rows::elements,
    table::{Table, cell, faint, good, left, right, warning},
    terminal, time,
};

/// An element of `/nodes`.
#[derive(Debug, Deserialize)]
struct Node {
    name: String,
    aliases: Vec<String>,
    state: String,
    targets: Vec<Target>,
    last_record: Option<i64>,
    first_id: u64,
    next_id: u64,
    loss: Loss,
}

#[derive(Debug, Deserialize)]
struct Target {
    target: String,
    event: String,
}

#[derive(Debug, Deserialize)]
struct Loss {
    records: u64,
    bytes: u64,
}

pub(crate) fn run(args: &NodesArgs) -> anyhow::Result<()> {
    let text = args.api.client()?.text("/nodes", &[])?;
    let nodes = elements(&text)?;
    if args.output.format() != Format::Table {
        let mut rows = JsonRows::new(args.output.format());
        nodes.into_iter().try_for_each(|node| rows.row(node))?;
        return rows.end();
    }
    let mut table = Table::new(&[
        left("NAME"),
        left("STATE"),
        right("MESSAGES"),
        left("LAST RECORD"),
        right("LOST").rank(1),
        left("PROCESSES").rank(2),
        left("ALIASES").rank(3),
    ]);
    for text in nodes {
        let node: Node = serde_json::from_str(text).context("/nodes did not return nodes")?;
        table.row(vec![
            cell(&node.name),
            cell(&node.state).style(state_style(&node.state)),
            cell(node.next_id.saturating_sub(node.first_id)),
            cell(node.last_record.map_or_else(|| "-".to_owned(), time::rfc3339_seconds)),
            lost(node.loss.records, node.loss.bytes),
            cell(node.targets.iter().map(Target::to_string).collect::<Vec<_>>().join(", ")),
            cell(node.aliases.join(", ")),
        ]);
    }
    if table.is_empty() {
        terminal::note("no nodes: none is configured or readable with this token");
        return Ok(());
    }
    table.print()
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.target, self.event)
    }
}

fn state_style(state: &str) -> Style {
    match state {
        "recording" => good(),
        "silent" => warning(),
        _ => faint(),
    }
}

/// Records and bytes that were lost.
pub(crate) fn lost(records: u64, bytes: u64) -> crate::table::Cell {
    match (records, bytes) {
        (0, 0) => cell("0"),
        _ => cell(format!("{records} ({})", ByteSize::b(bytes))).style(warning()),
    }
}
