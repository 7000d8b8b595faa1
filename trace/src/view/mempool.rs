//! The mempool, as `mempool_monitor.py` of Bitcoin Core and Tapyrus: its events as lines, counts and rates.

use std::{
    collections::VecDeque,
    fmt::{self, Display},
    sync::Arc,
};

use serde_json::{Map, Value as Json, json};

use super::{Lines, NS_PER_S, View, seconds_between};
use crate::{
    accounting::Accounting,
    attachment::Attachment,
    event::{Event, Timestamp},
};

/// Windows of the rates, in seconds.
const MINUTE: u64 = 60;
const TEN_MINUTES: u64 = 600;

/// What happens to a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It was added.
    Added,
    /// It was removed.
    Removed,
    /// It was replaced by another.
    Replaced,
    /// It was not accepted.
    Rejected,
}

/// Events of the mempool: lines, counts and rates.
#[derive(Debug, Default)]
pub struct Mempool {
    start_ns: u64,
    now_ns: u64,
    totals: [u64; 4],
    /// Events of each second that had any, oldest first; those of ten minutes.
    seconds: VecDeque<(u64, [u64; 4])>,
    /// The last lines, oldest first.
    recent: VecDeque<String>,
    max_recent: usize,
}

/// Events of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// What happened.
    pub kind: Kind,
    /// Number since the start, of the last minute, and of the last ten.
    pub counts: [u64; 3],
    /// The same for each second; windows are not longer than the time since the start.
    pub rates: [f64; 3],
}

impl Kind {
    /// All of them, in the order of the tables.
    pub const ALL: [Self; 4] = [Self::Added, Self::Removed, Self::Replaced, Self::Rejected];

    fn of(provider: &str, name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| provider == "mempool" && kind.name() == name)
    }

    /// Its name, which is that of the tracepoint.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Replaced => "replaced",
            Self::Rejected => "rejected",
        }
    }
}

impl Mempool {
    /// `recent`: number of lines to keep for [`Self::recent`].
    #[must_use]
    pub fn new(recent: usize) -> Self {
        Self { max_recent: recent, ..Self::default() }
    }

    /// The last lines, oldest first.
    pub fn recent(&self) -> impl ExactSizeIterator<Item = &str> {
        self.recent.iter().map(String::as_str)
    }

    /// Counts and rates, by kind.
    #[must_use]
    pub fn rows(&self) -> [Row; 4] {
        let runtime = seconds_between(self.start_ns, self.now_ns);
        let now = self.now_ns / NS_PER_S;
        let within = |window: u64, index: usize| -> u64 {
            let is_within = |second: u64| second + window > now;
            self.seconds
                .iter()
                .filter(|(second, _)| is_within(*second))
                .filter_map(|(_, counts)| counts.get(index))
                .sum()
        };
        let rate = |count: u64, seconds: f64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        Kind::ALL.map(|kind| {
            let index = kind as usize;
            let total = self.totals.get(index).copied().unwrap_or(0);
            let counts = [total, within(MINUTE, index), within(TEN_MINUTES, index)];
            let [total, minute, ten] = counts;
            let rates = [
                rate(total, runtime),
                rate(minute, runtime.min(MINUTE as f64)),
                rate(ten, runtime.min(TEN_MINUTES as f64)),
            ];
            Row { kind, counts, rates }
        })
    }

    /// The table of counts: a heading and a line for each kind.
    #[must_use]
    pub fn count_table(&self) -> Vec<String> {
        let heading = format!(" {:<8} {:>8} {:>7} {:>7} ", "Event", "total", "1 min", "10 min");
        let rows = self.rows().map(|Row { kind, counts: [total, minute, ten], .. }| {
            format!(" {:<8} {total:>6}tx {minute:>5}tx {ten:>5}tx ", kind.name())
        });
        [heading].into_iter().chain(rows).collect()
    }

    /// The table of rates: a heading and a line for each kind.
    #[must_use]
    pub fn rate_table(&self) -> Vec<String> {
        let heading = format!(" {:<8} {:>9} {:>9} {:>9} ", "Event", "total", "1 min", "10 min");
        let rows = self.rows().map(|Row { kind, rates: [total, minute, ten], .. }| {
            format!(" {:<8} {total:>5.1}tx/s {minute:>5.1}tx/s {ten:>5.1}tx/s ", kind.name())
        });
        [heading].into_iter().chain(rows).collect()
    }

    fn count(&mut self, kind: Kind, monotonic_ns: u64) {
        let second = monotonic_ns / NS_PER_S;
        let is_new = self.seconds.back().is_none_or(|(last, _)| *last < second);
        if is_new {
            self.seconds.push_back((second, [0; 4]));
        }
        let index = kind as usize;
        let current = self.seconds.back_mut().and_then(|(_, counts)| counts.get_mut(index));
        for count in current.into_iter().chain(self.totals.get_mut(index)) {
            *count += 1;
        }
        while self.seconds.front().is_some_and(|(first, _)| first + TEN_MINUTES <= second) {
            self.seconds.pop_front();
        }
    }
}

impl View for Mempool {
    fn patterns(&self) -> Vec<String> {
        Kind::ALL.map(|kind| format!("mempool:{}", kind.name())).to_vec()
    }

    fn selects(&self, provider: &str, name: &str) -> bool {
        Kind::of(provider, name).is_some()
    }

    fn begin(&mut self, start: Timestamp, _attachments: &[Arc<Attachment>], out: &mut Lines) {
        self.start_ns = start.monotonic_ns;
        self.now_ns = start.monotonic_ns;
        out.line(format_args!("Mempool Monitor"));
    }

    fn advance(&mut self, monotonic_ns: u64, _out: &mut Lines) {
        self.now_ns = self.now_ns.max(monotonic_ns);
    }

    fn event(&mut self, event: &Event, out: &mut Lines) {
        let Some(kind) = Kind::of(&event.attachment.provider, &event.attachment.name) else { return };
        self.now_ns = self.now_ns.max(event.time.monotonic_ns);
        self.count(kind, event.time.monotonic_ns);
        let line = line(kind, event);
        out.line(format_args!("{line}"));
        if self.max_recent > 0 {
            self.recent.push_back(line);
            while self.recent.len() > self.max_recent {
                self.recent.pop_front();
            }
        }
    }

    fn finish(&mut self, accounting: &Accounting, out: &mut Lines) {
        self.now_ns = self.now_ns.max(accounting.until.monotonic_ns);
        for (title, table) in [("Event count", self.count_table()), ("Event rate", self.rate_table())] {
            out.line(format_args!(""));
            out.line(format_args!("{title}"));
            table.iter().for_each(|row| out.line(format_args!("{row}")));
        }
    }

    fn summary(&self) -> Option<Json> {
        let rows = self.rows().map(|row| {
            let [total, minute, ten] = row.counts;
            let [total_rate, minute_rate, ten_rate] = row.rates;
            let counts = json!({
                "total": total, "last_1m": minute, "last_10m": ten,
                "total_per_s": total_rate, "last_1m_per_s": minute_rate, "last_10m_per_s": ten_rate,
            });
            (row.kind.name().to_owned(), counts)
        });
        Some(Json::Object(rows.into_iter().collect::<Map<_, _>>()))
    }
}

/// The line of an event.
fn line(kind: Kind, event: &Event) -> String {
    let time = TimeOfDay(event.time.wall_ns);
    match kind {
        Kind::Added => {
            let [rate, amounts] = fee(event, "fee", "size");
            format!("{time} added {} with feerate {rate} ({amounts})", event.show("txid"))
        }
        Kind::Removed => {
            let [rate, amounts] = fee(event, "fee", "size");
            let age = age(event, "entry_time");
            let (txid, reason) = (event.show("txid"), event.show("reason"));
            format!("{time} removed {txid} with feerate {rate} ({amounts}) received {age} seconds ago: {reason}")
        }
        Kind::Rejected => format!("{time} rejected {}: {}", event.show("txid"), event.show("reason")),
        Kind::Replaced => {
            let [rate, amounts] = fee(event, "replaced_fee", "replaced_size");
            let [new_rate, new_amounts] = fee(event, "replacement_fee", "replacement_size");
            // From Bitcoin Core v29 on it may be a package of several transactions.
            let (what, id) = match (event.get("replacement_txid"), event.integer("is_txid")) {
                (Some(_), _) => ("", event.show("replacement_txid")),
                (None, Some(0)) => ("package ", event.show("replacement_id")),
                (None, _) => ("", event.show("replacement_id")),
            };
            format!(
                "{time} replaced {} with feerate {rate} received {} seconds ago ({amounts}) with {what}{id} with feerate {new_rate} ({new_amounts})",
                event.show("replaced_txid"),
                age(event, "replaced_entry_time"),
            )
        }
    }
}

/// Fee rate, and fee and size, of the arguments with these names.
fn fee(event: &Event, fee: &str, size: &str) -> [String; 2] {
    let rate = match (event.integer(fee), event.integer(size)) {
        (Some(fee), Some(size)) if size != 0 => format!("{:.2}", fee as f64 / size as f64),
        _ => "?".to_owned(),
    };
    [format!("{rate} sat/vB"), format!("{} sat, {} vbytes", event.show(fee), event.show(size))]
}

/// Seconds from a time (since 1970) to the event.
fn age(event: &Event, name: &str) -> String {
    match event.integer(name) {
        Some(seconds) => {
            let ns = i128::from(event.time.wall_ns) - seconds * i128::from(NS_PER_S);
            format!("{:.1}", ns as f64 / NS_PER_S as f64)
        }
        None => "?".to_owned(),
    }
}

/// `HH:MM:SSZ` of nanoseconds since 1970.
struct TimeOfDay(i64);

impl Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let second = self.0.div_euclid(1_000_000_000).rem_euclid(86_400);
        write!(f, "{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
    }
}
