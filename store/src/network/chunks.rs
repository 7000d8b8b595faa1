//! Chunks, the payload of messages: stored once, by their place in the connection and the agent that sent them.
//!
//! A message's chunks lie in its own segment, so that both are evicted together. Chunks mostly come right before their
//! message; those that lie in an older segment when it comes are copied forward.

mod runs;

use std::collections::BTreeMap;

use chainscope_proto::v1::{Message, Record, record::Kind};

use crate::{
    Error,
    engine::{Cursor, Snapshot},
    keys,
    kind::decode,
    meta::SegmentMeta,
    query::{Budget, Meter},
    report::Report,
    view::Reader,
};

pub(crate) use self::runs::ChunkRuns;
#[cfg(test)]
pub(crate) use self::runs::MAX_REMEMBERED;

/// The table of chunks.
pub(crate) const CHUNKS: u8 = 80;

/// Length of a key: prefix, connection, counter, direction, agent.
const KEY: usize = keys::PREFIX + 8 + 8 + 1 + 4;

/// Which chunk of a node it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    pub(crate) connection: u64,
    pub(crate) counter: u64,
    pub(crate) incoming: bool,
    /// Number of the agent that sent it. Connections of two agents can have one key.
    pub(crate) agent: u32,
}

impl Chunk {
    /// A chunk of a record.
    pub(crate) fn of(chunk: &chainscope_proto::v1::Chunk, agent: u32) -> Self {
        Self { connection: chunk.connection, counter: chunk.counter, incoming: chunk.incoming, agent }
    }

    pub(crate) fn key(self, node: u32, segment: u32) -> [u8; KEY] {
        let mut key = [0; KEY];
        key[..keys::PREFIX + 16].copy_from_slice(&keys::grouped_row(
            node,
            segment,
            CHUNKS,
            self.connection,
            self.counter,
        ));
        key[keys::PREFIX + 16] = u8::from(self.incoming);
        key[keys::PREFIX + 17..].copy_from_slice(&self.agent.to_be_bytes());
        key
    }

    fn of_key(key: &[u8]) -> Option<Self> {
        let (connection, rest) = key.get(keys::PREFIX..)?.split_first_chunk()?;
        let (counter, rest) = rest.split_first_chunk()?;
        let (&incoming, agent) = rest.split_first()?;
        Some(Self {
            connection: u64::from_be_bytes(*connection),
            counter: u64::from_be_bytes(*counter),
            incoming: incoming != 0,
            agent: u32::from_be_bytes(agent.try_into().ok()?),
        })
    }
}

/// Chunks of one side of a connection, as one agent sent them: those of a message, or a part of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkRange {
    connection: u64,
    incoming: bool,
    agent: u32,
    /// The first counter and the last one, which is not less.
    first: u64,
    last: u64,
}

impl ChunkRange {
    /// Those of a message; none if its range ends before it starts.
    pub(crate) fn of_message(message: &Message, agent: u32) -> Option<Self> {
        let &Message { connection, incoming, first_chunk: first, last_chunk: last, .. } = message;
        (first <= last).then_some(Self { connection, incoming, agent, first, last })
    }

    fn of_chunk(chunk: Chunk) -> Self {
        let Chunk { connection, counter, incoming, agent } = chunk;
        Self { connection, incoming, agent, first: counter, last: counter }
    }

    pub(crate) fn connection(self) -> u64 {
        self.connection
    }

    fn chunk(self, counter: u64) -> Chunk {
        Chunk { connection: self.connection, counter, incoming: self.incoming, agent: self.agent }
    }

    fn len(self) -> u64 {
        (self.last - self.first).saturating_add(1)
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
    /// Bound on the work.
    pub budget: Budget,
}

impl Default for ChunkQuery {
    fn default() -> Self {
        Self { connection: None, from: None, limit: 100, budget: Budget::default() }
    }
}

/// The greatest counter of a connection's chunks, of any agent and direction, that the engine has in these segments.
pub(crate) fn greatest_older<'a>(
    snapshot: &dyn Snapshot,
    node: u32,
    older: impl Iterator<Item = &'a SegmentMeta>,
    connection: u64,
) -> Result<Option<u64>, Error> {
    let mut greatest: Option<u64> = None;
    for segment in older {
        let prefix = keys::row(node, segment.number, CHUNKS, connection);
        let last = snapshot.last(&prefix..&keys::after_prefix(&prefix))?;
        greatest = greatest.max(last.and_then(|(key, _)| Chunk::of_key(&key)).map(|chunk| chunk.counter));
    }
    Ok(greatest)
}

/// Searches the chunks of a range, newest segment first: those that are only in older segments, and the newest segment
/// that each is in. None may be staged for an older one. One that is staged for the open segment may be planned: its copy
/// has the same key and value.
pub(crate) fn plan_copy<'a>(
    snapshot: &dyn Snapshot,
    node: u32,
    segments: impl DoubleEndedIterator<Item = &'a SegmentMeta>,
    open: u32,
    range: ChunkRange,
) -> Result<Vec<(Chunk, u32)>, Error> {
    let mut found = BTreeMap::new();
    for segment in segments.rev() {
        if found.len() as u64 >= range.len() {
            break;
        }
        each_chunk(snapshot, node, segment.number, range, |counter, _| {
            found.entry(counter).or_insert(segment.number);
            true
        })?;
    }
    found.retain(|_, segment| *segment != open);
    Ok(found.into_iter().map(|(counter, segment)| (range.chunk(counter), segment)).collect())
}

/// Calls `each` with counter and value of the chunks of a range in one segment, ascending, until it returns false.
pub(crate) fn each_chunk(
    snapshot: &dyn Snapshot,
    node: u32,
    segment: u32,
    range: ChunkRange,
    mut each: impl FnMut(u64, &[u8]) -> bool,
) -> Result<(), Error> {
    let first = keys::grouped_row(node, segment, CHUNKS, range.connection, range.first);
    let last = keys::grouped_row(node, segment, CHUNKS, range.connection, range.last);
    let mut cursor = snapshot.cursor(&first..&keys::after_prefix(&last));
    cursor.first()?;
    while let Some((key, value)) = cursor.entry() {
        let chunk = Chunk::of_key(key).ok_or_else(|| Error::Corrupt(format!("chunk key {key:02x?}")))?;
        if chunk.incoming == range.incoming && chunk.agent == range.agent && !each(chunk.counter, value) {
            break;
        }
        cursor.next()?;
    }
    Ok(())
}

/// One chunk; the copy in the newest segment, if there are several.
pub(crate) fn chunk(
    reader: &Reader<'_>,
    connection: u64,
    counter: u64,
    incoming: bool,
) -> Result<Option<Record>, Error> {
    for segment in reader.records().rev() {
        let mut prefix = keys::grouped_row(reader.view.number, segment.number, CHUNKS, connection, counter).to_vec();
        prefix.push(u8::from(incoming));
        let mut cursor = reader.snapshot.cursor(&prefix..&keys::after_prefix(&prefix));
        cursor.first()?;
        if let Some((_, value)) = cursor.entry() {
            return decode(value).map(Some);
        }
    }
    Ok(None)
}

/// Chunks by connection, counter and side.
pub(crate) fn list(reader: &Reader<'_>, query: &ChunkQuery) -> Result<Vec<Record>, Error> {
    let node = reader.view.number;
    let mut meter = Meter::new(&query.budget);
    let mut answer = Vec::new();
    let mut cursors = Vec::new();
    for segment in reader.records() {
        let prefix = match query.connection {
            None => keys::table(node, segment.number, CHUNKS).to_vec(),
            Some(connection) => keys::row(node, segment.number, CHUNKS, connection).to_vec(),
        };
        let mut cursor = reader.snapshot.cursor(&prefix..&keys::after_prefix(&prefix));
        match query.from {
            None => cursor.first()?,
            Some((connection, counter, incoming)) => {
                let from = Chunk { connection, counter, incoming, agent: 0 };
                cursor.seek(&from.key(node, segment.number))?;
            }
        }
        cursors.push(cursor);
    }
    while (answer.len() as u64) < query.limit {
        // The same chunk can be in two segments; both have the same value.
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

fn behind_prefix(cursor: &dyn Cursor) -> Option<&[u8]> {
    cursor.entry()?.0.get(keys::PREFIX..)
}

/// Checks that a chunk of a message which is not in the message's own segment is in no older one either.
pub(crate) fn verify(
    reader: &Reader<'_>,
    segment: &SegmentMeta,
    id: u64,
    (agent, record): (u32, &Record),
    report: &mut Report,
) -> Result<(), Error> {
    let Some(Kind::Message(message)) = &record.kind else { return Ok(()) };
    let node = reader.view.number;
    let Some(range) = ChunkRange::of_message(message, agent) else { return Ok(()) };
    let mut have = Vec::new();
    each_chunk(&*reader.snapshot, node, segment.number, range, |counter, _| {
        have.push(counter);
        true
    })?;
    let (present, wanted) = (have.len() as u64, range.len());
    if present >= wanted {
        return Ok(());
    }
    report.chunks_absent += wanted - present;
    // Only as many as a message of 100 MiB has: a range may be nonsense.
    let absent = (range.first..=range.last).take(4096);
    for counter in absent.filter(|counter| have.binary_search(counter).is_err()) {
        for other in reader.records().take_while(|other| other.number < segment.number) {
            let key = range.chunk(counter).key(node, other.number);
            if reader.snapshot.get(&key)?.is_some() {
                report.problem(format!(
                    "{}: chunk {counter} of row {id} is in segment {}, not in {}",
                    reader.view.name, other.number, segment.number
                ));
                break;
            }
        }
    }
    Ok(())
}
