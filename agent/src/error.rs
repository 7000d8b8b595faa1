//! Why an agent cannot run.

use std::{io, path::PathBuf};

/// Why an agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration cannot work.
    #[error("configuration: {0}")]
    Config(String),
    /// The kernel part could not be loaded.
    #[error(transparent)]
    Probe(#[from] chainscope_ebpf::Error),
    /// A file of the data folder could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file of the data folder holds something else than it should.
    #[error("{path}: {what}")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The address of an aggregator cannot be used.
    #[error("aggregator address {uri:?}: {cause}")]
    Address {
        /// As given.
        uri: String,
        /// What is wrong with it.
        cause: String,
    },
    /// A thread could not be started.
    #[error("thread {name:?}: {source}")]
    Thread {
        /// Its name.
        name: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The machine lacks something without which nothing can be recorded.
    #[error("{0}")]
    Unfit(String),
}

impl Error {
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}
