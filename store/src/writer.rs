//! The writing side: records are staged in one batch, which goes to the engine as a whole.
//!
//! A batch holds rows, chunks, postings, zones, segments, ids, totals and high-water marks together, so that after a crash
//! they agree. It becomes readable and can be acknowledged when it is synced, which needs no lock: the next one is staged and
//! written meanwhile.

use std::{
    collections::{HashMap, VecDeque},
    ops::Range,
    sync::Arc,
};

use chainscope_proto::v1::{Loss, Message, Record, record::Kind};

use crate::{
    Error, Retention, StoreOptions,
    ballast::Ballast,
    engine::{Batch, Engine, LocalDisk},
    keys,
    kind::RetentionClass,
    meta::NodeMeta,
    network::{Chunk, ChunkRange, greatest_older, plan_copy},
    node::Node,
    schema::Schema,
    streams::{HighWaterMark, StreamName},
    view::{NodeView, Views},
};

/// Longest name of a node, in bytes: a namespace, a slash and a name of Kubernetes. It is in no key, so that this only
/// bounds what a caller can make the store keep.
pub const MAX_NODE_NAME: usize = 2 * 253 + 1;

/// Longest name that a key takes without being cut.
const MAX_IN_KEY: usize = u8::MAX as usize;

/// Everything that only a writer touches. One lock guards it.
pub(crate) struct Writer {
    pub(crate) engine: Arc<dyn Engine>,
    views: Arc<Views>,
    schema: Schema,
    pub(crate) nodes: Vec<Node>,
    by_name: HashMap<String, usize>,
    next_node: u32,
    pub(crate) staged: Batch,
    /// Batches that are written and not synced, oldest first.
    unsynced: VecDeque<Unsynced>,
    /// Number of the next batch.
    next_batch: u64,
    pub(crate) options: StoreOptions,
    pub(crate) ballast: Ballast,
    /// The last commit found the disk full.
    pub(crate) full: bool,
    /// Views were published since [`Self::take_published`].
    published: bool,
    /// What was evicted and is not reclaimed, oldest first.
    pub(crate) expired: Vec<Expired>,
}

/// Key ranges whose space can be reclaimed when a reclamation epoch is over.
pub(crate) struct Expired {
    pub(crate) epoch: Arc<()>,
    pub(crate) ranges: Vec<Range<Vec<u8>>>,
}

/// What a batch makes readable, and what can be acknowledged, once it is synced.
struct Unsynced {
    batch: u64,
    views: Vec<NodeView>,
    /// Marks of streams by position: node, stream, next sequence.
    marks: Vec<(usize, usize, u64)>,
}

/// Whether a commit leaves the disk its last bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Refused when little is free.
    Normal,
    /// Frees space, and so can use the space of the ballast.
    Eviction,
}

/// A stream, by position.
#[derive(Clone, Copy)]
struct StreamAt {
    node: usize,
    stream: usize,
    /// Number of its agent.
    agent: u32,
}

impl Writer {
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        views: Arc<Views>,
        options: StoreOptions,
        schema: Schema,
        (nodes, next_node): (Vec<Node>, u32),
    ) -> Result<Self, Error> {
        views.publish(nodes.iter().map(Node::view));
        let by_name = nodes.iter().enumerate().map(|(at, node)| (node.meta.name.clone(), at)).collect();
        let mut ballast = Ballast::new(engine.disk().map(LocalDisk::dir), options.ballast_bytes);
        ballast.restore(engine.free_bytes()?, options.min_free_bytes)?;
        Ok(Self {
            engine,
            views,
            schema,
            nodes,
            by_name,
            next_node,
            staged: Batch::default(),
            unsynced: VecDeque::new(),
            next_batch: 0,
            options,
            ballast,
            full: false,
            published: false,
            expired: Vec::new(),
        })
    }

    /// The position of a node in `nodes`, if it is known.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The position of a node in `nodes`; an unknown one is created.
    pub(crate) fn find_or_add(&mut self, name: &str) -> Result<usize, Error> {
        if let Some(at) = self.find(name) {
            return Ok(at);
        }
        check_length("a node name", name.len(), MAX_NODE_NAME)?;
        let mut node = Node::new(self.next_node, NodeMeta::new(name), self.schema);
        node.changed = true;
        self.next_node += 1;
        self.staged.put(keys::NEXT_NODE, &self.next_node.to_be_bytes());
        self.nodes.push(node);
        self.by_name.insert(name.to_owned(), self.nodes.len() - 1);
        Ok(self.nodes.len() - 1)
    }

    pub(crate) fn set_retention(
        &mut self,
        name: &str,
        class: RetentionClass,
        retention: Retention,
    ) -> Result<(), Error> {
        let at = self.find_or_add(name)?;
        self.nodes[at].retention[class as usize] = retention;
        Ok(())
    }

    /// The high-water marks of a stream.
    pub(crate) fn high_water_mark(&self, name: StreamName<'_>) -> HighWaterMark {
        let Some(node) = self.find(name.node).map(|at| &self.nodes[at]) else { return HighWaterMark::default() };
        let key = keys::of_stream(node.number, keys::STREAM, name.agent, name.epoch, None);
        node.streams.find(&key).map_or_else(HighWaterMark::default, |at| node.streams.mark(at))
    }

    /// Takes records of a stream; gives the sequence of the next one. If it fails, the records before the one that
    /// failed are taken, and the mark says so; if the same are then given again, they do not count as duplicates.
    pub(crate) fn append(&mut self, name: StreamName<'_>, first: u64, records: &[Record]) -> Result<u64, Error> {
        let at = self.stream(name)?;
        let expected = self.next_sequence(at);
        if first > expected {
            return Err(Error::Hole { node: name.node.to_owned(), expected, found: first });
        }
        let known = usize::try_from(expected - first).unwrap_or(usize::MAX).min(records.len());
        let node = &mut self.nodes[at.node];
        let again = first..first + known as u64;
        let failed = node.streams.take_failed(at.stream);
        let retried = failed.end.min(again.end).saturating_sub(failed.start.max(again.start));
        let duplicates = known as u64 - retried;
        if duplicates > 0 {
            node.meta.totals.duplicates += duplicates;
            node.changed = true;
        }
        let taken = records.get(known..).unwrap_or_default().iter().try_for_each(|record| self.take(name, at, record));
        let next = self.next_sequence(at);
        if let Err(error) = taken {
            self.nodes[at.node].streams.set_failed(at.stream, first..next);
            return Err(error);
        }
        Ok(next)
    }

    /// Sets a stream forward over records that another aggregator acknowledged, and stores the gap as a loss.
    pub(crate) fn accept_hole(&mut self, name: StreamName<'_>, next: u64) -> Result<u64, Error> {
        let at = self.stream(name)?;
        let known = self.next_sequence(at);
        if next <= known {
            return Ok(known);
        }
        let now_ns = (self.options.clock)();
        let loss = Loss {
            stage: "stream".to_owned(),
            reason: "acknowledged by another aggregator, or its database is gone".to_owned(),
            records: next - known,
            from_ns: now_ns,
            to_ns: now_ns,
            ..Loss::default()
        };
        self.take(name, at, &Record { time_ns: now_ns, target: String::new(), kind: Some(Kind::Loss(loss)) })?;
        self.nodes[at.node].streams.set_next(at.stream, next);
        Ok(next)
    }

    /// The position of a stream; an unknown one is created.
    fn stream(&mut self, name: StreamName<'_>) -> Result<StreamAt, Error> {
        check_length("an agent name", name.agent.len(), MAX_IN_KEY)?;
        check_length("an epoch", name.epoch.len(), MAX_IN_KEY)?;
        let at = self.find_or_add(name.node)?;
        let node = &mut self.nodes[at];
        let key = keys::of_stream(node.number, keys::STREAM, name.agent, name.epoch, None);
        let agent = node.agent(name.agent, &mut self.staged);
        Ok(StreamAt { node: at, stream: node.streams.find_or_add(key), agent })
    }

    fn next_sequence(&self, at: StreamAt) -> u64 {
        self.nodes[at.node].streams.mark(at.stream).next
    }

    /// Takes the next record of a stream. Its mark moves with it, so that a commit in between is consistent.
    fn take(&mut self, name: StreamName<'_>, at: StreamAt, record: &Record) -> Result<(), Error> {
        self.write_if_large()?;
        let node = &mut self.nodes[at.node];
        match &record.kind {
            Some(Kind::NetworkAccount(_)) => node.add_account(name.agent, name.epoch, record, &mut self.staged),
            _ if node.is_repetition(name.agent, record) => {
                node.meta.totals.duplicates += 1;
                node.changed = true;
            }
            kind => {
                if let Some(class) = node.class_of(record) {
                    node.roll_if_due(class, &self.options, (self.options.clock)(), &mut self.staged);
                }
                if let Some(Kind::Message(message)) = kind {
                    self.copy_chunks_forward(at, message)?;
                }
                self.nodes[at.node].add(at.agent, record, &mut self.staged);
            }
        }
        let next = self.next_sequence(at) + 1;
        self.nodes[at.node].streams.set_next(at.stream, next);
        Ok(())
    }

    /// Copies the chunks of a message that lie in older segments into the open one: a row and its chunks are evicted
    /// together. Chunks that are nowhere were lost before they came here, and are not searched again in this segment.
    fn copy_chunks_forward(&mut self, at: StreamAt, message: &Message) -> Result<(), Error> {
        let engine = Arc::clone(&self.engine);
        let chunks = &self.nodes[at.node].chunks;
        let range = ChunkRange::of_message(message, at.agent).and_then(|range| chunks.unknown_of(range));
        let Some(range) = range else { return Ok(()) };
        if chunks.are_staged_in_older() {
            // Then the chunks of older segments are found in the engine. This happens at most once in a segment.
            self.write()?;
        }
        let node = &mut self.nodes[at.node];
        let (number, open) = (node.number, node.open(RetentionClass::Records));
        let segments = &node.segments[RetentionClass::Records as usize];
        let older = segments.iter().map(|segment| &**segment).filter(|segment| segment.number != open);
        let greatest = || greatest_older(&*engine.snapshot(), number, older, range.connection());
        if !node.chunks.may_be_older(range, greatest)? {
            return Ok(());
        }
        let node = &self.nodes[at.node];
        let segments = node.segments[RetentionClass::Records as usize].iter().map(|segment| &**segment);
        let snapshot = engine.snapshot();
        for (chunk, segment) in plan_copy(&*snapshot, number, segments, open, range)? {
            self.write_if_large()?;
            self.copy_chunk(at, chunk, snapshot.get(&chunk.key(number, segment))?)?;
        }
        self.nodes[at.node].chunks.add_known(range);
        Ok(())
    }

    fn copy_chunk(&mut self, at: StreamAt, chunk: Chunk, value: Option<Vec<u8>>) -> Result<(), Error> {
        let value = value.ok_or_else(|| Error::Corrupt(format!("{chunk:?} is missing")))?;
        let node = &mut self.nodes[at.node];
        node.changed = true;
        self.staged.put(&chunk.key(node.number, node.open(RetentionClass::Records)), &value);
        if let Some(open) = node.open_mut(RetentionClass::Records) {
            open.bytes += value.len() as u64;
        }
        Ok(())
    }

    fn write_if_large(&mut self) -> Result<(), Error> {
        if self.staged.len() >= self.options.stage_bytes { self.write() } else { Ok(()) }
    }

    /// Writes everything staged; it is not durable yet. If it fails, all of it stays staged.
    pub(crate) fn write(&mut self) -> Result<(), Error> {
        self.stage_changed(Urgency::Normal)?;
        if !self.staged.is_empty() {
            self.write_staged(|engine, batch| engine.write_unsynced(batch))?;
            self.full = false;
        }
        Ok(())
    }

    /// Writes everything staged, makes everything written durable, and publishes the views of the nodes that moved. If it fails,
    /// what was not written stays staged.
    pub(crate) fn commit(&mut self, urgency: Urgency) -> Result<(), Error> {
        self.stage_changed(urgency)?;
        if !self.staged.is_empty() {
            self.write_staged(|engine, batch| engine.write(batch))?;
            self.full = urgency == Urgency::Eviction && self.full;
        } else if !self.unsynced.is_empty() {
            self.engine.sync()?;
        }
        self.publish_synced(self.next_batch);
        Ok(())
    }

    /// Stages what belongs to the facts that are staged.
    fn stage_changed(&mut self, urgency: Urgency) -> Result<(), Error> {
        if self.staged.is_empty() && !self.nodes.iter().any(|node| node.changed) {
            return Ok(());
        }
        if urgency == Urgency::Normal {
            self.check_space(self.staged.len())?;
        }
        let now_ns = (self.options.clock)();
        for node in self.nodes.iter_mut().filter(|node| node.changed) {
            node.stage(now_ns, &mut self.staged);
        }
        Ok(())
    }

    fn write_staged(&mut self, write: impl FnOnce(&dyn Engine, &Batch) -> Result<(), Error>) -> Result<(), Error> {
        match write(&*self.engine, &self.staged) {
            Ok(()) => self.staged.clear(2 * self.options.stage_bytes),
            Err(Error::DiskFull { .. }) => {
                self.full = true;
                return Err(Error::DiskFull { free_bytes: self.engine.free_bytes().unwrap_or(0) });
            }
            Err(error) => return Err(error),
        }
        let mut unsynced = Unsynced { batch: self.next_batch, views: Vec::new(), marks: Vec::new() };
        self.next_batch += 1;
        for (at, node) in self.nodes.iter_mut().enumerate().filter(|(_, node)| node.changed) {
            unsynced.marks.extend(node.take_written().into_iter().map(|(stream, next)| (at, stream, next)));
            unsynced.views.push(node.view());
        }
        self.unsynced.push_back(unsynced);
        Ok(())
    }

    /// The number of the next batch, if any before it is not synced.
    pub(crate) fn next_unsynced(&self) -> Option<u64> {
        (!self.unsynced.is_empty()).then_some(self.next_batch)
    }

    /// The batches before this one are synced: publishes the views of the nodes that they changed.
    pub(crate) fn publish_synced(&mut self, next_batch: u64) {
        while let Some(Unsynced { views, marks, .. }) = self.unsynced.pop_front_if(|first| first.batch < next_batch) {
            for (node, stream, next) in marks {
                self.nodes[node].streams.set_durable(stream, next);
            }
            self.publish(views);
        }
    }

    /// Makes views readable whose batch is synced.
    pub(crate) fn publish(&mut self, views: Vec<NodeView>) {
        self.published |= !views.is_empty();
        self.views.publish(views);
    }

    /// Makes views readable from which segments are evicted; gives the epoch that ends with them.
    pub(crate) fn publish_epoch(&mut self, views: Vec<NodeView>) -> Arc<()> {
        self.published = true;
        self.views.publish_epoch(views)
    }

    /// Whether there was something to publish since the last call.
    pub(crate) fn take_published(&mut self) -> bool {
        std::mem::take(&mut self.published)
    }

    /// Refuses a write of this many bytes, an eviction aside, if the engine has no space for it.
    pub(crate) fn check_space(&mut self, bytes: usize) -> Result<(), Error> {
        let free_bytes = self.engine.free_bytes()?;
        if free_bytes >= self.options.min_free_bytes.max(2 * bytes as u64) {
            return Ok(());
        }
        self.full = true;
        Err(Error::DiskFull { free_bytes })
    }
}

fn check_length(what: &'static str, length: usize, most: usize) -> Result<(), Error> {
    if length > most { Err(Error::TooLong { what, length, most }) } else { Ok(()) }
}
