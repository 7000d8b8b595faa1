//! What the live table knows: peers, their latest messages, and what is open and selected. No I/O and no clock.
//!
//! Text of peers is escaped when it enters.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Instant,
};

use chainscope_hygiene::Escaped;

use super::{selection::Selection, stream::Update};
use crate::{
    keys::{Key, step},
    message_row::Row,
};

/// Peers that are kept; beyond it the least recently seen one is evicted.
pub(super) const MAX_PEERS: usize = 512;
/// Latest messages that are kept of a peer.
pub(super) const MAX_RECENT: usize = 100;
/// Seconds that a rate is the mean of.
const RATE_SECONDS: i64 = 10;
/// Types shown of a peer.
const MAX_KINDS: usize = 3;
/// Columns that a body moves sideways.
const SIDESTEP: u16 = 8;
const NS_PER_S: i64 = 1_000_000_000;

/// Number of messages and their bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Traffic {
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

impl Traffic {
    fn add(&mut self, other: Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }
}

/// A remote socket.
#[derive(Debug, Default)]
pub(super) struct Peer {
    /// Its identity, or empty.
    pub(super) id: String,
    /// Whether the node connected to it; `None`: unknown.
    pub(super) is_outgoing: Option<bool>,
    pub(super) sent: Traffic,
    pub(super) received: Traffic,
    /// Traffic by second since 1970, oldest first.
    seconds: VecDeque<(i64, Traffic)>,
    /// Newest first.
    pub(super) recent: VecDeque<Entry>,
    /// Number of the message that was seen last.
    last_seen: u64,
}

/// A message of a peer.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: u64,
    /// Nanoseconds since 1970.
    pub(super) timestamp: i64,
    pub(super) arrow: char,
    pub(super) kind: String,
    pub(super) preview: String,
    pub(super) bytes: Option<u64>,
}

impl Peer {
    fn add(&mut self, row: &Row, number: u64) {
        let traffic = Traffic { messages: 1, bytes: row.plain_bytes.unwrap_or(0) };
        if row.incoming {
            self.received.add(traffic)
        } else {
            self.sent.add(traffic)
        }
        if let Some(id) = row.peer_id.as_deref().filter(|id| !id.is_empty()) {
            self.id = Escaped(id).to_string();
        }
        self.is_outgoing = row.source_type.as_deref().map(|side| side == "local").or(self.is_outgoing);
        self.last_seen = number;

        let second = row.timestamp / NS_PER_S;
        match self.seconds.back_mut() {
            // Clocks may be set back.
            Some((last, sum)) if *last >= second => sum.add(traffic),
            _ => self.seconds.push_back((second, traffic)),
        }
        while self.seconds.front().is_some_and(|(first, _)| *first <= second - RATE_SECONDS) {
            self.seconds.pop_front();
        }

        self.recent.push_front(Entry {
            id: row.id,
            timestamp: row.timestamp,
            arrow: row.arrow(),
            kind: row.kind(),
            preview: row.preview(),
            bytes: row.plain_bytes,
        });
        self.recent.truncate(MAX_RECENT);
    }

    /// Messages and bytes per second, of the last seconds before `now` (nanoseconds since 1970).
    pub(super) fn rate(&self, now: i64) -> (f64, f64) {
        let first = now / NS_PER_S - RATE_SECONDS;
        let mut sum = Traffic::default();
        self.seconds.iter().filter(|(second, _)| *second > first).for_each(|(_, traffic)| sum.add(*traffic));
        let mean = |count: u64| count as f64 / RATE_SECONDS as f64;
        (mean(sum.messages), mean(sum.bytes))
    }

    /// The types of its latest messages, newest first.
    pub(super) fn kinds(&self) -> Vec<&str> {
        let mut kinds: Vec<&str> = Vec::new();
        for entry in &self.recent {
            if !kinds.contains(&entry.kind.as_str()) {
                kinds.push(&entry.kind);
            }
            if kinds.len() == MAX_KINDS {
                break;
            }
        }
        kinds
    }
}

/// The stream of messages.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Link {
    Open,
    /// Lost for this reason; it is opened again.
    Lost(String),
}

/// A message's body.
#[derive(Debug)]
pub(super) enum Body {
    Loading,
    Loaded(Vec<String>),
    Failed(String),
}

/// What fills the screen.
#[derive(Debug)]
pub(super) enum Screen {
    Peers,
    /// Latest messages of the peer at this address.
    Messages {
        address: String,
    },
    /// A message of that peer.
    Message {
        address: String,
        id: u64,
        body: Body,
        top: usize,
        left: u16,
    },
}

/// What a key asks for beyond a change of the state.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    Quit,
    /// Load a message.
    Load(u64),
}

/// State of the live table.
pub(super) struct State {
    /// By address.
    pub(super) peers: BTreeMap<String, Peer>,
    pub(super) total: Traffic,
    pub(super) evicted: u64,
    pub(super) link: Link,
    pub(super) screen: Screen,
    pub(super) selected_peer: Selection<String>,
    pub(super) selected_message: Selection<u64>,
    /// Greatest time of a message, nanoseconds since 1970, and when it arrived: the node's clock may differ from this one.
    latest: Option<(i64, Instant)>,
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            peers: BTreeMap::new(),
            total: Traffic::default(),
            evicted: 0,
            link: Link::Open,
            screen: Screen::Peers,
            selected_peer: Selection::default(),
            selected_message: Selection::default(),
            latest: None,
        }
    }

    pub(super) fn apply(&mut self, update: Update, at: Instant) {
        match update {
            Update::Open => self.link = Link::Open,
            Update::Lost(reason) => self.link = Link::Lost(Escaped(&reason).to_string()),
            Update::Restarted => {
                self.peers.clear();
                self.latest = None;
            }
            Update::Row(row) => self.add(&row, at),
            Update::Body { id: loaded, lines } => {
                if let Screen::Message { id, body, .. } = &mut self.screen
                    && *id == loaded
                {
                    *body = lines.map_or_else(|error| Body::Failed(Escaped(&error).to_string()), Body::Loaded);
                }
            }
        }
    }

    fn add(&mut self, row: &Row, at: Instant) {
        self.total.add(Traffic { messages: 1, bytes: row.plain_bytes.unwrap_or(0) });
        if self.latest.is_none_or(|(time, _)| row.timestamp > time) {
            self.latest = Some((row.timestamp, at));
        }
        let address = Escaped(&row.remote_addr).to_string();
        if !self.peers.contains_key(&address) && self.peers.len() == MAX_PEERS {
            let oldest = self.peers.iter().min_by_key(|(_, peer)| peer.last_seen);
            if let Some(oldest) = oldest.map(|(address, _)| address.clone()) {
                self.peers.remove(&oldest);
                self.evicted += 1;
            }
        }
        self.peers.entry(address).or_default().add(row, self.total.messages);
    }

    /// The time by the clock of the records, nanoseconds since 1970.
    pub(super) fn now(&self, at: Instant) -> i64 {
        let Some((time, arrived)) = self.latest else { return 0 };
        time.saturating_add(i64::try_from(at.saturating_duration_since(arrived).as_nanos()).unwrap_or(i64::MAX))
    }

    /// The peer that is open, unless it was evicted.
    pub(super) fn open_peer(&self) -> Option<(&str, &Peer)> {
        match &self.screen {
            Screen::Peers => None,
            Screen::Messages { address } | Screen::Message { address, .. } => {
                self.peers.get(address).map(|peer| (address.as_str(), peer))
            }
        }
    }

    /// Handles a key; `page` is the number of lines of a page.
    pub(super) fn key(&mut self, key: Key, page: usize) -> Action {
        match key {
            Key::Quit => return Action::Quit,
            Key::Back => self.back(),
            Key::Enter => return self.enter(),
            _ => self.go(key, page),
        }
        Action::Nothing
    }

    fn back(&mut self) {
        self.screen = match std::mem::replace(&mut self.screen, Screen::Peers) {
            Screen::Message { address, .. } => Screen::Messages { address },
            Screen::Peers | Screen::Messages { .. } => Screen::Peers,
        };
    }

    /// Index of the selected peer.
    pub(super) fn peer_index(&self) -> Option<usize> {
        self.selected_peer.index(self.peers.keys(), |address, selected| *address >= selected)
    }

    /// Index of the selected message among the latest of the open peer.
    pub(super) fn message_index(&self) -> Option<usize> {
        let (_, peer) = self.open_peer()?;
        self.selected_message.index(peer.recent.iter(), |entry, selected| entry.id <= *selected)
    }

    fn enter(&mut self) -> Action {
        match &self.screen {
            Screen::Peers => {
                if let Some(address) = self.peer_index().and_then(|index| self.peers.keys().nth(index)) {
                    self.screen = Screen::Messages { address: address.clone() };
                    self.selected_message = Selection::default();
                }
                Action::Nothing
            }
            Screen::Messages { address } => {
                let chosen = self.message_index().and_then(|index| self.open_peer()?.1.recent.get(index));
                let Some(id) = chosen.map(|entry| entry.id) else { return Action::Nothing };
                self.screen = Screen::Message { address: address.clone(), id, body: Body::Loading, top: 0, left: 0 };
                Action::Load(id)
            }
            Screen::Message { .. } => Action::Nothing,
        }
    }

    fn go(&mut self, key: Key, page: usize) {
        match &mut self.screen {
            Screen::Peers => {
                let Some(index) = self.peer_index() else { return };
                let index = step(key, index, self.peers.len(), page);
                self.selected_peer.set(self.peers.keys().nth(index).cloned());
            }
            Screen::Messages { .. } => {
                let (Some(index), Some((_, peer))) = (self.message_index(), self.open_peer()) else { return };
                let index = step(key, index, peer.recent.len(), page);
                // At the top the newest one stays selected while others arrive.
                let chosen = peer.recent.get(index).map(|entry| entry.id).filter(|_| index > 0);
                self.selected_message.set(chosen);
            }
            Screen::Message { body: Body::Loaded(lines), top, left, .. } => match key {
                Key::Left => *left = left.saturating_sub(SIDESTEP),
                Key::Right => *left = left.saturating_add(SIDESTEP),
                _ => *top = step(key, *top, lines.len(), page),
            },
            Screen::Message { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests;
