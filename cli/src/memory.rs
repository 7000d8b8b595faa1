//! `chainscope memory`: which code holds the memory, as a tree in a terminal.

mod lines;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, bail};
use chainscope_spec::Config;
use clap::ValueEnum as _;
use serde_json::Value;

use crate::{api::Api, args::MemoryArgs, logs, run, terminal};

/// Where the API is if nothing is said.
const URL: &str = "http://127.0.0.1:17732";
/// How long attaching to a process may take: names of a large binary are read then.
const ATTACH: Duration = Duration::from_secs(60);
/// Time between two looks whether it has.
const LOOK: Duration = Duration::from_millis(100);
/// How many lines a tree has at most, roughly, if no threshold is given.
const SHARE: u64 = 100;

pub(crate) fn run(args: MemoryArgs) -> anyhow::Result<()> {
    match args.pid {
        Some(pid) if args.url.is_none() && args.node.is_none() => observe(pid, &args),
        _ => show(&Api::new(args.url.as_deref().unwrap_or(URL)), &args),
    }
}

/// Shows the tree of the only node as it is after this moment, from its entry points inward, as soon as there is a stack in
/// it, or after that time.
pub(crate) fn show_own(running: &run::Running, api: &Api, patience: Duration) -> anyhow::Result<()> {
    let has_stack =
        |tree: &Value| tree["frames"].as_array().is_some_and(|all| all.iter().any(|one| one["name"].is_object()));
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
    let is_later = |target: &Value| target["updated"].as_u64().is_some_and(|updated| u128::from(updated) > now);
    until(running, patience, || {
        let targets = api.json("/v1/targets", &[])?;
        Ok(targets.as_array().is_some_and(|all| all.iter().any(is_later))
            && has_stack(&api.json("/v1/tree", &[("threshold", "0".to_owned())])?))
    })?;
    let reverse = [("reverse", true.to_string())];
    // The demo node is small: every page counts.
    lines::print(api.text("/v1/tree", &with(&reverse, "threshold", 4))?, false)
}

/// Observes a process by agent and aggregator in this process, then shows it.
fn observe(pid: u32, args: &MemoryArgs) -> anyhow::Result<()> {
    if !std::path::Path::new(&format!("/proc/{pid}")).exists() {
        bail!("there is no process {pid}");
    }
    chainscope_hygiene::protect_process()?;
    logs::start(None, "warn")?;
    let folder = tempfile::tempdir()?;
    let mut config = Config::for_memory_of(pid);
    config.listen = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    config.data_dir = folder.path().to_owned();
    let running = run::start(&config)?;
    let api = Api::new(&format!("http://{}", running.address()));
    let shown = attached(&running, &api, ATTACH).with_context(|| format!("process {pid}")).and_then(|()| {
        if terminal::is_interactive() {
            terminal::line(&format!(
                "Observing process {pid} for {}; Ctrl-C shows it now.",
                humantime::format_duration(args.observe)
            ))?;
        }
        running.wait(args.observe)?;
        show(&api, args)
    });
    running.stop()?;
    shown
}

/// Waits until a process is told of by the agent and the aggregator in this process.
pub(crate) fn attached(running: &run::Running, api: &Api, patience: Duration) -> anyhow::Result<()> {
    if !until(running, patience, || Ok(api.json("/v1/targets", &[])?.as_array().is_some_and(|all| !all.is_empty())))? {
        bail!("nothing was told of its memory within {patience:?}; `chainscope run --check` says what is missing");
    }
    Ok(())
}

/// Waits until it is so, but no longer than `patience`, and says whether it is.
fn until(
    running: &run::Running,
    patience: Duration,
    mut is_so: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<bool> {
    let began = Instant::now();
    while !is_so()? {
        if began.elapsed() > patience {
            return Ok(false);
        }
        running.wait(LOOK)?;
    }
    Ok(true)
}

fn show(api: &Api, args: &MemoryArgs) -> anyhow::Result<()> {
    let mut query = Vec::new();
    let kind = args.kind.and_then(|kind| kind.to_possible_value()).map(|kind| kind.get_name().to_owned());
    let numbers = [("pid", args.pid.map(u64::from)), ("since", args.since), ("at", args.at)];
    query.extend(args.node.clone().map(|node| ("node_name", node)));
    query.extend(kind.map(|kind| ("kind", kind)));
    query.extend(numbers.into_iter().filter_map(|(name, value)| Some((name, value?.to_string()))));
    query.push(("reverse", args.reverse.to_string()));
    let threshold = match args.threshold {
        Some(threshold) => threshold,
        None => {
            // Of a difference a hundredth of what is there, not of what changed.
            let all: Vec<_> = query.iter().filter(|(name, _)| *name != "since").cloned().collect();
            hundredth(api, &all)?
        }
    };
    let text = api.text("/v1/tree", &with(&query, "threshold", threshold))?;
    if args.json {
        return terminal::line(&text);
    }
    lines::print(text, args.since.is_some())
}

/// The threshold at which a tree has about a hundred lines.
fn hundredth(api: &Api, query: &[(&'static str, String)]) -> anyhow::Result<u64> {
    let root = api.json("/v1/tree", &with(query, "threshold", u64::MAX))?;
    Ok(root["value"].as_u64().context("/v1/tree gave no value")? / SHARE)
}

fn with(query: &[(&'static str, String)], name: &'static str, value: u64) -> Vec<(&'static str, String)> {
    let mut query = query.to_vec();
    query.push((name, value.to_string()));
    query
}
