//! Errors of the configuration; each names the position and the value.

use std::{net::SocketAddr, path::PathBuf};

use crate::{RedactionError, TraceError};

/// Error of parsing or validating a configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Invalid TOML, a value of the wrong type, or an unknown key; the message contains line and column.
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    /// There are no nodes.
    #[error("no [[nodes]] entry: add at least one node, for example by `p2p_port = 9732`")]
    NoNodes,
    /// An entry does not select a process.
    #[error("nodes[{index}]: one of p2p_port, pid, exe, container is required to select the process")]
    NoTarget {
        /// Index of the entry, from 0.
        index: usize,
    },
    /// Two entries have the same name.
    #[error("nodes[{index}]: the name {name:?} is used by an earlier entry")]
    DuplicateName {
        /// Index of the entry, from 0.
        index: usize,
        /// Name of the node.
        name: String,
    },
    /// A name or alias with characters that are not allowed in URL paths or not safe in terminals.
    #[error(
        "nodes[{index}]: invalid name {name:?}: use at most 253 letters, digits and . _ : @ -, \
         in one part or two parts separated by /"
    )]
    InvalidName {
        /// Index of the entry, from 0.
        index: usize,
        /// Name of the node.
        name: String,
    },
    /// A port of 0.
    #[error("nodes[{index}]: {key} must not be 0")]
    ZeroPort {
        /// Index of the entry, from 0.
        index: usize,
        /// Name of the key.
        key: &'static str,
    },
    /// A retention limit of 0, which would keep nothing.
    #[error("nodes[{index}]: {key} must not be 0; leave it out for no limit")]
    ZeroLimit {
        /// Index of the entry, from 0.
        index: usize,
        /// Name of the key.
        key: String,
    },
    /// A snapshot interval or limit of 0.
    #[error("nodes[{index}]: memory.snapshots.{key} must not be 0")]
    ZeroSnapshots {
        /// Index of the entry, from 0.
        index: usize,
        /// Name of the key.
        key: &'static str,
    },
    /// A pattern of `logs.redact`.
    #[error("nodes[{index}]: logs.redact: {cause}")]
    Redaction {
        /// Index of the entry, from 0.
        index: usize,
        /// The fault.
        cause: RedactionError,
    },
    /// An option of `trace`.
    #[error("nodes[{index}]: trace.{cause}")]
    Trace {
        /// Index of the entry, from 0.
        index: usize,
        /// The fault.
        cause: TraceError,
    },
    /// An entry without anything to record.
    #[error("nodes[{index}]: network.enabled is false, and neither memory, logs nor trace is enabled")]
    NothingObserved {
        /// Index of the entry, from 0.
        index: usize,
    },
    /// Two nodes with the same log file.
    #[error("nodes[{index}]: logs.file {path:?} is the file of nodes[{earlier}], too")]
    SameLogFile {
        /// Index of the entry, from 0.
        index: usize,
        /// Index of the other one.
        earlier: usize,
        /// The file.
        path: PathBuf,
    },
    /// A log file whose path depends on the working directory.
    #[error("nodes[{index}]: logs.file {path:?} must be an absolute path")]
    RelativeLogFile {
        /// Index of the entry, from 0.
        index: usize,
        /// The file.
        path: PathBuf,
    },
    /// Two nodes whose syslog messages cannot be distinguished.
    #[error(
        "nodes[{index}]: logs.syslog listens on {listen} as nodes[{earlier}] does: give both an app, or both a host, that differ"
    )]
    SameSyslog {
        /// Index of the entry, from 0.
        index: usize,
        /// Index of the other one.
        earlier: usize,
        /// The address.
        listen: SocketAddr,
    },
    /// A legacy key together with its replacement.
    #[error("{place}: both {old} and {new} are given; remove {old}")]
    LegacyAndNew {
        /// Position: "top level" or "nodes[0]".
        place: String,
        /// Legacy key.
        old: &'static str,
        /// Replacement.
        new: &'static str,
    },
}
