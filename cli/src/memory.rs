//! `chainscope memory`: which code holds a process's memory, as a tree.

mod lines;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use chainscope_spec::Config;
use clap::ValueEnum as _;
use serde_json::Value;

use crate::{
    api::Api,
    args::{Format, MemoryArgs},
    clock, diagnostics,
    failure::Failure,
    output,
    progress::Progress,
    standalone::{self, Running, Storage},
};

/// How long attaching to a process may take, which includes reading the symbols of a large binary.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(60);
/// Without a threshold, lines below this fraction of the total are hidden: one in …
const DEFAULT_FRACTION: u64 = 100;

pub(crate) fn run(args: MemoryArgs) -> anyhow::Result<()> {
    match args.pid {
        Some(pid) if !args.api.is_given() && args.node.name().is_none() => observe(pid, &args),
        _ => show(&args.api.client()?, &args),
    }
}

/// Shows the tree of the only node from its entry points inward, once it was updated after this call and has a stack, or
/// after the timeout.
pub(crate) fn show_own(running: &Running, api: &Api, timeout: Duration) -> anyhow::Result<()> {
    let has_stack =
        |tree: &Value| tree["frames"].as_array().is_some_and(|all| all.iter().any(|one| one["name"].is_object()));
    let now = clock::since_epoch()?.as_millis();
    let is_later = |target: &Value| target["updated"].as_u64().is_some_and(|updated| u128::from(updated) > now);
    running.wait_until(timeout, || {
        let targets = api.json("/v1/targets", &[])?;
        Ok(targets.as_array().is_some_and(|all| all.iter().any(is_later))
            && has_stack(&api.json("/v1/tree", &[("threshold", "0".to_owned())])?))
    })?;
    let reverse = [("reverse", true.to_string())];
    // The demo node is small: every page counts.
    lines::print(api.text("/v1/tree", &with(&reverse, "threshold", 4))?, false)
}

/// Observes a process with agent and aggregator in this process, then shows its tree.
fn observe(pid: u32, args: &MemoryArgs) -> anyhow::Result<()> {
    if !std::path::Path::new(&format!("/proc/{pid}")).exists() {
        return Err(Failure::new(format!("there is no process {pid}")).hint("`ps -e` lists the processes").into());
    }
    chainscope_hygiene::protect_process()?;
    diagnostics::start(None, "warn")?;
    let folder = tempfile::tempdir()?;
    let mut config = Config::for_memory_of(pid);
    config.listen = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    config.data_dir = folder.path().to_owned();
    let running = standalone::start(&config, Storage::Memory)?;
    tracing::info!("API on http://{}", running.address());
    let api = Api::new(&format!("http://{}", running.address()));
    let shown =
        wait_attached(&running, &api, ATTACH_TIMEOUT).with_context(|| format!("process {pid}")).and_then(|()| {
            let duration = humantime::format_duration(args.observe);
            let mut progress = Progress::start(format!("observing process {pid} for {duration}; Ctrl-C shows it now"));
            let start = Instant::now();
            running.wait_until(args.observe, || {
                progress.tick();
                Ok(start.elapsed() >= args.observe)
            })?;
            drop(progress);
            show(&api, args)
        });
    running.stop()?;
    shown
}

/// Waits until the agent in this process has reported the memory of a process.
pub(crate) fn wait_attached(running: &Running, api: &Api, timeout: Duration) -> anyhow::Result<()> {
    let mut progress = Progress::start("attaching: reading symbols and unwind tables");
    let is_attached = running.wait_until(timeout, || {
        progress.tick();
        Ok(api.json("/v1/targets", &[])?.as_array().is_some_and(|all| !all.is_empty()))
    })?;
    drop(progress);
    if !is_attached {
        ensure!(!running.is_interrupted(), "interrupted before its memory was reported");
        let failure = Failure::new(format!("its memory was not reported within {timeout:?}"));
        return Err(failure.hint("`chainscope run --check` lists what is missing on this machine").into());
    }
    Ok(())
}

/// Requests and shows a tree.
fn show(api: &Api, args: &MemoryArgs) -> anyhow::Result<()> {
    let mut query = Vec::new();
    let kind = args.kind.and_then(|kind| kind.to_possible_value()).map(|kind| kind.get_name().to_owned());
    let numbers = [("pid", args.pid.map(u64::from)), ("since", args.diff), ("at", args.at)];
    query.extend(args.node.name().map(|node| ("node_name", node)));
    query.extend(kind.map(|kind| ("kind", kind)));
    query.extend(numbers.into_iter().filter_map(|(name, value)| Some((name, value?.to_string()))));
    query.push(("reverse", args.reverse.to_string()));
    let threshold = match args.threshold {
        Some(threshold) => threshold,
        None => {
            // For a difference, a hundredth of the current total, not of the change.
            let current: Vec<_> = query.iter().filter(|(name, _)| *name != "since").cloned().collect();
            default_threshold(api, &current)?
        }
    };
    let text = api.text("/v1/tree", &with(&query, "threshold", threshold))?;
    if args.output.format() != Format::Table {
        return output::document(&text);
    }
    lines::print(text, args.diff.is_some())
}

/// The threshold without --threshold.
fn default_threshold(api: &Api, query: &[(&'static str, String)]) -> anyhow::Result<u64> {
    let root = api.json("/v1/tree", &with(query, "threshold", u64::MAX))?;
    Ok(root["value"].as_u64().context("/v1/tree did not return a value")? / DEFAULT_FRACTION)
}

/// The query with one more parameter.
fn with(query: &[(&'static str, String)], name: &'static str, value: u64) -> Vec<(&'static str, String)> {
    let mut query = query.to_vec();
    query.push((name, value.to_string()));
    query
}
