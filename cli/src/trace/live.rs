//! Views of a running program: the probe is attached to the tracepoints that the view shows.

use anyhow::{Context as _, bail};
use chainscope_agent::trace::{Observed, ProbeSource, TraceOptions};
use chainscope_hygiene::{Escaped, EscapedTruncated};
use chainscope_trace::{Pattern, view::View};

use crate::{
    args::trace::{Live, Program},
    terminal, tracepoints,
};

/// Size of a page, in which bpftrace counts its rings.
const PAGE: u32 = 4096;

/// What is observed.
fn observed(program: &Program) -> anyhow::Result<Observed> {
    let Program { target, pid, file, container } = program;
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

/// Attaches the probe. Locations that cannot be attached are reported.
pub(super) fn attach(live: &Live, view: &dyn View) -> anyhow::Result<ProbeSource> {
    let contracts = tracepoints::contracts(live.contract.as_deref())?;
    let patterns = view.patterns().iter().map(|pattern| pattern.parse()).collect::<Result<Vec<Pattern>, _>>();
    let patterns = patterns.map_err(anyhow::Error::msg)?;
    let pages = live.ring_pages.checked_next_power_of_two().context("--ring-pages is too large")?;
    let ring_bytes = pages.checked_mul(PAGE).context("--ring-pages is too large")?;
    if pages != live.ring_pages {
        terminal::note(&format!("the ring buffer has {pages} pages, not {}: a power of two", live.ring_pages));
    }
    let max_payload = if live.record.is_some() || view.needs_payloads() { live.max_payload } else { 0 };
    let options = TraceOptions { ring_bytes, max_string: live.max_text, max_payload, ..TraceOptions::default() };
    let source = ProbeSource::attach(&observed(&live.program)?, &patterns, &contracts, &options)?;
    report_skipped(&source, 0);
    Ok(source)
}

/// Reports locations that cannot be attached, from this one on.
pub(super) fn report_skipped(source: &ProbeSource, from: usize) {
    for skipped in source.skipped().iter().skip(from) {
        eprintln!(
            "chainscope: {} at {:#x} of {} is not traced: {}",
            Escaped(&skipped.tracepoint),
            skipped.location,
            EscapedTruncated(&skipped.file),
            Escaped(&skipped.reason),
        );
    }
}
