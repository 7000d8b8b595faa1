//! The writing side of one node: where its sequences stand, its open segment, and what a record becomes.

use std::collections::{BTreeMap, HashMap};

use chainscope_proto::v1::{
    Chunk, ConnectionEvent, ConnectionSummary, Message, Record, connection_event, record::Kind,
};

use crate::{
    Retention, StoreOptions,
    block::Block,
    engine::Batch,
    fold,
    keys::{self, ChunkPlace},
    meta::{NodeMeta, SegmentMeta},
    view::NodeView,
};

/// Live connections whose summaries are carried from segment to segment; beyond it the oldest are forgotten with their
/// segments, so that ends which are never reported cannot fill the memory.
const MOST_LIVE: usize = 65_536;

/// Where a lane stands.
#[derive(Clone, Copy, Default)]
pub(crate) struct Lane {
    /// Sequence of the next record to take.
    pub(crate) next: u64,
    /// The same, as far as it is synced.
    pub(crate) durable: u64,
    pub(crate) changed: bool,
}

/// A run of chunk counters, both ends included, that is in the open segment without a hole.
#[derive(Clone, Copy)]
struct Run {
    first: u64,
    last: u64,
}

/// All that is known of a node in memory.
pub(crate) struct Node {
    pub(crate) number: u32,
    pub(crate) meta: NodeMeta,
    /// By the part of the key behind the node.
    pub(crate) lanes: HashMap<Vec<u8>, Lane>,
    /// Oldest first; the last one is open.
    pub(crate) segments: Vec<SegmentMeta>,
    pub(crate) block: Block,
    /// By connection and direction (incoming).
    runs: HashMap<(u64, bool), Run>,
    /// By connection, the greatest counter of a chunk in an older segment, once it was looked for.
    pub(crate) older: HashMap<u64, Option<u64>>,
    /// Connections with an event in the open segment, the summaries that opened it included.
    pub(crate) live: BTreeMap<u64, ConnectionSummary>,
    pub(crate) retention: Retention,
    /// Something is staged or changed since the last commit.
    pub(crate) changed: bool,
}

impl Node {
    pub(crate) fn new(number: u32, meta: NodeMeta) -> Self {
        Self {
            number,
            block: Block::at(meta.next_id),
            meta,
            lanes: HashMap::new(),
            segments: Vec::new(),
            runs: HashMap::new(),
            older: HashMap::new(),
            live: BTreeMap::new(),
            retention: Retention::default(),
            changed: false,
        }
    }

    /// Takes one record into the batch; its chunks, if it is a message, are in the open segment already.
    ///
    /// `agent` and `epoch` say whose record it is: an account is state of its lane.
    pub(crate) fn add(&mut self, record: &Record, agent: &str, epoch: &[u8], batch: &mut Batch) {
        self.changed = true;
        let before = batch.len();
        match &record.kind {
            None => self.meta.totals.unknown_kinds += 1,
            Some(Kind::NetworkAccount(_)) => {
                let key = keys::of_lane(keys::ACCOUNT, self.number, agent, epoch, Some(&record.target));
                put(batch, &key, record);
                return; // state: part of no segment
            }
            Some(Kind::Message(message)) => self.add_message(record, message, batch),
            Some(Kind::Chunk(chunk)) => self.add_chunk(record, chunk, batch),
            Some(Kind::Connection(event)) => self.add_event(record, event, batch),
            Some(Kind::Loss(loss)) => {
                let key = keys::row(keys::LOSS, self.number, self.open(), self.meta.next_loss);
                put(batch, &key, record);
                self.meta.next_loss += 1;
                let totals = &mut self.meta.totals;
                totals.losses += 1;
                totals.lost_records = totals.lost_records.saturating_add(loss.records);
                totals.lost_bytes = totals.lost_bytes.saturating_add(loss.bytes);
            }
            Some(Kind::TargetEvent(_)) => {
                let key = keys::row(keys::TARGET_EVENT, self.number, self.open(), self.meta.next_target_event);
                put(batch, &key, record);
                self.meta.next_target_event += 1;
                self.meta.totals.target_events += 1;
            }
        }
        let added = batch.len() - before;
        if added > 0
            && let Some(segment) = self.segments.last_mut()
        {
            segment.bytes += added as u64;
            segment.add_time(record.time_ns);
        }
    }

    /// Sets the mark of a lane, named by its key.
    pub(crate) fn set_lane(&mut self, key: &[u8], next: u64) {
        self.changed = true;
        let lane = match self.lanes.get_mut(key) {
            Some(lane) => lane,
            None => self.lanes.entry(key.to_vec()).or_default(),
        };
        lane.next = next;
        lane.changed = true;
    }

    /// Whether this record goes into a segment.
    pub(crate) fn needs_segment(record: &Record) -> bool {
        !matches!(record.kind, None | Some(Kind::NetworkAccount(_)))
    }

    fn add_message(&mut self, record: &Record, message: &Message, batch: &mut Batch) {
        let id = self.meta.next_id;
        if !self.block.holds(id) {
            let segment = self.open();
            self.block.stage(batch, self.number, segment);
            self.block = Block::at(id);
        }
        put(batch, &keys::row(keys::MESSAGE, self.number, self.open(), id), record);
        self.block.add(id, record.time_ns, &record.target, message);
        self.meta.next_id += 1;
        self.meta.totals.messages += 1;
        if let Some(segment) = self.segments.last_mut() {
            segment.rows += 1;
        }
    }

    fn add_chunk(&mut self, record: &Record, chunk: &Chunk, batch: &mut Batch) {
        let place = ChunkPlace { connection: chunk.connection, counter: chunk.counter, incoming: chunk.incoming };
        put(batch, &keys::chunk(self.number, self.open(), place), record);
        self.meta.totals.chunks += 1;
        let run = self
            .runs
            .entry((chunk.connection, chunk.incoming))
            .or_insert(Run { first: chunk.counter, last: chunk.counter });
        if Some(chunk.counter) == run.last.checked_add(1) {
            run.last = chunk.counter;
        } else if chunk.counter < run.first || chunk.counter > run.last {
            *run = Run { first: chunk.counter, last: chunk.counter };
        }
    }

    fn add_event(&mut self, record: &Record, event: &ConnectionEvent, batch: &mut Batch) {
        let connection = event.connection;
        put(batch, &keys::event(self.number, self.open(), connection, self.meta.next_event), record);
        self.meta.next_event += 1;
        self.meta.totals.connection_events += 1;
        fold::fold(self.live.entry(connection).or_default(), record);
        if matches!(event.event, Some(connection_event::Event::Closed(_))) {
            self.runs.remove(&(connection, false));
            self.runs.remove(&(connection, true));
            self.older.remove(&connection);
        }
        if self.live.len() > MOST_LIVE {
            self.live.pop_first();
        }
    }

    /// Whether all chunks of the message are known to be in the open segment. False means: look.
    pub(crate) fn has_chunks_of(&self, message: &Message) -> bool {
        self.runs
            .get(&(message.connection, message.incoming))
            .is_some_and(|run| run.first <= message.first_chunk && message.last_chunk <= run.last)
    }

    /// Notes that all chunks of the message are in the open segment, found or copied there.
    pub(crate) fn note_chunks_of(&mut self, message: &Message) {
        let found = Run { first: message.first_chunk, last: message.last_chunk };
        let run = self.runs.entry((message.connection, message.incoming)).or_insert(found);
        if found.first <= run.last.saturating_add(1) && run.first <= found.last.saturating_add(1) {
            *run = Run { first: run.first.min(found.first), last: run.last.max(found.last) };
        } else if found.last > run.last {
            *run = found;
        }
    }

    /// Number of the open segment. [`Self::roll`] has made one before any fact is added.
    pub(crate) fn open(&self) -> u32 {
        self.segments.last().map_or(0, |segment| segment.number)
    }

    /// Number of the oldest segment.
    pub(crate) fn oldest(&self) -> u32 {
        self.segments.first().map_or(self.meta.next_segment, |segment| segment.number)
    }

    /// Opens a segment if there is none or the last one is full.
    pub(crate) fn roll_if_due(&mut self, options: &StoreOptions, now_ns: i64, batch: &mut Batch) {
        let due = self.segments.last().is_none_or(|segment| {
            let bytes = segment.bytes.saturating_sub(segment.carried_bytes);
            segment.facts > 0
                && self.retention.closes(options, segment.rows, bytes, now_ns.saturating_sub(segment.opened_ns))
        });
        if due {
            self.roll(now_ns, batch);
        }
    }

    /// Closes the open segment and opens the next, which begins with a summary of every live connection.
    pub(crate) fn roll(&mut self, now_ns: i64, batch: &mut Batch) {
        self.changed = true;
        let open = self.open();
        self.block.stage(batch, self.number, open);
        self.block = Block::at(self.meta.next_id);
        if let Some(last) = self.segments.last_mut() {
            last.closed_ns = now_ns.max(1);
            stage_segment(batch, self.number, last);
        }
        self.runs.clear();
        self.older.clear();

        let number = self.meta.next_segment;
        self.meta.next_segment += 1;
        let before = batch.len();
        // What began before its connection was opened, as far as the store knows, is no summary to replace others with.
        self.live.retain(|_, summary| fold::is_open(summary) && summary.opened.is_some());
        for (&connection, summary) in &self.live {
            let key = keys::event(self.number, number, connection, self.meta.next_event);
            put(batch, &key, &fold::keyframe(connection, summary));
            self.meta.next_event += 1;
        }
        let carried = (batch.len() - before) as u64;
        self.segments.push(SegmentMeta {
            number,
            first_id: self.meta.next_id,
            opened_ns: now_ns,
            bytes: carried,
            carried_bytes: carried,
            ..SegmentMeta::default()
        });
    }

    /// Puts everything that changed besides the facts into the batch: it belongs to them.
    pub(crate) fn stage(&mut self, batch: &mut Batch) {
        let open = self.open();
        self.block.stage(batch, self.number, open);
        if let Some(last) = self.segments.last() {
            stage_segment(batch, self.number, last);
        }
        for (key, lane) in &mut self.lanes {
            if std::mem::take(&mut lane.changed) {
                batch.put(key, &lane.next.to_be_bytes());
            }
        }
        batch.put_with(&keys::node(keys::NODE, self.number), |out| encode(&self.meta, out));
    }

    /// After the batch was written: all of it is durable.
    pub(crate) fn settle(&mut self) {
        self.changed = false;
        self.lanes.values_mut().for_each(|lane| lane.durable = lane.next);
    }

    /// As readers shall see it.
    pub(crate) fn view(&self) -> NodeView {
        NodeView {
            number: self.number,
            name: self.meta.name.clone(),
            first_id: self.segments.first().map_or(self.meta.next_id, |segment| segment.first_id),
            next_id: self.meta.next_id,
            segments: self.segments.clone(),
            totals: self.meta.totals,
        }
    }
}

fn put(batch: &mut Batch, key: &[u8], record: &Record) {
    batch.put_with(key, |out| encode(record, out));
}

fn stage_segment(batch: &mut Batch, node: u32, segment: &SegmentMeta) {
    let mut key = keys::node(keys::SEGMENT, node).to_vec();
    key.extend_from_slice(&segment.number.to_be_bytes());
    batch.put_with(&key, |out| encode(segment, out));
}

fn encode(message: &impl prost::Message, out: &mut Vec<u8>) {
    // Fails only where the buffer cannot grow.
    let encoded = message.encode(out);
    debug_assert!(encoded.is_ok());
}
