//! How far the files of a node's agents are stored: of each (agent, file) the greatest end of a record. A record that ends at or
//! before it is a repetition: an agent that lost its own checkpoint reads a file again.
//!
//! Rows go into the batch of the records, so that after a crash both agree. The [`MAX_FILES`] that advanced latest are kept;
//! a rotated file is not read again, and makes place for others.

use std::collections::{BTreeMap, BTreeSet};

use crate::{engine::Batch, keys};

/// Files that are kept of a node.
pub(crate) const MAX_FILES: usize = 4096;

#[derive(Clone, Copy)]
struct Position {
    /// Bytes from the start of the file.
    end: u64,
    /// Greater than those of all files that advanced before.
    order: u64,
}

/// The positions of a node, by their keys.
#[derive(Default)]
pub(crate) struct Positions {
    by_key: BTreeMap<Vec<u8>, Position>,
    by_order: BTreeMap<u64, Vec<u8>>,
    /// Keys of rows that are to be written or deleted.
    changed: BTreeSet<Vec<u8>>,
}

impl Positions {
    /// Adds a position from its row.
    pub(crate) fn load(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        let (order, end) = value.split_first_chunk()?;
        let (order, end) = (u64::from_be_bytes(*order), u64::from_be_bytes(end.try_into().ok()?));
        self.by_key.insert(key.to_vec(), Position { end, order });
        self.by_order.insert(order, key.to_vec());
        Some(())
    }

    /// Moves a file on to `end`; false if it is there already or beyond.
    pub(crate) fn advance(&mut self, key: Vec<u8>, end: u64) -> bool {
        let known = self.by_key.get(&key).copied();
        if known.is_some_and(|known| end <= known.end) {
            return false;
        }
        let order = self.by_order.last_key_value().map_or(0, |(last, _)| last + 1);
        if let Some(known) = known {
            self.by_order.remove(&known.order);
        }
        self.by_key.insert(key.clone(), Position { end, order });
        self.by_order.insert(order, key.clone());
        self.changed.insert(key);
        if self.by_key.len() > MAX_FILES
            && let Some((_, oldest)) = self.by_order.pop_first()
        {
            self.by_key.remove(&oldest);
            self.changed.insert(oldest);
        }
        true
    }

    /// Puts what changed into a batch.
    pub(crate) fn stage(&mut self, batch: &mut Batch) {
        for key in std::mem::take(&mut self.changed) {
            match self.by_key.get(&key) {
                Some(Position { end, order }) => batch.put(&key, &[order.to_be_bytes(), end.to_be_bytes()].concat()),
                None => batch.delete(&key),
            }
        }
    }
}

/// The key of a file of an agent.
pub(crate) fn key(node: u32, agent: &str, file: u64) -> Vec<u8> {
    let mut key = keys::of_agent(node, keys::POSITION, agent);
    key.extend_from_slice(&file.to_be_bytes());
    key
}
