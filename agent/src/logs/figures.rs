//! Counts of the logs pillar, and their metrics.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use parking_lot::Mutex;
use prometheus_client::registry::Registry;

use crate::{
    openmetrics::{counters, gauges, node},
    pillar::PillarStatus,
    thread::Heartbeat,
};

/// The counts, shared by the pillar's threads.
#[derive(Debug, Default)]
pub(super) struct Figures(Mutex<Counts>);

/// Sources of one node: the output of its containers and the file.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct SourceCounts {
    pub(super) followed: i64,
    /// Sources whose messages wait for space in the record stream.
    pub(super) waiting: i64,
    /// Sources that cannot be read.
    pub(super) failed: i64,
}

#[derive(Debug, Default)]
struct Counts {
    /// Messages and bytes by node and source.
    messages: BTreeMap<(Arc<str>, &'static str), (u64, u64)>,
    sources: BTreeMap<Arc<str>, SourceCounts>,
    /// Syslog messages that no node is configured for, by address and reason.
    unmatched: BTreeMap<(SocketAddr, &'static str), u64>,
    kernel_dropped: BTreeMap<SocketAddr, u64>,
    connections: BTreeMap<SocketAddr, i64>,
    /// TCP connections that ended within a message or were closed, by address and reason.
    closed: BTreeMap<(SocketAddr, &'static str), u64>,
    heartbeats: Vec<Heartbeat>,
}

impl Figures {
    pub(super) fn set_heartbeats(&self, heartbeats: Vec<Heartbeat>) {
        self.0.lock().heartbeats = heartbeats;
    }

    /// A message was added to the record stream.
    pub(super) fn recorded(&self, node: &Arc<str>, source: &'static str, bytes: usize) {
        let mut counts = self.0.lock();
        let (messages, sum) = counts.messages.entry((Arc::clone(node), source)).or_default();
        *messages += 1;
        *sum += bytes as u64;
    }

    pub(super) fn set_sources(&self, sources: BTreeMap<Arc<str>, SourceCounts>) {
        self.0.lock().sources = sources;
    }

    pub(super) fn unmatched(&self, address: SocketAddr, reason: &'static str) {
        *self.0.lock().unmatched.entry((address, reason)).or_default() += 1;
    }

    pub(super) fn kernel_dropped(&self, address: SocketAddr, datagrams: u64) {
        *self.0.lock().kernel_dropped.entry(address).or_default() += datagrams;
    }

    pub(super) fn connected(&self, address: SocketAddr, change: i64) {
        *self.0.lock().connections.entry(address).or_default() += change;
    }

    pub(super) fn closed(&self, address: SocketAddr, reason: &'static str) {
        *self.0.lock().closed.entry((address, reason)).or_default() += 1;
    }
}

#[cfg(test)]
impl Figures {
    pub(super) fn messages_of(&self, node: &str) -> u64 {
        let counts = self.0.lock();
        counts.messages.iter().filter(|((of, _), _)| &**of == node).map(|(_, (messages, _))| messages).sum()
    }

    pub(super) fn unmatched_count(&self) -> u64 {
        self.0.lock().unmatched.values().sum()
    }

    pub(super) fn kernel_dropped_count(&self) -> u64 {
        self.0.lock().kernel_dropped.values().sum()
    }

    pub(super) fn connection_count(&self) -> i64 {
        self.0.lock().connections.values().sum()
    }

    pub(super) fn closed_count(&self, reason: &str) -> u64 {
        self.0.lock().closed.iter().filter(|((_, of), _)| *of == reason).map(|(_, count)| count).sum()
    }

    pub(super) fn sources_of(&self, node: &str) -> SourceCounts {
        self.0.lock().sources.get(node).copied().unwrap_or_default()
    }
}

impl PillarStatus for Figures {
    fn register(&self, registry: &mut Registry) {
        let counts = self.0.lock();
        type Column = (&'static str, &'static str, fn(&SourceCounts) -> i64);
        let columns: [Column; 3] = [
            ("logs_sources", "Log files and containers whose messages are recorded", |of| of.followed),
            ("logs_sources_waiting", "Log sources that wait for space in the record stream", |of| of.waiting),
            ("logs_sources_failed", "Log sources that cannot be read; the log has the causes", |of| of.failed),
        ];
        for (name, help, value) in columns {
            gauges(registry, name, help, counts.sources.iter().map(|(of, counts)| (node(of), value(counts))));
        }
        let of_source = |of: &str, source: &str| vec![("node", of.to_owned()), ("source", source.to_owned())];
        let messages = counts.messages.iter().map(|((of, source), (messages, _))| (of_source(of, source), *messages));
        counters(registry, "logs_messages", "Log messages added to the record stream", messages);
        let bytes = counts.messages.iter().map(|((of, source), (_, bytes))| (of_source(of, source), *bytes));
        counters(registry, "logs_bytes", "Bytes of log messages added to the record stream", bytes);
        let at = |address: &SocketAddr| vec![("address", address.to_string())];
        let for_reason =
            |address: &SocketAddr, reason: &str| vec![("address", address.to_string()), ("reason", reason.to_owned())];
        let unmatched = counts.unmatched.iter().map(|((address, reason), count)| (for_reason(address, reason), *count));
        counters(registry, "logs_syslog_unmatched", "Syslog messages that match no node, by reason", unmatched);
        let dropped = counts.kernel_dropped.iter().map(|(address, count)| (at(address), *count));
        let help = "Syslog datagrams that the kernel dropped because the receive buffer was full";
        counters(registry, "logs_syslog_kernel_dropped", help, dropped);
        let connections = counts.connections.iter().map(|(address, count)| (at(address), *count));
        gauges(registry, "logs_syslog_connections", "Open TCP connections of syslog senders", connections);
        let closed = counts.closed.iter().map(|((address, reason), count)| (for_reason(address, reason), *count));
        let help = "TCP connections of syslog senders that were closed or ended within a message, by reason";
        counters(registry, "logs_syslog_connections_closed", help, closed);
    }

    fn heartbeats(&self) -> Vec<Heartbeat> {
        self.0.lock().heartbeats.clone()
    }
}
