//! Errors of merging states.

/// Why a state of an agent was rejected: it is inconsistent or too large. The text is shown in the agent's log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// A sequence of 0; states are numbered from 1.
    #[error("state has sequence 0")]
    NoSequence,
    /// A delta whose base is not older than itself.
    #[error("delta {sequence} is based on state {base}, which is not older")]
    BaseAhead {
        /// Sequence of the state.
        sequence: u64,
        /// Sequence of the base.
        base: u64,
    },
    /// A delta whose base was not received.
    #[error("delta is based on state {base}, but the last merged state is {merged}")]
    Gap {
        /// Sequence of the base.
        base: u64,
        /// Sequence of the last merged state.
        merged: u64,
    },
    /// A missing part.
    #[error("part {found} of state {sequence} received, expected part {expected}")]
    PartMissing {
        /// Sequence of the state.
        sequence: u64,
        /// Expected part.
        expected: usize,
        /// Received part.
        found: u32,
    },
    /// Ids that are not contiguous.
    #[error("{what} begin at id {first}, the next id is {next}")]
    Hole {
        /// Column: strings, frames or nodes.
        what: &'static str,
        /// First id in the state.
        first: u64,
        /// Next free id.
        next: u64,
    },
    /// A reference to an id that does not exist.
    #[error("reference to {what} {id}, but there are {count}")]
    Dangling {
        /// Kind of reference: string, frame or node.
        what: &'static str,
        /// Referenced id.
        id: u64,
        /// Number of entries.
        count: u64,
    },
    /// Related columns of different lengths.
    #[error("columns of {what} have {left} and {right} entries")]
    Uneven {
        /// Name of the columns.
        what: &'static str,
        /// Length of the first column.
        left: usize,
        /// Length of the second column.
        right: usize,
    },
    /// A node that was sent before with another parent or frame.
    #[error("node {node} changed its position in the tree")]
    NodeChanged {
        /// Number of the node.
        node: u64,
    },
    /// An invalid page size.
    #[error("page size {0} is not a power of two from 1 KiB to 1 GiB")]
    PageBytes(u32),
    /// A limit is exceeded.
    #[error("more than {max} {what}")]
    LimitExceeded {
        /// Limited quantity.
        what: &'static str,
        /// Maximum.
        max: usize,
    },
}
