//! Connections, folded from their events in the order of arrival.
//!
//! A summary stands for all events before it, so that folding from a summary on gives what folding from the beginning
//! does. A segment begins with a summary of each live connection, so that the segment with the beginning can be evicted.

use std::collections::BTreeMap;

use chainscope_proto::v1::{
    ConnectionEvent, ConnectionState, ConnectionSummary, Initiator, Record, connection_event::Event, record::Kind,
};

use super::CONNECTION_EVENTS;
use crate::{
    Error,
    engine::Snapshot,
    keys,
    kind::decode_row,
    query::{Budget, Meter, Order},
    view::Reader,
};

/// Comments kept on one connection: a peer causes them.
pub(crate) const MAX_COMMENTS: usize = 64;
/// Stands in place of the comments beyond [`MAX_COMMENTS`].
pub(crate) const MORE_COMMENTS: &str = "further comments are not kept";

/// Live connections whose summaries are carried from segment to segment. Beyond it the oldest are not carried, so that
/// ends which are never reported cannot fill the memory.
const MAX_LIVE: usize = 65_536;

/// A connection of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Connection {
    /// Nanoseconds since 1970 of its start, unique within the node.
    pub key: u64,
    /// All that its events say.
    pub summary: ConnectionSummary,
}

impl Connection {
    /// Who connected: as seen at the start, else as the handshake showed.
    pub fn initiator(&self) -> Initiator {
        let opened = self.summary.opened.as_ref().map_or(Initiator::Unspecified, |opened| opened.initiator());
        match opened {
            Initiator::Unspecified => {
                self.summary.identified.as_ref().map_or(Initiator::Unspecified, |identified| identified.initiator())
            }
            known => known,
        }
    }

    /// Whether its end has not been seen.
    pub fn is_open(&self) -> bool {
        is_open(&self.summary)
    }
}

/// Which connections.
#[derive(Clone, Debug)]
pub struct ConnectionQuery {
    /// Key to begin with, included.
    pub from: Option<u64>,
    /// Most connections to give.
    pub limit: u64,
    /// By key: the time a connection began.
    pub order: Order,
    /// Bound on the work; an event is a row.
    pub budget: Budget,
}

impl Default for ConnectionQuery {
    fn default() -> Self {
        Self { from: None, limit: 100, order: Order::OldestFirst, budget: Budget::default() }
    }
}

/// The connection that an event belongs to: the group of its row.
pub(super) fn connection_of(record: &Record) -> u64 {
    match &record.kind {
        Some(Kind::Connection(event)) => event.connection,
        _ => 0,
    }
}

/// Connections with an event in the open segment of a node, the summaries that it began with included.
#[derive(Default)]
pub(crate) struct LiveConnections(BTreeMap<u64, ConnectionSummary>);

impl LiveConnections {
    /// Folds an event in.
    pub(crate) fn add(&mut self, record: &Record) {
        fold(self.0.entry(connection_of(record)).or_default(), record);
        if self.0.len() > MAX_LIVE {
            self.0.pop_first();
        }
    }

    /// Reads the events of the open segment back.
    pub(crate) fn load(snapshot: &dyn Snapshot, node: u32, segment: u32) -> Result<Self, Error> {
        let mut live = Self::default();
        let range = keys::table_range(node, segment, CONNECTION_EVENTS.table);
        let mut cursor = snapshot.cursor(&range.start..&range.end);
        cursor.first()?;
        while let Some((_, value)) = cursor.entry() {
            let (_, record) = decode_row(value)?;
            fold(live.0.entry(connection_of(&record)).or_default(), &record);
            cursor.next()?;
        }
        Ok(live)
    }

    /// Drops what has ended, and gives a summary of each connection that has not: the beginning of the next segment.
    pub(crate) fn carry(&mut self) -> impl Iterator<Item = Record> {
        // What began before its connection was opened, as far as the store knows, is no summary to replace others with.
        self.0.retain(|_, summary| is_open(summary) && summary.opened.is_some());
        self.0.iter().map(|(&connection, summary)| keyframe(connection, summary))
    }
}

/// Connections, each folded from its events.
pub(crate) fn connections(reader: &Reader<'_>, query: &ConnectionQuery) -> Result<Vec<Connection>, Error> {
    let mut meter = Meter::new(&query.budget);
    let mut answer = Vec::new();
    // By segment, oldest first: the next connection that has events in it.
    let mut next = Vec::new();
    for segment in reader.records() {
        next.push(neighbour(reader, segment.number, query.order, query.from)?);
    }
    while (answer.len() as u64) < query.limit {
        let all = next.iter().flatten().copied();
        let (nearest, beyond): (_, fn(u64) -> Option<u64>) = match query.order {
            Order::OldestFirst => (all.min(), |key| key.checked_add(1)),
            Order::NewestFirst => (all.max(), |key| key.checked_sub(1)),
        };
        let Some(key) = nearest else { break };
        let mut summary = ConnectionSummary::default();
        // Segments in order: events keep the order of their arrival.
        for (next, segment) in next.iter_mut().zip(reader.records()) {
            if *next != Some(key) {
                continue;
            }
            fold_events(reader, segment.number, key, &mut meter, &mut summary)?;
            *next = match beyond(key) {
                Some(from) => neighbour(reader, segment.number, query.order, Some(from))?,
                None => None,
            };
        }
        answer.push(Connection { key, summary });
    }
    Ok(answer)
}

/// One connection.
pub(crate) fn connection(reader: &Reader<'_>, key: u64) -> Result<Option<Connection>, Error> {
    let budget = Budget::default();
    let mut meter = Meter::new(&budget);
    let mut summary = ConnectionSummary::default();
    let mut events = 0;
    for segment in reader.records() {
        events += fold_events(reader, segment.number, key, &mut meter, &mut summary)?;
    }
    Ok((events > 0).then_some(Connection { key, summary }))
}

/// The first connection of a segment at or after `from` in this order.
fn neighbour(reader: &Reader<'_>, segment: u32, order: Order, from: Option<u64>) -> Result<Option<u64>, Error> {
    let (node, table) = (reader.view.number, CONNECTION_EVENTS.table);
    let range = keys::table_range(node, segment, table);
    match order {
        Order::OldestFirst => {
            let mut cursor = reader.snapshot.cursor(&range.start..&range.end);
            match from {
                None => cursor.first()?,
                Some(from) => cursor.seek(&keys::row(node, segment, table, from))?,
            }
            Ok(cursor.entry().and_then(|(key, _)| keys::group_of(key)))
        }
        Order::NewestFirst => {
            let end = match from {
                None => range.end.to_vec(),
                Some(from) => keys::after_prefix(&keys::row(node, segment, table, from)),
            };
            Ok(reader.snapshot.last(&range.start..&end)?.and_then(|(key, _)| keys::group_of(&key)))
        }
    }
}

/// Folds the events of a connection in one segment; gives their number.
fn fold_events(
    reader: &Reader<'_>,
    segment: u32,
    connection: u64,
    meter: &mut Meter<'_>,
    summary: &mut ConnectionSummary,
) -> Result<u64, Error> {
    let prefix = keys::row(reader.view.number, segment, CONNECTION_EVENTS.table, connection);
    let mut cursor = reader.snapshot.cursor(&prefix..&keys::after_prefix(&prefix));
    let mut events = 0;
    cursor.first()?;
    while let Some((_, value)) = cursor.entry() {
        meter.step()?;
        fold(summary, &decode_row(value)?.1);
        events += 1;
        cursor.next()?;
    }
    Ok(events)
}

fn is_open(summary: &ConnectionSummary) -> bool {
    summary.closed.is_none() && summary.state.as_ref().is_none_or(|changed| changed.state() != ConnectionState::Closed)
}

/// Folds one more event of the connection in.
pub(crate) fn fold(summary: &mut ConnectionSummary, record: &Record) {
    let Some(Kind::Connection(ConnectionEvent { event: Some(event), .. })) = &record.kind else { return };
    match event {
        Event::Summary(whole) => {
            *summary = whole.clone();
            return;
        }
        Event::Opened(opened) => summary.opened = Some(opened.clone()),
        Event::Identified(now) => {
            let known = summary.identified.get_or_insert_default();
            for (known, now) in [
                (&mut known.peer_id, &now.peer_id),
                (&mut known.protocol, &now.protocol),
                (&mut known.network, &now.network),
            ] {
                if !now.is_empty() {
                    known.clone_from(now);
                }
            }
            if now.initiator() != Initiator::Unspecified {
                known.initiator = now.initiator;
            }
        }
        Event::Comment(text) => add_comment(&mut summary.comments, text),
        Event::Gap(gap) => {
            summary.gaps = summary.gaps.saturating_add(1);
            summary.lost_bytes = summary.lost_bytes.saturating_add(gap.lost_bytes);
        }
        Event::StateChanged(changed) => summary.state = Some(changed.clone()),
        Event::Closed(closed) => summary.closed = Some(closed.clone()),
    }
    summary.last_time_ns = summary.last_time_ns.max(record.time_ns);
    if !record.target.is_empty() {
        summary.target.clone_from(&record.target);
    }
}

fn add_comment(comments: &mut Vec<String>, text: &str) {
    if comments.len() < MAX_COMMENTS {
        comments.push(text.to_owned());
    } else if comments.len() == MAX_COMMENTS {
        comments.push(MORE_COMMENTS.to_owned());
    }
}

/// The event that stands for all before it.
pub(crate) fn keyframe(connection: u64, summary: &ConnectionSummary) -> Record {
    Record {
        time_ns: summary.last_time_ns,
        target: summary.target.clone(),
        kind: Some(Kind::Connection(ConnectionEvent { connection, event: Some(Event::Summary(summary.clone())) })),
    }
}
