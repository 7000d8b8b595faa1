//! Why the aggregator could not start.

use std::{io, net::SocketAddr, path::PathBuf};

/// Why the aggregator could not start, or did not end as it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A thread could not be started.
    #[error("cannot start the thread {name}: {source}")]
    Thread {
        /// Its name.
        name: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file that is needed cannot be used.
    #[error("cannot use {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// An address of another program that cannot be one.
    #[error("the address {address:?}: {why}")]
    Address {
        /// The address.
        address: String,
        /// What is wrong with it.
        why: String,
    },
    /// Certificates or addresses of other programs.
    #[error(transparent)]
    Tls(#[from] chainscope_tls::Error),
    /// A configured name cannot be a node's.
    #[error("{name:?} cannot be the name of a node: {why}")]
    NodeName {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Two configured nodes have one name.
    #[error("two nodes are called {name:?}")]
    DuplicateNode {
        /// The name.
        name: String,
    },
    /// The store refused.
    #[error(transparent)]
    Store(#[from] chainscope_store::Error),
}
