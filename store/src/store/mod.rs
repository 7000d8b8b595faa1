//! The store as its users see it.

mod check;
mod nodes;
mod open;
mod read;
mod room;

use std::{sync::Arc, time::Duration};

use chainscope_proto::v1::{MemoryState, Record};
pub use nodes::NodeInfo;
#[cfg(feature = "rocksdb")]
pub(crate) use open::open_engine;
use parking_lot::Mutex;
pub use room::Disk;

use crate::{
    Error, MemorySnapshot, Subscription,
    engine::{Engine, Memory},
    evict, memory,
    view::{NodeView, Reader, Views},
    watch::Watch,
    writer::{LaneName, Urgency, Writer},
};

/// All facts of all nodes of an aggregator. Cheap to clone; every call may block on the disk.
///
/// There is one writer at a time; readers wait for nobody.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    engine: Box<dyn Engine>,
    writer: Mutex<Writer>,
    views: Views,
    watch: Arc<Watch>,
    expired: Mutex<Vec<evict::Expired>>,
}

impl Store {
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

    /// Memory that the engine holds; what else the store holds is small and does not grow with the records.
    pub fn memory(&self) -> Memory {
        self.0.engine.memory()
    }

    fn reader(&self, node: &str) -> Option<Reader<'_>> {
        self.0.views.reader(&*self.0.engine, node)
    }
}
