//! Transactions one by one: from the entry of a function to a tracepoint that says which one it was, and with which result.
//!
//! Both are hits of the tracepoint probe, which delivers them in the order of time; they are matched here, by thread and stack
//! frame. The kernel counts what it could not deliver. After a lost entry an earlier one, which was left by an exception, could be
//! taken for it: therefore calls that began before the loss was noticed count as lost.

mod open;
mod plan;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    time::{Duration, Instant},
};

use chainscope_ebpf::{
    Error,
    trace::{ArgumentValue, End, Event, LocationId, TraceOptions, TraceProbe, Value},
};
use chainscope_latency::{Block, Histogram, LossReason, Time, Transaction, TransactionId};

use crate::clock::{Clock, monotonic_ns};
use open::OpenCalls;

pub use plan::{PlannedTransactions, TransactionRequest};

/// Size of the ring: some 15,000 transactions between two polls.
const RING_BYTES: u32 = 4 << 20;

/// How often the offset of the clocks is measured.
const CLOCK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a poll waits while hits are still being captured.
const ENDING_TIMEOUT: Duration = Duration::from_millis(10);

/// A probe that is attached to where transactions start and end.
#[derive(Debug)]
pub(super) struct Transactions {
    probe: TraceProbe,
    entries: BTreeSet<LocationId>,
    exits: BTreeSet<LocationId>,
    open: OpenCalls,
    /// Entries and exits that the kernel has dropped.
    dropped: (u64, u64),
    /// Calls that started before this time count as lost, because an entry was dropped.
    trusted_from_ns: u64,
    clock: Clock,
    resampled: Instant,
    since: Counted,
    facts: Vec<Transaction>,
}

/// What happened since the last block.
#[derive(Debug, Default)]
struct Counted {
    histogram: Histogram,
    results: BTreeMap<i64, u64>,
    lost: BTreeMap<LossReason, u64>,
}

impl Transactions {
    /// Attaches to a file, in one process, or in all that run it.
    pub(super) fn attach(planned: &PlannedTransactions, file: &File, pid: Option<u32>) -> Result<Self, Error> {
        let mut probe = TraceProbe::load(&TraceOptions { ring_bytes: RING_BYTES, ..TraceOptions::default() })?;
        // An exit without an entry is counted as one, an entry without an exit looks like one that never ends.
        let (_, exits) = probe.attach(file, pid, &planned.exits)?;
        let (_, entries) = probe.attach(file, pid, &planned.entries)?;
        Ok(Self {
            probe,
            entries: entries.into_iter().collect(),
            exits: exits.into_iter().collect(),
            open: OpenCalls::default(),
            dropped: (0, 0),
            trusted_from_ns: 0,
            clock: Clock::sampled(),
            resampled: Instant::now(),
            since: Counted::default(),
            facts: Vec::new(),
        })
    }

    /// Takes the hits out of the ring; waits for them for at most `timeout`.
    pub(super) fn poll(&mut self, timeout: Duration) -> Result<(), Error> {
        let mut hits = Vec::new();
        self.probe.poll(timeout, &mut |hit| hits.push(hit))?;
        if self.resampled.elapsed() >= CLOCK_INTERVAL {
            self.clock.resample();
            self.resampled = Instant::now();
        }
        // After the hits were read: a loss is counted before any later hit of its thread can be read.
        let dropped = (self.dropped_of(&self.entries)?, self.dropped_of(&self.exits)?);
        if dropped.0 > self.dropped.0 {
            self.trusted_from_ns = monotonic_ns();
        }
        self.lose(LossReason::TransactionsFull, dropped.1.saturating_sub(self.dropped.1));
        self.dropped = dropped;
        for hit in hits {
            self.take(&hit);
        }
        Ok(())
    }

    /// Detaches, and takes what was captured by then.
    pub(super) fn stop(&mut self) -> Result<(), Error> {
        self.probe.detach_all();
        loop {
            // Before the ring is read: what comes later is not on its way any more.
            let is_ending = !self.probe.has_events_waiting();
            self.poll(if is_ending { Duration::ZERO } else { ENDING_TIMEOUT })?;
            if is_ending && !self.probe.has_events_waiting() {
                return Ok(());
            }
        }
    }

    /// The transactions since the last call, by the time of their end.
    pub(super) fn take_facts(&mut self) -> Vec<Transaction> {
        std::mem::take(&mut self.facts)
    }

    /// The block of the transactions since the last one; `None` if nothing happened. With the last one of a recording, calls in
    /// progress count as not ended.
    pub(super) fn block(&mut self, function: usize, (start, length): (Time, Duration), is_last: bool) -> Option<Block> {
        let unended = self.open.take_left() + if is_last { self.open.count() } else { 0 };
        let Counted { histogram, results: returns, lost } = std::mem::take(&mut self.since);
        let is_empty = histogram.is_empty() && unended == 0 && lost.is_empty();
        (!is_empty).then_some(Block { function, start, length, histogram, returns, unended, lost })
    }

    fn dropped_of(&self, locations: &BTreeSet<LocationId>) -> Result<u64, Error> {
        locations.iter().map(|location| Ok(self.probe.counts(*location)?.dropped())).sum()
    }

    fn lose(&mut self, reason: LossReason, count: u64) {
        if count > 0 {
            *self.since.lost.entry(reason).or_default() += count;
        }
    }

    fn take(&mut self, hit: &Event) {
        // A register can always be read.
        let Some(ArgumentValue { value: Value::Known(stack_pointer), .. }) = hit.arguments.last() else { return };
        if self.entries.contains(&hit.location) {
            return self.open.enter(hit.tid, *stack_pointer, hit.time_ns);
        }
        match self.open.leave(hit.tid, *stack_pointer) {
            None => self.lose(LossReason::NoEntry, 1),
            Some(start) if start < self.trusted_from_ns => self.lose(LossReason::TransactionsFull, 1),
            Some(start) => self.add(hit, hit.time_ns.saturating_sub(start)),
        }
    }

    fn add(&mut self, hit: &Event, duration_ns: u64) {
        self.since.histogram.record(duration_ns);
        let whole = |index: usize| {
            let data = hit.arguments.get(index)?.data.as_ref()?;
            (data.end == End::Whole).then_some(data.bytes.as_slice())
        };
        let number = |index| Some(i64::from(i32::from_le_bytes(whole(index)?.try_into().ok()?)));
        let id = whole(0).and_then(|bytes| bytes.try_into().ok()).map(TransactionId);
        let (Some(id), Some(kind), Some(result)) = (id, number(1), number(2)) else {
            return self.lose(LossReason::Unreadable, 1);
        };
        *self.since.results.entry(result).or_default() += 1;
        self.facts.push(Transaction { id, kind, result, duration_ns, time: Time(self.clock.real(hit.time_ns)) });
    }
}
