//! What can be wrong with files and addresses.

use std::{io, path::PathBuf};

/// Why there is no certificate, no token or no connection. No error shows what is in a key or a token.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that cannot be read, or that is too long to be what it should be.
    #[error("cannot read {path}: {cause}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// Certificates or a key that are none.
    #[error("{what}: {cause}")]
    Pem {
        /// Which, as the file's path.
        what: String,
        /// Why.
        cause: String,
    },
    /// A file that should hold a token and does not.
    #[error("no token in {path}: {cause}", path = .path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: &'static str,
    },
    /// An address that nothing can be reached at.
    #[error("the address {uri:?}: {cause}")]
    Address {
        /// As given.
        uri: String,
        /// Why.
        cause: String,
    },
    /// The other side does not answer, or is not who it should be.
    #[error("cannot connect to {uri}: {cause}")]
    Connect {
        /// Whom to.
        uri: String,
        /// Why, with its causes.
        cause: String,
    },
    /// The library refuses the settings.
    #[error("tls: {0}")]
    Tls(#[from] rustls::Error),
}
