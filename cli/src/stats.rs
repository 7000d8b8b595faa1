//! `chainscope stats`: what a server has seen, stored and lost.

use anyhow::Context as _;
use bytesize::ByteSize;
use serde::Deserialize;

use crate::{
    api::Query,
    args::{Format, StatsArgs},
    nodes::lost,
    output,
    table::{Cell, Table, bad, cell, good, left, right, warning},
    terminal, time,
};

/// The response of `/v2/stats`, as far as it is shown.
#[derive(Debug, Deserialize)]
struct Stats {
    build: String,
    /// Why records cannot be stored.
    trouble: Option<String>,
    disk: Disk,
    agents: Vec<Agent>,
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Disk {
    full: bool,
    free_bytes: u64,
}

#[derive(Debug, Deserialize)]
struct Agent {
    name: String,
    build: String,
    sessions: u64,
    records: u64,
    bytes: u64,
    nodes: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Node {
    name: String,
    stored: Stored,
    logs: RecordStats,
    trace: RecordStats,
    latency: LatencyStats,
    totals: Totals,
    accounts: Vec<Account>,
    losses: Vec<Loss>,
    findings: Vec<Finding>,
}

#[derive(Debug, Deserialize)]
struct Stored {
    messages: u64,
    bytes: u64,
    first_time: Option<i64>,
    last_time: Option<i64>,
}

#[derive(Debug, Deserialize)]
struct RecordStats {
    bytes: u64,
    stored: u64,
    evicted: u64,
}

#[derive(Debug, Deserialize)]
struct LatencyStats {
    blocks: u64,
    transactions: u64,
}

#[derive(Debug, Deserialize)]
struct Totals {
    evicted_messages: u64,
    lost_records: u64,
    lost_bytes: u64,
}

#[derive(Debug, Deserialize)]
struct Account {
    target: String,
    bytes_seen: u64,
    bytes_captured: u64,
    bytes_left_alone: u64,
    bytes_dropped: Vec<Count>,
    chunks: u64,
    chunks_opened: u64,
    messages: u64,
    connections: u64,
    connections_open: u64,
    equations: Vec<Equation>,
}

#[derive(Debug, Deserialize)]
struct Count {
    reason: String,
    count: u64,
}

#[derive(Debug, Deserialize)]
struct Equation {
    equation: String,
    left: u64,
    right: u64,
    holds: bool,
}

#[derive(Debug, Deserialize)]
struct Loss {
    stage: String,
    reason: String,
    times: u64,
    records: u64,
    bytes: u64,
    amount_unknown: bool,
    to: i64,
}

#[derive(Debug, Deserialize)]
struct Finding {
    time: i64,
    target: String,
    event: String,
    detail: String,
}

pub(crate) fn run(args: &StatsArgs) -> anyhow::Result<()> {
    let query: Query = args.node.name().map(|node| ("node_name", node)).into_iter().collect();
    let text = args.api.client()?.text("/v2/stats", &query)?;
    if args.output.format() != Format::Table {
        return output::document(&text);
    }
    let stats: Stats = serde_json::from_str(&text).context("/v2/stats did not return statistics")?;
    print_server(&stats)?;
    section("Agents", &agents(&stats))?;
    section("Stored", &stored(&stats))?;
    section("Stored of logs, tracepoints and function latency", &other_records(&stats))?;
    section("Recorded", &accounts(&stats))?;
    section("Counters that disagree", &equations(&stats))?;
    section("Lost", &losses(&stats))?;
    section("Errors", &findings(&stats))
}

fn print_server(stats: &Stats) -> anyhow::Result<()> {
    let disk = if stats.disk.full {
        "its disk is full".to_owned()
    } else {
        format!("{} are free for records", ByteSize::b(stats.disk.free_bytes))
    };
    terminal::line(&cell(format!("Chainscope {}, {disk}", stats.build)).to_string())?;
    if let Some(trouble) = &stats.trouble {
        terminal::line(&cell(format!("RECORDS CANNOT BE STORED: {trouble}")).to_string())?;
    }
    Ok(())
}

/// Prints a table with a title, if it has rows.
fn section(title: &str, table: &Table) -> anyhow::Result<()> {
    if table.is_empty() {
        return Ok(());
    }
    terminal::line(&format!("\n{title}"))?;
    table.print()
}

fn agents(stats: &Stats) -> Table {
    let mut table = Table::new(&[
        left("AGENT"),
        left("STATE"),
        right("RECORDS"),
        right("BYTES"),
        left("VERSION").rank(1),
        left("NODES").rank(2),
    ]);
    for agent in &stats.agents {
        let state = if agent.sessions > 0 { cell("connected").style(good()) } else { cell("away").style(warning()) };
        table.row(vec![
            cell(&agent.name),
            state,
            cell(agent.records),
            cell(ByteSize::b(agent.bytes)),
            cell(&agent.build),
            cell(agent.nodes.join(", ")),
        ]);
    }
    table
}

fn stored(stats: &Stats) -> Table {
    let mut table = Table::new(&[
        left("NODE"),
        right("MESSAGES"),
        right("BYTES"),
        right("EVICTED"),
        right("LOST"),
        left("NEWEST").rank(1),
        left("OLDEST").rank(2),
    ]);
    let when = |time: Option<i64>| cell(time.map_or_else(|| "-".to_owned(), time::rfc3339_seconds));
    for Node { name, stored, totals, .. } in &stats.nodes {
        table.row(vec![
            cell(name),
            cell(stored.messages),
            cell(ByteSize::b(stored.bytes)),
            cell(totals.evicted_messages),
            lost(totals.lost_records, totals.lost_bytes),
            when(stored.last_time),
            when(stored.first_time),
        ]);
    }
    table
}

/// Records that are not of the network or of memory, by kind, if any were stored.
fn other_records(stats: &Stats) -> Table {
    let mut table =
        Table::new(&[left("NODE"), left("RECORDS"), right("STORED"), right("EVICTED"), right("BYTES KEPT")]);
    for Node { name, logs, trace, latency, .. } in &stats.nodes {
        let of = |stats: &RecordStats| (stats.stored, cell(stats.evicted), cell(ByteSize::b(stats.bytes)));
        let with_events = |stored| (stored, cell("-"), cell("(with events)"));
        for (records, (stored, evicted, bytes)) in [
            ("log messages", of(logs)),
            ("events", of(trace)),
            ("latency blocks", with_events(latency.blocks)),
            ("latency transactions", with_events(latency.transactions)),
        ] {
            if stored > 0 {
                table.row(vec![cell(name), cell(records), cell(stored), evicted, bytes]);
            }
        }
    }
    table
}

/// What agents have seen of each process, since they observe it.
fn accounts(stats: &Stats) -> Table {
    let mut table = Table::new(&[
        left("NODE"),
        left("PROCESS"),
        right("SEEN"),
        right("CAPTURED"),
        right("DROPPED"),
        right("MESSAGES"),
        right("CONNECTIONS").rank(1),
        right("DECRYPTED").rank(2),
        right("OTHER PROTOCOLS").rank(3),
        left("DROPPED BECAUSE").rank(4),
    ]);
    for (node, account) in stats.nodes.iter().flat_map(|node| node.accounts.iter().map(move |account| (node, account)))
    {
        let dropped = account.bytes_dropped.iter().fold(0_u64, |sum, each| sum.saturating_add(each.count));
        let reasons = account.bytes_dropped.iter().filter(|each| each.count > 0);
        let reasons: Vec<_> = reasons.map(|each| format!("{} {}", each.reason, ByteSize::b(each.count))).collect();
        table.row(vec![
            cell(&node.name),
            cell(if account.target.is_empty() { "(earlier ones)" } else { &account.target }),
            cell(ByteSize::b(account.bytes_seen)),
            cell(ByteSize::b(account.bytes_captured)),
            cell(ByteSize::b(dropped)).style(if dropped > 0 { warning() } else { Default::default() }),
            cell(account.messages),
            cell(format!("{} ({} open)", account.connections, account.connections_open)),
            cell(format!("{} of {} chunks", account.chunks_opened, account.chunks)),
            cell(ByteSize::b(account.bytes_left_alone)),
            cell(reasons.join(", ")),
        ]);
    }
    table
}

fn equations(stats: &Stats) -> Table {
    let mut table = Table::new(&[left("NODE"), left("PROCESS"), right("LEFT"), right("RIGHT"), left("EQUATION")]);
    for node in &stats.nodes {
        for account in &node.accounts {
            for Equation { equation, left, right, .. } in account.equations.iter().filter(|equation| !equation.holds) {
                let number = |value: &u64| cell(value).style(bad());
                table.row(vec![cell(&node.name), cell(&account.target), number(left), number(right), cell(equation)]);
            }
        }
    }
    table
}

fn losses(stats: &Stats) -> Table {
    let mut table = Table::new(&[
        left("NODE"),
        left("STAGE"),
        right("TIMES"),
        right("RECORDS"),
        right("BYTES"),
        left("LATEST").rank(1),
        left("REASON"),
    ]);
    for (node, loss) in stats.nodes.iter().flat_map(|node| node.losses.iter().map(move |loss| (node, loss))) {
        let amount = |shown: String| -> Cell { cell(if loss.amount_unknown { format!("≥ {shown}") } else { shown }) };
        table.row(vec![
            cell(&node.name),
            cell(&loss.stage),
            cell(loss.times),
            amount(loss.records.to_string()),
            amount(ByteSize::b(loss.bytes).to_string()),
            cell(time::rfc3339_seconds(loss.to)),
            cell(&loss.reason),
        ]);
    }
    table
}

fn findings(stats: &Stats) -> Table {
    let mut table = Table::new(&[left("NODE"), left("PROCESS"), left("SINCE").rank(1), left("ERROR"), left("DETAIL")]);
    for (node, finding) in stats.nodes.iter().flat_map(|node| node.findings.iter().map(move |finding| (node, finding)))
    {
        table.row(vec![
            cell(&node.name),
            cell(&finding.target),
            cell(time::rfc3339_seconds(finding.time)),
            cell(&finding.event).style(bad()),
            cell(&finding.detail),
        ]);
    }
    table
}
