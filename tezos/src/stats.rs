//! Byte, chunk and message totals of a conversation.
use std::ops::{Add, AddAssign};

/// Running totals of one direction or, added up, of several.
///
/// ```text
/// captured = in_chunks + not_protocol + skipped + pending
/// chunks   = opened + undecryptable                        (a clear chunk counts as opened)
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStats {
    /// Bytes pushed into the conversation.
    pub captured: u64,
    /// Bytes of the emitted chunks, length prefixes included.
    pub in_chunks: u64,
    /// Bytes of connections that use another protocol.
    pub not_protocol: u64,
    /// Bytes that could not be assigned to a chunk.
    pub skipped: u64,
    /// Buffered bytes: an incomplete chunk, bytes before the keys are derived, or the window of a resynchronisation. 0
    /// once the conversation is finished.
    pub pending: u64,
    /// Bytes that were never captured. Not part of `captured`.
    pub lost: u64,
    /// Emitted chunks.
    pub chunks: u64,
    /// Emitted chunks with plain text.
    pub opened: u64,
    /// Emitted chunks without plain text.
    pub undecryptable: u64,
    /// Emitted messages.
    pub messages: u64,
    /// Emitted gaps.
    pub gaps: u64,
    /// Emitted messages that were not decoded because the [`MemoryBudget`](crate::MemoryBudget) was exhausted.
    pub messages_undecoded: u64,
    /// Incomplete chunks that were skipped because the memory budget was exhausted.
    pub chunks_unbuffered: u64,
    /// Windows of searches that were skipped because the memory budget was exhausted.
    pub windows_dropped: u64,
}

impl StreamStats {
    /// Whether the totals add up (the two equations of [`StreamStats`]).
    pub fn is_balanced(&self) -> bool {
        self.captured == self.in_chunks + self.not_protocol + self.skipped + self.pending
            && self.chunks == self.opened + self.undecryptable
    }
}

impl AddAssign for StreamStats {
    fn add_assign(&mut self, other: Self) {
        self.captured += other.captured;
        self.in_chunks += other.in_chunks;
        self.not_protocol += other.not_protocol;
        self.skipped += other.skipped;
        self.pending += other.pending;
        self.lost += other.lost;
        self.chunks += other.chunks;
        self.opened += other.opened;
        self.undecryptable += other.undecryptable;
        self.messages += other.messages;
        self.gaps += other.gaps;
        self.messages_undecoded += other.messages_undecoded;
        self.chunks_unbuffered += other.chunks_unbuffered;
        self.windows_dropped += other.windows_dropped;
    }
}

impl Add for StreamStats {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}
