//! Bounds on the memory and processing of a conversation.
use crate::message::MAX_MESSAGE_BYTES;

/// Bounds on the memory and processing of one conversation, whatever its peer sends.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum length of a connection message, in bytes. Real ones have about 110.
    pub max_connection_message_bytes: usize,
    /// Maximum number of bytes of one direction that are buffered until the other direction's connection message
    /// arrives.
    pub max_buffered_bytes: usize,
    /// Maximum number of bytes of one direction that are buffered until the identity is known.
    pub max_awaiting_identity_bytes: usize,
    /// Number of bytes without a connection message after which the connection is classified as another protocol.
    pub max_undecided_bytes: usize,
    /// Maximum value of a message's length prefix.
    pub max_message_bytes: u64,
    /// Maximum number of bytes of a message that are kept for decoding; the preview of a longer message covers these
    /// only.
    pub max_prefix_bytes: usize,
    /// Proof-of-work difficulty required of identities, in bits. A failure is reported as a comment only.
    pub proof_of_work_bits: f64,
    /// Size of the resynchronisation window, in bytes. At least twice the longest chunk.
    pub resync_window_bytes: usize,
    /// Maximum number of chunk counters that a resynchronisation tries.
    pub max_resync_counters: u64,
    /// Processing budget for the resynchronisations of one direction, in units of about 0.1 µs. Conversations with a
    /// [`MemoryBudget`](crate::MemoryBudget) share a further one.
    pub resync_budget: u64,
    /// Budget units added per byte of the stream.
    pub resync_budget_per_byte: u64,
    /// Budget units added per second.
    pub resync_budget_per_second: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connection_message_bytes: 1024,
            max_buffered_bytes: 32 << 10,
            max_awaiting_identity_bytes: 256 << 10,
            max_undecided_bytes: 4 << 10,
            max_message_bytes: MAX_MESSAGE_BYTES,
            max_prefix_bytes: 4 << 20,
            proof_of_work_bits: 26.0,
            resync_window_bytes: 192 << 10,
            max_resync_counters: 1 << 18,
            resync_budget: 5_000_000,
            resync_budget_per_byte: 1,
            resync_budget_per_second: 200_000,
        }
    }
}
