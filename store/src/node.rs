//! The writing side of one node: its sequences, its open segment, and what a record becomes in a batch.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use chainscope_proto::v1::{LogPosition, Record, connection_event, record::Kind};

use crate::{
    Retention, StoreOptions,
    block::Block,
    engine::Batch,
    keys,
    kind::{FactKind, RetentionClass, encode, encode_row},
    meta::{KindRows, NextId, NodeMeta, SegmentMeta},
    network::{self, Accounts, Chunk, ChunkRuns, LiveConnections},
    positions::{self, Positions},
    schema::{self, Schema},
    streams::Streams,
    view::NodeView,
};

/// A kind of fact in a node.
pub(crate) struct KindState {
    pub(crate) kind: &'static FactKind,
    /// Id of the next row.
    pub(crate) next_id: u64,
    /// The block that it goes into.
    pub(crate) block: Block,
}

/// All that is known of a node in memory.
pub(crate) struct Node {
    pub(crate) number: u32,
    pub(crate) meta: NodeMeta,
    /// As in the schema.
    pub(crate) kinds: Vec<KindState>,
    schema: Schema,
    pub(crate) streams: Streams,
    pub(crate) accounts: Accounts,
    /// Numbers of agents by name.
    pub(crate) agents: HashMap<String, u32>,
    /// Of each retention class, oldest first. The last one of each in [`RetentionClass::STREAMED`] is open.
    pub(crate) segments: [Vec<Arc<SegmentMeta>>; RetentionClass::ALL.len()],
    /// Limits of each retention class.
    pub(crate) retention: [Retention; RetentionClass::ALL.len()],
    pub(crate) chunks: ChunkRuns,
    pub(crate) live: LiveConnections,
    pub(crate) positions: Positions,
    /// Something is staged or changed since the last commit.
    pub(crate) changed: bool,
}

impl Node {
    pub(crate) fn new(number: u32, meta: NodeMeta, schema: Schema) -> Self {
        let state = |kind: &&'static FactKind| {
            let stored = meta.kinds.iter().find(|stored| stored.table == u32::from(kind.table));
            let next_id = stored.map_or(0, |stored| stored.next_id);
            KindState { kind, next_id, block: Block::at(kind, next_id) }
        };
        Self {
            number,
            kinds: schema.iter().map(state).collect(),
            schema,
            meta,
            streams: Streams::default(),
            accounts: Accounts::default(),
            agents: HashMap::new(),
            segments: Default::default(),
            retention: Default::default(),
            chunks: ChunkRuns::default(),
            live: LiveConnections::default(),
            positions: Positions::default(),
            changed: false,
        }
    }

    /// The retention class that decides how long a record is kept; none if it goes into no segment.
    pub(crate) fn class_of(&self, record: &Record) -> Option<RetentionClass> {
        match &record.kind {
            Some(Kind::Chunk(_)) => Some(RetentionClass::Records),
            _ => schema::kind_of(self.schema, record).map(|at| self.schema[at].retention),
        }
    }

    /// Whether the position of a record in a file of its agent says that it is stored already. If not, the file advances.
    pub(crate) fn is_repetition(&mut self, agent: &str, record: &Record) -> bool {
        let position = schema::kind_of(self.schema, record).and_then(|at| self.schema[at].position);
        let Some(LogPosition { file, end }) = position.and_then(|position| position(record)) else { return false };
        !self.positions.advance(positions::key(self.number, agent, file), end)
    }

    /// Number of an agent; an unknown one gets the next.
    pub(crate) fn agent(&mut self, name: &str, batch: &mut Batch) -> u32 {
        if let Some(number) = self.agents.get(name) {
            return *number;
        }
        let number = self.meta.next_agent;
        self.meta.next_agent += 1;
        self.changed = true;
        batch.put(&keys::state(self.number, keys::AGENT, name.as_bytes()), &number.to_be_bytes());
        self.agents.insert(name.to_owned(), number);
        number
    }

    /// Puts an account of a stream into the batch: state, part of no segment.
    pub(crate) fn add_account(&mut self, agent: &str, epoch: &[u8], record: &Record, batch: &mut Batch) {
        self.changed = true;
        let key = keys::of_stream(self.number, keys::ACCOUNT, agent, epoch, Some(&record.target));
        self.accounts.add(self.number, key, record, batch);
    }

    /// Forgets the streams that are beyond their limits, and agents without any other. Nothing may have changed since the
    /// last commit.
    pub(crate) fn forget_streams(&mut self, now_ns: i64, batch: &mut Batch) {
        let forgotten = self.streams.forget(now_ns);
        if forgotten.is_empty() {
            return;
        }
        forgotten.iter().for_each(|key| batch.delete(key));
        let agents: HashSet<&[u8]> = self.streams.agents().collect();
        let node = self.number;
        self.agents.retain(|name, _| {
            let is_kept = agents.contains(name.as_bytes());
            if !is_kept {
                batch.delete(&keys::state(node, keys::AGENT, name.as_bytes()));
            }
            is_kept
        });
    }

    /// Puts one record of an agent into the batch. Its segment is open, and so are the chunks of a message in it.
    pub(crate) fn add(&mut self, agent: u32, record: &Record, batch: &mut Batch) {
        self.changed = true;
        let before = batch.len();
        let (class, time_ns) = match &record.kind {
            Some(Kind::Chunk(chunk)) => {
                self.add_chunk(Chunk::of(chunk, agent), record, batch);
                (RetentionClass::Records, record.time_ns)
            }
            _ => {
                let Some(at) = schema::kind_of(self.schema, record) else {
                    self.meta.totals.unknown_kinds += 1;
                    return;
                };
                self.add_row(at, agent, record, batch);
                self.note_connection(agent, record);
                let kind = self.schema[at];
                (kind.total)(&mut self.meta.totals, record);
                (kind.retention, (kind.time)(record))
            }
        };
        if let Some(open) = self.open_mut(class) {
            open.bytes += (batch.len() - before) as u64;
            open.add_time(time_ns);
        }
    }

    /// Gives a row of a kind its id, and its place in the open segment, zone and postings.
    fn add_row(&mut self, at: usize, agent: u32, record: &Record, batch: &mut Batch) {
        let (number, segment) = (self.number, self.open(self.schema[at].retention));
        let KindState { kind, next_id, block } = &mut self.kinds[at];
        let id = *next_id;
        *next_id += 1;
        match kind.group {
            Some(group) => {
                let key = keys::grouped_row(number, segment, kind.table, group(record), id);
                batch.put_with(&key, |out| encode_row(agent, record, out));
            }
            None => {
                if !block.holds(id) {
                    block.stage(batch, number, segment);
                    *block = Block::at(kind, id);
                }
                batch.put_with(&keys::row(number, segment, kind.table, id), |out| encode_row(agent, record, out));
                block.add(id, record);
            }
        }
        let kind = *kind;
        if let Some(open) = self.open_mut(kind.retention) {
            open.add_row(kind.table);
            open.rows += u64::from(kind.counted);
        }
    }

    fn add_chunk(&mut self, chunk: Chunk, record: &Record, batch: &mut Batch) {
        let key = chunk.key(self.number, self.open(RetentionClass::Records));
        batch.put_with(&key, |out| encode(record, out));
        self.meta.totals.chunks += 1;
        self.chunks.add(chunk);
    }

    fn note_connection(&mut self, agent: u32, record: &Record) {
        let Some(Kind::Connection(event)) = &record.kind else { return };
        self.live.add(record);
        if matches!(event.event, Some(connection_event::Event::Closed(_))) {
            self.chunks.end(event.connection, agent);
        }
    }

    /// Number of the open segment of a class. [`Self::roll`] has opened one before any fact is added.
    pub(crate) fn open(&self, class: RetentionClass) -> u32 {
        self.segments[class as usize].last().map_or(0, |segment| segment.number)
    }

    /// The open segment of a class.
    pub(crate) fn open_mut(&mut self, class: RetentionClass) -> Option<&mut SegmentMeta> {
        self.segments[class as usize].last_mut().map(Arc::make_mut)
    }

    /// The next free segment number.
    pub(crate) fn take_segment_number(&mut self) -> u32 {
        let number = self.meta.next_segment;
        self.meta.next_segment += 1;
        self.changed = true;
        number
    }

    /// Opens a segment of a class if there is none or the last one is full.
    pub(crate) fn roll_if_due(
        &mut self,
        class: RetentionClass,
        options: &StoreOptions,
        now_ns: i64,
        batch: &mut Batch,
    ) {
        let due = self.segments[class as usize].last().is_none_or(|segment| {
            let bytes = segment.bytes.saturating_sub(segment.carried_bytes);
            let open_for = now_ns.saturating_sub(segment.opened_ns);
            segment.facts > 0 && self.retention[class as usize].closes(options, segment.rows, bytes, open_for)
        });
        if due {
            self.roll(class, now_ns, batch);
        }
    }

    /// Closes the open segment of a class and opens the next, which begins with a summary of every live connection.
    pub(crate) fn roll(&mut self, class: RetentionClass, now_ns: i64, batch: &mut Batch) {
        let (node, open) = (self.number, self.open(class));
        for state in self.kinds.iter_mut().filter(|state| state.kind.retention == class) {
            state.block.stage(batch, node, open);
            state.block = Block::at(state.kind, state.next_id);
        }
        if let Some(last) = self.open_mut(class) {
            last.closed_ns = now_ns.max(1);
            stage_segment(batch, node, last);
        }
        let number = self.take_segment_number();
        let kinds = self.kinds.iter().filter(|state| state.kind.retention == class);
        let kinds = kinds.map(|state| KindRows::none(state.kind.table, state.next_id));
        self.segments[class as usize].push(Arc::new(SegmentMeta {
            number,
            class: class as u32,
            opened_ns: now_ns,
            kinds: kinds.collect(),
            ..SegmentMeta::default()
        }));
        if class == RetentionClass::Records {
            self.carry_connections(batch);
        }
    }

    fn carry_connections(&mut self, batch: &mut Batch) {
        self.chunks.clear();
        let table = network::CONNECTION_EVENTS.table;
        let Some(at) = self.schema.iter().position(|kind| kind.table == table) else { return };
        let before = batch.len();
        let live = std::mem::take(&mut self.live);
        for summary in live.carry() {
            self.add_row(at, STORE, &summary, batch);
        }
        self.live = live;
        if let Some(open) = self.open_mut(RetentionClass::Records) {
            open.carried_bytes = (batch.len() - before) as u64;
            open.bytes = open.carried_bytes;
        }
    }

    /// Puts everything that changed besides the facts into the batch: it belongs to them.
    pub(crate) fn stage(&mut self, now_ns: i64, batch: &mut Batch) {
        let node = self.number;
        for class in RetentionClass::ALL {
            let open = self.open(class);
            for state in self.kinds.iter_mut().filter(|state| state.kind.retention == class) {
                state.block.stage(batch, node, open);
            }
        }
        for open in RetentionClass::STREAMED.iter().filter_map(|class| self.segments[*class as usize].last()) {
            stage_segment(batch, node, open);
        }
        self.streams.stage(now_ns, batch);
        self.positions.stage(batch);
        let next_id = |state: &KindState| NextId { table: state.kind.table.into(), next_id: state.next_id };
        // Those of kinds that only newer builds know stay: their rows may be read again.
        let is_known = |stored: &NextId| self.kinds.iter().any(|state| u32::from(state.kind.table) == stored.table);
        self.meta.kinds.retain(|stored| !is_known(stored));
        self.meta.kinds.extend(self.kinds.iter().map(next_id));
        batch.put_with(&keys::state(node, keys::NODE, &[]), |out| encode(&self.meta, out));
    }

    /// The batch was written: gives the marks of streams in it, by position.
    pub(crate) fn take_written(&mut self) -> Vec<(usize, u64)> {
        self.changed = false;
        self.chunks.mark_written();
        self.streams.take_written()
    }

    /// As readers shall see it.
    pub(crate) fn view(&self) -> NodeView {
        NodeView {
            number: self.number,
            name: self.meta.name.clone(),
            segments: self.segments.clone(),
            next_ids: self.kinds.iter().map(|state| (state.kind.table, state.next_id)).collect(),
            totals: self.meta.totals,
        }
    }
}

/// The agent number of rows that the store itself writes.
const STORE: u32 = 0;

/// Puts the description of a segment into a batch.
pub(crate) fn stage_segment(batch: &mut Batch, node: u32, segment: &SegmentMeta) {
    batch.put_with(&segment_key(node, segment.number), |out| encode(segment, out));
}

/// Key of the description of a segment.
pub(crate) fn segment_key(node: u32, number: u32) -> Vec<u8> {
    keys::state(node, keys::SEGMENT, &number.to_be_bytes())
}
