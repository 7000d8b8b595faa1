//! Reads of everything but messages: chunks, connections, losses, events of targets, accounts.

use std::ops::ControlFlow;

use chainscope_proto::v1::{ConnectionSummary, Record, record::Kind};
use prost::Message as _;

use crate::{
    Connection, Error, Order,
    engine::{Cursor, Snapshot},
    fold::fold,
    keys::{self, ChunkPlace},
    query::{Budget, Meter},
    view::Reader,
    writer::each_chunk,
};

/// Which connections.
#[derive(Clone, Debug)]
pub struct ConnectionQuery {
    /// Key to begin with, included.
    pub from: Option<u64>,
    /// Most connections to give.
    pub limit: u64,
    /// By key: the time a connection began.
    pub order: Order,
    /// How much work it may be; an event is a row.
    pub budget: Budget,
}

impl Default for ConnectionQuery {
    fn default() -> Self {
        Self { from: None, limit: 100, order: Order::OldestFirst, budget: Budget::default() }
    }
}

/// Which chunks; they come by connection, counter, and the local side's before the remote's.
#[derive(Clone, Debug)]
pub struct ChunkQuery {
    /// Only those of one connection.
    pub connection: Option<u64>,
    /// Where to begin, included: connection, counter, whether the remote sent it.
    pub from: Option<(u64, u64, bool)>,
    /// Most chunks to give.
    pub limit: u64,
    /// How much work it may be.
    pub budget: Budget,
}

impl Default for ChunkQuery {
    fn default() -> Self {
        Self { connection: None, from: None, limit: 100, budget: Budget::default() }
    }
}

/// Which losses or events of targets.
#[derive(Clone, Debug)]
pub struct FactQuery {
    /// Id to begin with, included. Ids are dense for each node and kind of fact.
    pub cursor: Option<u64>,
    /// Most facts to give.
    pub limit: u64,
    /// By id.
    pub order: Order,
}

impl Default for FactQuery {
    fn default() -> Self {
        Self { cursor: None, limit: 100, order: Order::NewestFirst }
    }
}

/// The latest account of a target, as its agent sent it.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    /// Name of the agent.
    pub agent: String,
    /// The agent's epoch: accounts of different epochs count different stretches of time.
    pub epoch: Vec<u8>,
    /// The record, of kind `NetworkAccount`.
    pub record: Record,
}

/// One message.
pub(crate) fn message(reader: &Reader<'_>, id: u64) -> Result<Option<(u32, Record)>, Error> {
    let view = &reader.view;
    let Some(segment) = view.segment_of(id) else { return Ok(None) };
    let value = reader.snapshot.get(&keys::row(keys::MESSAGE, view.number, segment.number, id))?;
    let value = value.ok_or_else(|| Error::Corrupt(format!("row {id} is missing")))?;
    Ok(Some((segment.number, decode(&value)?)))
}

/// The chunks of a message, by counter; false if there is no such message.
pub(crate) fn message_chunks(
    reader: &Reader<'_>,
    id: u64,
    each: &mut dyn FnMut(Record) -> ControlFlow<()>,
) -> Result<bool, Error> {
    let Some((segment, record)) = message(reader, id)? else { return Ok(false) };
    let Some(Kind::Message(message)) = &record.kind else {
        return Err(Error::Corrupt(format!("row {id} is not a message")));
    };
    let mut broken = Ok(());
    each_chunk(&*reader.snapshot, reader.view.number, segment, message, |_, value| match decode(value) {
        Ok(chunk) => each(chunk).is_continue(),
        Err(error) => {
            broken = Err(error);
            false
        }
    })?;
    broken.map(|()| true)
}

/// One chunk; the copy in the newest segment, if there are several.
pub(crate) fn chunk(reader: &Reader<'_>, place: ChunkPlace) -> Result<Option<Record>, Error> {
    for segment in reader.view.segments.iter().rev() {
        if let Some(value) = reader.snapshot.get(&keys::chunk(reader.view.number, segment.number, place))? {
            return decode(&value).map(Some);
        }
    }
    Ok(None)
}

/// Chunks by connection, counter and side.
pub(crate) fn chunks(reader: &Reader<'_>, query: &ChunkQuery) -> Result<Vec<Record>, Error> {
    let mut meter = Meter::new(&query.budget);
    let mut answer = Vec::new();
    let mut cursors = cursors(reader, keys::CHUNK, query.connection);
    for (cursor, segment) in cursors.iter_mut().zip(&reader.view.segments) {
        match query.from {
            None => cursor.first()?,
            Some((connection, counter, incoming)) => {
                let place = ChunkPlace { connection, counter, incoming };
                cursor.seek(&keys::chunk(reader.view.number, segment.number, place))?;
            }
        }
    }
    while (answer.len() as u64) < query.limit {
        // The same chunk may be in two segments; the newer one is as good.
        let Some(least) = cursors.iter().filter_map(|cursor| behind_prefix(cursor.as_ref())).min() else { break };
        let least = least.to_vec();
        let mut value = None;
        for cursor in &mut cursors {
            if behind_prefix(cursor.as_ref()) == Some(&least) {
                meter.step()?;
                value = cursor.entry().map(|(_, value)| decode(value)).transpose()?;
                cursor.next()?;
            }
        }
        answer.extend(value);
    }
    Ok(answer)
}

/// Connections, each folded from its events.
pub(crate) fn connections(reader: &Reader<'_>, query: &ConnectionQuery) -> Result<Vec<Connection>, Error> {
    let mut meter = Meter::new(&query.budget);
    let mut answer = Vec::new();
    // By segment, oldest first: the next connection that has events in it.
    let mut next = Vec::new();
    for segment in &reader.view.segments {
        next.push(neighbour(reader, segment.number, query.order, query.from)?);
    }
    while (answer.len() as u64) < query.limit {
        let all = next.iter().flatten().copied();
        let nearest = match query.order {
            Order::OldestFirst => all.min(),
            Order::NewestFirst => all.max(),
        };
        let Some(key) = nearest else { break };
        let mut summary = ConnectionSummary::default();
        let beyond = match query.order {
            Order::OldestFirst => key.checked_add(1),
            Order::NewestFirst => key.checked_sub(1),
        };
        // Segments in order: events keep the order of their arrival.
        for (next, segment) in next.iter_mut().zip(&reader.view.segments) {
            if *next != Some(key) {
                continue;
            }
            fold_events(reader, segment.number, key, &mut meter, &mut summary)?;
            *next = match beyond {
                Some(beyond) => neighbour(reader, segment.number, query.order, Some(beyond))?,
                None => None,
            };
        }
        answer.push(Connection { key, summary });
    }
    Ok(answer)
}

/// The first connection of a segment at or after `from` in this order.
fn neighbour(reader: &Reader<'_>, segment: u32, order: Order, from: Option<u64>) -> Result<Option<u64>, Error> {
    let node = reader.view.number;
    let range = keys::segment_range(keys::CONNECTION, node, segment);
    match order {
        Order::OldestFirst => {
            let mut cursor = reader.snapshot.cursor(&range.start..&range.end);
            match from {
                None => cursor.first()?,
                Some(from) => cursor.seek(&keys::event(node, segment, from, 0))?,
            }
            Ok(connection_at(cursor.as_ref()))
        }
        Order::NewestFirst => {
            let end = match from {
                None => range.end.to_vec(),
                Some(from) => keys::after_prefix(&keys::event(node, segment, from, u64::MAX)),
            };
            let last = reader.snapshot.last(&range.start..&end)?;
            Ok(last.and_then(|(key, _)| keys::event_of(&key)).map(|(connection, _)| connection))
        }
    }
}

fn fold_events(
    reader: &Reader<'_>,
    segment: u32,
    connection: u64,
    meter: &mut Meter<'_>,
    summary: &mut ConnectionSummary,
) -> Result<(), Error> {
    let mut prefix = keys::segment(keys::CONNECTION, reader.view.number, segment).to_vec();
    prefix.extend_from_slice(&connection.to_be_bytes());
    let mut cursor = reader.snapshot.cursor(&prefix..&keys::after_prefix(&prefix));
    cursor.first()?;
    while let Some((_, value)) = cursor.entry() {
        meter.step()?;
        fold(summary, &decode(value)?);
        cursor.next()?;
    }
    Ok(())
}

/// One connection.
pub(crate) fn connection(reader: &Reader<'_>, key: u64) -> Result<Option<Connection>, Error> {
    let mut summary = None;
    for mut cursor in cursors(reader, keys::CONNECTION, Some(key)) {
        cursor.first()?;
        while let Some((_, value)) = cursor.entry() {
            fold(summary.get_or_insert_default(), &decode(value)?);
            cursor.next()?;
        }
    }
    Ok(summary.map(|summary| Connection { key, summary }))
}

/// Facts of a table that is keyed by a dense id.
pub(crate) fn rows(reader: &Reader<'_>, table: u8, query: &FactQuery) -> Result<Vec<(u64, Record)>, Error> {
    let node = reader.view.number;
    let mut answer = Vec::new();
    let mut segments = reader.view.segments.iter();
    loop {
        let segment = match query.order {
            Order::OldestFirst => segments.next(),
            Order::NewestFirst => segments.next_back(),
        };
        let Some(segment) = segment else { return Ok(answer) };
        let mut add = |key: &[u8], value: &[u8]| {
            let id = keys::last_number(key).ok_or_else(|| Error::Corrupt(format!("key {key:02x?}")))?;
            answer.push((id, decode(value)?));
            Ok::<_, Error>(answer.len() as u64 >= query.limit)
        };
        let range = keys::segment_range(table, node, segment.number);
        if query.limit == 0 {
            return Ok(answer);
        }
        match query.order {
            Order::OldestFirst => {
                let mut cursor = reader.snapshot.cursor(&range.start..&range.end);
                cursor.seek(&keys::row(table, node, segment.number, query.cursor.unwrap_or(0)))?;
                while let Some((key, value)) = cursor.entry() {
                    if add(key, value)? {
                        return Ok(answer);
                    }
                    cursor.next()?;
                }
            }
            Order::NewestFirst => {
                let mut end = match query.cursor {
                    Some(cursor) => keys::after_prefix(&keys::row(table, node, segment.number, cursor)),
                    None => range.end.to_vec(),
                };
                while let Some((key, value)) = reader.snapshot.last(&range.start..&end)? {
                    if add(&key, &value)? {
                        return Ok(answer);
                    }
                    end = key;
                }
            }
        }
    }
}

/// The latest account of every target.
pub(crate) fn accounts(reader: &Reader<'_>) -> Result<Vec<Account>, Error> {
    let prefix = keys::node(keys::ACCOUNT, reader.view.number);
    let mut cursor = reader.snapshot.cursor(&prefix..&keys::after_prefix(&prefix));
    let mut answer = Vec::new();
    cursor.first()?;
    while let Some((key, value)) = cursor.entry() {
        let (agent, epoch) = keys::lane_of(key).ok_or_else(|| Error::Corrupt(format!("account key {key:02x?}")))?;
        answer.push(Account {
            agent: String::from_utf8_lossy(agent).into_owned(),
            epoch: epoch.to_vec(),
            record: decode(value)?,
        });
        cursor.next()?;
    }
    Ok(answer)
}

/// One cursor for each segment, oldest first.
fn cursors<'a>(reader: &'a Reader<'_>, table: u8, connection: Option<u64>) -> Vec<Box<dyn Cursor + 'a>> {
    let snapshot: &'a dyn Snapshot = &*reader.snapshot;
    let of_segment = |number| {
        let mut prefix = keys::segment(table, reader.view.number, number).to_vec();
        if let Some(connection) = connection {
            prefix.extend_from_slice(&connection.to_be_bytes());
        }
        snapshot.cursor(&prefix..&keys::after_prefix(&prefix))
    };
    reader.view.segments.iter().map(|segment| of_segment(segment.number)).collect()
}

fn behind_prefix(cursor: &dyn Cursor) -> Option<&[u8]> {
    cursor.entry()?.0.get(keys::PREFIX..)
}

fn connection_at(cursor: &dyn Cursor) -> Option<u64> {
    Some(keys::event_of(cursor.entry()?.0)?.0)
}

fn decode(value: &[u8]) -> Result<Record, Error> {
    Record::decode(value).map_err(|error| Error::Corrupt(format!("a record: {error}")))
}
