//! Flushes of the UTXO cache, as `log_utxocache_flush.py` of Bitcoin Core and Tapyrus.

use std::sync::Arc;

use super::{Lines, View};
use crate::{
    attachment::Attachment,
    event::{Event, Timestamp},
};

/// A flush is a line.
#[derive(Debug, Default)]
pub struct Flushes;

/// The columns of a script: the tracepoint, the width of the mode, the heading of the last column.
struct Columns {
    name: &'static str,
    mode: usize,
    prune: &'static str,
}

const COLUMNS: [Columns; 2] = [
    Columns { name: "flush", mode: 12, prune: "Flush for Prune" },
    Columns { name: "utxocache_flush", mode: 10, prune: "Prune" },
];

fn columns(provider: &str, name: &str) -> Option<&'static Columns> {
    COLUMNS.iter().find(|columns| provider == "utxocache" && columns.name == name)
}

impl View for Flushes {
    fn patterns(&self) -> Vec<String> {
        COLUMNS.iter().map(|columns| format!("utxocache:{}", columns.name)).collect()
    }

    fn selects(&self, provider: &str, name: &str) -> bool {
        columns(provider, name).is_some()
    }

    fn begin(&mut self, _start: Timestamp, attachments: &[Arc<Attachment>], out: &mut Lines) {
        let mut known = attachments.iter().filter_map(|found| columns(&found.provider, &found.name));
        let [first, ..] = &COLUMNS;
        let Columns { mode, prune, .. } = known.next().unwrap_or(first);
        out.line(format_args!("Logging utxocache flushes. Ctrl-C to end..."));
        let heading = format!(
            "{:<15} {:<mode$} {:<15} {:<15} {prune:<8}",
            "Duration (µs)", "Mode", "Coins Count", "Memory Usage"
        );
        out.line(format_args!("{heading}"));
    }

    fn event(&mut self, event: &Event, out: &mut Lines) {
        let Some(Columns { mode, .. }) = columns(&event.attachment.provider, &event.attachment.name) else { return };
        let memory = match event.integer("memory") {
            Some(bytes) => format!("{:.2} kB", bytes as f64 / 1000.0),
            None => event.show("memory").to_string(),
        };
        let for_prune = match event.integer("for_prune") {
            Some(0) => "False".to_owned(),
            Some(_) => "True".to_owned(),
            None => event.show("for_prune").to_string(),
        };
        out.line(format_args!(
            "{:<15} {:<mode$} {:<15} {memory:<15} {for_prune:<8}",
            event.show("duration"),
            event.show("mode"),
            event.show("coins"),
        ));
    }
}
