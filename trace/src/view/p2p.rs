//! Every P2P message on a line, as `log_p2p_traffic.bt` of Bitcoin Core and Tapyrus, and in the end sums and rates.

use std::sync::Arc;

use serde_json::{Map, Value as Json, json};

use super::{
    Lines, View, seconds_between,
    traffic::{Count, Direction, Message, Sums, Traffic},
};
use crate::{
    accounting::Accounting,
    attachment::Attachment,
    content,
    event::{Event, Timestamp},
};

/// Message types and peers of which there are sums. Peers choose the types.
const MAX_TYPES: usize = 256;
const MAX_PEERS: usize = 10_000;

/// Every message, and sums by type and peer.
#[derive(Debug)]
pub struct P2p {
    has_content: bool,
    total: Traffic,
    types: Sums<String>,
    /// By process, peer id, connection type and address.
    peers: Sums<(u32, Option<i64>, String, String)>,
    /// The first process, and whether there are others: then rows name theirs.
    pid: Option<u32>,
    has_several: bool,
    seconds: f64,
}

impl P2p {
    /// `has_content`: whether the content of messages is shown.
    #[must_use]
    pub fn new(has_content: bool) -> Self {
        Self {
            has_content,
            total: Traffic::default(),
            types: Sums::new(MAX_TYPES),
            peers: Sums::new(MAX_PEERS),
            pid: None,
            has_several: false,
            seconds: 0.0,
        }
    }
}

impl Default for P2p {
    fn default() -> Self {
        Self::new(false)
    }
}

impl View for P2p {
    fn patterns(&self) -> Vec<String> {
        Message::PATTERNS.map(str::to_owned).to_vec()
    }

    fn selects(&self, provider: &str, name: &str) -> bool {
        Message::is_passed_by(provider, name)
    }

    fn needs_payloads(&self) -> bool {
        self.has_content
    }

    fn begin(&mut self, _start: Timestamp, _attachments: &[Arc<Attachment>], out: &mut Lines) {
        out.line(format_args!("Logging P2P traffic"));
    }

    fn event(&mut self, event: &Event, out: &mut Lines) {
        let Some(message) = Message::of(event) else { return };
        let (sender, preposition) = match message.direction {
            Direction::Inbound => ("inbound", "from"),
            Direction::Outbound => ("outbound", "to"),
        };
        out.line(format_args!(
            "{sender} '{}' msg {preposition} peer {} ({}, {}) with {} bytes",
            message.message_type(),
            message.peer(),
            message.connection_type(),
            message.address(),
            message.size(),
        ));
        if self.has_content {
            out.line(format_args!("    {}", content::line(event)));
        }
        let (direction, bytes) = (message.direction, message.bytes());
        self.total.add(direction, bytes);
        self.types.add(message.message_type().to_string(), direction, bytes);
        self.has_several |= *self.pid.get_or_insert(event.pid) != event.pid;
        let peer = (event.pid, message.peer_id(), message.connection_type().to_string(), message.address().to_string());
        self.peers.add(peer, direction, bytes);
    }

    fn finish(&mut self, accounting: &Accounting, out: &mut Lines) {
        self.seconds = seconds_between(accounting.from.monotonic_ns, accounting.until.monotonic_ns);
        out.line(format_args!(""));
        self.heading("TYPE", out);
        for (name, sum) in &self.types.by_key {
            self.row(name, sum, out);
        }
        self.others(&self.types.others, out);
        out.line(format_args!(""));
        self.heading("PEER", out);
        for ((pid, id, connection, address), sum) in &self.peers.by_key {
            let id = id.map_or_else(|| "?".to_owned(), |id| id.to_string());
            let process = if self.has_several { format!(" of process {pid}") } else { String::new() };
            self.row(&format!("{id} ({connection}, {address}){process}"), sum, out);
        }
        self.others(&self.peers.others, out);
        out.line(format_args!(""));
        self.row(&format!("total in {:.3} s", self.seconds), &self.total, out);
    }

    fn annotate(&self, event: &Event, object: &mut Map<String, Json>) {
        if self.has_content {
            content::annotate(event, object);
        }
    }

    fn summary(&self) -> Option<Json> {
        let types = self.types.by_key.iter().map(|(name, sum)| (name.clone(), self.json(sum)));
        let peers = self.peers.by_key.iter().map(|((pid, id, connection, address), sum)| {
            json!({ "pid": pid, "peer_id": id, "connection_type": connection, "address": address, "traffic": self.json(sum) })
        });
        Some(json!({
            "seconds": self.seconds,
            "total": self.json(&self.total),
            "types": types.collect::<Map<_, _>>(),
            "other_types": self.json(&self.types.others),
            "peers": peers.collect::<Vec<_>>(),
            "other_peers": self.json(&self.peers.others),
        }))
    }
}

impl P2p {
    fn heading(&self, what: &str, out: &mut Lines) {
        let columns = ["IN MSGS", "IN BYTES", "MSG/S", "OUT MSGS", "OUT BYTES", "MSG/S"];
        let [a, b, c, d, e, f] = columns;
        out.line(format_args!("{a:>9} {b:>13} {c:>9}  {d:>9} {e:>13} {f:>9}  {what}"));
    }

    fn row(&self, what: &str, sum: &Traffic, out: &mut Lines) {
        let Traffic { inbound, outbound } = sum;
        out.line(format_args!(
            "{:>9} {:>13} {:>9.1}  {:>9} {:>13} {:>9.1}  {what}",
            inbound.messages,
            inbound.bytes,
            self.rate(inbound.messages),
            outbound.messages,
            outbound.bytes,
            self.rate(outbound.messages),
        ));
    }

    fn others(&self, sum: &Traffic, out: &mut Lines) {
        if *sum != Traffic::default() {
            self.row("(others)", sum, out);
        }
    }

    fn json(&self, sum: &Traffic) -> Json {
        let count = |count: &Count| {
            json!({
                "messages": count.messages,
                "bytes": count.bytes,
                "messages_per_s": self.rate(count.messages),
                "bytes_per_s": self.rate(count.bytes),
            })
        };
        json!({ "inbound": count(&sum.inbound), "outbound": count(&sum.outbound) })
    }

    fn rate(&self, count: u64) -> f64 {
        if self.seconds > 0.0 { count as f64 / self.seconds } else { 0.0 }
    }
}
