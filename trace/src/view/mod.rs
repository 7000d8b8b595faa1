//! Views: what is shown of events. State machines without I/O and without a clock, fed with events in the order of time.
//!
//! Lines are those of the example scripts of Bitcoin Core and Tapyrus, so that they can be compared, and right where the
//! scripts are not. Names of arguments come from contracts: a view asks for `message_type`, not for the fourth argument of a
//! node.

mod any;
mod blocks;
mod coins;
mod connections;
mod flushes;
mod histogram;
mod mempool;
mod monitor;
mod p2p;
mod raw;
mod relay;
mod traffic;
mod utxos;

use std::{fmt, sync::Arc};

use serde_json::{Map, Value as Json};

use crate::{
    accounting::{Accounting, Counts},
    attachment::Attachment,
    event::{Event, Timestamp},
    source::Process,
};

pub(crate) use any::field;
pub use any::{Any, Format};
pub use blocks::{Blocks, Unit};
pub use coins::Coins;
pub use connections::Connections;
pub use flushes::Flushes;
pub use mempool::{Kind as MempoolKind, Mempool, Row as MempoolRow};
pub use monitor::{Entry as MonitorEntry, Monitor, Peer as MonitorPeer, PeerKey};
pub use p2p::P2p;
pub use raw::Raw;
pub use relay::Relay;
pub use traffic::{Count, Direction, Traffic};
pub use utxos::Utxos;

/// What is shown of events.
pub trait View {
    /// The tracepoints that it shows, as patterns of `provider:name`, for a source to attach to. No node has all of them.
    fn patterns(&self) -> Vec<String>;

    /// Whether it shows events of this tracepoint.
    fn selects(&self, provider: &str, name: &str) -> bool;

    /// Whether it shows payloads. Otherwise none need to be captured.
    fn needs_payloads(&self) -> bool {
        false
    }

    /// Begins.
    fn begin(&mut self, start: Timestamp, attachments: &[Arc<Attachment>], out: &mut Lines);

    /// When the process of events that follow was started.
    fn process(&mut self, _process: Process) {}

    /// All events before this time (`CLOCK_MONOTONIC`) have been passed.
    fn advance(&mut self, _monotonic_ns: u64, _out: &mut Lines) {}

    /// The next event of a tracepoint that it selects.
    fn event(&mut self, event: &Event, out: &mut Lines);

    /// What was lost so far; about every second.
    fn account(&mut self, _accounting: &Accounting) {}

    /// Whether it has shown what it was to show.
    fn is_done(&self) -> bool {
        false
    }

    /// Ends. [`accounting_line`] is to follow.
    fn finish(&mut self, _accounting: &Accounting, _out: &mut Lines) {}

    /// Adds what it knows about an event, which it was passed, to its object in JSON.
    fn annotate(&self, _event: &Event, _object: &mut Map<String, Json>) {}

    /// After the end, the sum of what was shown.
    fn summary(&self) -> Option<Json> {
        None
    }
}

/// Lines of text.
#[derive(Debug, Default)]
pub struct Lines {
    text: String,
}

impl Lines {
    /// Adds a line.
    pub fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = fmt::Write::write_fmt(&mut self.text, line);
        self.text.push('\n');
    }

    /// The lines so far, which are removed.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    /// Removes the lines so far.
    pub fn discard(&mut self) {
        self.text.clear();
    }
}

/// The last line of every view: what was hit, and where it is.
#[must_use]
pub fn accounting_line(accounting: &Accounting) -> String {
    let total = accounting.total();
    let mut line = format!("{} hits = {} delivered + {} dropped", total.hits, total.delivered, total.all_dropped());
    match total.residual() {
        0 => {}
        residual => line.push_str(&format!(" + {residual} not accounted for")),
    }
    if let Some(losses) = loss_list(accounting) {
        line.push_str(&format!(" ({losses})"));
    }
    if total.incomplete > 0 {
        line.push_str(&format!("; {} delivered without the end of a payload", total.incomplete));
    }
    line
}

/// What was lost, by tracepoint and reason; `None`: nothing.
#[must_use]
pub fn loss_list(accounting: &Accounting) -> Option<String> {
    let losses: Vec<String> = accounting.tracepoints.iter().filter_map(|(name, counts)| losses(name, counts)).collect();
    (!losses.is_empty()).then(|| losses.join("; "))
}

fn losses(name: &str, counts: &Counts) -> Option<String> {
    let reasons = counts.dropped.iter().filter(|(_, count)| **count > 0);
    let reasons: Vec<String> =
        reasons.map(|(reason, count)| format!("{} {count}", crate::show::escape(reason.as_bytes()))).collect();
    (!reasons.is_empty()).then(|| {
        let name = crate::show::escape(name.as_bytes());
        format!("{name}: {}", reasons.join(", "))
    })
}

/// Nanoseconds of a second.
const NS_PER_S: u64 = 1_000_000_000;

/// Time between two readings of the monotonic clock, in seconds.
fn seconds_between(from: u64, until: u64) -> f64 {
    until.saturating_sub(from) as f64 / NS_PER_S as f64
}
