//! Connections, folded from their events in the order of arrival.
//!
//! A summary stands for all events before it, so that folding from a summary on gives what folding from the beginning
//! does. A segment begins with a summary of each live connection, so that the segment with the beginning can be evicted.

use std::collections::{BTreeMap, BTreeSet};

use chainscope_proto::v1::{
    ConnectionEvent, ConnectionState, ConnectionSummary, Initiator, Record, connection_event::Event, record::Kind,
};
use prost::Message as _;

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

/// Live connections of a node whose summaries are carried from segment to segment. Beyond it those whose last event is
/// oldest are not carried, so that ends which are never reported cannot fill the memory.
pub(crate) const MAX_LIVE: usize = 65_536;
/// Encoded bytes of these summaries, likewise.
const MAX_LIVE_BYTES: usize = 32 << 20;

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

/// The live connections of a node: those that were opened and have not ended, as far as the store knows. Each has an event
/// in the open segment: the summary that the segment began with, or its start.
#[derive(Default)]
pub(crate) struct LiveConnections {
    summaries: BTreeMap<u64, ConnectionSummary>,
    /// The time of the last event of each, and its key.
    by_time: BTreeSet<(i64, u64)>,
    /// Encoded bytes of the summaries.
    bytes: usize,
}

impl LiveConnections {
    /// Folds an event in.
    pub(crate) fn add(&mut self, record: &Record) {
        let connection = connection_of(record);
        let mut summary = self.remove(connection).unwrap_or_default();
        fold(&mut summary, record);
        self.insert(connection, summary);
    }

    /// Keeps the summary of a connection that is not in yet, unless it has ended. What began before its connection was
    /// opened, as far as the store knows, is no summary to replace others with, and is not kept either.
    fn insert(&mut self, connection: u64, summary: ConnectionSummary) {
        if !is_open(&summary) || summary.opened.is_none() {
            return;
        }
        self.bytes += summary.encoded_len();
        self.by_time.insert((summary.last_time_ns, connection));
        self.summaries.insert(connection, summary);
        while self.summaries.len() > MAX_LIVE || self.bytes > MAX_LIVE_BYTES {
            let Some(&(_, oldest)) = self.by_time.first() else { break };
            self.remove(oldest);
        }
    }

    fn remove(&mut self, connection: u64) -> Option<ConnectionSummary> {
        let summary = self.summaries.remove(&connection)?;
        self.by_time.remove(&(summary.last_time_ns, connection));
        self.bytes -= summary.encoded_len();
        Some(summary)
    }

    /// Reads the events of the open segment back.
    pub(crate) fn load(snapshot: &dyn Snapshot, node: u32, segment: u32) -> Result<Self, Error> {
        let mut live = Self::default();
        let range = keys::table_range(node, segment, CONNECTION_EVENTS.table);
        let mut cursor = snapshot.cursor(&range.start..&range.end);
        cursor.first()?;
        // The rows are grouped by connection.
        let (mut connection, mut summary) = (0, ConnectionSummary::default());
        while let Some((_, value)) = cursor.entry() {
            let (_, record) = decode_row(value)?;
            let next = connection_of(&record);
            if next != connection {
                live.insert(connection, std::mem::take(&mut summary));
                connection = next;
            }
            fold(&mut summary, &record);
            cursor.next()?;
        }
        live.insert(connection, summary);
        Ok(live)
    }

    /// A summary of each connection: the beginning of the next segment.
    pub(crate) fn carry(&self) -> impl Iterator<Item = Record> {
        self.summaries.iter().map(|(&connection, summary)| keyframe(connection, summary))
    }

    /// Keys of the connections.
    #[cfg(test)]
    pub(crate) fn keys(&self) -> Vec<u64> {
        self.summaries.keys().copied().collect()
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

#[cfg(test)]
mod tests {
    use chainscope_proto::v1::{ConnectionClosed, ConnectionOpened};

    use super::*;

    fn event(connection: u64, time_ns: i64, event: Event) -> Record {
        let event = ConnectionEvent { connection, event: Some(event) };
        Record { time_ns, target: String::new(), kind: Some(Kind::Connection(event)) }
    }

    fn opened() -> Event {
        Event::Opened(ConnectionOpened::default())
    }

    #[test]
    fn only_connections_that_were_opened_and_have_not_ended_are_live() {
        let mut live = LiveConnections::default();
        live.add(&event(1, 1, opened()));
        live.add(&event(2, 2, opened()));
        live.add(&event(3, 3, Event::Comment("its start is not known".to_owned())));
        assert_eq!(live.keys(), [1, 2]);
        live.add(&event(1, 4, Event::Closed(ConnectionClosed::default())));
        assert_eq!(live.keys(), [2]);
        live.add(&event(1, 5, Event::Comment("after its end".to_owned())));
        live.add(&event(2, 6, Event::Closed(ConnectionClosed::default())));
        assert_eq!(live.keys(), [0; 0]);
        assert_eq!((live.bytes, live.by_time.len()), (0, 0));
    }

    #[test]
    fn beyond_the_greatest_number_the_connection_whose_last_event_is_oldest_is_forgotten() {
        let mut live = LiveConnections::default();
        for connection in 0..MAX_LIVE as u64 {
            live.add(&event(connection, connection as i64, opened()));
        }
        live.add(&event(0, 1_000_000, Event::Comment("active".to_owned())));
        live.add(&event(u64::MAX, 1_000_001, opened()));
        assert_eq!(live.summaries.len(), MAX_LIVE);
        assert_eq!(live.keys()[..2], [0, 2]);
        assert_eq!(live.by_time.len(), MAX_LIVE);
    }

    #[test]
    fn beyond_the_greatest_number_of_bytes_connections_are_forgotten() {
        let mut live = LiveConnections::default();
        // 40 MiB.
        for connection in 0..40 {
            live.add(&event(connection, connection as i64, opened()));
            for _ in 0..MAX_COMMENTS {
                live.add(&event(connection, connection as i64, Event::Comment("x".repeat(16 << 10))));
            }
        }
        let kept = live.keys();
        assert!((30..=32).contains(&kept.len()), "{kept:?}");
        assert_eq!(kept.last(), Some(&39));
        let bytes = live.carry().map(|record| record.encoded_len()).sum::<usize>();
        assert!(bytes <= MAX_LIVE_BYTES + 64 * kept.len(), "{bytes}");
    }
}
