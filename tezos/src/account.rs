//! Where the bytes of a conversation went.
use std::ops::{Add, AddAssign};

/// Running totals of one direction or, added up, of more.
///
/// ```text
/// captured = in_chunks + not_protocol + skipped + pending
/// chunks   = opened + undecryptable                        (a clear chunk counts as opened)
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Bytes that were given to the conversation.
    pub captured: u64,
    /// Bytes of the chunks that came out, length prefixes included.
    pub in_chunks: u64,
    /// Bytes of connections that speak another protocol.
    pub not_protocol: u64,
    /// Bytes that belong to no chunk that could be found.
    pub skipped: u64,
    /// Bytes that wait for the rest of their chunk, for the other direction's connection message, or for a search.
    pub pending: u64,
    /// Bytes that were never captured. Not a part of `captured`.
    pub lost: u64,
    /// Chunks that came out.
    pub chunks: u64,
    /// Of these, with plain text.
    pub opened: u64,
    /// Of these, without.
    pub undecryptable: u64,
    /// Messages that came out.
    pub messages: u64,
    /// Gaps that were reported.
    pub gaps: u64,
}

impl Account {
    /// Do the totals add up?
    pub fn holds(&self) -> bool {
        self.captured == self.in_chunks + self.not_protocol + self.skipped + self.pending
            && self.chunks == self.opened + self.undecryptable
    }
}

impl AddAssign for Account {
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
    }
}

impl Add for Account {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}
