//! Connections that are opened, closed, evicted and that misbehave, as `log_p2p_connections.bt` of Bitcoin Core (v29).

use std::sync::Arc;

use super::{Lines, View};
use crate::{
    attachment::Attachment,
    event::{Event, Timestamp},
};

/// A connection that changes is a line.
#[derive(Debug, Default)]
pub struct Connections;

/// What happened, by tracepoint; `None`: the peer misbehaved.
fn change(provider: &str, name: &str) -> Option<Option<(&'static str, &'static str)>> {
    if provider != "net" {
        return None;
    }
    Some(match name {
        "inbound_connection" => Some(("INBOUND conn from", "total")),
        "outbound_connection" => Some(("OUTBOUND conn to", "total")),
        "closed_connection" => Some(("CLOSED conn to", "established")),
        "evicted_inbound_connection" => Some(("EVICTED conn to", "established")),
        "misbehaving_connection" => None,
        _ => return None,
    })
}

impl View for Connections {
    fn patterns(&self) -> Vec<String> {
        ["inbound", "outbound", "closed", "evicted_inbound", "misbehaving"]
            .map(|what| format!("net:{what}_connection"))
            .to_vec()
    }

    fn selects(&self, provider: &str, name: &str) -> bool {
        change(provider, name).is_some()
    }

    fn begin(&mut self, _start: Timestamp, _attachments: &[Arc<Attachment>], out: &mut Lines) {
        out.line(format_args!("Logging opened, closed, misbehaving, and evicted P2P connections"));
    }

    fn event(&mut self, event: &Event, out: &mut Lines) {
        let id = event.show("peer_id");
        match change(&event.attachment.provider, &event.attachment.name) {
            None => {}
            Some(None) => out.line(format_args!("MISBEHAVING conn id={id}, message='{}'", event.show("reason"))),
            Some(Some((words, key))) => {
                let last = if key == "total" { event.show("connections") } else { event.show("established") };
                out.line(format_args!(
                    "{words} {}: id={id}, type={}, network={}, {key}={last}",
                    event.show("address"),
                    event.show("connection_type"),
                    event.show("network").without_names(),
                ));
            }
        }
    }
}
