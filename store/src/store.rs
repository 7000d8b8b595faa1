//! The store as its users see it.

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use chainscope_proto::v1::{MemoryState, Record};
use parking_lot::Mutex;

use crate::{
    Account, ChunkQuery, Connection, ConnectionQuery, Error, Evicted, FactQuery, MemorySnapshot, MessageQuery, Report,
    Retention, SnapshotLimits, StoreOptions, Subscription, Totals,
    engine::{Batch, Engine, Memory, rocks::Rocks},
    evict, facts, keys,
    keys::ChunkPlace,
    memory,
    meta::SCHEMA_VERSION,
    query,
    reserve::Reserve,
    verify,
    view::{NodeView, Reader, Views},
    watch::Watch,
    writer::{LaneName, Urgency, Writer, load},
};

/// All facts of all nodes of an aggregator. Cheap to clone; every call may block on the disk.
///
/// There is one writer at a time; readers wait for nobody.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    dir: PathBuf,
    engine: Box<dyn Engine>,
    writer: Mutex<Writer>,
    views: Views,
    watch: Arc<Watch>,
    expired: Mutex<Vec<evict::Expired>>,
}

/// A node and what is kept of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Its name.
    pub name: String,
    /// Id of the oldest message that is kept.
    pub first_id: u64,
    /// Id that the next message will get.
    pub next_id: u64,
    /// Messages kept.
    pub rows: u64,
    /// Bytes kept, before compression.
    pub bytes: u64,
    /// Segments kept.
    pub segments: u64,
    /// Least time of what is kept, nanoseconds since 1970.
    pub first_time_ns: Option<i64>,
    /// Greatest time of what is kept.
    pub last_time_ns: Option<i64>,
    /// Counts since its database was made.
    pub totals: Totals,
}

/// The disk that the store is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The last write was refused for want of space.
    pub full: bool,
    /// Bytes that may still be written.
    pub free_bytes: u64,
    /// Bytes kept aside for eviction.
    pub reserve_bytes: u64,
}

impl Store {
    /// Opens the database in `dir`, or makes one.
    ///
    /// # Errors
    /// The database is in use, damaged, of a newer schema, or not one of ours; the disk is full or refuses.
    pub fn open(dir: impl AsRef<Path>, options: StoreOptions) -> Result<Self, Error> {
        let dir = dir.as_ref();
        std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
        let engine = match open_engine(dir, &options) {
            // Opening writes, too.
            Err(Error::DiskFull { .. }) => {
                Reserve::new(dir, options.reserve_bytes).release()?;
                open_engine(dir, &options)?
            }
            opened => opened?,
        };
        let snapshot = engine.snapshot();
        let nodes = load(&*snapshot)?;
        let next_node = match snapshot.get(keys::NEXT_NODE)? {
            None => 0,
            Some(value) => value
                .try_into()
                .map(u32::from_be_bytes)
                .map_err(|_| Error::Corrupt("the next node number cannot be read".to_owned()))?,
        };
        drop(snapshot);
        let views = Views::new();
        views.publish(nodes.iter().map(crate::node::Node::view).collect());
        let writer = Writer::new(dir.to_owned(), options, nodes, next_node)?;
        Ok(Self(Arc::new(Inner {
            dir: dir.to_owned(),
            engine: Box::new(engine),
            writer: Mutex::new(writer),
            views,
            watch: Arc::default(),
            expired: Mutex::default(),
        })))
    }

    /// Takes the records `first_sequence`, `first_sequence` + 1, … of a lane. They wait in memory until [`Self::sync`].
    /// Records that were taken before are skipped. Gives the sequence of the next record.
    ///
    /// Message ids are given here, in this order.
    ///
    /// # Errors
    /// [`Error::Hole`] if records before `first_sequence` are missing; nothing is taken then. On any other error some
    /// records may have been taken: [`Self::mark`] says how many.
    pub fn append(
        &self,
        node: &str,
        agent: &str,
        epoch: &[u8],
        first_sequence: u64,
        records: &[Record],
    ) -> Result<u64, Error> {
        let lane = LaneName { node, agent, epoch };
        self.write(|writer, engine, committed| writer.append(engine, committed, lane, first_sequence, records))
    }

    /// Lets a lane go on at `first_sequence` although records before it never came, because another aggregator
    /// acknowledged them. The hole is recorded as a loss of stage "lane". Gives the lane's next sequence.
    ///
    /// # Errors
    /// As [`Self::append`], without the hole.
    pub fn accept_hole(&self, node: &str, agent: &str, epoch: &[u8], first_sequence: u64) -> Result<u64, Error> {
        let lane = LaneName { node, agent, epoch };
        self.write(|writer, engine, committed| writer.accept_hole(engine, committed, lane, first_sequence))
    }

    /// Makes everything that was appended durable, then readable.
    ///
    /// # Errors
    /// [`Error::DiskFull`], or the engine's; what was appended is kept for the next call.
    pub fn sync(&self) -> Result<(), Error> {
        self.write(|writer, engine, committed| writer.commit(engine, committed, Urgency::Normal))
    }

    fn write<T>(
        &self,
        write: impl FnOnce(&mut Writer, &dyn Engine, &mut Vec<NodeView>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let inner = &*self.0;
        let mut committed = Vec::new();
        let mut writer = inner.writer.lock();
        let result = write(&mut writer, &*inner.engine, &mut committed);
        let moved = !committed.is_empty();
        // Before the lock is gone: views must not overtake each other.
        inner.views.publish(committed);
        drop(writer);
        if moved {
            inner.watch.moved();
        }
        result
    }

    /// Sequence of the next record that [`Self::append`] takes of a lane; 0 for a lane it does not know.
    pub fn mark(&self, node: &str, agent: &str, epoch: &[u8]) -> u64 {
        self.0.writer.lock().lane(node, agent, epoch).next
    }

    /// As [`Self::mark`], but only what is synced: what may be acknowledged.
    pub fn durable_mark(&self, node: &str, agent: &str, epoch: &[u8]) -> u64 {
        self.0.writer.lock().lane(node, agent, epoch).durable
    }

    /// Says how much of a node is kept, from now on and in this process. A node that is not known yet is made.
    ///
    /// # Errors
    /// The name is too long.
    pub fn set_retention(&self, node: &str, retention: Retention) -> Result<(), Error> {
        self.0.writer.lock().set_retention(node, retention)
    }

    /// Drops what retention no longer allows; `now_ns` is nanoseconds since 1970. To be called every few seconds.
    ///
    /// # Errors
    /// The engine's. On a full disk the space kept aside is used; [`Error::DiskFull`] if all is within the limits, so
    /// that only [`Self::make_room`] helps.
    pub fn evict(&self, now_ns: i64) -> Result<Evicted, Error> {
        self.evict_by(|writer, engine, views, expired| evict::by_retention(writer, engine, views, expired, now_ns))
    }

    /// Drops the oldest segment of the node that takes the most bytes, retention or not: for a disk that is full.
    ///
    /// # Errors
    /// The engine's.
    pub fn make_room(&self) -> Result<Evicted, Error> {
        self.evict_by(evict::to_make_room)
    }

    /// Whether [`Self::make_room`], however often, can free as much as is missing: where somebody else fills the disk, all
    /// that is stored may be less. Roughly; what was dropped and is still on the disk counts, too.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn can_make_room(&self) -> Result<bool, Error> {
        let missing = {
            let writer = self.0.writer.lock();
            let there = writer.free_bytes()?.saturating_add(writer.reserve.held_bytes());
            writer.options.min_free_bytes.saturating_sub(there)
        };
        Ok(self.0.engine.approximate_bytes(&[keys::MESSAGE]..&[keys::BY_TARGET + 1]) >= missing)
    }

    fn evict_by(
        &self,
        evict: impl FnOnce(&mut Writer, &dyn Engine, &Views, &mut Vec<evict::Expired>) -> Result<Evicted, Error>,
    ) -> Result<Evicted, Error> {
        let inner = &*self.0;
        let mut writer = inner.writer.lock();
        let result = evict(&mut writer, &*inner.engine, &inner.views, &mut inner.expired.lock());
        drop(writer);
        inner.watch.moved();
        result
    }

    fn reader(&self, node: &str) -> Option<Reader<'_>> {
        self.0.views.reader(&*self.0.engine, node)
    }

    /// Every node, by name.
    pub fn nodes(&self) -> Vec<NodeInfo> {
        self.0.views.all().iter().map(|view| NodeInfo::of(view)).collect()
    }

    /// Id of the first message that is kept and of the next one to come. Both 0 for a node that is not known.
    pub fn visible(&self, node: &str) -> (u64, u64) {
        self.0.views.get(node).map_or((0, 0), |view| (view.first_id, view.next_id))
    }

    /// Messages with their ids.
    ///
    /// # Errors
    /// The query's budget is used up or its deadline passed: nothing is cut silently. Damage.
    pub fn messages(&self, node: &str, query: &MessageQuery) -> Result<Vec<(u64, Record)>, Error> {
        let mut answer = Vec::new();
        self.each_message(node, query, &mut |id, record| {
            answer.push((id, record));
            ControlFlow::Continue(())
        })?;
        Ok(answer)
    }

    /// As [`Self::messages`], one by one, until `each` breaks off.
    ///
    /// # Errors
    /// As [`Self::messages`].
    pub fn each_message(
        &self,
        node: &str,
        query: &MessageQuery,
        each: &mut dyn FnMut(u64, Record) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.reader(node).map_or(Ok(()), |reader| query::run(&reader, query, each))
    }

    /// One message.
    ///
    /// # Errors
    /// Damage.
    pub fn message(&self, node: &str, id: u64) -> Result<Option<Record>, Error> {
        let Some(reader) = self.reader(node) else { return Ok(None) };
        Ok(facts::message(&reader, id)?.map(|(_, record)| record))
    }

    /// The chunks of a message, by counter; `None` if there is no such message.
    ///
    /// # Errors
    /// Damage.
    pub fn message_chunks(&self, node: &str, id: u64) -> Result<Option<Vec<Record>>, Error> {
        let mut chunks = Vec::new();
        let known = self.each_message_chunk(node, id, &mut |chunk| {
            chunks.push(chunk);
            ControlFlow::Continue(())
        })?;
        Ok(known.then_some(chunks))
    }

    /// As [`Self::message_chunks`], one by one: a message may be larger than memory. False if there is no such message.
    ///
    /// # Errors
    /// Damage.
    pub fn each_message_chunk(
        &self,
        node: &str,
        id: u64,
        each: &mut dyn FnMut(Record) -> ControlFlow<()>,
    ) -> Result<bool, Error> {
        self.reader(node).map_or(Ok(false), |reader| facts::message_chunks(&reader, id, each))
    }

    /// Connections of which at least one event is kept.
    ///
    /// # Errors
    /// The query's budget; damage.
    pub fn connections(&self, node: &str, query: &ConnectionQuery) -> Result<Vec<Connection>, Error> {
        self.reader(node).map_or(Ok(Vec::new()), |reader| facts::connections(&reader, query))
    }

    /// One connection.
    ///
    /// # Errors
    /// Damage.
    pub fn connection(&self, node: &str, key: u64) -> Result<Option<Connection>, Error> {
        self.reader(node).map_or(Ok(None), |reader| facts::connection(&reader, key))
    }

    /// Chunks by connection, counter and side (local before remote).
    ///
    /// # Errors
    /// The query's budget; damage.
    pub fn chunks(&self, node: &str, query: &ChunkQuery) -> Result<Vec<Record>, Error> {
        self.reader(node).map_or(Ok(Vec::new()), |reader| facts::chunks(&reader, query))
    }

    /// One chunk.
    ///
    /// # Errors
    /// Damage.
    pub fn chunk(&self, node: &str, connection: u64, incoming: bool, counter: u64) -> Result<Option<Record>, Error> {
        let place = ChunkPlace { connection, counter, incoming };
        self.reader(node).map_or(Ok(None), |reader| facts::chunk(&reader, place))
    }

    /// Losses with their ids.
    ///
    /// # Errors
    /// Damage.
    pub fn losses(&self, node: &str, query: &FactQuery) -> Result<Vec<(u64, Record)>, Error> {
        self.reader(node).map_or(Ok(Vec::new()), |reader| facts::rows(&reader, keys::LOSS, query))
    }

    /// Events of targets with their ids.
    ///
    /// # Errors
    /// Damage.
    pub fn target_events(&self, node: &str, query: &FactQuery) -> Result<Vec<(u64, Record)>, Error> {
        self.reader(node).map_or(Ok(Vec::new()), |reader| facts::rows(&reader, keys::TARGET_EVENT, query))
    }

    /// The latest account of each agent, epoch and target.
    ///
    /// # Errors
    /// Damage.
    pub fn accounts(&self, node: &str) -> Result<Vec<Account>, Error> {
        self.reader(node).map_or(Ok(Vec::new()), |reader| facts::accounts(&reader))
    }

    /// Keeps a snapshot of a node's memory: `head` as lists show it (its parts and bytes are counted here), `states` as
    /// they will be given back. One of the same moment is replaced. A node that is not known yet is made.
    ///
    /// # Errors
    /// [`Error::DiskFull`]: nothing was written. The engine's.
    pub fn put_memory(
        &self,
        node: &str,
        head: MemorySnapshot,
        states: &[MemoryState],
    ) -> Result<MemorySnapshot, Error> {
        self.write(|writer, engine, committed| memory::put(writer, engine, committed, node, head, states))
    }

    /// Snapshots of a node's memory of a time (first included, last excluded; nanoseconds since 1970), oldest first.
    ///
    /// # Errors
    /// Damage.
    pub fn memory_snapshots(&self, node: &str, from_ns: i64, to_ns: i64) -> Result<Vec<MemorySnapshot>, Error> {
        self.reader(node).map_or(Ok(Vec::new()), |reader| memory::list(&reader, from_ns, to_ns))
    }

    /// The latest snapshot of a node's memory at or before a moment, and its states in the order in which they were put.
    ///
    /// # Errors
    /// Damage.
    pub fn memory_at(&self, node: &str, time_ns: i64) -> Result<Option<(MemorySnapshot, Vec<MemoryState>)>, Error> {
        self.reader(node).map_or(Ok(None), |reader| memory::at_or_before(&reader, time_ns))
    }

    /// Drops snapshots of a node's memory that the limits no longer allow, and gives how many; `now_ns` is nanoseconds
    /// since 1970.
    ///
    /// # Errors
    /// The engine's.
    pub fn evict_memory(&self, node: &str, limits: &SnapshotLimits, now_ns: i64) -> Result<u64, Error> {
        let inner = &*self.0;
        // Held, so that nothing is put meanwhile.
        let _writer = inner.writer.lock();
        self.reader(node).map_or(Ok(0), |reader| memory::evict(&reader, &*inner.engine, limits, now_ns))
    }

    /// Grows whenever something new can be read or something was dropped.
    pub fn generation(&self) -> u64 {
        self.0.watch.generation()
    }

    /// Blocks until [`Self::generation`] is not `seen` any more, or the time is up; gives the generation.
    pub fn wait(&self, seen: u64, timeout: Duration) -> u64 {
        self.0.watch.wait(seen, timeout)
    }

    /// Calls `callback` whenever [`Self::generation`] grew, in the thread of the writer: it must be quick.
    pub fn on_visible(&self, callback: Box<dyn Fn() + Send + Sync>) -> Subscription {
        self.0.watch.subscribe(Arc::from(callback))
    }

    /// The disk and the space kept aside on it.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn disk(&self) -> Result<Disk, Error> {
        let writer = self.0.writer.lock();
        Ok(Disk { full: writer.full, free_bytes: writer.free_bytes()?, reserve_bytes: writer.reserve.held_bytes() })
    }

    /// Whether the engine has more left to sort in than it could on a full disk, where it would never come to it, and the
    /// disk is not far from being full: to wait is better than to write, as long as there is space.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn is_behind(&self) -> Result<bool, Error> {
        let writer = self.0.writer.lock();
        let spare = writer.options.min_free_bytes;
        let unsorted = self.0.engine.unsorted_bytes();
        if unsorted <= spare / 2 {
            // Asked for each batch: the file system only when there is something to wait for.
            return Ok(false);
        }
        // Sorting in takes as much again, and more may be written meanwhile.
        let far = spare.saturating_add(unsorted.saturating_mul(3));
        Ok((spare..far).contains(&writer.free_bytes()?))
    }

    /// Memory that the engine holds; what else the store holds is small and does not grow with the records.
    pub fn memory(&self) -> Memory {
        self.0.engine.memory()
    }

    /// Writes a consistent copy of everything appended so far into a directory that does not exist yet. Quick and
    /// small where it is on the same file system: the files are linked.
    ///
    /// # Errors
    /// [`Error::NotEmpty`] if the directory exists; else as [`Self::sync`].
    pub fn checkpoint(&self, dir: impl AsRef<Path>) -> Result<(), Error> {
        let dir = dir.as_ref();
        if dir.exists() {
            return Err(Error::NotEmpty { path: dir.to_owned() });
        }
        self.sync()?;
        self.0.engine.checkpoint(dir)
    }

    /// Makes a database in `dir`, which is empty or absent, from a checkpoint, which stays as it is.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NotAStore`], or the file system's.
    pub fn restore(checkpoint: impl AsRef<Path>, dir: impl AsRef<Path>) -> Result<(), Error> {
        crate::backup::restore(checkpoint.as_ref(), dir.as_ref())
    }

    /// Reads the whole database and checks that it agrees with itself. Slow; for tests and for people in doubt.
    ///
    /// # Errors
    /// It cannot be read. What does not agree is in the report.
    pub fn verify(&self) -> Result<Report, Error> {
        let mut report = Report::default();
        for view in self.0.views.all() {
            if let Some(reader) = self.reader(&view.name) {
                verify::node(&reader, &mut report)?;
            }
        }
        Ok(report)
    }

    /// The files of the write-ahead log and their lengths, nothing being written meanwhile: every batch is synced, so
    /// this is the log at its last sync. For crash tests.
    ///
    /// # Errors
    /// The file system's.
    pub fn log_files(&self) -> Result<Vec<(PathBuf, u64)>, Error> {
        let _quiet = self.0.writer.lock();
        let dir = &self.0.dir;
        let mut files = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(Error::io(dir))? {
            let path = entry.map_err(Error::io(dir))?.path();
            if path.extension().is_some_and(|extension| extension == "log") {
                let length = std::fs::metadata(&path).map_err(Error::io(&path))?.len();
                files.push((path, length));
            }
        }
        files.sort();
        Ok(files)
    }

    /// Bytes on disk of a node's messages, chunks and indexes, roughly; what is only in memory counts as 0.
    pub fn disk_bytes(&self, node: &str) -> u64 {
        let Some(view) = self.0.views.get(node) else { return 0 };
        let of_table = |table| {
            let start = keys::node(table, view.number);
            self.0.engine.approximate_bytes(&start..&keys::after_prefix(&start))
        };
        keys::SEGMENTED.into_iter().map(of_table).sum()
    }
}

impl NodeInfo {
    fn of(view: &NodeView) -> Self {
        let with_facts = || view.segments.iter().filter(|segment| segment.facts > 0);
        Self {
            name: view.name.clone(),
            first_id: view.first_id,
            next_id: view.next_id,
            rows: view.next_id - view.first_id,
            bytes: view.segments.iter().map(|segment| segment.bytes).sum(),
            segments: view.segments.len() as u64,
            first_time_ns: with_facts().map(|segment| segment.least_ns).min(),
            last_time_ns: with_facts().map(|segment| segment.greatest_ns).max(),
            totals: view.totals,
        }
    }
}

/// Opens the engine and sees to the schema version.
pub(crate) fn open_engine(dir: &Path, options: &StoreOptions) -> Result<Rocks, Error> {
    let engine = Rocks::open(dir, options)?;
    let snapshot = engine.snapshot();
    let found = snapshot.get(keys::SCHEMA)?;
    let empty = {
        let mut cursor = snapshot.cursor(&[0]..&[u8::MAX]);
        cursor.first()?;
        cursor.entry().is_none()
    };
    drop(snapshot);
    match found.map(<[u8; 4]>::try_from) {
        None if empty => {
            let mut batch = Batch::default();
            batch.put(keys::SCHEMA, &SCHEMA_VERSION.to_be_bytes());
            engine.write(&batch)?;
        }
        None | Some(Err(_)) => return Err(Error::NotAStore { path: dir.to_owned() }),
        Some(Ok(version)) => {
            let found = u32::from_be_bytes(version);
            if found > SCHEMA_VERSION {
                return Err(Error::NewerSchema { path: dir.to_owned(), found, known: SCHEMA_VERSION });
            }
            // Version 1 is the first. A later build reads the one before its own here.
        }
    }
    Ok(engine)
}
