//! Time to connect blocks, as `connectblock_benchmark.bt` of Bitcoin Core and Tapyrus.
//!
//! The unit of the duration is that of the contract. It changed from µs to ns in Bitcoin Core v25 without a change of the
//! notes or the documentation, so it is checked: a block cannot have taken longer than the time since the block before it on
//! the same thread, and the first one not longer than the process has run. If it has, by the contract's unit, the unit is ns.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Map, Value as Json, json};

use super::{Lines, NS_PER_S, View, histogram::Histogram};
use crate::{
    accounting::Accounting,
    attachment::Attachment,
    event::{Event, Timestamp},
    source::Process,
};

const NS_PER_MS: i128 = 1_000_000;
/// By how much the two clocks that are compared may differ.
const CLOCK_SLACK_NS: i128 = NS_PER_MS;
/// Threads of which the last block is known; only those that connect blocks hit the tracepoint.
const MAX_THREADS: usize = 1024;

/// Unit of a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds.
    Ns,
    /// Microseconds.
    Us,
    /// Milliseconds.
    Ms,
    /// Seconds.
    S,
}

/// Blocks in a range of heights, and blocks that take long.
#[derive(Debug)]
pub struct Blocks {
    first: i64,
    /// 0: there is no last one.
    last: i64,
    threshold_ms: u64,
    /// The unit that was asked for; it is not checked.
    unit: Option<Unit>,
    /// Whether the contract's unit was found to be wrong.
    is_ns: bool,
    began_ns: u64,
    /// When the range began.
    range_ns: Option<u64>,
    /// Blocks of the current second.
    second: Second,
    /// When each thread connected its last block.
    threads: BTreeMap<(u32, u32), u64>,
    /// When processes were started, as far as it is known.
    started: BTreeMap<u32, u64>,
    /// Durations of the blocks of the range: as passed, and with the contract's unit. 32 bytes for each block of a chain.
    durations: Vec<(i128, Unit)>,
    is_done: bool,
}

/// Sums of a second.
#[derive(Debug, Default)]
struct Second {
    /// Its number since the start.
    number: u64,
    blocks: u64,
    transactions: i128,
    inputs: i128,
    sigops: i128,
    height: i128,
}

impl Unit {
    /// The unit of this name in contracts.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "ns" => Self::Ns,
            "us" => Self::Us,
            "ms" => Self::Ms,
            "s" => Self::S,
            _ => return None,
        })
    }

    /// Its nanoseconds.
    fn ns(self) -> i128 {
        match self {
            Self::Ns => 1,
            Self::Us => 1_000,
            Self::Ms => NS_PER_MS,
            Self::S => i128::from(NS_PER_S),
        }
    }
}

impl Blocks {
    /// Blocks from height `first` on, until `last` if it is not 0, and those that take longer than `threshold_ms` whatever
    /// their height. `unit` is that of the duration, if it is not to be that of the contract.
    ///
    /// # Errors
    /// The last height is below the first.
    pub fn new(first: i64, last: i64, threshold_ms: u64, unit: Option<Unit>) -> Result<Self, String> {
        // As in the script, 0 is below any other first height.
        if last < first {
            return Err(format!("start height ({first}) larger than end height ({last})!"));
        }
        Ok(Self {
            first,
            last,
            threshold_ms,
            unit,
            is_ns: false,
            began_ns: 0,
            range_ns: None,
            second: Second::default(),
            threads: BTreeMap::new(),
            started: BTreeMap::new(),
            durations: Vec::new(),
            is_done: false,
        })
    }

    /// The duration of an event as it was passed, and its unit.
    fn duration(&self, event: &Event) -> Option<(i128, Unit)> {
        let duration = event.integer("duration")?;
        let index = event.attachment.index_of("duration")?;
        let contract = event.attachment.arguments.get(index).and_then(|argument| argument.meaning.unit.as_deref());
        // Without a contract, it is that of the documentation of Bitcoin Core.
        Some((duration, contract.and_then(Unit::from_name).unwrap_or(Unit::Us)))
    }

    /// Nanoseconds of a duration with the unit of its contract.
    fn ns(&self, (duration, contract): (i128, Unit)) -> i128 {
        let unit = self.unit.unwrap_or(if self.is_ns { Unit::Ns } else { contract });
        duration * unit.ns()
    }

    /// Compares a duration with the time since the last block on the same thread.
    fn check_unit(&mut self, event: &Event, duration: Option<(i128, Unit)>, out: &mut Lines) {
        let now = event.time.monotonic_ns;
        let thread = (event.pid, event.tid);
        let before = self.threads.get(&thread).copied();
        if before.is_some() || self.threads.len() < MAX_THREADS {
            self.threads.insert(thread, now);
        }
        let Some(duration) = duration.filter(|(_, unit)| self.unit.is_none() && !self.is_ns && *unit != Unit::Ns)
        else {
            return;
        };
        // For the first block: since the process was started, or else the machine.
        let start = self.started.get(&event.pid).copied();
        let since = before.or(start).unwrap_or(0);
        let available = i128::from(now.saturating_sub(since));
        if self.ns(duration) > available + CLOCK_SLACK_NS {
            self.is_ns = true;
            out.line(format_args!(
                "Note: durations are taken as ns: block {} would have taken {} ms, {} ms after {}. --unit names the unit.",
                event.show("height"),
                duration.0 * duration.1.ns() / NS_PER_MS,
                available / NS_PER_MS,
                match (before, start) {
                    (Some(_), _) => "the one before it",
                    (None, Some(_)) => "the start of the process",
                    (None, None) => "the start of the machine",
                },
            ));
        }
    }

    fn is_in_range(&self, height: i128) -> bool {
        height >= i128::from(self.first) && (self.last == 0 || height <= i128::from(self.last))
    }

    /// Prints the sums of the second that ended.
    fn end_second(&mut self, now: u64, out: &mut Lines) {
        let number = now.saturating_sub(self.began_ns) / NS_PER_S;
        if number <= self.second.number {
            return;
        }
        let Second { blocks, transactions, inputs, sigops, height, .. } = std::mem::take(&mut self.second);
        self.second.number = number;
        if blocks > 0 {
            out.line(format_args!(
                "BENCH {blocks:4} blk/s {transactions:6} tx/s {inputs:7} inputs/s {sigops:8} sigops/s (height {height})"
            ));
        }
    }

    /// Durations of the range in ns, in order of size.
    fn sorted_ns(&self) -> Vec<i128> {
        let mut durations: Vec<i128> = self.durations.iter().map(|duration| self.ns(*duration)).collect();
        durations.sort_unstable();
        durations
    }
}

impl View for Blocks {
    fn patterns(&self) -> Vec<String> {
        vec!["validation:block_connected".to_owned()]
    }

    fn selects(&self, provider: &str, name: &str) -> bool {
        (provider, name) == ("validation", "block_connected")
    }

    fn begin(&mut self, start: Timestamp, _attachments: &[Arc<Attachment>], out: &mut Lines) {
        let (first, last, threshold) = (self.first, self.last, self.threshold_ms);
        self.began_ns = start.monotonic_ns;
        if last > 0 {
            out.line(format_args!("ConnectBlock benchmark between height {first} and {last} inclusive"));
        } else {
            out.line(format_args!("ConnectBlock logging starting at height {first}"));
        }
        if threshold > 0 {
            out.line(format_args!("Logging blocks taking longer than {threshold} ms to connect."));
        }
        if first == 0 {
            self.range_ns = Some(start.monotonic_ns);
        }
    }

    fn process(&mut self, process: Process) {
        if self.started.len() < MAX_THREADS {
            self.started.insert(process.pid, process.start_ns);
        }
    }

    fn advance(&mut self, monotonic_ns: u64, out: &mut Lines) {
        self.end_second(monotonic_ns, out);
    }

    fn event(&mut self, event: &Event, out: &mut Lines) {
        self.end_second(event.time.monotonic_ns, out);
        let duration = self.duration(event);
        self.check_unit(event, duration, out);
        let height = event.integer("height");
        let range = height.filter(|height| self.is_in_range(*height));
        if let Some(height) = range {
            self.second.blocks += 1;
            self.second.transactions += event.integer("transactions").unwrap_or(0);
            self.second.inputs += event.integer("inputs").unwrap_or(0);
            self.second.sigops += event.integer("sigops").unwrap_or(0);
            self.second.height = height;
            self.durations.extend(duration);
            self.range_ns.get_or_insert(event.time.monotonic_ns);
            if height == i128::from(self.first) && self.first != 0 {
                self.range_ns = Some(event.time.monotonic_ns);
                let (first, last) = (self.first, self.last);
                out.line(format_args!("Starting Connect Block Benchmark between height {first} and {last}."));
            }
        }
        if let Some(took) = duration.map(|duration| self.ns(duration) / NS_PER_MS)
            && took > i128::from(self.threshold_ms)
        {
            out.line(format_args!(
                "Block {} ({})  {:>4} tx  {:>5} ins  {:>5} sigops  took {took:>4} ms",
                event.show("height"),
                event.show("hash"),
                event.show("transactions"),
                event.show("inputs"),
                event.show("sigops"),
            ));
        }
        if range.is_some_and(|height| self.last > 0 && height >= i128::from(self.last)) {
            let began = self.range_ns.unwrap_or(self.began_ns);
            let took = event.time.monotonic_ns.saturating_sub(began) / (NS_PER_S / 1000);
            let (first, last) = (self.first, self.last);
            out.line(format_args!(""));
            out.line(format_args!("Took {took} ms to connect the blocks between height {first} and {last}."));
            self.is_done = true;
        }
    }

    fn is_done(&self) -> bool {
        self.is_done
    }

    fn finish(&mut self, _accounting: &Accounting, out: &mut Lines) {
        out.line(format_args!(""));
        out.line(format_args!("Histogram of block connection times in milliseconds (ms)."));
        let durations = self.sorted_ns();
        let mut histogram = Histogram::default();
        durations.iter().for_each(|duration| histogram.add(duration / NS_PER_MS));
        histogram.print("durations", out);
        if let (Some(min), Some(max)) = (durations.first(), durations.last()) {
            let ms = |ns: i128| ns as f64 / NS_PER_MS as f64;
            out.line(format_args!(
                "{} blocks: min {:.3} ms, p50 {:.3} ms, p90 {:.3} ms, p99 {:.3} ms, max {:.3} ms",
                durations.len(),
                ms(*min),
                ms(percentile(&durations, 50)),
                ms(percentile(&durations, 90)),
                ms(percentile(&durations, 99)),
                ms(*max),
            ));
        }
    }

    fn annotate(&self, event: &Event, object: &mut Map<String, Json>) {
        if let Some(duration) = self.duration(event) {
            object.insert("duration_ns".to_owned(), json!(self.ns(duration) as i64));
        }
    }

    fn summary(&self) -> Option<Json> {
        let durations = self.sorted_ns();
        let percentile = |percent| percentile(&durations, percent) as i64;
        Some(json!({
            "blocks": durations.len(),
            "duration_ns": {
                "min": percentile(0), "p50": percentile(50), "p90": percentile(90), "p99": percentile(99),
                "max": percentile(100),
            },
        }))
    }
}

/// The smallest value that this percentage of the sorted values does not exceed; 0 if there are none.
fn percentile(sorted: &[i128], percent: usize) -> i128 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}
