//! Errors of files, addresses and connections.

use std::{io, path::PathBuf};

/// Error of a certificate, a token or a connection. No message contains a key or a token.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read, or is too large.
    #[error("cannot read {path}: {cause}", path = .path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        cause: io::Error,
    },
    /// Certificates or a key are invalid.
    #[error("{what}: {cause}")]
    Pem {
        /// Path of the files.
        what: String,
        /// Cause.
        cause: String,
    },
    /// A file contains no valid token.
    #[error("no valid token in {path}: {cause}", path = .path.display())]
    Token {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        cause: &'static str,
    },
    /// An address is invalid.
    #[error("invalid address {uri:?}: {cause}")]
    Address {
        /// Configured address.
        uri: String,
        /// Cause.
        cause: String,
    },
    /// The server is unreachable, or its certificate is not trusted.
    #[error("cannot connect to {uri}: {cause}")]
    Connect {
        /// Configured address.
        uri: String,
        /// Cause, with its own causes.
        cause: String,
    },
    /// rustls rejects the configuration.
    #[error("tls: {0}")]
    Tls(#[from] rustls::Error),
}
