//! The block of messages that is being filled: its zone and postings in memory, written when something changed.

use std::collections::HashMap;

use chainscope_proto::v1::Message;

use crate::{
    engine::Batch,
    index, keys,
    meta::Zone,
    posting::{Bits, block_of},
};

#[derive(Default)]
struct Posting {
    bits: Bits,
    changed: bool,
}

/// Zone and postings of one block within one segment.
pub(crate) struct Block {
    start: u64,
    zone: Zone,
    changed: bool,
    postings: [HashMap<Box<[u8]>, Posting>; keys::INDEXES.len()],
}

impl Block {
    /// The block that `id` will go into.
    pub(crate) fn at(id: u64) -> Self {
        Self { start: block_of(id), zone: Zone::NONE, changed: false, postings: Default::default() }
    }

    /// Whether `id` belongs to it.
    pub(crate) fn holds(&self, id: u64) -> bool {
        block_of(id) == self.start
    }

    pub(crate) fn add(&mut self, id: u64, time_ns: i64, target: &str, message: &Message) {
        self.zone.add(time_ns);
        self.changed = true;
        index::values(target, message, |table, value| {
            let Some(postings) = self.postings.get_mut(table) else { return };
            // Looked up first: nearly always the value is known, and its key need not be copied.
            let posting = match postings.get_mut(value) {
                Some(posting) => posting,
                None => postings.entry(value.into()).or_default(),
            };
            posting.bits.insert(id);
            posting.changed = true;
        });
    }

    /// Puts what changed into a batch.
    pub(crate) fn stage(&mut self, batch: &mut Batch, node: u32, segment: u32) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        batch.put(&keys::row(keys::ZONE, node, segment, self.start), &self.zone.encode());
        for (table, postings) in keys::INDEXES.into_iter().zip(&mut self.postings) {
            for (value, posting) in postings {
                if std::mem::take(&mut posting.changed) {
                    let mut key = keys::posting_prefix(table, node, segment, value);
                    key.extend_from_slice(&self.start.to_be_bytes());
                    batch.put_with(&key, |out| posting.bits.encode(out));
                }
            }
        }
    }

    /// Marks everything as written: for a block that was read back.
    pub(crate) fn settle(&mut self) {
        self.changed = false;
        self.postings.iter_mut().flat_map(HashMap::values_mut).for_each(|posting| posting.changed = false);
    }
}
