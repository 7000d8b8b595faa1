//! Coins that are added to, spent from and uncached from the UTXO cache, as `log_utxos.bt` of Bitcoin Core and Tapyrus.

use std::sync::Arc;

use super::{Lines, View};
use crate::{
    attachment::Attachment,
    event::{Event, Timestamp},
};

/// A coin is a line. Tapyrus's coins have a token.
#[derive(Debug, Default)]
pub struct Utxos;

/// What happened to a coin, in the width of the column.
fn operation(provider: &str, name: &str) -> Option<&'static str> {
    if provider != "utxocache" {
        return None;
    }
    match name.strip_prefix("utxocache_").unwrap_or(name) {
        "add" => Some("Added   "),
        "spent" => Some("Spent   "),
        "uncache" => Some("Uncache "),
        _ => None,
    }
}

impl View for Utxos {
    fn patterns(&self) -> Vec<String> {
        let names = ["add", "spent", "uncache"];
        names.iter().flat_map(|name| [format!("utxocache:{name}"), format!("utxocache:utxocache_{name}")]).collect()
    }

    fn selects(&self, provider: &str, name: &str) -> bool {
        operation(provider, name).is_some()
    }

    fn begin(&mut self, _start: Timestamp, attachments: &[Arc<Attachment>], out: &mut Lines) {
        let mut coins = attachments.iter().filter(|found| self.selects(&found.provider, &found.name));
        if coins.any(|found| found.index_of("token").is_some()) {
            let [a, b, c, d, e, f] = ["OP", "Outpoint", "Token", "Value", "Height", "Coinbase"];
            out.line(format_args!("{a:<7} {b:<70} {c:>30} {d:>16} {e:>7} {f:>8}"));
        } else {
            let [a, b, c, d, e] = ["OP", "Outpoint", "Value", "Height", "Coinbase"];
            out.line(format_args!("{a:<7} {b:<71} {c:>16} {d:>7} {e:>8}"));
        }
    }

    fn event(&mut self, event: &Event, out: &mut Lines) {
        let Some(operation) = operation(&event.attachment.provider, &event.attachment.name) else { return };
        let (txid, index) = (event.show("txid"), event.show("index"));
        let (value, height) = (event.show("value"), event.show("height"));
        let coinbase = match event.integer("is_coinbase") {
            Some(0) => "No".to_owned(),
            Some(_) => "Yes".to_owned(),
            None => event.show("is_coinbase").to_string(),
        };
        if event.attachment.index_of("token").is_some() {
            let token = event.show("token");
            out.line(format_args!("{operation}:{txid} {index:<6} {token} {value:>16} {height:>7} {coinbase}"));
        } else {
            out.line(format_args!("{operation}{txid}:{index:<6} {value:>16} {height:>7} {coinbase}"));
        }
    }
}
