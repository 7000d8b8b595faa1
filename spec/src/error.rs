//! Why a configuration is refused: each variant names the place and the value.

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not TOML, a value of the wrong type, or an unknown key; the text holds line and column.
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    /// There is nothing to observe.
    #[error("no [[nodes]] entry: name at least one node, for example by `p2p_port = 9732`")]
    NoNodes,
    /// An entry says nothing about which process it means.
    #[error("nodes[{index}]: one of p2p_port, pid, exe, container must say which process is meant")]
    NoTarget {
        /// Position in the file, from 0.
        index: usize,
    },
    /// Two entries have the same name.
    #[error("nodes[{index}]: the name {name:?} is taken by an earlier entry")]
    DuplicateName {
        /// Position in the file, from 0.
        index: usize,
        /// The name.
        name: String,
    },
    /// A name or alias that could not be written into a URL path or shown in a terminal as it is.
    #[error(
        "nodes[{index}]: {name:?} is no name: use letters, digits and . _ : @ -, at most 253 of them, \
         with at most one / between two such parts"
    )]
    BadName {
        /// Position in the file, from 0.
        index: usize,
        /// The name.
        name: String,
    },
    /// A port of 0.
    #[error("nodes[{index}]: {key} must not be 0")]
    ZeroPort {
        /// Position in the file, from 0.
        index: usize,
        /// Which key.
        key: &'static str,
    },
    /// A limit of 0, which would keep nothing.
    #[error("nodes[{index}]: retention.{key} must not be 0; leave it out for no limit")]
    ZeroLimit {
        /// Position in the file, from 0.
        index: usize,
        /// Which key.
        key: &'static str,
    },
    /// Snapshots without pause, or none that is kept.
    #[error("nodes[{index}]: memory.snapshots.{key} must not be 0")]
    ZeroSnapshots {
        /// Position in the file, from 0.
        index: usize,
        /// Which key.
        key: &'static str,
    },
    /// A key given in its old and in its new spelling.
    #[error("{place}: both {old} and {new} are given; keep {new}")]
    Twice {
        /// Where: "top level" or "nodes[0]".
        place: String,
        /// The old spelling.
        old: &'static str,
        /// The new spelling.
        new: &'static str,
    },
}
