//! Size limits of a batch of records.

/// Maximum encoded bytes of a batch, unless one record alone is larger.
pub(crate) const MAX_BATCH_BYTES: usize = 1 << 20;

/// Encoded bytes of the fields of a batch other than its node and records, at most.
const HEADER_BYTES: usize = 64;

/// Bytes that the tag and the length of a record take in a batch, at most.
pub(super) const RECORD_TAG_BYTES: usize = 6;

/// Encoded bytes of records, tags included, that fit into one batch of the node.
pub(super) fn max_record_bytes(node: &str) -> usize {
    MAX_BATCH_BYTES.saturating_sub(node.len() + HEADER_BYTES)
}
