//! Splits a byte stream into chunks: a u16 length and that many bytes. Buffers at most one chunk.
use std::borrow::Cow;

use bytes::Bytes;

use crate::memory::{Buffer, MemoryBudget, Share};

/// Length of a chunk's length prefix, in bytes.
pub const PREFIX_BYTES: usize = 2;

/// Maximum length of a chunk on the wire, in bytes.
pub const MAX_CHUNK_BYTES: usize = PREFIX_BYTES + u16::MAX as usize;

/// Bytes of an incomplete chunk that are buffered whatever the memory budget, the length prefix among them.
const FREE_BYTES: usize = 64;

/// The content length announced by the first bytes of a chunk.
pub(crate) fn content_length(bytes: &[u8]) -> Option<usize> {
    bytes.first_chunk::<PREFIX_BYTES>().map(|prefix| usize::from(u16::from_be_bytes(*prefix)))
}

/// Buffer of the incomplete chunk at the end of a stream.
#[derive(Debug)]
pub struct Framer {
    pending: Buffer,
}

impl Default for Framer {
    fn default() -> Self {
        Self::new(&MemoryBudget::default())
    }
}

impl Framer {
    /// An empty buffer of this budget.
    pub fn new(budget: &MemoryBudget) -> Self {
        Self { pending: Buffer::new(budget, Share::Whole, FREE_BYTES) }
    }

    /// Removes the next whole chunk (length prefix included) from the stream's next bytes. Without a whole chunk,
    /// buffers all of them and returns `None`; bytes that remain then are more than the memory budget has, and follow
    /// the buffered beginning of the chunk, of which at least the length prefix is there.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Option<Cow<'a, [u8]>> {
        if self.pending.is_empty()
            && let Some(length) = content_length(input)
            && let Some((chunk, rest)) = input.split_at_checked(PREFIX_BYTES + length)
        {
            *input = rest;
            return Some(Cow::Borrowed(chunk));
        }
        self.fill(PREFIX_BYTES, input);
        let total = PREFIX_BYTES + content_length(&self.pending)?;
        self.fill(total, input);
        (self.pending.len() == total).then(|| Cow::Owned(self.pending.take()))
    }

    /// Moves bytes from the input into the buffer until it has `total` bytes, if the memory budget has them.
    fn fill(&mut self, total: usize, input: &mut &[u8]) {
        let taken = total.saturating_sub(self.pending.len()).min(input.len());
        let (head, rest) = input.split_at(taken);
        if self.pending.extend(head, total) {
            *input = rest;
        }
    }

    /// Bytes of the incomplete chunk.
    pub fn pending(&self) -> &[u8] {
        &self.pending
    }

    /// Takes the bytes of the incomplete chunk.
    pub fn take(&mut self) -> Vec<u8> {
        self.pending.take()
    }
}

/// A chunk as [`Bytes`]; copies if it is borrowed.
pub(crate) fn into_bytes(chunk: Cow<'_, [u8]>) -> Bytes {
    match chunk {
        Cow::Borrowed(chunk) => Bytes::copy_from_slice(chunk),
        Cow::Owned(chunk) => chunk.into(),
    }
}
