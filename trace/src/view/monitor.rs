//! Peers and their latest messages, as `p2p_monitor.py` of Bitcoin Core and Tapyrus.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use serde_json::{Map, Value as Json, json};

use super::{
    Lines, View,
    traffic::{Direction, Message, Traffic},
};
use crate::{
    accounting::Accounting,
    attachment::Attachment,
    content::{self, ContentError, Protocol},
    event::{Event, Incomplete, Timestamp, Value},
};

/// Peers that are kept; beyond it the one that was heard of least recently is evicted.
const MAX_PEERS: usize = 1024;
/// Latest messages that are kept of a peer.
const MAX_RECENT: usize = 100;
/// Payloads of the latest messages of all peers that are kept, in bytes.
const MAX_PAYLOADS: usize = 64 << 20;
/// What a payload takes beside its bytes.
const PAYLOAD_OVERHEAD: usize = 64;

/// A process, and the number that a peer has in it.
pub type PeerKey = (u32, i64);

/// The peers of a node, or of several processes. Those that have disconnected are kept, and marked.
#[derive(Debug, Default)]
pub struct Monitor {
    peers: BTreeMap<PeerKey, Peer>,
    /// The first process, and whether there are others: then rows name theirs.
    pid: Option<u32>,
    has_several: bool,
    evicted: u64,
    total: Traffic,
    has_payloads: bool,
    has_content: bool,
    /// Messages whose payloads are kept, oldest first: peer, number of the event, size.
    payloads: VecDeque<(PeerKey, u64, usize)>,
    payload_bytes: usize,
}

/// A peer.
#[derive(Debug, Default)]
pub struct Peer {
    /// Its address, escaped.
    pub address: String,
    /// Type of its connection, escaped.
    pub connection_type: String,
    /// Its messages.
    pub traffic: Traffic,
    /// Its latest messages, oldest first.
    pub recent: VecDeque<Entry>,
    /// Whether its connection was closed, as far as tracepoints say so (Bitcoin Core v29).
    pub is_closed: bool,
    /// When it was heard of last (`CLOCK_MONOTONIC`).
    last_ns: u64,
}

/// A message.
#[derive(Debug)]
pub struct Entry {
    /// Number of the event.
    pub sequence: u64,
    /// When it was captured.
    pub time: Timestamp,
    /// Who sent it.
    pub direction: Direction,
    /// Its type, escaped.
    pub message_type: String,
    /// Size of its payload.
    pub size: u64,
    /// Its payload, as far as it was captured; `None` if it is not kept.
    pub payload: Option<Bytes>,
    /// Why the payload was captured in part.
    pub incomplete: Option<Incomplete>,
    protocol: Protocol,
}

impl Monitor {
    /// `has_payloads`: whether payloads are kept; `has_content`: whether the content of messages is added to events in JSON.
    #[must_use]
    pub fn new(has_payloads: bool, has_content: bool) -> Self {
        Self { has_payloads, has_content, ..Self::default() }
    }

    /// Peers by process and number.
    #[must_use]
    pub fn peers(&self) -> &BTreeMap<PeerKey, Peer> {
        &self.peers
    }

    /// Whether there were messages of several processes.
    #[must_use]
    pub fn has_several_processes(&self) -> bool {
        self.has_several
    }

    /// Number of peers that are not kept any more.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// The messages of all peers.
    #[must_use]
    pub fn total(&self) -> Traffic {
        self.total
    }

    /// The heading of the table of peers.
    #[must_use]
    pub fn heading() -> String {
        format!("{:>6}  {:<20}  {:<20}  {:<22}  {:<67}", "PEER", "OUTBOUND", "INBOUND", "TYPE", "ADDR")
    }

    /// The peer, which becomes the one that was heard of last.
    fn peer(&mut self, key: PeerKey, now: u64) -> &mut Peer {
        if self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&key) {
            let oldest = self.peers.iter().min_by_key(|(_, peer)| (!peer.is_closed, peer.last_ns)).map(|(key, _)| *key);
            self.evicted += u64::from(oldest.and_then(|oldest| self.peers.remove(&oldest)).is_some());
        }
        let peer = self.peers.entry(key).or_default();
        peer.last_ns = now;
        peer
    }

    /// Counts a payload that is kept, and lets go of the oldest.
    fn keep(&mut self, key: PeerKey, sequence: u64, length: usize) {
        let size = length + PAYLOAD_OVERHEAD;
        self.payloads.push_back((key, sequence, size));
        self.payload_bytes += size;
        while self.payload_bytes > MAX_PAYLOADS
            && let Some((key, sequence, size)) = self.payloads.pop_front()
        {
            self.payload_bytes -= size;
            // Otherwise the message itself is not kept any more.
            let recent = self.peers.get_mut(&key).map(|peer| &mut peer.recent);
            if let Some(entry) = recent.and_then(|recent| recent.iter_mut().find(|entry| entry.sequence == sequence)) {
                entry.payload = None;
            }
        }
    }
}

impl Peer {
    /// Its line in the table of peers. `has_process`: with its process.
    #[must_use]
    pub fn row(&self, (pid, id): PeerKey, has_process: bool) -> String {
        let Traffic { inbound, outbound } = self.traffic;
        let mark = if self.is_closed { " disconnected" } else { "" };
        let process = if has_process { format!(" process {pid}") } else { String::new() };
        format!(
            "{id:>6}  {:<5} {:>9} byte  {:<5} {:>9} byte  {:<22}  {:<67}{process}{mark}",
            outbound.messages, outbound.bytes, inbound.messages, inbound.bytes, self.connection_type, self.address,
        )
    }
}

impl Entry {
    /// Its line among the messages of a peer, of this width: those of the peer on the right. The script has 68 columns.
    #[must_use]
    pub fn row(&self, width: usize) -> String {
        match self.direction {
            Direction::Inbound => format!("{:>width$}", format!("<--- {} ({} bytes) ", self.message_type, self.size)),
            Direction::Outbound => format!(" {} ({} byte) --->", self.message_type, self.size),
        }
    }

    /// Its content, decoded.
    ///
    /// # Errors
    /// See [`ContentError`].
    pub fn content(&self) -> Result<Json, ContentError> {
        let incomplete = |captured: usize| ContentError::Incomplete { captured: captured as u64, claimed: self.size };
        match (&self.payload, self.incomplete) {
            (Some(payload), None) => content::decode(self.protocol, &self.message_type, payload),
            (payload, _) => Err(incomplete(payload.as_ref().map_or(0, Bytes::len))),
        }
    }
}

impl View for Monitor {
    fn patterns(&self) -> Vec<String> {
        Message::PATTERNS.into_iter().chain(["net:closed_connection"]).map(str::to_owned).collect()
    }

    fn selects(&self, provider: &str, name: &str) -> bool {
        Message::is_passed_by(provider, name) || (provider, name) == ("net", "closed_connection")
    }

    fn needs_payloads(&self) -> bool {
        self.has_payloads || self.has_content
    }

    fn begin(&mut self, _start: Timestamp, _attachments: &[Arc<Attachment>], out: &mut Lines) {
        out.line(format_args!("P2P Message Monitor"));
    }

    fn event(&mut self, event: &Event, _out: &mut Lines) {
        let now = event.time.monotonic_ns;
        self.has_several |= *self.pid.get_or_insert(event.pid) != event.pid;
        let Some(message) = Message::of(event) else {
            let id = event.integer("peer_id").and_then(|id| i64::try_from(id).ok());
            if let Some(peer) = id.and_then(|id| self.peers.get_mut(&(event.pid, id))) {
                peer.is_closed = true;
                peer.last_ns = now;
            }
            return;
        };
        let (direction, bytes) = (message.direction, message.bytes());
        self.total.add(direction, bytes);
        let Some(id) = message.peer_id() else { return };
        let key = (event.pid, id);
        let (payload, incomplete) = if self.has_payloads { payload(event) } else { (None, None) };
        let length = payload.as_ref().map(Bytes::len);
        let peer = self.peer(key, now);
        peer.address = message.address().to_string();
        peer.connection_type = message.connection_type().to_string();
        peer.traffic.add(direction, bytes);
        peer.recent.push_back(Entry {
            sequence: event.sequence,
            time: event.time,
            direction,
            message_type: message.message_type().to_string(),
            size: bytes,
            payload,
            incomplete,
            protocol: Protocol::of(&event.attachment),
        });
        while peer.recent.len() > MAX_RECENT {
            peer.recent.pop_front();
        }
        if let Some(length) = length {
            self.keep(key, event.sequence, length);
        }
    }

    fn finish(&mut self, _accounting: &Accounting, out: &mut Lines) {
        out.line(format_args!(""));
        out.line(format_args!("{}", Self::heading()));
        for (key, peer) in &self.peers {
            out.line(format_args!("{}", peer.row(*key, self.has_several)));
        }
    }

    fn annotate(&self, event: &Event, object: &mut Map<String, Json>) {
        if self.has_content {
            content::annotate(event, object);
        }
    }

    fn summary(&self) -> Option<Json> {
        let peers = self.peers.iter().map(|((pid, id), peer)| {
            let Traffic { inbound, outbound } = peer.traffic;
            json!({
                "pid": pid,
                "peer_id": id,
                "address": peer.address,
                "connection_type": peer.connection_type,
                "disconnected": peer.is_closed,
                "inbound": { "messages": inbound.messages, "bytes": inbound.bytes },
                "outbound": { "messages": outbound.messages, "bytes": outbound.bytes },
            })
        });
        Some(json!({ "peers": peers.collect::<Vec<_>>(), "evicted_peers": self.evicted }))
    }
}

fn payload(event: &Event) -> (Option<Bytes>, Option<Incomplete>) {
    match event.get("payload") {
        Some(Value::Bytes { bytes, incomplete, .. }) => (Some(bytes.clone()), *incomplete),
        _ => (Some(Bytes::new()), Some(Incomplete::Unreadable)),
    }
}
