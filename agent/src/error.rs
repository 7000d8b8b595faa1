//! Errors of an agent.

use std::{io, net::SocketAddr, path::PathBuf};

/// An error that prevents an agent from running.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is invalid.
    #[error("configuration: {0}")]
    Config(String),
    /// The kernel part could not be loaded.
    #[error(transparent)]
    Probe(#[from] chainscope_ebpf::Error),
    /// A file of the data directory could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file of the data directory has unexpected content.
    #[error("{path}: {what}")]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// A syslog server cannot listen.
    #[error("syslog on {address}: {source}")]
    Syslog {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The address of an aggregator cannot be used.
    #[error("aggregator address {uri:?}: {cause}")]
    Address {
        /// The address as given.
        uri: String,
        /// The fault.
        cause: String,
    },
    /// A thread could not be started.
    #[error("thread {name:?}: {source}")]
    Thread {
        /// Its name.
        name: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The machine lacks a prerequisite of recording.
    #[error("{0}")]
    Unsupported(String),
}

impl Error {
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}
