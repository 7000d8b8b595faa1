//! Chunks, the payload of messages: stored once, by their place in the connection and the agent that sent them.
//!
//! A message's chunks lie in its own segment, so that both are evicted together. Chunks mostly come right before their
//! message; those that lie in an older segment when it comes are copied forward.

use std::collections::{BTreeMap, HashMap};

use chainscope_proto::v1::{Message, Record, record::Kind};

use crate::{
    Error,
    engine::{Batch, Cursor, Snapshot, Write},
    keys,
    kind::decode,
    meta::SegmentMeta,
    query::{Budget, Meter},
    report::Report,
    view::Reader,
};

/// The table of chunks.
pub(crate) const CHUNKS: u8 = 80;

/// Length of a key: prefix, connection, counter, direction, agent.
const KEY: usize = keys::PREFIX + 8 + 8 + 1 + 4;

/// Which chunk of a node it is, in the order of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

    /// One of the chunks of a message.
    pub(crate) fn of_message(message: &Message, counter: u64, agent: u32) -> Self {
        Self { connection: message.connection, counter, incoming: message.incoming, agent }
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

/// A run of chunk counters, both ends included, that is in the open segment without a hole.
#[derive(Clone, Copy)]
struct Run {
    first: u64,
    last: u64,
}

/// Where the chunks of live connections are, for the writer.
#[derive(Default)]
pub(crate) struct ChunkRuns {
    /// By connection, agent and direction (incoming).
    runs: HashMap<(u64, u32, bool), Run>,
    /// By connection, the greatest counter of a chunk in an older segment, once it was searched.
    older: HashMap<u64, Option<u64>>,
}

impl ChunkRuns {
    /// A new segment is open, with no chunk in it.
    pub(crate) fn clear(&mut self) {
        self.runs.clear();
        self.older.clear();
    }

    /// A chunk was written to the open segment.
    pub(crate) fn add(&mut self, chunk: Chunk) {
        let counter = chunk.counter;
        let run = self
            .runs
            .entry((chunk.connection, chunk.agent, chunk.incoming))
            .or_insert(Run { first: counter, last: counter });
        if Some(counter) == run.last.checked_add(1) {
            run.last = counter;
        } else if counter < run.first || counter > run.last {
            *run = Run { first: counter, last: counter };
        }
    }

    /// A connection has ended.
    pub(crate) fn end(&mut self, connection: u64, agent: u32) {
        self.runs.remove(&(connection, agent, false));
        self.runs.remove(&(connection, agent, true));
        self.older.remove(&connection);
    }

    /// Whether all chunks of the message are known to be in the open segment. False means: unknown.
    pub(crate) fn has_all_of(&self, message: &Message, agent: u32) -> bool {
        self.runs
            .get(&(message.connection, agent, message.incoming))
            .is_some_and(|run| run.first <= message.first_chunk && message.last_chunk <= run.last)
    }

    /// All chunks of the message are in the open segment, found or copied there.
    pub(crate) fn add_all_of(&mut self, message: &Message, agent: u32) {
        let found = Run { first: message.first_chunk, last: message.last_chunk };
        let run = self.runs.entry((message.connection, agent, message.incoming)).or_insert(found);
        if found.first <= run.last.saturating_add(1) && run.first <= found.last.saturating_add(1) {
            *run = Run { first: run.first.min(found.first), last: run.last.max(found.last) };
        } else if found.last > run.last {
            *run = found;
        }
    }

    /// Whether a chunk of the message can lie in an older segment; `greatest` searches the greatest counter that does.
    pub(crate) fn may_be_older(
        &mut self,
        message: &Message,
        greatest: impl FnOnce() -> Result<Option<u64>, Error>,
    ) -> Result<bool, Error> {
        let older = match self.older.get(&message.connection) {
            Some(older) => *older,
            None => *self.older.entry(message.connection).or_insert(greatest()?),
        };
        Ok(message.first_chunk <= message.last_chunk && older.is_some_and(|older| message.first_chunk <= older))
    }
}

/// The greatest counter of a connection's chunks, of any agent and direction, in segments before the open one, be they
/// in the engine or staged.
pub(crate) fn greatest_older<'a>(
    snapshot: &dyn Snapshot,
    staged: &Batch,
    node: u32,
    older: impl Iterator<Item = &'a SegmentMeta>,
    open: u32,
    connection: u64,
) -> Result<Option<u64>, Error> {
    let staged = staged.iter().filter_map(|write| {
        let Write::Put(key, _) = write else { return None };
        let segment = keys::segment_of(key).filter(|segment| *segment != open)?;
        if !key.starts_with(&keys::row(node, segment, CHUNKS, connection)) {
            return None;
        }
        Chunk::of_key(key).map(|chunk| chunk.counter)
    });
    let mut greatest: Option<u64> = staged.max();
    for segment in older {
        let prefix = keys::row(node, segment.number, CHUNKS, connection);
        let last = snapshot.last(&prefix..&keys::after_prefix(&prefix))?;
        greatest = greatest.max(last.and_then(|(key, _)| Chunk::of_key(&key)).map(|chunk| chunk.counter));
    }
    Ok(greatest)
}

/// What has to be copied so that a message has its chunks in the open segment.
pub(crate) struct CopyPlan {
    /// The chunks that are only in older segments, and the newest segment that each is in.
    pub(crate) older: Vec<(Chunk, u32)>,
    /// Every chunk of the message was found. One that was not got lost before it came here.
    pub(crate) is_complete: bool,
}

/// Searches the chunks of a message, newest segment first. Nothing may be staged.
pub(crate) fn plan_copy<'a>(
    snapshot: &dyn Snapshot,
    node: u32,
    segments: impl DoubleEndedIterator<Item = &'a SegmentMeta>,
    open: u32,
    message: &Message,
    agent: u32,
) -> Result<CopyPlan, Error> {
    let wanted = message.last_chunk.saturating_sub(message.first_chunk).saturating_add(1);
    let mut found = BTreeMap::new();
    for segment in segments.rev() {
        each_chunk(snapshot, node, segment.number, message, agent, |counter, _| {
            found.entry(counter).or_insert(segment.number);
            true
        })?;
        if found.len() as u64 >= wanted {
            break;
        }
    }
    let is_complete = found.len() as u64 >= wanted;
    found.retain(|_, segment| *segment != open);
    let older = found.into_iter().map(|(counter, segment)| (Chunk::of_message(message, counter, agent), segment));
    Ok(CopyPlan { older: older.collect(), is_complete })
}

/// Calls `each` with counter and value of the chunks of a message in one segment, ascending, until it returns false.
pub(crate) fn each_chunk(
    snapshot: &dyn Snapshot,
    node: u32,
    segment: u32,
    message: &Message,
    agent: u32,
    mut each: impl FnMut(u64, &[u8]) -> bool,
) -> Result<(), Error> {
    if message.first_chunk > message.last_chunk {
        return Ok(());
    }
    let first = keys::grouped_row(node, segment, CHUNKS, message.connection, message.first_chunk);
    let last = keys::grouped_row(node, segment, CHUNKS, message.connection, message.last_chunk);
    let mut cursor = snapshot.cursor(&first..&keys::after_prefix(&last));
    cursor.first()?;
    while let Some((key, value)) = cursor.entry() {
        let chunk = Chunk::of_key(key).ok_or_else(|| Error::Corrupt(format!("chunk key {key:02x?}")))?;
        if chunk.incoming == message.incoming && chunk.agent == agent && !each(chunk.counter, value) {
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
    let Some(last) = message.last_chunk.checked_sub(message.first_chunk) else { return Ok(()) };
    let mut have = Vec::new();
    each_chunk(&*reader.snapshot, node, segment.number, message, agent, |counter, _| {
        have.push(counter);
        true
    })?;
    let (present, wanted) = (have.len() as u64, last.saturating_add(1));
    if present >= wanted {
        return Ok(());
    }
    report.chunks_absent += wanted - present;
    // Only as many as a message of 100 MiB has: a range may be nonsense.
    let absent = (message.first_chunk..=message.last_chunk).take(4096);
    for counter in absent.filter(|counter| have.binary_search(counter).is_err()) {
        for other in reader.records().take_while(|other| other.number < segment.number) {
            let key = Chunk::of_message(message, counter, agent).key(node, other.number);
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
