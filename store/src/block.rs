//! The block of ids that is being filled, of one kind of fact: its zone and postings in memory, written when they changed.

use std::collections::HashMap;

use chainscope_proto::v1::Record;

use crate::{
    engine::Batch,
    keys,
    kind::FactKind,
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
    kind: &'static FactKind,
    start: u64,
    zone: Zone,
    changed: bool,
    /// Of each index, by value.
    postings: Vec<HashMap<Box<[u8]>, Posting>>,
}

impl Block {
    /// The block that `id` will go into.
    pub(crate) fn at(kind: &'static FactKind, id: u64) -> Self {
        let postings = kind.indexes.iter().map(|_| HashMap::new()).collect();
        Self { kind, start: block_of(id), zone: Zone::NONE, changed: false, postings }
    }

    /// Whether `id` belongs to it.
    pub(crate) fn holds(&self, id: u64) -> bool {
        block_of(id) == self.start
    }

    pub(crate) fn add(&mut self, id: u64, record: &Record) {
        self.zone.add((self.kind.time)(record));
        self.changed = true;
        for (index, postings) in self.kind.indexes.iter().zip(&mut self.postings) {
            (index.values)(record, &mut |value| {
                let value = keys::cut(value);
                // Looked up first: nearly always the value is known, and its key need not be copied.
                let posting = match postings.get_mut(value) {
                    Some(posting) => posting,
                    None => postings.entry(value.into()).or_default(),
                };
                posting.bits.insert(id);
                posting.changed = true;
            });
        }
    }

    /// Puts what changed into a batch.
    pub(crate) fn stage(&mut self, batch: &mut Batch, node: u32, segment: u32) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        batch.put(&keys::row(node, segment, self.kind.zones(), self.start), &self.zone.encode());
        for (index, postings) in self.postings.iter_mut().enumerate() {
            #[expect(clippy::iter_over_hash_type, reason = "the order of entries in a batch has no effect")]
            for (value, posting) in postings {
                if std::mem::take(&mut posting.changed) {
                    let mut key = keys::posting_prefix(node, segment, self.kind.index_table(index), value);
                    key.extend_from_slice(&self.start.to_be_bytes());
                    batch.put_with(&key, |out| posting.bits.encode(out));
                }
            }
        }
    }

    /// Marks everything as written: for a block that was read back.
    #[expect(clippy::disallowed_methods, reason = "each posting by itself")]
    pub(crate) fn mark_written(&mut self) {
        self.changed = false;
        self.postings.iter_mut().flat_map(HashMap::values_mut).for_each(|posting| posting.changed = false);
    }
}
