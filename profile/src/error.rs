//! Why a state is not taken.

/// What contradicts itself, or is too much, in what an agent sent. The text is meant for the agent's log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// States are numbered from 1.
    #[error("a state has the sequence 0")]
    NoSequence,
    /// A delta's base is not newer than the delta.
    #[error("the delta {sequence} is of the later state {base}")]
    BaseAhead {
        /// The state's sequence.
        sequence: u64,
        /// Its base.
        base: u64,
    },
    /// What the delta is of never came, or is forgotten.
    #[error("a delta of state {base}, where state {merged} is the last one that was merged")]
    Gap {
        /// The delta's base.
        base: u64,
        /// The last merged state.
        merged: u64,
    },
    /// Parts of a state are missing.
    #[error("part {found} of state {sequence}, where part {expected} should come")]
    PartMissing {
        /// The state's sequence.
        sequence: u64,
        /// The part that should have come.
        expected: usize,
        /// The part that came.
        found: u32,
    },
    /// Ids are given in order.
    #[error("{what} begin at {first}, where {next} would be next")]
    Hole {
        /// Strings, frames or nodes.
        what: &'static str,
        /// The first id given.
        first: u64,
        /// The id that would follow what is there.
        next: u64,
    },
    /// Something is named that is not there.
    #[error("{what} {id} is named, there are {count}")]
    Dangling {
        /// A string, frame or node.
        what: &'static str,
        /// Its id.
        id: u64,
        /// How many there are.
        count: u64,
    },
    /// Columns that belong together have different lengths.
    #[error("columns of {what} have {left} and {right} entries")]
    Uneven {
        /// Which columns.
        what: &'static str,
        /// Length of the one.
        left: usize,
        /// Length of the other.
        right: usize,
    },
    /// A node was sent before, and otherwise.
    #[error("node {node} changed its place in the tree")]
    NodeChanged {
        /// The node.
        node: u64,
    },
    /// A page has an unusable size.
    #[error("pages of {0} bytes: a power of two from 1024 to 1 GiB is possible")]
    PageBytes(u32),
    /// There is more than is taken.
    #[error("more than {most} {what}")]
    TooMuch {
        /// Of what.
        what: &'static str,
        /// How much is taken.
        most: usize,
    },
}
