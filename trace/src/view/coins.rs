//! Coin selection of wallets.
//!
//! Tapyrus: the lines of `log_coinselection.bt`. Bitcoin Core has no script for it: its events have lines of the same form,
//! and those of one transaction are grouped. A transaction is one or two attempts: the normal one, and one that avoids partial
//! spends (APS) by spending all coins of an address together.

use std::{collections::BTreeMap, sync::Arc};

use super::{Lines, NS_PER_S, View};
use crate::{
    accounting::Accounting,
    attachment::Attachment,
    event::{Event, Timestamp},
};

/// How long after its normal attempt a transaction may have a second one.
const SECOND_ATTEMPT_NS: u64 = NS_PER_S;
/// Transactions that are being created at the same time.
const MAX_PENDING: usize = 1024;

/// Coins requested and selected, change and fees; transactions by wallet.
#[derive(Debug, Default)]
pub struct Coins {
    /// Transactions that are not known to be complete, by the thread that creates them.
    pending: BTreeMap<(u32, u32), Transaction>,
}

/// A transaction that is being created.
#[derive(Debug, Default)]
struct Transaction {
    wallet: String,
    last_ns: u64,
    /// What was selected last: algorithm, target and sum.
    selected: String,
    normal: Option<Attempt>,
    aps: Option<Attempt>,
    is_aps_used: bool,
}

/// An attempt to create a transaction.
#[derive(Debug)]
struct Attempt {
    success: bool,
    fee: String,
    change_position: String,
    selected: String,
}

/// The tracepoints, of all nodes.
const NAMES: [&str; 7] = [
    "coins_requested",
    "selected_coins",
    "change_info",
    "fee_info",
    "normal_create_tx_internal",
    SECOND_ATTEMPT,
    "aps_create_tx_internal",
];

/// Announces the second attempt of a transaction.
const SECOND_ATTEMPT: &str = "attempting_aps_create_tx";

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
        let is_over = |pending: &Transaction| {
            pending.normal.is_some() && pending.last_ns.saturating_add(SECOND_ATTEMPT_NS) < monotonic_ns
        };
        let over: Vec<_> = self.pending.iter().filter(|(_, found)| is_over(found)).map(|(thread, _)| *thread).collect();
        over.into_iter().for_each(|thread| self.complete(thread, out));
    }

    fn event(&mut self, event: &Event, out: &mut Lines) {
        let has_wallet = event.attachment.index_of("wallet").is_some();
        if has_wallet {
            self.complete_before(event, out);
        }
        if let Some(line) = line(event) {
            out.line(format_args!("{line}"));
        }
        if has_wallet {
            self.add(event, out);
        }
    }

    fn finish(&mut self, _accounting: &Accounting, out: &mut Lines) {
        let threads: Vec<_> = self.pending.keys().copied().collect();
        threads.into_iter().for_each(|thread| self.complete(thread, out));
    }
}

impl Coins {
    /// Completes the transaction of an event's thread if the event is of another, and the oldest one if there are too many.
    fn complete_before(&mut self, event: &Event, out: &mut Lines) {
        let thread = (event.pid, event.tid);
        let wallet = event.show("wallet").to_string();
        let name = event.attachment.name.as_str();
        let continues = |pending: &Transaction| {
            // After the normal attempt only the second one is of the same transaction, and it is announced.
            pending.wallet == wallet && (pending.normal.is_none() || pending.aps.is_some() || name == SECOND_ATTEMPT)
        };
        if self.pending.get(&thread).is_some_and(|pending| !continues(pending)) {
            self.complete(thread, out);
        }
        if self.pending.len() >= MAX_PENDING
            && !self.pending.contains_key(&thread)
            && let Some(oldest) = self.pending.iter().min_by_key(|(_, found)| found.last_ns).map(|(thread, _)| *thread)
        {
            self.complete(oldest, out);
        }
    }

    /// Adds an event to the transaction of its thread.
    fn add(&mut self, event: &Event, out: &mut Lines) {
        let thread = (event.pid, event.tid);
        let wallet = event.show("wallet").to_string();
        let name = event.attachment.name.as_str();
        let pending = self.pending.entry(thread).or_default();
        pending.wallet = wallet;
        pending.last_ns = event.time.monotonic_ns;
        match name {
            "selected_coins" => {
                let (algorithm, target, sum) = (event.show("algorithm"), event.show("target"), event.show("selected"));
                pending.selected = format!("algorithm [{algorithm}] target [{target}] selected [{sum}]");
            }
            "normal_create_tx_internal" => pending.normal = Some(Attempt::new(event, &pending.selected)),
            SECOND_ATTEMPT => {
                pending.selected.clear();
                pending.aps = Some(Attempt::unknown());
            }
            "aps_create_tx_internal" => {
                pending.aps = Some(Attempt::new(event, &pending.selected));
                pending.is_aps_used = event.integer("is_used") == Some(1);
                self.complete(thread, out);
            }
            _ => {}
        }
    }

    /// Prints the transaction of a thread.
    fn complete(&mut self, thread: (u32, u32), out: &mut Lines) {
        let Some(found) = self.pending.remove(&thread) else { return };
        let (kind, attempt) = match (&found.aps, &found.normal) {
            (Some(aps), _) if found.is_aps_used => ("avoiding partial spends", Some(aps)),
            (_, normal) => ("normal", normal.as_ref()),
        };
        let wallet = &found.wallet;
        match attempt {
            Some(Attempt { success: true, fee, change_position, selected }) => out.line(format_args!(
                "Transaction [{wallet}] : {kind} fee [{fee}] change position [{change_position}] {selected}"
            )),
            Some(_) => out.line(format_args!("Transaction [{wallet}] : failed {}", found.selected)),
            None => out.line(format_args!("Transaction [{wallet}] : incomplete {}", found.selected)),
        }
    }
}

impl Attempt {
    fn new(event: &Event, selected: &str) -> Self {
        Self {
            success: event.integer("success") == Some(1),
            fee: event.show("fee").to_string(),
            change_position: event.show("change_position").to_string(),
            selected: selected.to_owned(),
        }
    }

    /// One that was announced, and has not ended.
    fn unknown() -> Self {
        Self { success: false, fee: String::new(), change_position: String::new(), selected: String::new() }
    }
}

/// The line of an event, by the arguments that it has.
fn line(event: &Event) -> Option<String> {
    let has = |name: &str| event.attachment.index_of(name).is_some();
    let show = |name: &str| event.show(name);
    let wallet = show("wallet");
    Some(match event.attachment.name.as_str() {
        "coins_requested" => format!("Request [{}] : value [{}]", show("color"), show("value")),
        "selected_coins" if has("color") => format!(
            "Select [{}]: try to select [{}] using [{}] coins of total value [{}] algorithm tried is [{}]",
            show("color"),
            show("target"),
            show("coins"),
            show("total"),
            show("algorithm"),
        ),
        "selected_coins" => format!(
            "Select [{wallet}]: try to select [{}] total value [{}] waste [{}] algorithm tried is [{}]",
            show("target"),
            show("selected"),
            show("waste"),
            show("algorithm"),
        ),
        "change_info" => format!("Change [{}] : value [{}]", show("color"), show("value")),
        "fee_info" => format!("Fee [TPC] : value [{}] need [{}]", show("fee_paid"), show("fee_needed")),
        "normal_create_tx_internal" => format!(
            "Create [{wallet}] : success [{}] fee [{}] change position [{}]",
            show("success"),
            show("fee"),
            show("change_position"),
        ),
        SECOND_ATTEMPT => format!("Avoid partial spends [{wallet}] : attempt"),
        "aps_create_tx_internal" => format!(
            "Avoid partial spends [{wallet}] : used [{}] success [{}] fee [{}] change position [{}]",
            show("is_used"),
            show("success"),
            show("fee"),
            show("change_position"),
        ),
        _ => return None,
    })
}
