//! Views of a running program: the probe is attached to the tracepoints that the view shows.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use chainscope_agent::trace::{Observed, ProbeSource, TraceOptions};
use chainscope_hygiene::{Escaped, EscapedTruncated};
use chainscope_trace::{Pattern, view::View};
use clap::Args;

use crate::tracepoints;

/// Bytes that are captured of every argument: the limit of payloads is also that of hashes.
const MIN_PAYLOAD: u64 = 64;
/// Size of a page, in which bpftrace counts its rings.
const PAGE: u32 = 4096;

/// Where the events of a view come from: a running program.
#[derive(Debug, Args)]
pub(super) struct Live {
    #[command(flatten)]
    program: Program,
    /// Name of a built-in contract, or a contract file [default: the best match]
    #[arg(long, value_name = "NAME|FILE")]
    contract: Option<String>,
    /// Longest text that is captured whole, in bytes
    #[arg(long, value_name = "BYTES", env = "BPFTRACE_STRLEN", default_value_t = 4096)]
    max_text: u32,
    /// Longest payload that is captured whole, in bytes; at least 64
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20)]
    max_payload: u64,
    /// Pages of the ring buffer, rounded up to a power of two
    #[arg(long, value_name = "PAGES", env = "BPFTRACE_PERF_RB_PAGES", default_value_t = 8192)]
    ring_pages: u32,
    /// Also write the events to this new file, with payloads, for `trace replay`
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

impl Live {
    /// The file to record to.
    pub(super) fn record(&self) -> Option<&Path> {
        self.record.as_deref()
    }
}

/// One of these.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Program {
    /// Process or file, where the scripts have it
    #[arg(value_name = "PID|FILE")]
    target: Option<String>,
    /// Process, with the libraries that it has loaded
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
    /// File: every process that executes it, those that start later as well
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Container, by id (at least 12 digits) or by its name in Docker: all of its processes
    #[arg(long, value_name = "NAME")]
    container: Option<String>,
}

impl Program {
    fn observed(&self) -> anyhow::Result<Observed> {
        let Self { target, pid, file, container } = self;
        Ok(match (target, pid, file, container) {
            (Some(target), ..) => match target.parse() {
                Ok(pid) => Observed::Process(pid),
                Err(_) => Observed::File(target.into()),
            },
            (_, Some(pid), ..) => Observed::Process(*pid),
            (_, _, Some(file), _) => Observed::File(file.clone()),
            (_, _, _, Some(container)) => Observed::Container(container.clone()),
            _ => bail!("no program is named: --pid, --file or --container"),
        })
    }
}

/// Attaches the probe. Locations that cannot be attached are reported.
pub(super) fn attach(live: &Live, view: &dyn View) -> anyhow::Result<ProbeSource> {
    let contracts = tracepoints::contracts(live.contract.as_deref())?;
    let patterns = view.patterns().iter().map(|pattern| pattern.parse()).collect::<Result<Vec<Pattern>, _>>();
    let patterns = patterns.map_err(anyhow::Error::msg)?;
    let pages = live.ring_pages.checked_next_power_of_two();
    let ring_bytes = pages.and_then(|pages| pages.checked_mul(PAGE)).context("--ring-pages is too large")?;
    let max_payload =
        if live.record.is_some() || view.needs_payloads() { live.max_payload.max(MIN_PAYLOAD) } else { MIN_PAYLOAD };
    let options = TraceOptions { ring_bytes, max_string: live.max_text, max_payload, ..TraceOptions::default() };
    let source = ProbeSource::attach(&live.program.observed()?, &patterns, &contracts, &options)?;
    for skipped in source.skipped() {
        eprintln!(
            "chainscope: {} at {:#x} of {} is not traced: {}",
            Escaped(&skipped.tracepoint),
            skipped.location,
            EscapedTruncated(&skipped.file),
            Escaped(&skipped.reason),
        );
    }
    Ok(source)
}
