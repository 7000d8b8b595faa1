//! Transactions of Bitcoin Core: one or two attempts, the normal one, and one that avoids partial spends (APS) by spending all
//! coins of an address together.

use std::fmt;

use serde_json::{Value as Json, json};

use super::number;
use crate::{event::Event, view::NS_PER_S};

/// Announces the second attempt of a transaction.
pub(super) const SECOND_ATTEMPT: &str = "attempting_aps_create_tx";
/// How long after its normal attempt a transaction may have a second one.
const SECOND_ATTEMPT_NS: u64 = NS_PER_S;

/// A transaction that is being created.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    wallet: String,
    /// What was selected last.
    selected: Option<Selected>,
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
    selected: Option<Selected>,
}

/// Coins that were selected.
#[derive(Clone, Debug)]
struct Selected {
    algorithm: String,
    target: String,
    sum: String,
}

impl super::Transaction for Transaction {
    fn continues(&self, event: &Event) -> bool {
        let is_second = event.attachment.name == SECOND_ATTEMPT;
        // After the normal attempt only the second one is of the same transaction, and it is announced.
        self.wallet == event.show("wallet").to_string() && (self.normal.is_none() || self.aps.is_some() || is_second)
    }

    fn add(&mut self, event: &Event) -> bool {
        self.wallet = event.show("wallet").to_string();
        match event.attachment.name.as_str() {
            "selected_coins" => {
                let [algorithm, target, sum] =
                    ["algorithm", "target", "selected"].map(|name| event.show(name).to_string());
                self.selected = Some(Selected { algorithm, target, sum });
            }
            "normal_create_tx_internal" => self.normal = Some(Attempt::new(event, self.selected.clone())),
            SECOND_ATTEMPT => {
                self.selected = None;
                self.aps = Some(Attempt::unknown());
            }
            "aps_create_tx_internal" => {
                self.aps = Some(Attempt::new(event, self.selected.clone()));
                self.is_aps_used = event.integer("is_used") == Some(1);
                return true;
            }
            _ => {}
        }
        false
    }

    fn is_over(&self, last_ns: u64, now_ns: u64) -> bool {
        self.normal.is_some() && last_ns.saturating_add(SECOND_ATTEMPT_NS) < now_ns
    }

    fn show(&self) -> (String, Json) {
        let (kind, attempt) = match (&self.aps, &self.normal) {
            (Some(aps), _) if self.is_aps_used => ("avoiding partial spends", Some(aps)),
            (_, normal) => ("normal", normal.as_ref()),
        };
        let (wallet, last) = (&self.wallet, show(self.selected.as_ref()));
        let (state, outcome) = match attempt {
            Some(Attempt { success: true, fee, change_position, selected }) => {
                let selected = show(selected.as_ref());
                ("created", format!("{kind} fee [{fee}] change position [{change_position}] {selected}"))
            }
            Some(_) => ("failed", format!("failed {last}")),
            None => ("incomplete", format!("incomplete {last}")),
        };
        let created = attempt.filter(|attempt| attempt.success);
        let selected = created.map_or(self.selected.as_ref(), |attempt| attempt.selected.as_ref());
        let entry = json!({
            "wallet": wallet,
            "state": state,
            "avoids_partial_spends": created.is_some() && self.is_aps_used,
            "attempts": u8::from(self.normal.is_some()) + u8::from(self.aps.is_some()),
            "fee": created.map(|attempt| number(&attempt.fee)),
            "change_position": created.map(|attempt| number(&attempt.change_position)),
            "algorithm": selected.map(|selected| &selected.algorithm),
            "target": selected.map(|selected| number(&selected.target)),
            "selected": selected.map(|selected| number(&selected.sum)),
        });
        (format!("Transaction [{wallet}] : {outcome}"), entry)
    }
}

/// What was selected, if anything.
fn show(selected: Option<&Selected>) -> String {
    selected.map(Selected::to_string).unwrap_or_default()
}

impl fmt::Display for Selected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { algorithm, target, sum } = self;
        write!(f, "algorithm [{algorithm}] target [{target}] selected [{sum}]")
    }
}

impl Attempt {
    fn new(event: &Event, selected: Option<Selected>) -> Self {
        Self {
            success: event.integer("success") == Some(1),
            fee: event.show("fee").to_string(),
            change_position: event.show("change_position").to_string(),
            selected,
        }
    }

    /// One that was announced, and has not ended.
    fn unknown() -> Self {
        Self { success: false, fee: String::new(), change_position: String::new(), selected: None }
    }
}
