//! P2P messages and their sums.

use std::collections::BTreeMap;

use crate::{event::Event, show::Shown};

/// Who sent a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The peer.
    Inbound,
    /// The node.
    Outbound,
}

/// Number of messages and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of messages.
    pub messages: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
}

/// Messages in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Those of the peer.
    pub inbound: Count,
    /// Those of the node.
    pub outbound: Count,
}

impl Direction {
    /// That of the message of an event; `None` if there is none.
    pub(crate) fn of(event: &Event) -> Option<Self> {
        direction(&event.attachment.provider, &event.attachment.name)
    }
}

impl Traffic {
    pub(super) fn add(&mut self, direction: Direction, bytes: u64) {
        let count = match direction {
            Direction::Inbound => &mut self.inbound,
            Direction::Outbound => &mut self.outbound,
        };
        count.messages += 1;
        count.bytes = count.bytes.saturating_add(bytes);
    }
}

/// A P2P message.
pub(super) struct Message<'a> {
    event: &'a Event,
    pub(super) direction: Direction,
}

impl<'a> Message<'a> {
    /// The tracepoints that messages hit.
    pub(super) const PATTERNS: [&'static str; 2] = ["net:inbound_message", "net:outbound_message"];

    /// Whether a tracepoint is hit by messages.
    pub(super) fn is_passed_by(provider: &str, name: &str) -> bool {
        direction(provider, name).is_some()
    }

    /// The message of an event.
    pub(super) fn of(event: &'a Event) -> Option<Self> {
        Some(Self { event, direction: Direction::of(event)? })
    }

    pub(super) fn peer(&self) -> Shown<'a> {
        self.event.show("peer_id")
    }

    pub(super) fn address(&self) -> Shown<'a> {
        self.event.show("address")
    }

    pub(super) fn connection_type(&self) -> Shown<'a> {
        self.event.show("connection_type")
    }

    pub(super) fn message_type(&self) -> Shown<'a> {
        self.event.show("message_type")
    }

    pub(super) fn size(&self) -> Shown<'a> {
        self.event.show("size")
    }

    /// Its size; 0 if it is not known.
    pub(super) fn bytes(&self) -> u64 {
        self.event.integer("size").and_then(|size| u64::try_from(size).ok()).unwrap_or(0)
    }

    /// The number of its peer, if it is known.
    pub(super) fn peer_id(&self) -> Option<i64> {
        self.event.integer("peer_id").and_then(|id| i64::try_from(id).ok())
    }
}

fn direction(provider: &str, name: &str) -> Option<Direction> {
    match (provider, name) {
        ("net", "inbound_message") => Some(Direction::Inbound),
        ("net", "outbound_message") => Some(Direction::Outbound),
        _ => None,
    }
}

/// Sums by a key that peers choose: bounded.
#[derive(Debug)]
pub(super) struct Sums<K> {
    pub(super) by_key: BTreeMap<K, Traffic>,
    /// Of keys for which there was no room.
    pub(super) others: Traffic,
    max: usize,
}

impl<K: Ord> Sums<K> {
    pub(super) fn new(max: usize) -> Self {
        Self { by_key: BTreeMap::new(), others: Traffic::default(), max }
    }

    pub(super) fn add(&mut self, key: K, direction: Direction, bytes: u64) {
        let sum = if self.by_key.len() < self.max || self.by_key.contains_key(&key) {
            self.by_key.entry(key).or_default()
        } else {
            &mut self.others
        };
        sum.add(direction, bytes);
    }
}
