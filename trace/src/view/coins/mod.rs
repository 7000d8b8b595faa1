//! Coin selection of wallets.
//!
//! The lines of `log_coinselection.bt` for Tapyrus; Bitcoin Core has no script for it, its events have lines of the same form.
//! A thread creates one transaction at a time: the events of one are grouped, by the rules of each node.

mod bitcoin;
mod line;
mod tapyrus;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use serde_json::{Value as Json, json};

use super::{Lines, View};
use crate::{
    accounting::Accounting,
    attachment::Attachment,
    event::{Event, Timestamp},
};

/// Transactions of the summary: the last ones.
const MAX_COMPLETED: usize = 1000;
/// Transactions that are being created at the same time.
const MAX_PENDING: usize = 1024;

/// The tracepoints, of all nodes.
const NAMES: [&str; 7] = [
    "coins_requested",
    "selected_coins",
    "change_info",
    "fee_info",
    "normal_create_tx_internal",
    bitcoin::SECOND_ATTEMPT,
    "aps_create_tx_internal",
];

/// Coins requested and selected, change and fees; transactions of wallets.
#[derive(Debug, Default)]
pub struct Coins {
    bitcoin: Pending<bitcoin::Transaction>,
    tapyrus: Pending<tapyrus::Transaction>,
    completed: Completed,
}

/// A process and one of its threads.
type Thread = (u32, u32);

/// Transactions that are not known to be complete, by the thread that creates them, with the time of their last event.
#[derive(Debug)]
struct Pending<T>(BTreeMap<Thread, (u64, T)>);

/// Transactions that were completed.
#[derive(Debug, Default)]
struct Completed {
    last: VecDeque<Json>,
    count: u64,
}

/// A transaction whose events are grouped.
trait Transaction: Default {
    /// Whether an event of its thread belongs to it.
    fn continues(&self, event: &Event) -> bool;

    /// Adds an event that belongs to it. True if nothing can follow.
    fn add(&mut self, event: &Event) -> bool;

    /// Whether nothing is expected to follow.
    fn is_over(&self, last_ns: u64, now_ns: u64) -> bool;

    /// Its line, and its entry in the summary.
    fn show(&self) -> (String, Json);
}

impl View for Coins {
    fn patterns(&self) -> Vec<String> {
        NAMES.map(|name| format!("coin_selection:{name}")).to_vec()
    }

    fn selects(&self, provider: &str, name: &str) -> bool {
        provider == "coin_selection" && NAMES.contains(&name)
    }

    fn begin(&mut self, _start: Timestamp, _attachments: &[Arc<Attachment>], out: &mut Lines) {
        out.line(format_args!("Logging Coin selection "));
    }

    fn advance(&mut self, monotonic_ns: u64, out: &mut Lines) {
        self.bitcoin.complete_all(|last_ns, found| found.is_over(last_ns, monotonic_ns), &mut self.completed, out);
        self.tapyrus.complete_all(|last_ns, found| found.is_over(last_ns, monotonic_ns), &mut self.completed, out);
    }

    fn event(&mut self, event: &Event, out: &mut Lines) {
        let Some(line) = line::of(event) else { return };
        let completed = &mut self.completed;
        // Events of Bitcoin Core name the wallet, those of Tapyrus do not.
        if event.attachment.index_of("wallet").is_some() {
            self.bitcoin.event(event, &line, completed, out);
        } else {
            self.tapyrus.event(event, &line, completed, out);
        }
    }

    fn finish(&mut self, _accounting: &Accounting, out: &mut Lines) {
        self.bitcoin.complete_all(|_, _| true, &mut self.completed, out);
        self.tapyrus.complete_all(|_, _| true, &mut self.completed, out);
    }

    fn summary(&self) -> Option<Json> {
        Some(json!({ "count": self.completed.count, "transactions": self.completed.last }))
    }
}

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Transaction> Pending<T> {
    /// Prints the line of an event, and adds it to the transaction of its thread.
    fn event(&mut self, event: &Event, line: &str, completed: &mut Completed, out: &mut Lines) {
        self.complete_before(event, completed, out);
        out.line(format_args!("{line}"));
        let thread = (event.pid, event.tid);
        let (last_ns, found) = self.0.entry(thread).or_default();
        *last_ns = event.time.monotonic_ns;
        if found.add(event) {
            self.complete(thread, completed, out);
        }
    }

    /// Completes the transaction of an event's thread if the event is of another, and the oldest one if there are too many.
    fn complete_before(&mut self, event: &Event, completed: &mut Completed, out: &mut Lines) {
        let thread = (event.pid, event.tid);
        match self.0.get(&thread) {
            Some((_, found)) if found.continues(event) => {}
            Some(_) => self.complete(thread, completed, out),
            None if self.0.len() < MAX_PENDING => {}
            None => {
                if let Some((&oldest, _)) = self.0.iter().min_by_key(|(_, (last_ns, _))| *last_ns) {
                    self.complete(oldest, completed, out);
                }
            }
        }
    }

    /// Completes those of which it holds, in the order of their last events.
    fn complete_all(&mut self, is_over: impl Fn(u64, &T) -> bool, completed: &mut Completed, out: &mut Lines) {
        let over = self.0.iter().filter(|(_, (last_ns, found))| is_over(*last_ns, found));
        let mut over: Vec<_> = over.map(|(thread, (last_ns, _))| (*last_ns, *thread)).collect();
        over.sort_unstable();
        over.into_iter().for_each(|(_, thread)| self.complete(thread, completed, out));
    }

    /// Prints the transaction of a thread.
    fn complete(&mut self, thread: Thread, completed: &mut Completed, out: &mut Lines) {
        let Some((_, found)) = self.0.remove(&thread) else { return };
        let (line, mut entry) = found.show();
        out.line(format_args!("{line}"));
        (entry["pid"], entry["tid"]) = (thread.0.into(), thread.1.into());
        completed.count += 1;
        completed.last.push_back(entry);
        while completed.last.len() > MAX_COMPLETED {
            completed.last.pop_front();
        }
    }
}

/// A number as it was shown; what could not be read remains text.
fn number(shown: &str) -> Json {
    shown.parse::<i64>().map_or_else(|_| Json::from(shown), Json::from)
}
