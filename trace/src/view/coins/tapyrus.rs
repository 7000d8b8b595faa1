//! Transactions of Tapyrus: coins of each color (TPC is the native one) are requested, then selected, and change is set aside,
//! once more with each greater fee; the fee is known when nothing else is. The events do not name the wallet.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::number;
use crate::event::Event;

/// Colors of a transaction that are kept. Events of others are counted.
const MAX_COLORS: usize = 64;

/// A transaction that is being created.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    colors: BTreeMap<String, Color>,
    /// Events of colors beyond the limit.
    omitted: u64,
    /// Coins were selected: what is requested next is of another transaction.
    is_selecting: bool,
    /// Paid and needed.
    fee: Option<[String; 2]>,
}

/// Coins of a color, as they were selected last.
#[derive(Debug, Default)]
struct Color {
    requested: Option<String>,
    selected: Option<Selected>,
    change: Option<String>,
}

#[derive(Debug)]
struct Selected {
    target: String,
    coins: String,
    total: String,
    algorithm: String,
}

impl super::Transaction for Transaction {
    fn continues(&self, event: &Event) -> bool {
        let is_again = || self.colors.contains_key(&event.show("color").to_string());
        event.attachment.name != "coins_requested" || !(self.is_selecting || is_again())
    }

    fn add(&mut self, event: &Event) -> bool {
        let show = |name: &str| event.show(name).to_string();
        match event.attachment.name.as_str() {
            "coins_requested" => self.of_color(show("color"), |coins| coins.requested = Some(show("value"))),
            "selected_coins" => {
                self.is_selecting = true;
                let [target, number, total, algorithm] = ["target", "coins", "total", "algorithm"].map(show);
                let selected = Some(Selected { target, coins: number, total, algorithm });
                // The change is set aside after it, or not at all.
                self.of_color(show("color"), |coins| (coins.selected, coins.change) = (selected, None));
            }
            "change_info" => self.of_color(show("color"), |coins| coins.change = Some(show("value"))),
            "fee_info" => {
                self.fee = Some(["fee_paid", "fee_needed"].map(show));
                return true;
            }
            _ => {}
        }
        false
    }

    fn is_over(&self, _last_ns: u64, _now_ns: u64) -> bool {
        // Selection has no limit of time.
        false
    }

    fn show(&self) -> (String, Json) {
        let mut line = match &self.fee {
            Some([paid, needed]) => format!("Transaction : fee [{paid}] need [{needed}]"),
            None => "Transaction : incomplete".to_owned(),
        };
        let mut colors = serde_json::Map::new();
        for (color, Color { requested, selected, change }) in &self.colors {
            line += &format!(" color [{color}]");
            let values = [("requested", requested), ("change", change)];
            for (name, value) in values.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?))) {
                line += &format!(" {name} [{value}]");
            }
            if let Some(Selected { target, coins, total, algorithm }) = selected {
                line += &format!(" algorithm [{algorithm}] target [{target}] selected [{total}] coins [{coins}]");
            }
            let number_of = |value: &Option<String>| value.as_deref().map(number);
            let entry = json!({
                "requested": number_of(requested),
                "change": number_of(change),
                "algorithm": selected.as_ref().map(|selected| &selected.algorithm),
                "target": selected.as_ref().map(|selected| number(&selected.target)),
                "selected": selected.as_ref().map(|selected| number(&selected.total)),
                "coins": selected.as_ref().map(|selected| number(&selected.coins)),
            });
            colors.insert(color.clone(), entry);
        }
        if self.omitted > 0 {
            line += &format!(" events of other colors [{}]", self.omitted);
        }
        let [paid, needed] = [0, 1].map(|index| self.fee.as_ref().map(|fee| number(&fee[index])));
        let entry = json!({
            "state": if self.fee.is_some() { "created" } else { "incomplete" },
            "fee": paid,
            "fee_needed": needed,
            "colors": colors,
            "omitted": self.omitted,
        });
        (line, entry)
    }
}

impl Transaction {
    fn of_color(&mut self, color: String, change: impl FnOnce(&mut Color)) {
        if self.colors.len() >= MAX_COLORS && !self.colors.contains_key(&color) {
            self.omitted += 1;
            return;
        }
        change(self.colors.entry(color).or_default());
    }
}
