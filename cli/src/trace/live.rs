//! Views of a running program: the probe is attached to the tracepoints that the view shows.

use anyhow::{Context as _, bail};
use chainscope_agent::trace::{AttachError, Observed, ProbeSource, TraceOptions, Wanted};
use chainscope_trace::{Pattern, Source, view::View};

use crate::{
    args::trace::{Live, Program},
    failure,
    progress::Progress,
    terminal, tracepoints,
};

/// Size of a page, in which bpftrace counts its rings.
const PAGE: u32 = 4096;
/// Pages of the ring: without payloads, with them, and where they are what is shown. A node passes messages of 4 MB faster than they
/// are copied from the ring, so that it is the ring that has to have room for a burst.
const RING_PAGES: u32 = 8192;
const PAYLOAD_RING_PAGES: u32 = 65_536;
const RAW_RING_PAGES: u32 = 262_144;

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
pub(super) fn attach(live: &Live, view: &dyn View, is_raw: bool) -> anyhow::Result<ProbeSource> {
    let contracts = tracepoints::contracts(live.contract.as_deref())?;
    let patterns = view.patterns().iter().map(|pattern| pattern.parse()).collect::<Result<Vec<Pattern>, _>>();
    let patterns = patterns.map_err(anyhow::Error::msg)?;
    let has_payloads = live.record.is_some() || view.needs_payloads();
    let default_pages = match (has_payloads, is_raw) {
        (false, _) => RING_PAGES,
        (true, false) => PAYLOAD_RING_PAGES,
        (true, true) => RAW_RING_PAGES,
    };
    let asked = live.ring_pages.unwrap_or(default_pages);
    let mut pages = asked.checked_next_power_of_two().context("--ring-pages is too large")?;
    pages.checked_mul(PAGE).context("--ring-pages is too large")?;
    if pages != asked {
        terminal::note(&format!("the ring buffer has {pages} pages, not {asked}: a power of two"));
    }
    let max_payload = if has_payloads { live.max_payload } else { 0 };
    let observed = observed(&live.program)?;
    let wanted = Wanted { patterns, contracts, is_contract_named: live.contract.is_some() };
    let source = loop {
        let default = TraceOptions::default();
        let ring_bytes = pages * PAGE;
        // A small ring is read before it is full.
        let wake_bytes = default.wake_bytes.min(ring_bytes / 16);
        let options = TraceOptions { ring_bytes, wake_bytes, max_string: live.max_text, max_payload, ..default };
        let attached = Progress::during("attaching to tracepoints", || {
            ProbeSource::attach(&observed, wanted.clone(), &options, live.queue_bytes)
        });
        match attached {
            Err(error) if error.is_out_of_memory() && live.ring_pages.is_none() && pages > RING_PAGES => {
                pages /= 2;
                terminal::note(&format!("the ring buffer has {pages} pages only: {error}"));
            }
            attached => break attached.map_err(advise)?,
        }
    };
    source.skipped().iter().for_each(|skipped| note(&skipped.to_string()));
    Ok(source)
}

/// The error with the next step.
fn advise(error: AttachError) -> anyhow::Error {
    match error {
        AttachError::File { .. } => failure::with_hint(error, tracepoints::PROGRAM),
        AttachError::Nothing { .. } => {
            failure::with_hint(error, "`chainscope tracepoints` lists the tracepoints of a program")
        }
        _ => failure::of_probe(error),
    }
}

/// Shows what the source has to say.
pub(super) fn show_notices(source: &mut dyn Source) {
    source.notices().iter().for_each(|notice| note(notice));
}

fn note(text: &str) {
    terminal::note(&format!("chainscope: {text}"));
}
