//! The store as its users see it.

mod check;
mod nodes;
mod open;
mod read;
mod space;

use std::{sync::Arc, time::Duration};

use chainscope_proto::v1::{MemoryState, Record};
pub use nodes::NodeInfo;
#[cfg(feature = "rocksdb")]
pub(crate) use open::{open_engine, open_engine_on_full_disk};
use parking_lot::Mutex;
pub use space::Disk;
#[cfg(test)]
pub(crate) use space::MAX_LEVEL0_FILES;

use crate::{
    Error, MemorySnapshot, Subscription,
    engine::{Engine, Memory},
    memory,
    schema::Schema,
    streams::StreamName,
    text::{Indexer, TextIndexes},
    view::{Reader, Views},
    watch::Watch,
    writer::{Urgency, Writer},
};

/// All facts of all nodes of an aggregator. Cheap to clone; every call may block on the disk.
///
/// There is one writer at a time; readers do not wait for it.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    /// Ends before the engine is closed.
    _indexer: Indexer,
    texts: Arc<TextIndexes>,
    engine: Arc<dyn Engine>,
    writer: Mutex<Writer>,
    views: Arc<Views>,
    schema: Schema,
    watch: Arc<Watch>,
}

impl Store {
    /// Takes the records `first_sequence`, `first_sequence` + 1, … of a stream. They wait in memory until [`Self::sync`].
    /// Records that were taken before are skipped. Gives the sequence of the next record.
    ///
    /// Message ids are given here, in this order.
    ///
    /// # Errors
    /// [`Error::Hole`] if records before `first_sequence` are missing; nothing is taken then. On any other error some
    /// records may have been taken: [`Self::high_water_mark`] says how many.
    pub fn append(
        &self,
        node: &str,
        agent: &str,
        epoch: &[u8],
        first_sequence: u64,
        records: &[Record],
    ) -> Result<u64, Error> {
        self.write(|writer| writer.append(StreamName { node, agent, epoch }, first_sequence, records))
    }

    /// Moves a stream on to `first_sequence` although records before it never came, because another aggregator
    /// acknowledged them. The hole is stored as a loss of stage "stream". Gives the stream's next sequence.
    ///
    /// # Errors
    /// As [`Self::append`], without the hole.
    pub fn accept_hole(&self, node: &str, agent: &str, epoch: &[u8], first_sequence: u64) -> Result<u64, Error> {
        self.write(|writer| writer.accept_hole(StreamName { node, agent, epoch }, first_sequence))
    }

    /// Makes everything that was appended durable, then readable.
    ///
    /// # Errors
    /// [`Error::DiskFull`], or the engine's; what was appended is kept for the next call.
    pub fn sync(&self) -> Result<(), Error> {
        self.write(|writer| writer.commit(Urgency::Normal))
    }

    /// Writes everything that was appended, for [`Self::sync_written`].
    ///
    /// # Errors
    /// As [`Self::sync`].
    pub fn write_appended(&self) -> Result<(), Error> {
        self.write(Writer::write)
    }

    /// Makes everything durable, then readable, that [`Self::write_appended`] wrote. Another thread can append and write meanwhile.
    ///
    /// # Errors
    /// [`Error::Failed`]: the store has to be opened again.
    pub fn sync_written(&self) -> Result<(), Error> {
        let next = self.0.writer.lock().next_unsynced();
        let Some(next) = next else { return Ok(()) };
        self.0.engine.sync()?;
        self.write(|writer| {
            writer.publish_synced(next);
            Ok(())
        })
    }

    fn write<T>(&self, write: impl FnOnce(&mut Writer) -> Result<T, Error>) -> Result<T, Error> {
        let mut writer = self.0.writer.lock();
        let result = write(&mut writer);
        let published = writer.take_published();
        drop(writer);
        if published {
            self.0.watch.notify();
        }
        result
    }

    /// High-water mark of a stream: sequence of the next record that [`Self::append`] takes; 0 for an unknown stream.
    pub fn high_water_mark(&self, node: &str, agent: &str, epoch: &[u8]) -> u64 {
        self.0.writer.lock().high_water_mark(StreamName { node, agent, epoch }).next
    }

    /// As [`Self::high_water_mark`], of what is synced: what can be acknowledged.
    pub fn durable_high_water_mark(&self, node: &str, agent: &str, epoch: &[u8]) -> u64 {
        self.0.writer.lock().high_water_mark(StreamName { node, agent, epoch }).durable
    }

    /// Keeps a snapshot of a node's memory: `head` as lists show it (its parts and bytes are counted here), `states` as
    /// they are returned. One of the same moment is replaced. A node that is not known yet is created.
    ///
    /// # Errors
    /// [`Error::DiskFull`]: nothing was written. The engine's.
    pub fn put_memory(
        &self,
        node: &str,
        head: MemorySnapshot,
        states: &[MemoryState],
    ) -> Result<MemorySnapshot, Error> {
        self.write(|writer| memory::put(writer, node, head, states))
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
