//! Events of the tracepoint probe as a [`Source`]. `reader` reads them.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use chainscope_ebpf::trace::{Event as Hit, LocationId, TraceOptions, TraceProbe, Value as Captured};
use chainscope_trace::{Accounting, Attachment, Event, Polled, Process, Source, Timestamp, Value};
use parking_lot::Mutex;

use super::{
    attach::{AttachError, Attached, Observed, Outcome, Selected, Skipped, Wanted, attach, attach_added},
    follow::{Added, Followed},
    reader::{Next, Reader},
    values::value_of,
};
use crate::{
    clock::{Clock, monotonic_ns, monotonic_of_ticks},
    targets::proc::Proc,
};

/// Interval at which the offset of the clocks is measured, and what is observed is looked at: which processes run, and which files
/// they have mapped.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Processes whose starts are looked up.
const MAX_SEEN: usize = 65_536;

/// A probe that is attached to tracepoints. Dropping it detaches.
#[derive(Debug)]
pub struct ProbeSource {
    reader: Reader,
    attached: BTreeMap<LocationId, Attached>,
    skipped: Vec<Skipped>,
    notices: Vec<String>,
    followed: Followed,
    selected: Selected,
    /// Hits that were read, and are not returned.
    waiting: VecDeque<Hit>,
    /// An event that follows what was returned last.
    following: Option<Event>,
    /// Processes of which there was an event.
    seen: BTreeSet<u32>,
    next: u64,
    /// Events returned by location.
    returned: BTreeMap<LocationId, u64>,
    clock: Clock,
    checked: Instant,
    start: Timestamp,
    stopped: Option<Timestamp>,
}

impl ProbeSource {
    /// Loads a probe and attaches it. Libraries that an observed process loads later, processes that start later in a container, and
    /// a file that replaces the observed one are attached within a second.
    ///
    /// At most `queue_bytes` of events, and what the ring has, wait to be polled; beyond that they are lost and counted.
    ///
    /// # Errors
    /// See [`AttachError`]. Single locations that cannot be attached are not an error: see [`skipped`](Self::skipped).
    pub fn attach(
        observed: &Observed,
        wanted: Wanted,
        options: &TraceOptions,
        queue_bytes: u64,
    ) -> Result<Self, AttachError> {
        let probe = Arc::new(Mutex::new(TraceProbe::load(options)?));
        let clock = Clock::sampled();
        let start = timestamp(&clock, monotonic_ns());
        let selected = Selected { wanted, max_payload: options.max_payload };
        let (followed, files) = Followed::begin(observed)?;
        let Outcome { attached, skipped } = attach(&probe, &files, &selected)?;
        Ok(Self {
            reader: Reader::start(probe, queue_bytes)?,
            attached: attached.into_iter().map(|attached| (attached.id, attached)).collect(),
            skipped,
            notices: Vec::new(),
            followed,
            selected,
            waiting: VecDeque::new(),
            following: None,
            seen: BTreeSet::new(),
            next: 0,
            returned: BTreeMap::new(),
            clock,
            checked: Instant::now(),
            start,
            stopped: None,
        })
    }

    /// Locations that are selected, and cannot be attached, or are attached in vain.
    #[must_use]
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// Measures the clocks, attaches to what was added, and stops when the last observed process has ended.
    fn check(&mut self) {
        if self.checked.elapsed() < CHECK_INTERVAL {
            return;
        }
        self.checked = Instant::now();
        self.clock.resample();
        if self.stopped.is_some() {
            return;
        }
        let Added { files, notices } = self.followed.rescan();
        let Outcome { attached, skipped } = attach_added(self.reader.probe(), &files, &self.selected);
        self.attached.extend(attached.into_iter().map(|attached| (attached.id, attached)));
        self.notices.extend(notices);
        self.notices.extend(skipped.iter().map(Skipped::to_string));
        self.skipped.extend(skipped);
        if self.followed.has_ended() {
            self.stop();
        }
    }

    /// When a process was started, at its first event.
    fn process(&mut self, pid: u32) -> Option<Process> {
        if self.seen.contains(&pid) || self.seen.len() >= MAX_SEEN {
            return None;
        }
        self.seen.insert(pid);
        let start_ns = monotonic_of_ticks(Proc::default().start_of(pid)?);
        Some(Process { pid, start_ns })
    }

    fn event(&mut self, hit: Hit) -> Option<Event> {
        let attached = self.attached.get(&hit.location)?;
        *self.returned.entry(hit.location).or_default() += 1;
        let sequence = self.next;
        self.next += 1;
        Some(Event {
            sequence,
            time: timestamp(&self.clock, hit.time_ns),
            pid: hit.pid,
            tid: hit.tid,
            cpu: hit.cpu,
            comm: String::from_utf8_lossy(&hit.comm).into_owned(),
            attachment: Arc::clone(&attached.attachment),
            arguments: values(attached, hit),
        })
    }
}

fn values(attached: &Attached, hit: Hit) -> Vec<Value> {
    let captured: Vec<Captured> = hit.arguments.iter().map(|argument| argument.value).collect();
    let described = attached.attachment.arguments.iter().zip(&attached.arguments);
    let arguments = described.zip(hit.arguments);
    arguments
        .map(|((described, argument), value)| value_of(described.meaning.kind, argument, value, &captured))
        .collect()
}

fn timestamp(clock: &Clock, monotonic_ns: u64) -> Timestamp {
    Timestamp { monotonic_ns, wall_ns: clock.real(monotonic_ns) }
}

impl Source for ProbeSource {
    fn start(&self) -> Timestamp {
        self.start
    }

    fn attachments(&self) -> Vec<Arc<Attachment>> {
        self.attached.values().map(|attached| Arc::clone(&attached.attachment)).collect()
    }

    fn poll(&mut self, timeout: Duration) -> io::Result<Polled> {
        if let Some(event) = self.following.take() {
            return Ok(Polled::Event(event));
        }
        loop {
            while let Some(hit) = self.waiting.pop_front() {
                self.reader.release(hit.bytes());
                let Some(event) = self.event(hit) else { continue };
                if let Some(process) = self.process(event.pid) {
                    self.following = Some(event);
                    return Ok(Polled::Process(process));
                }
                return Ok(Polled::Event(event));
            }
            self.check();
            match self.reader.next(timeout).map_err(io::Error::other)? {
                Next::Hits(hits) => self.waiting = hits.into(),
                Next::Idle(complete_ns) => {
                    // Before it was attached there was nothing.
                    return Ok(Polled::Idle { monotonic_ns: complete_ns.max(self.start.monotonic_ns) });
                }
                Next::End => return Ok(Polled::End),
            }
        }
    }

    fn stop(&mut self) {
        if self.stopped.is_none() {
            self.reader.detach();
            self.stopped = Some(timestamp(&self.clock, monotonic_ns()));
        }
    }

    fn notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    fn accounting(&mut self) -> Accounting {
        let until = self.stopped.unwrap_or_else(|| timestamp(&self.clock, monotonic_ns()));
        let mut accounting = Accounting { from: self.start, until, ..Accounting::default() };
        let probe = self.reader.probe().lock();
        for (id, attached) in &self.attached {
            let counts = accounting.tracepoints.entry(attached.attachment.full_name()).or_default();
            counts.delivered += self.returned.get(id).copied().unwrap_or(0);
            // Only a failing system call: then the difference to what was delivered shows.
            let Ok(kernel) = probe.counts(*id) else { continue };
            counts.hits += kernel.hits;
            counts.incomplete += kernel.incomplete;
            for (reason, count) in [("ring_full", kernel.ring_full), ("no_slot", kernel.no_slot)] {
                if count > 0 {
                    *counts.dropped.entry(reason.into()).or_default() += count;
                }
            }
        }
        accounting
    }
}
