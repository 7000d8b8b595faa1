//! Key streams of a range of chunk counters, indexed by what they encrypt.
use super::ResyncStart;
use crate::{cipher::Cipher, input::Role, reassembly::METADATA};

/// Bytes of memory for each counter of a table.
pub(super) const COUNTER_BYTES: usize = size_of::<u64>() + size_of::<(u32, u32)>();

/// Key streams over the first 6 plain bytes of a chunk (length and tag of a message), for the first counters of a search
/// (`ResyncStart::counter`).
#[derive(Debug)]
pub(super) struct KeyStreamTable {
    pub(super) role: Role,
    cipher: Cipher,
    /// Key stream over length and tag (48 bits), by the counter's index.
    heads: Vec<u64>,
    /// (key stream over the length, index of the counter), sorted.
    by_length: Vec<(u32, u32)>,
}

impl KeyStreamTable {
    pub(super) fn new(role: Role, cipher: &Cipher) -> Self {
        Self { role, cipher: cipher.clone(), heads: Vec::new(), by_length: Vec::new() }
    }

    /// Extends the table to the first `size` counters of the search.
    pub(super) fn extend(&mut self, start: &ResyncStart, size: u64) {
        let added = usize::try_from(size).unwrap_or(usize::MAX).saturating_sub(self.heads.len());
        self.heads.reserve_exact(added);
        self.by_length.reserve_exact(added);
        for index in self.heads.len() as u64..size {
            let head = self.cipher.head_stream(start.counter(index) - METADATA);
            self.heads.push(head);
            self.by_length.push(((head >> 16) as u32, index as u32));
        }
        self.by_length.sort_unstable();
    }

    /// Indexes of the counters whose key stream over the length is `key_stream`.
    pub(super) fn with_length_stream(&self, key_stream: u32) -> impl Iterator<Item = u64> {
        let first = self.by_length.partition_point(|(key, _)| *key < key_stream);
        self.by_length
            .iter()
            .skip(first)
            .take_while(move |(key, _)| *key == key_stream)
            .map(|(_, index)| u64::from(*index))
    }

    /// (Index, key stream over length and tag) of every counter.
    pub(super) fn heads(&self) -> impl Iterator<Item = (u64, u64)> {
        (0..).zip(self.heads.iter().copied())
    }

    /// Whether the content of a chunk (tag and cipher text) authenticates with this counter.
    pub(super) fn verify(&self, counter: u64, content: &[u8]) -> bool {
        self.cipher.verify(counter - METADATA, content)
    }
}
