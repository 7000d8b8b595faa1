//! The writing side: records are staged in one batch, which goes to the engine as a whole.
//!
//! A batch holds rows, chunks, postings, zones, segments, ids, totals and lane marks together, so that after a crash
//! they agree. The engine makes a batch readable only when its log is synced.

use std::collections::{BTreeMap, HashMap};

use chainscope_proto::v1::{Loss, Message, Record, record::Kind};
use prost::Message as _;

use crate::{
    Error, Retention, StoreOptions,
    ballast::Ballast,
    engine::{Batch, Engine, LocalDisk, Snapshot, Write},
    keys::{self, ChunkPlace},
    meta::{NodeMeta, SegmentMeta},
    node::{Lane, Node},
    view::NodeView,
};

/// Longest name of a node, in bytes: a namespace, a slash and a name of Kubernetes. It is in no key, so that this only
/// bounds what a stranger can make us keep.
pub const LONGEST_NODE: usize = 2 * 253 + 1;

/// Longest name that a key takes without being cut.
const LONGEST_IN_KEY: usize = u8::MAX as usize;

/// Everything that only a writer touches. One lock guards it.
pub(crate) struct Writer {
    pub(crate) nodes: Vec<Node>,
    by_name: HashMap<String, usize>,
    next_node: u32,
    staged: Batch,
    pub(crate) options: StoreOptions,
    pub(crate) ballast: Ballast,
    /// The last commit found the disk full.
    pub(crate) full: bool,
}

impl Writer {
    pub(crate) fn new(
        engine: &dyn Engine,
        options: StoreOptions,
        nodes: Vec<Node>,
        next_node: u32,
    ) -> Result<Self, Error> {
        let by_name = nodes.iter().enumerate().map(|(at, node)| (node.meta.name.clone(), at)).collect();
        let mut ballast = Ballast::new(engine.disk().map(LocalDisk::dir), options.ballast_bytes);
        ballast.restore(engine.free_bytes()?, options.min_free_bytes)?;
        Ok(Self { nodes, by_name, next_node, staged: Batch::default(), options, ballast, full: false })
    }

    /// The place of a node in `nodes`, if it is known.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The place of a node in `nodes`; an unknown one is made.
    fn find_or_add(&mut self, name: &str) -> Result<usize, Error> {
        if let Some(at) = self.find(name) {
            return Ok(at);
        }
        check_length("a node name", name.len(), LONGEST_NODE)?;
        let mut node = Node::new(self.next_node, NodeMeta { name: name.to_owned(), ..NodeMeta::default() });
        node.changed = true;
        self.next_node += 1;
        self.staged.put(keys::NEXT_NODE, &self.next_node.to_be_bytes());
        self.nodes.push(node);
        self.by_name.insert(name.to_owned(), self.nodes.len() - 1);
        Ok(self.nodes.len() - 1)
    }

    /// Number of a node; an unknown one is made.
    pub(crate) fn number(&mut self, name: &str) -> Result<u32, Error> {
        let at = self.find_or_add(name)?;
        self.nodes.get(at).map(|node| node.number).ok_or_else(|| no_node(name))
    }

    /// Refuses a write of this many bytes, an eviction aside, if the engine has no space for it.
    pub(crate) fn check_space(&mut self, engine: &dyn Engine, bytes: usize) -> Result<(), Error> {
        let free_bytes = engine.free_bytes()?;
        if free_bytes >= self.options.min_free_bytes.max(2 * bytes as u64) {
            return Ok(());
        }
        self.full = true;
        Err(Error::DiskFull { free_bytes })
    }

    pub(crate) fn set_retention(&mut self, name: &str, retention: Retention) -> Result<(), Error> {
        let at = self.find_or_add(name)?;
        if let Some(node) = self.nodes.get_mut(at) {
            node.retention = retention;
        }
        Ok(())
    }

    /// The lane's mark: what is taken, and what of it is durable.
    pub(crate) fn lane(&self, name: &str, agent: &str, epoch: &[u8]) -> Lane {
        self.find(name)
            .and_then(|at| self.nodes.get(at))
            .and_then(|node| node.lanes.get(&keys::of_lane(keys::LANE, node.number, agent, epoch, None)))
            .copied()
            .unwrap_or_default()
    }

    /// Takes records of a lane; gives the sequence of the next one. If it fails, the records before the one that
    /// failed are taken and the mark says so.
    pub(crate) fn append(
        &mut self,
        engine: &dyn Engine,
        committed: &mut Vec<NodeView>,
        lane: LaneName<'_>,
        first_sequence: u64,
        records: &[Record],
    ) -> Result<u64, Error> {
        check_length("an agent name", lane.agent.len(), LONGEST_IN_KEY)?;
        check_length("an epoch", lane.epoch.len(), LONGEST_IN_KEY)?;
        let at = self.find_or_add(lane.node)?;
        let Self { nodes, .. } = self;
        let Some(node) = nodes.get_mut(at) else { return Err(no_node(lane.node)) };
        let key = keys::of_lane(keys::LANE, node.number, lane.agent, lane.epoch, None);
        let expected = node.lanes.get(&key).map_or(0, |lane| lane.next);
        if first_sequence > expected {
            return Err(Error::Hole { node: lane.node.to_owned(), expected, found: first_sequence });
        }
        let known = usize::try_from(expected - first_sequence).unwrap_or(usize::MAX).min(records.len());
        if known > 0 {
            node.meta.totals.duplicates += known as u64;
            node.changed = true;
        }
        let fresh = records.get(known..).unwrap_or_default();
        let mut taking = Taking { at, lane, key: &key, next: expected, now_ns: (self.options.clock)() };
        let mut result = Ok(());
        for record in fresh {
            result = self.take(engine, committed, &taking, record);
            if result.is_err() {
                break;
            }
            taking.next += 1;
        }
        if taking.next != expected {
            self.set_mark(&taking);
        }
        result.map(|()| taking.next)
    }

    fn set_mark(&mut self, taking: &Taking<'_>) {
        if let Some(node) = self.nodes.get_mut(taking.at) {
            node.set_lane(taking.key, taking.next);
        }
    }

    /// Commits in the middle of an append: the mark must go with what was taken, or a resend would double it.
    fn commit_midway(
        &mut self,
        engine: &dyn Engine,
        committed: &mut Vec<NodeView>,
        taking: &Taking<'_>,
    ) -> Result<(), Error> {
        self.set_mark(taking);
        self.commit(engine, committed, Urgency::Normal)
    }

    fn take(
        &mut self,
        engine: &dyn Engine,
        committed: &mut Vec<NodeView>,
        taking: &Taking<'_>,
        record: &Record,
    ) -> Result<(), Error> {
        if self.staged.len() >= self.options.stage_bytes {
            self.commit_midway(engine, committed, taking)?;
        }
        let Self { nodes, staged, options, .. } = self;
        let Some(node) = nodes.get_mut(taking.at) else { return Err(no_node(taking.lane.node)) };
        if Node::needs_segment(record) {
            node.roll_if_due(options, taking.now_ns, staged);
        }
        if let Some(Kind::Message(message)) = &record.kind
            && !node.has_chunks_of(message)
        {
            self.bring_chunks(engine, committed, taking, message)?;
        }
        let Self { nodes, staged, .. } = self;
        if let Some(node) = nodes.get_mut(taking.at) {
            node.add(record, taking.lane.agent, taking.lane.epoch, staged);
        }
        Ok(())
    }

    /// Copies the chunks of a message that lie in older segments into the open one: a row and its chunks are dropped
    /// together. Chunks that are nowhere were lost before they came here.
    fn bring_chunks(
        &mut self,
        engine: &dyn Engine,
        committed: &mut Vec<NodeView>,
        taking: &Taking<'_>,
        message: &Message,
    ) -> Result<(), Error> {
        let Some(node) = self.nodes.get_mut(taking.at) else { return Ok(()) };
        let (number, open) = (node.number, node.open());
        let older = match node.older.get(&message.connection) {
            Some(older) => *older,
            None => {
                let older = greatest_older(engine, &self.staged, number, &node.segments, message.connection)?;
                node.older.insert(message.connection, older);
                older
            }
        };
        if message.first_chunk > message.last_chunk || older.is_none_or(|older| message.first_chunk > older) {
            return Ok(());
        }
        let in_staged = staged_chunks(&self.staged, number, message);
        // By counter, the newest segment it is in.
        let mut found = BTreeMap::new();
        let wanted = (message.last_chunk.saturating_sub(message.first_chunk)).saturating_add(1);
        let snapshot = engine.snapshot();
        for segment in node.segments.iter().rev() {
            for &(_, counter) in in_staged.iter().filter(|(staged, _)| *staged == segment.number) {
                found.entry(counter).or_insert(segment.number);
            }
            each_chunk(&*snapshot, number, segment.number, message, |counter, _| {
                found.entry(counter).or_insert(segment.number);
                true
            })?;
            if found.len() as u64 >= wanted {
                break;
            }
        }
        drop(snapshot);
        let whole = found.len() as u64 >= wanted;
        found.retain(|_, segment| *segment != open);
        if found.values().any(|segment| in_staged.iter().any(|(staged, _)| staged == segment)) {
            self.commit_midway(engine, committed, taking)?;
        }
        for (counter, segment) in found {
            if self.staged.len() >= self.options.stage_bytes {
                self.commit_midway(engine, committed, taking)?;
            }
            let place = ChunkPlace { connection: message.connection, counter, incoming: message.incoming };
            let value = engine.snapshot().get(&keys::chunk(number, segment, place))?;
            let value =
                value.ok_or_else(|| Error::Corrupt(format!("chunk {place:?} vanished from segment {segment}")))?;
            self.staged.put(&keys::chunk(number, open, place), &value);
            if let Some(segment) = self.nodes.get_mut(taking.at).and_then(|node| node.segments.last_mut()) {
                segment.bytes += value.len() as u64;
            }
        }
        if whole && let Some(node) = self.nodes.get_mut(taking.at) {
            node.note_chunks_of(message);
        }
        Ok(())
    }

    /// Sets a lane forward over records that another aggregator acknowledged, and writes the gap down as a loss.
    pub(crate) fn accept_hole(
        &mut self,
        engine: &dyn Engine,
        committed: &mut Vec<NodeView>,
        lane: LaneName<'_>,
        next: u64,
    ) -> Result<u64, Error> {
        let known = self.lane(lane.node, lane.agent, lane.epoch).next;
        if next <= known {
            return Ok(known);
        }
        // Refuses names that are too long.
        self.append(engine, committed, lane, known, &[])?;
        let at = self.find_or_add(lane.node)?;
        let Some(number) = self.nodes.get(at).map(|node| node.number) else { return Err(no_node(lane.node)) };
        let key = keys::of_lane(keys::LANE, number, lane.agent, lane.epoch, None);
        let now_ns = (self.options.clock)();
        let loss = Loss {
            stage: "lane".to_owned(),
            reason: "acknowledged by another aggregator, or its database is gone".to_owned(),
            records: next - known,
            from_ns: now_ns,
            to_ns: now_ns,
            ..Loss::default()
        };
        let record = Record { time_ns: now_ns, target: String::new(), kind: Some(Kind::Loss(loss)) };
        self.take(engine, committed, &Taking { at, lane, key: &key, next: known, now_ns }, &record)?;
        self.set_mark(&Taking { at, lane, key: &key, next, now_ns });
        Ok(next)
    }

    /// Writes everything staged; the views of the nodes that moved are added to `committed`. If it fails, all of it
    /// stays staged.
    pub(crate) fn commit(
        &mut self,
        engine: &dyn Engine,
        committed: &mut Vec<NodeView>,
        urgency: Urgency,
    ) -> Result<(), Error> {
        if self.staged.is_empty() && !self.nodes.iter().any(|node| node.changed) {
            return Ok(());
        }
        if urgency == Urgency::Normal {
            self.check_space(engine, self.staged.len())?;
        }
        for node in self.nodes.iter_mut().filter(|node| node.changed) {
            node.stage(&mut self.staged);
        }
        engine.write(&self.staged).map_err(|error| match error {
            Error::DiskFull { .. } => {
                self.full = true;
                Error::DiskFull { free_bytes: engine.free_bytes().unwrap_or(0) }
            }
            other => other,
        })?;
        self.full = urgency == Urgency::Eviction && self.full;
        self.staged.clear(2 * self.options.stage_bytes);
        for node in self.nodes.iter_mut().filter(|node| node.changed) {
            node.settle();
            committed.push(node.view());
        }
        Ok(())
    }

    /// Nodes and batch at once, for an eviction.
    pub(crate) fn parts(&mut self) -> (&mut Vec<Node>, &mut Batch) {
        (&mut self.nodes, &mut self.staged)
    }
}

/// Whether a commit leaves the disk its last bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Refused when little is free.
    Normal,
    /// Makes room, and so may use the reserve.
    Eviction,
}

/// Which lane of which node.
#[derive(Clone, Copy)]
pub(crate) struct LaneName<'a> {
    pub(crate) node: &'a str,
    pub(crate) agent: &'a str,
    pub(crate) epoch: &'a [u8],
}

/// An append under way.
struct Taking<'a> {
    /// Place of the node in [`Writer::nodes`].
    at: usize,
    lane: LaneName<'a>,
    /// Key of the lane.
    key: &'a [u8],
    /// Sequence of the record being taken.
    next: u64,
    now_ns: i64,
}

fn check_length(what: &'static str, length: usize, most: usize) -> Result<(), Error> {
    if length > most { Err(Error::TooLong { what, length, most }) } else { Ok(()) }
}

fn no_node(name: &str) -> Error {
    Error::Corrupt(format!("node {name} is not in memory"))
}

/// The greatest counter of a connection's chunks, of either direction, that lie in segments before the open one.
fn greatest_older(
    engine: &dyn Engine,
    staged: &Batch,
    node: u32,
    segments: &[SegmentMeta],
    connection: u64,
) -> Result<Option<u64>, Error> {
    let Some((open, older)) = segments.split_last() else { return Ok(None) };
    let mut greatest = staged_keys(staged, node)
        .filter(|(segment, place)| *segment != open.number && place.connection == connection)
        .map(|(_, place)| place.counter)
        .max();
    let snapshot = engine.snapshot();
    for segment in older {
        let end = ChunkPlace { connection, counter: u64::MAX, incoming: true };
        let range = keys::segment_range(keys::CHUNK, node, segment.number);
        let last = snapshot.last(&range.start..&keys::after_prefix(&keys::chunk(node, segment.number, end)))?;
        let last = last.and_then(|(key, _)| keys::chunk_place(&key));
        greatest = greatest.max(last.filter(|place| place.connection == connection).map(|place| place.counter));
    }
    Ok(greatest)
}

/// Segment and place of every staged chunk of a node.
fn staged_keys(staged: &Batch, node: u32) -> impl Iterator<Item = (u32, ChunkPlace)> {
    let prefix = keys::node(keys::CHUNK, node);
    staged.iter().filter_map(move |write| {
        let Write::Put(key, _) = write else { return None };
        if !key.starts_with(&prefix) {
            return None;
        }
        Some((keys::segment_of(key)?, keys::chunk_place(key)?))
    })
}

/// Segment and counter of every staged chunk of a message.
fn staged_chunks(staged: &Batch, node: u32, message: &Message) -> Vec<(u32, u64)> {
    staged_keys(staged, node)
        .filter(|(_, place)| {
            place.connection == message.connection
                && place.incoming == message.incoming
                && (message.first_chunk..=message.last_chunk).contains(&place.counter)
        })
        .map(|(segment, place)| (segment, place.counter))
        .collect()
}

/// Calls `each` with counter and value of the chunks of a message in one segment, ascending, until it says false.
pub(crate) fn each_chunk(
    snapshot: &dyn Snapshot,
    node: u32,
    segment: u32,
    message: &Message,
    mut each: impl FnMut(u64, &[u8]) -> bool,
) -> Result<(), Error> {
    if message.first_chunk > message.last_chunk {
        return Ok(());
    }
    let place = |counter, incoming| ChunkPlace { connection: message.connection, counter, incoming };
    let first = keys::chunk(node, segment, place(message.first_chunk, false));
    let last = keys::chunk(node, segment, place(message.last_chunk, true));
    let mut cursor = snapshot.cursor(&first..&keys::after_prefix(&last));
    cursor.first()?;
    while let Some((key, value)) = cursor.entry() {
        let place = keys::chunk_place(key).ok_or_else(|| Error::Corrupt(format!("chunk key {key:02x?}")))?;
        if place.incoming == message.incoming && !each(place.counter, value) {
            break;
        }
        cursor.next()?;
    }
    Ok(())
}

/// Reads what a new process needs of the nodes in the database: nodes in the order of their numbers.
pub(crate) fn load(snapshot: &dyn Snapshot) -> Result<Vec<Node>, Error> {
    let mut nodes = Vec::new();
    let mut cursor = snapshot.cursor(&[keys::NODE]..&[keys::NODE + 1]);
    cursor.first()?;
    while let Some((key, value)) = cursor.entry() {
        let number = key.last_chunk().map(|bytes| u32::from_be_bytes(*bytes)).unwrap_or_default();
        let meta = NodeMeta::decode(value).map_err(|error| Error::Corrupt(format!("node {number}: {error}")))?;
        nodes.push(Node::load(snapshot, number, meta)?);
        cursor.next()?;
    }
    Ok(nodes)
}
