//! Events of the tracepoint probe as a [`Source`].

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use chainscope_ebpf::trace::{Event as Hit, LocationId, TraceOptions, TraceProbe, Value as Captured};
use chainscope_trace::{Accounting, Attachment, Event, Pattern, Polled, Source, Timestamp, Value};
use chainscope_usdt::Contract;
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::{
    attach::{self, AttachError, Attached, Observed, Outcome, Process, Selected, Skipped},
    values::value_of,
};
use crate::clock::{Clock, monotonic_ns};

/// Interval at which the offset of the clocks is measured, and the observed processes are looked at: whether they still run, and
/// which libraries they have loaded.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A probe that is attached to tracepoints. Dropping it detaches.
#[derive(Debug)]
pub struct ProbeSource {
    probe: TraceProbe,
    attached: BTreeMap<LocationId, Attached>,
    skipped: Vec<Skipped>,
    /// The processes that are observed; empty if they are all of a file.
    processes: Vec<(Process, OwnedFd)>,
    selected: Selected,
    is_every_process: bool,
    waiting: VecDeque<Hit>,
    next: u64,
    /// Events returned by location.
    returned: BTreeMap<LocationId, u64>,
    clock: Clock,
    checked: Instant,
    start: Timestamp,
    stopped: Option<Timestamp>,
}

impl ProbeSource {
    /// Loads a probe and attaches it to the tracepoints of any of the patterns, or to all if there are none. Contracts name the
    /// arguments and give their types. Libraries that an observed process loads later are attached within a second.
    ///
    /// # Errors
    /// See [`AttachError`]. Single locations that cannot be attached are not an error: see [`skipped`](Self::skipped).
    pub fn attach(
        observed: &Observed,
        patterns: &[Pattern],
        contracts: &[Contract],
        options: &TraceOptions,
    ) -> Result<Self, AttachError> {
        let mut probe = TraceProbe::load(options)?;
        let clock = Clock::sampled();
        let start = timestamp(&clock, monotonic_ns());
        let (patterns, contracts) = (patterns.to_vec(), contracts.to_vec());
        let selected = Selected { patterns, contracts, max_payload: options.max_payload };
        let Outcome { attached, skipped, processes } = attach::attach(&mut probe, observed, &selected)?;
        let pidfd = |process: Process| {
            let pid = Pid::from_raw(i32::try_from(process.pid).ok()?)?;
            Some((process, pidfd_open(pid, PidfdFlags::empty()).ok()?))
        };
        Ok(Self {
            probe,
            attached: attached.into_iter().map(|attached| (attached.id, attached)).collect(),
            skipped,
            processes: processes.into_iter().filter_map(pidfd).collect(),
            selected,
            is_every_process: matches!(observed, Observed::File(_)),
            waiting: VecDeque::new(),
            next: 0,
            returned: BTreeMap::new(),
            clock,
            checked: Instant::now(),
            start,
            stopped: None,
        })
    }

    /// Locations that are selected, and cannot be attached.
    #[must_use]
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// The probe, for what it says about the kernel.
    #[must_use]
    pub fn probe(&self) -> &TraceProbe {
        &self.probe
    }

    /// Measures the clocks, attaches to libraries that were loaded, and stops when the last observed process has ended.
    fn check(&mut self) {
        if self.checked.elapsed() < CHECK_INTERVAL {
            return;
        }
        self.checked = Instant::now();
        self.clock.resample();
        self.processes.retain(|(_, handle)| !has_ended(handle));
        if self.stopped.is_some() {
            return;
        }
        for (process, _) in &mut self.processes {
            let Outcome { attached, skipped, .. } = attach::attach_new(&mut self.probe, process, &self.selected);
            self.attached.extend(attached.into_iter().map(|attached| (attached.id, attached)));
            self.skipped.extend(skipped);
        }
        if !self.is_every_process && self.processes.is_empty() {
            self.stop();
        }
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

fn has_ended(process: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(process, PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

impl Source for ProbeSource {
    fn start(&self) -> Timestamp {
        self.start
    }

    fn attachments(&self) -> Vec<Arc<Attachment>> {
        self.attached.values().map(|attached| Arc::clone(&attached.attachment)).collect()
    }

    fn poll(&mut self, timeout: Duration) -> io::Result<Polled> {
        loop {
            while let Some(hit) = self.waiting.pop_front() {
                if let Some(event) = self.event(hit) {
                    return Ok(Polled::Event(event));
                }
            }
            self.check();
            // Before the ring is read: what comes later is not on its way any more.
            let is_ending = self.stopped.is_some() && !self.probe.has_events_waiting();
            let waiting = &mut self.waiting;
            let timeout = if is_ending { Duration::ZERO } else { timeout };
            self.probe.poll(timeout, &mut |hit| waiting.push_back(hit)).map_err(io::Error::other)?;
            if !self.waiting.is_empty() {
                continue;
            }
            if self.stopped.is_none() {
                return Ok(Polled::Idle { monotonic_ns: self.probe.complete_until_ns() });
            }
            if is_ending && !self.probe.has_events_waiting() {
                return Ok(Polled::End);
            }
        }
    }

    fn stop(&mut self) {
        if self.stopped.is_none() {
            self.probe.detach_all();
            self.stopped = Some(timestamp(&self.clock, monotonic_ns()));
        }
    }

    fn accounting(&mut self) -> Accounting {
        let until = self.stopped.unwrap_or_else(|| timestamp(&self.clock, monotonic_ns()));
        let mut accounting = Accounting { from: self.start, until, ..Accounting::default() };
        for (id, attached) in &self.attached {
            let counts = accounting.tracepoints.entry(attached.attachment.full_name()).or_default();
            counts.delivered += self.returned.get(id).copied().unwrap_or(0);
            // Only a failing system call: then the difference to what was delivered shows.
            let Ok(kernel) = self.probe.counts(*id) else { continue };
            counts.hits += kernel.hits;
            for (reason, count) in [("ring_full", kernel.ring_full), ("no_slot", kernel.no_slot)] {
                if count > 0 {
                    *counts.dropped.entry(reason.into()).or_default() += count;
                }
            }
        }
        accounting
    }
}
