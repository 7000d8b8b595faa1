//! The engine in memory: a persistent ordered map, so that a snapshot is a clone that shares all of its nodes.
//!
//! Nothing outlives the process. The size is bounded: at `StoreOptions::memory_limit_bytes` the engine is full, as a disk
//! is, and the store evicts.

use std::{
    ops::{Bound, Range},
    sync::Arc,
};

use imbl::{OrdMap, ordmap};
use parking_lot::RwLock;

use super::{Batch, Cursor, Engine, Entry, Memory, Snapshot, Write};
use crate::Error;

type Bytes = Arc<[u8]>;
type Map = OrdMap<Bytes, Bytes>;

/// What an entry takes beside its bytes: two pointers with their lengths, two reference counts, its share of a tree node.
const ENTRY_OVERHEAD: u64 = 80;

/// An ordered map in memory.
pub(crate) struct MemoryEngine {
    state: RwLock<State>,
    limit_bytes: u64,
}

#[derive(Default)]
struct State {
    map: Map,
    /// Bytes that the entries take.
    bytes: u64,
}

impl MemoryEngine {
    /// An empty map of at most about this size.
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self { state: RwLock::default(), limit_bytes }
    }
}

fn entry_bytes(key: &[u8], value: &[u8]) -> u64 {
    (key.len() + value.len()) as u64 + ENTRY_OVERHEAD
}

/// A range in the form that the map takes.
fn bounds<'a>(range: &Range<&'a [u8]>) -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
    (Bound::Included(range.start), Bound::Excluded(range.end.max(range.start)))
}

impl State {
    fn put(&mut self, key: &[u8], value: &[u8]) {
        self.bytes += entry_bytes(key, value);
        if let Some(old) = self.map.insert(key.into(), value.into()) {
            self.bytes -= entry_bytes(key, &old);
        }
    }

    fn delete(&mut self, key: &[u8]) {
        if let Some(old) = self.map.remove(key) {
            self.bytes -= entry_bytes(key, &old);
        }
    }

    fn delete_range(&mut self, range: Range<&[u8]>) {
        let keys: Vec<Bytes> = self.map.range::<_, [u8]>(bounds(&range)).map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| self.delete(key));
    }
}

impl Engine for MemoryEngine {
    fn snapshot(&self) -> Box<dyn Snapshot + '_> {
        Box::new(MemorySnapshot { map: self.state.read().map.clone() })
    }

    /// The limit is checked by the caller through [`Engine::free_bytes`]: an eviction must be able to write.
    fn write(&self, batch: &Batch) -> Result<(), Error> {
        let mut state = self.state.write();
        for write in batch.iter() {
            match write {
                Write::Put(key, value) => state.put(key, value),
                Write::Delete(key) => state.delete(key),
                Write::DeleteRange(from, to) => state.delete_range(from..to),
            }
        }
        Ok(())
    }

    fn free_bytes(&self) -> Result<u64, Error> {
        Ok(self.limit_bytes.saturating_sub(self.state.read().bytes))
    }

    fn memory(&self) -> Memory {
        Memory { write_buffer_bytes: self.state.read().bytes, ..Memory::default() }
    }
}

struct MemorySnapshot {
    map: Map,
}

impl Snapshot for MemorySnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.map.get(key).map(|value| value.to_vec()))
    }

    fn last(&self, range: Range<&[u8]>) -> Result<Option<Entry>, Error> {
        let last = self.map.range::<_, [u8]>(bounds(&range)).next_back();
        Ok(last.map(|(key, value)| (key.to_vec(), value.to_vec())))
    }

    fn cursor(&self, range: Range<&[u8]>) -> Box<dyn Cursor + '_> {
        let range = range.start.to_vec()..range.end.to_vec();
        Box::new(MemoryCursor { map: &self.map, range, rest: None, entry: None })
    }
}

struct MemoryCursor<'a> {
    map: &'a Map,
    range: Range<Vec<u8>>,
    /// What follows the position.
    rest: Option<ordmap::RangedIter<'a, Bytes, Bytes, imbl::shared_ptr::DefaultSharedPtr>>,
    entry: Option<(&'a Bytes, &'a Bytes)>,
}

impl Cursor for MemoryCursor<'_> {
    fn seek(&mut self, key: &[u8]) -> Result<(), Error> {
        let from = key.max(&self.range.start);
        self.rest = Some(self.map.range::<_, [u8]>(bounds(&(from..self.range.end.as_slice()))));
        self.next()
    }

    fn first(&mut self) -> Result<(), Error> {
        self.seek(&[])
    }

    fn next(&mut self) -> Result<(), Error> {
        self.entry = self.rest.as_mut().and_then(Iterator::next);
        Ok(())
    }

    fn entry(&self) -> Option<(&[u8], &[u8])> {
        self.entry.map(|(key, value)| (&**key, &**value))
    }
}
